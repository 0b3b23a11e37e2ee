//! Overrides of accounts and of the block's environment, as parameters. All methods that simulate
//! read them here. Names and errors are geth's; some names of other clients are read too.

use crate::{
    chain::evm::BlockOverrides,
    rpc::{
        json::{entries, read},
        params::{Arg, Big, Json, Quantity, field, fixed_text, kind, unfit},
    },
};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, U256};
use alloy_rpc_types_eth::state::{AccountOverride, StateOverride};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Names of geth's types in its errors.
const ACCOUNT: &str = "OverrideAccount";
const BLOCK: &str = "BlockOverrides";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AccountMembers<'a> {
    #[serde(borrow)]
    nonce: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    balance: Option<&'a RawValue>,
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    #[serde(borrow)]
    state_diff: Option<&'a RawValue>,
    #[serde(borrow, rename = "movePrecompileToAddress")]
    move_precompile_to: Option<&'a RawValue>,
}

/// Storage slots that an override sets, with their values.
struct OverriddenSlots(Vec<(B256, B256)>);

impl Arg for OverriddenSlots {
    fn from_json(json: &str) -> Result<Self, String> {
        const TYPE: &str = "common.Hash";
        if kind(json) != "object" {
            return Err(unfit(kind(json), "map[common.Hash]common.Hash"));
        }
        let slots = entries(json).map_err(|error| error.to_string())?;
        let slot = |(key, value): (String, &RawValue)| {
            let key = fixed_text(&key, TYPE)?;
            Ok::<_, String>((B256::new(key), B256::from_json(value.get())?))
        };
        let slots = slots.into_iter().map(slot);
        slots.collect::<Result<_, _>>().map(Self)
    }
}

fn account(json: &str) -> Result<AccountOverride, String> {
    if json == "null" {
        return Ok(AccountOverride::default());
    }
    if kind(json) != "object" {
        return Err(unfit(kind(json), "override.OverrideAccount"));
    }
    let members: AccountMembers<'_> = read(json).map_err(|error| error.to_string())?;
    let slots = |name, value| {
        let slots = field::<OverriddenSlots>(ACCOUNT, name, value)?;
        Ok::<_, String>(slots.map(|OverriddenSlots(slots)| slots.into_iter().collect()))
    };
    Ok(AccountOverride {
        nonce: field(ACCOUNT, "nonce", members.nonce)?.map(|Quantity(nonce)| nonce),
        code: field(ACCOUNT, "code", members.code)?,
        balance: field(ACCOUNT, "balance", members.balance)?.map(|Big(balance)| balance),
        state: slots("state", members.state)?,
        state_diff: slots("stateDiff", members.state_diff)?,
        move_precompile_to: field(
            ACCOUNT,
            "movePrecompileToAddress",
            members.move_precompile_to,
        )?,
    })
}

impl Arg for StateOverride {
    fn from_json(json: &str) -> Result<Self, String> {
        if kind(json) != "object" {
            return Err(unfit(kind(json), "override.StateOverride"));
        }
        let accounts = entries(json).map_err(|error| error.to_string())?;
        let accounts = accounts.into_iter().map(|(address, json)| {
            let address = fixed_text(&address, "common.Address")?;
            Ok((Address::new(address), account(json.get())?))
        });
        accounts.collect()
    }
}

/// Members of block overrides. The aliases are names of older geths, Erigon and reth; `blockHash`
/// is theirs too.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BlockOverrideMembers<'a> {
    #[serde(borrow, alias = "blockNumber")]
    number: Option<&'a RawValue>,
    #[serde(borrow)]
    difficulty: Option<&'a RawValue>,
    #[serde(borrow, alias = "timestamp")]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    gas_limit: Option<&'a RawValue>,
    #[serde(borrow, alias = "coinbase")]
    fee_recipient: Option<&'a RawValue>,
    #[serde(borrow, alias = "random")]
    prev_randao: Option<&'a RawValue>,
    #[serde(borrow, alias = "baseFee")]
    base_fee_per_gas: Option<&'a RawValue>,
    #[serde(borrow)]
    blob_base_fee: Option<&'a RawValue>,
    #[serde(borrow, alias = "parentBeaconBlockRoot")]
    beacon_root: Option<&'a RawValue>,
    #[serde(borrow)]
    withdrawals: Option<&'a RawValue>,
    block_hash: Option<BTreeMap<u64, B256>>,
}

impl Arg for BlockOverrides {
    fn from_json(json: &str) -> Result<Self, String> {
        if kind(json) != "object" {
            return Err(unfit(kind(json), "override.BlockOverrides"));
        }
        let members: BlockOverrideMembers<'_> = read(json).map_err(|error| error.to_string())?;
        let number = |name, value| {
            let value = field::<Quantity>(BLOCK, name, value)?;
            Ok::<_, String>(value.map(|Quantity(value)| value))
        };
        let big = |name, value| {
            let value = field::<Big>(BLOCK, name, value)?;
            Ok::<_, String>(value.map(|Big(value)| value))
        };
        let base_fee = big("BaseFeePerGas", members.base_fee_per_gas)?;
        let blob_base_fee = big("BlobBaseFee", members.blob_base_fee)?;
        let withdrawals: Option<Json<Vec<Withdrawal>>> =
            field(BLOCK, "Withdrawals", members.withdrawals)?;
        Ok(Self {
            number: big("Number", members.number)?,
            difficulty: big("Difficulty", members.difficulty)?,
            time: number("Time", members.time)?,
            gas_limit: number("GasLimit", members.gas_limit)?,
            fee_recipient: field(BLOCK, "FeeRecipient", members.fee_recipient)?,
            prev_randao: field(BLOCK, "PrevRandao", members.prev_randao)?,
            base_fee: bounded("baseFeePerGas", base_fee, u64::MAX)?,
            blob_base_fee: bounded("blobBaseFee", blob_base_fee, u128::MAX)?,
            beacon_root: field(BLOCK, "BeaconRoot", members.beacon_root)?,
            withdrawals: withdrawals.map(|Json(withdrawals)| withdrawals),
            block_hashes: members.block_hash.unwrap_or_default(),
        })
    }
}

/// Refuses a fee that the EVM cannot hold: it would show another one.
fn bounded<T: TryFrom<U256> + std::fmt::Display>(
    name: &str,
    fee: Option<U256>,
    most: T,
) -> Result<Option<T>, String> {
    let fee = fee.map(T::try_from).transpose();
    fee.map_err(|_| format!("block override {name:?} is above {most}"))
}

/// The value of a member that holds overrides, in an object whose type in Go is `parent`.
pub fn member<T: Arg + Default>(
    parent: &str,
    name: &str,
    value: Option<&RawValue>,
) -> Result<T, String> {
    field(parent, name, value).map(Option::unwrap_or_default)
}
