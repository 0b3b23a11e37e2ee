//! `eth_fillTransaction`: a transaction ready to be signed, with geth's defaults for members that
//! the caller leaves out.

use super::{call_object::CallObject, fees::suggested_tip};
use crate::{
    chain::{
        evm::{self, CallInput, CallRequest, Deadline, EstimateError, Overrides},
        unsigned::{TxNumbers, UnsignedCallTx},
        view::View,
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        params::Args,
    },
};
use alloy_consensus::{Transaction, Typed2718};
use alloy_eips::{eip2930::AccessList, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, U64, U128, U256};
use serde::Serialize;
use std::sync::Arc;

/// The members of an unsigned transaction, as geth prints them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UnsignedJson {
    #[serde(rename = "type")]
    ty: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain_id: Option<U64>,
    nonce: U64,
    to: Option<Address>,
    gas: U64,
    gas_price: Option<U128>,
    max_priority_fee_per_gas: Option<U128>,
    max_fee_per_gas: Option<U128>,
    value: U256,
    input: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_list: Option<AccessList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorization_list: Option<Vec<SignedAuthorization>>,
    v: U64,
    r: U64,
    s: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    y_parity: Option<U64>,
    hash: B256,
}

impl UnsignedJson {
    fn new(UnsignedCallTx { tx, hash, .. }: &UnsignedCallTx) -> Self {
        let typed = tx.ty() != 0;
        Self {
            ty: U64::from(tx.ty()),
            chain_id: tx.chain_id().map(U64::from),
            nonce: U64::from(tx.nonce()),
            to: tx.to(),
            gas: U64::from(tx.gas_limit()),
            gas_price: tx.gas_price().map(U128::from),
            max_priority_fee_per_gas: tx.max_priority_fee_per_gas().map(U128::from),
            max_fee_per_gas: tx
                .is_dynamic_fee()
                .then(|| U128::from(tx.max_fee_per_gas())),
            value: tx.value(),
            input: tx.input().clone(),
            access_list: tx.access_list().cloned(),
            authorization_list: tx.authorization_list().map(<[_]>::to_vec),
            v: U64::ZERO,
            r: U64::ZERO,
            s: U64::ZERO,
            y_parity: typed.then_some(U64::ZERO),
            hash: *hash,
        }
    }
}

#[derive(Serialize)]
struct FilledJson {
    raw: Bytes,
    tx: UnsignedJson,
}

pub fn fill_transaction(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let call: CallObject = args.at_most(1)?.required()?;
    let chain_id = context.chain.spec.chain_id;
    let mut input = call.into_transaction(chain_id)?;
    let view = context.view();
    set_fees(context, &view, &mut input)?;
    if input.to.is_none() && input.data.is_empty() {
        return Err(RpcError::server(
            "contract creation without any data provided",
        ));
    }
    let nonce = match input.nonce {
        Some(nonce) => nonce,
        None => {
            let account = view.state().account(input.from)?;
            let nonce = account.map_or(0, |account| account.nonce);
            context.chain.pool.next_nonce(&input.from, nonce)
        }
    };
    let gas = match input.gas {
        Some(gas) => gas,
        None if input.from.is_zero() => estimate(context, &view, &without_price(&input), deadline)?,
        None => estimate(context, &view, &input, deadline)?,
    };
    let numbers = TxNumbers {
        nonce,
        gas,
        chain_id,
    };
    let filled = UnsignedCallTx::new(&input, numbers)
        .map_err(|error| RpcError::invalid_params(error.to_string()))?;
    reply(FilledJson {
        raw: filled.raw.clone(),
        tx: UnsignedJson::new(&filled),
    })
}

/// The call without gas prices: its sender then needs no balance for the gas.
fn without_price(input: &CallInput) -> CallInput {
    CallInput {
        gas_price: None,
        max_fee_per_gas: None,
        max_priority_fee_per_gas: None,
        ..input.clone()
    }
}

/// Sets suggested fees where the caller gives none, and refuses inconsistent fees with geth's
/// texts.
fn set_fees(context: &RpcContext, view: &View, input: &mut CallInput) -> Result<(), RpcError> {
    if let Some(price) = input.gas_price {
        let dynamic = input.max_fee_per_gas.or(input.max_priority_fee_per_gas);
        let problem = if dynamic.is_some() {
            "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified"
        } else if !input.authorizations().is_empty() {
            "both gasPrice and authorizationList specified"
        } else if price == 0 {
            "gasPrice must be non-zero after london fork"
        } else {
            return Ok(());
        };
        return Err(RpcError::server(problem));
    }
    if input.max_fee_per_gas == Some(0) && input.max_priority_fee_per_gas.is_some() {
        return Err(RpcError::server("maxFeePerGas must be non-zero"));
    }
    let tip = match input.max_priority_fee_per_gas {
        Some(tip) => tip,
        None => suggested_tip(context, view)?,
    };
    let base_fee = u128::from(view.header().base_fee_per_gas.unwrap_or(0));
    let suggested = tip.saturating_add(base_fee.saturating_mul(2));
    let fee = input.max_fee_per_gas.unwrap_or(suggested);
    if fee < tip {
        return Err(RpcError::server(format!(
            "maxFeePerGas ({fee:#x}) < maxPriorityFeePerGas ({tip:#x})"
        )));
    }
    input.max_fee_per_gas = Some(fee);
    input.max_priority_fee_per_gas = Some(tip);
    Ok(())
}

fn estimate(
    context: &RpcContext,
    view: &Arc<View>,
    input: &CallInput,
    deadline: &Deadline,
) -> Result<u64, RpcError> {
    let state = view.state();
    let estimated = evm::estimate_gas(CallRequest {
        spec: &context.chain.spec,
        block: state.header(),
        state: (&state).into(),
        input,
        overrides: &Overrides::default(),
        gas_cap: context.bounds.gas_cap,
        deadline: deadline.clone(),
    });
    estimated.map_err(|error| match error {
        EstimateError::Reverted { message, output } => RpcError::reverted(message, &output),
        error => RpcError::server(error.to_string()),
    })
}
