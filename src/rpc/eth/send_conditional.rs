//! `eth_sendRawTransactionConditional`: a transaction that a block may contain only if the state
//! and the block meet its conditions. It is served only with
//! `--rollup.sequencertxconditionalenabled`.
//!
//! The checks of conditions read the state, so a gate bounds their cost per second for all callers
//! together. Codes and texts are op-geth's.

use super::send::{admit, forward, off_the_runtime};
use crate::{
    chain::{
        pool::conditional::{
            ConditionState, Conditional, InvalidConditional, KnownAccount, MAX_COST, UnmetCondition,
        },
        view::{ReadError, State},
    },
    rpc::{
        context::RpcContext,
        cost_gate::CostGate,
        error::{Reply, RpcError, reply},
        json,
        params::{Arg, Args, Big, Quantity},
        route::TxRoute,
    },
};
use alloy_primitives::{Address, B256, Bytes};
use futures::{FutureExt, future::BoxFuture};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Error code: the transaction's conditions are not met.
const REJECTED: i32 = -32003;
/// Error code: the cost of the conditions is above a limit.
const COST: i32 = -32005;
/// Longest time that a call waits for the gate.
const PATIENCE: Duration = Duration::from_secs(5);

/// The second parameter, parsed, and as JSON that is forwarded to the sequencer.
struct ConditionalArg {
    conditional: Conditional,
    json: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionalMembers<'a> {
    known_accounts: Option<BTreeMap<Address, KnownAccountJson>>,
    #[serde(borrow)]
    block_number_min: Option<&'a RawValue>,
    #[serde(borrow)]
    block_number_max: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp_min: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp_max: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum KnownAccountJson {
    Root(B256),
    Slots(BTreeMap<B256, B256>),
}

impl From<KnownAccountJson> for KnownAccount {
    fn from(account: KnownAccountJson) -> Self {
        match account {
            KnownAccountJson::Root(root) => Self::Root(root),
            KnownAccountJson::Slots(slots) => Self::Slots(slots),
        }
    }
}

impl Arg for ConditionalArg {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: ConditionalMembers<'_> =
            json::read(json).map_err(|error| error.to_string())?;
        let known = members.known_accounts.unwrap_or_default().into_iter();
        let number = |value: Option<&RawValue>| {
            let value = value.map(|value| Big::from_json(value.get())).transpose()?;
            Ok::<_, String>(value.map(|Big(number)| number))
        };
        let time = |value: Option<&RawValue>| {
            let value = value.map(|value| Quantity::from_json(value.get()));
            Ok::<_, String>(value.transpose()?.map(|Quantity(time)| time))
        };
        Ok(Self {
            conditional: Conditional {
                known_accounts: known
                    .map(|(address, account)| (address, account.into()))
                    .collect(),
                block_number_min: number(members.block_number_min)?,
                block_number_max: number(members.block_number_max)?,
                timestamp_min: time(members.timestamp_min)?,
                timestamp_max: time(members.timestamp_max)?,
            },
            json: RawValue::from_string(json.to_owned()).map_err(|error| error.to_string())?,
        })
    }
}

impl From<InvalidConditional> for RpcError {
    fn from(error: InvalidConditional) -> Self {
        Self::new(REJECTED, format!("failed conditional validation: {error}"))
    }
}

/// The state of a view, against which conditions are checked.
struct ViewState<'a>(&'a State);

impl ConditionState for ViewState<'_> {
    type Error = ReadError;

    fn storage_root(&mut self, address: Address) -> Result<Option<B256>, ReadError> {
        Ok(self.0.account(address)?.map(|account| account.storage_root))
    }

    fn slot(&mut self, address: Address, key: B256) -> Result<B256, ReadError> {
        self.0.storage(address, key.into()).map(B256::from)
    }
}

pub fn send_raw_transaction_conditional(
    context: Arc<RpcContext>,
    args: Args,
) -> BoxFuture<'static, Reply> {
    async move {
        let Some(gate) = &context.conditional_gate else {
            let name = "eth_sendRawTransactionConditional";
            return Err(RpcError::method_not_found(name));
        };
        let mut args = args.at_most(2)?;
        let raw: Bytes = args.required()?;
        let ConditionalArg { conditional, json } = args.required()?;
        let cost = conditional.cost();
        if cost > MAX_COST {
            return Err(RpcError::new(
                COST,
                format!("conditional cost, {cost}, exceeded max: {MAX_COST}"),
            ));
        }
        conditional.validate()?;
        let conditional = Arc::new(conditional);
        let (own, checked) = (context.clone(), conditional.clone());
        off_the_runtime(&context, move || check(&own, &checked)).await?;
        pass(gate, cost).await?;
        let (own, sent) = (context.clone(), raw.clone());
        let decode = move || Ok(own.chain.pool.decode(sent)?);
        let mut tx = off_the_runtime(&context, decode).await?;
        if let TxRoute::Sequencer { client, .. } = &context.route {
            let params = format!(r#"["{raw}",{}]"#, json.get());
            return forward(client, "eth_sendRawTransactionConditional", &params).await;
        }
        tx.conditional = Some(conditional);
        let own = context.clone();
        reply(off_the_runtime(&context, move || admit(&own, tx)).await?)
    }
    .boxed()
}

/// Waits until the gate admits a check of this cost.
async fn pass(gate: &CostGate, cost: usize) -> Result<(), RpcError> {
    match gate.reserve(cost as u64, Instant::now(), PATIENCE) {
        Some(wait) => {
            tokio::time::sleep(wait).await;
            Ok(())
        }
        None => Err(RpcError::new(COST, format!("cost {cost} rate limited"))),
    }
}

/// Checks conditions at the head. Conditions on accounts are also checked at the head's parent, so
/// a client gains nothing by seeing the newest block first.
fn check(context: &RpcContext, conditional: &Conditional) -> Result<(), RpcError> {
    let rejected = |what: String, unmet: UnmetCondition| {
        RpcError::new(REJECTED, format!("failed {what} check: {unmet}"))
    };
    let view = context.view();
    let header = view.header();
    conditional
        .check_header(header.number, header.timestamp)
        .map_err(|unmet| rejected("header".to_owned(), unmet))?;
    if let Some(unmet) = conditional.unmet_by(&mut ViewState(&view.state()))? {
        return Err(rejected("state".to_owned(), unmet));
    }
    let Some(parent) = header.number.checked_sub(1) else {
        return Ok(());
    };
    let Some(state) = view.state_at(parent)? else {
        return Err(RpcError::server(format!(
            "state at block #{parent} is pruned"
        )));
    };
    match conditional.unmet_by(&mut ViewState(&state))? {
        Some(unmet) => {
            let what = format!("parent block {} state", header.parent_hash);
            Err(rejected(what, unmet))
        }
        None => Ok(()),
    }
}
