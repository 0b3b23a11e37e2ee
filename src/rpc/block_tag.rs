//! Tags and numbers that name a block of the canonical chain.
//!
//! [`log_filter`](super::log_filter) keeps tags in queries. The `eth` namespace resolves tags
//! against a view (`eth::block_arg`).

use super::params::{Arg, quantity};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The members of an EIP-1898 object, not yet parsed. `requireCanonical` is not read: only
/// canonical blocks have a state here, so it changes nothing.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BlockMembers<'a> {
    #[serde(borrow)]
    pub block_number: Option<&'a RawValue>,
    #[serde(borrow)]
    pub block_hash: Option<&'a RawValue>,
}

/// A block of the canonical chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTag {
    Latest,
    /// The head of the pending view; the latest block if the node has no pending block.
    Pending,
    Earliest,
    Safe,
    Finalized,
    Number(u64),
}

impl BlockTag {
    /// Parses a tag or a number from a text without quotes.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "latest" => Self::Latest,
            "pending" => Self::Pending,
            "earliest" => Self::Earliest,
            "safe" => Self::Safe,
            "finalized" => Self::Finalized,
            number => match quantity(number)? {
                number if number > i64::MAX as u64 => {
                    return Err("block number larger than int64".into());
                }
                number => Self::Number(number),
            },
        })
    }
}

impl Arg for BlockTag {
    fn from_json(json: &str) -> Result<Self, String> {
        // geth strips quotes without checking that the value is a string. A bare JSON number is
        // therefore read like a string without the `0x` prefix.
        Self::parse(json.trim_matches('"'))
    }
}
