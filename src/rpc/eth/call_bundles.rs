//! The parameters of `eth_callMany` and `debug_traceCallMany`: bundles of calls, each with a block
//! of its own, and the state before the first call.

use super::{block_arg::BlockArg, call_object::CallObject};
use crate::{
    chain::evm::BlockOverrides,
    rpc::{
        json,
        params::{Arg, Quantity, field},
    },
};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BundleMembers<'a> {
    #[serde(borrow)]
    transactions: Vec<&'a RawValue>,
    #[serde(borrow, default, alias = "blockOverrides")]
    block_override: Option<&'a RawValue>,
}

/// Calls that run in the same block.
pub struct CallBundle {
    pub calls: Vec<CallObject>,
    pub block: Option<BlockOverrides>,
}

/// The first parameter, a list of bundles.
pub struct CallBundles(pub Vec<CallBundle>);

impl Arg for CallBundles {
    fn from_json(json: &str) -> Result<Self, String> {
        let bundles: Vec<BundleMembers<'_>> =
            json::read(json).map_err(|error| error.to_string())?;
        let bundle = |members: BundleMembers<'_>| {
            let calls = members.transactions.into_iter();
            let calls = calls.map(|call| CallObject::from_json(call.get()));
            Ok::<_, String>(CallBundle {
                calls: calls.collect::<Result<_, _>>()?,
                block: field("Bundle", "blockOverride", members.block_override)?,
            })
        };
        let bundles = bundles.into_iter().map(bundle);
        bundles.collect::<Result<_, _>>().map(Self)
    }
}

/// The state before the first bundle: after a block, or after the first `transactions` transactions
/// of that block.
#[derive(Default)]
pub struct StateContext {
    pub block: BlockArg,
    /// Number of the block's transactions that come before the bundles; `None` for all.
    pub transactions: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StateContextMembers<'a> {
    #[serde(borrow)]
    block_number: Option<&'a RawValue>,
    /// Index of the transaction before which the bundles run; -1 for after all transactions.
    #[serde(borrow)]
    transaction_index: Option<&'a RawValue>,
}

impl Arg for StateContext {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: StateContextMembers<'_> =
            json::read(json).map_err(|error| error.to_string())?;
        let block = members.block_number.filter(|block| block.get() != "null");
        let block = block.map(|block| {
            BlockArg::from_json(block.get()).map_err(|error| format!("blockNumber: {error}"))
        });
        let index = members.transaction_index.map(RawValue::get);
        let index = index.filter(|index| !["null", "-1", "\"-1\""].contains(index));
        Ok(Self {
            block: block.transpose()?.unwrap_or_default(),
            transactions: index.map(transaction_index).transpose()?,
        })
    }
}

/// Parses an index that is a JSON number or a quantity.
fn transaction_index(json: &str) -> Result<usize, String> {
    let index = || {
        if let Ok(index) = json::read(json) {
            return Ok(index);
        }
        let Quantity(index) = Quantity::from_json(json)?;
        usize::try_from(index).map_err(|error| error.to_string())
    };
    index().map_err(|error| format!("transactionIndex: {error}"))
}
