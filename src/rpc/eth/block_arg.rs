//! The block that a request names: a tag, a number, or an EIP-1898 object.

use crate::{
    chain::view::{State, View},
    rpc::{
        block_tag::BlockMembers,
        context::RpcContext,
        error::RpcError,
        json::read,
        params::{Arg, string, unfit},
    },
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

pub use crate::rpc::block_tag::BlockTag;

/// A block by tag, number or hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockArg {
    Tag(BlockTag),
    Hash(B256),
}

impl BlockTag {
    /// The view that contains the block: the newest view, or for `pending` the view whose head is
    /// the pending block.
    pub fn view(self, context: &RpcContext) -> Arc<View> {
        if self == Self::Pending {
            context.pending_view()
        } else {
            context.view()
        }
    }

    /// The number of the block, which may be above the head.
    pub fn number(self, context: &RpcContext, view: &View) -> Result<u64, RpcError> {
        let set = |id: Option<BlockId>, name: &str| {
            id.map(|id| id.number)
                .ok_or_else(|| RpcError::server(format!("{name} block not found")))
        };
        match self {
            Self::Latest | Self::Pending => Ok(view.head().number),
            Self::Earliest => Ok(view
                .number_of(context.chain.spec.genesis_hash)?
                .unwrap_or(0)),
            Self::Safe => set(view.safe(), "safe"),
            Self::Finalized => set(view.finalized(), "finalized"),
            Self::Number(number) => Ok(number),
        }
    }
}

impl Default for BlockArg {
    fn default() -> Self {
        Self::Tag(BlockTag::Latest)
    }
}

impl BlockArg {
    /// The view that contains the block: the newest view, or for `pending` the view whose head is
    /// the pending block.
    pub fn view(self, context: &RpcContext) -> Arc<View> {
        match self {
            Self::Tag(tag) => tag.view(context),
            Self::Hash(_) => context.view(),
        }
    }

    /// The number of the block; `None` if this view does not have the block.
    pub fn number(self, context: &RpcContext, view: &View) -> Result<Option<u64>, RpcError> {
        match self {
            Self::Hash(hash) => Ok(view.number_of(hash)?),
            Self::Tag(tag) => {
                Ok(Some(tag.number(context, view)?).filter(|number| *number <= view.head().number))
            }
        }
    }

    /// The number of the block, or an error if this view does not have the block.
    pub fn known_number(self, context: &RpcContext, view: &View) -> Result<u64, RpcError> {
        self.number(context, view)?
            .ok_or_else(|| RpcError::server("header not found"))
    }

    /// The state after the block.
    pub fn state(self, context: &RpcContext, view: &Arc<View>) -> Result<State, RpcError> {
        let number = self.known_number(context, view)?;
        view.state_at(number)?.ok_or_else(|| {
            let oldest = view.oldest_state();
            RpcError::server(format!(
                "state at block #{number} is pruned, the oldest state is at block #{oldest}"
            ))
        })
    }
}

impl Arg for BlockArg {
    fn from_json(json: &str) -> Result<Self, String> {
        if let Some(text) = string(json) {
            return match text.len() {
                66 => B256::from_json(json).map(Self::Hash),
                _ => BlockTag::parse(&text).map(Self::Tag),
            };
        }
        let BlockMembers {
            block_number,
            block_hash,
        } = read(json).map_err(|_| unfit("non-string", "string"))?;
        match (block_number, block_hash) {
            (Some(_), Some(_)) => {
                Err("cannot specify both BlockHash and BlockNumber, choose one or the other".into())
            }
            (Some(number), None) => BlockTag::from_json(number.get()).map(Self::Tag),
            (None, Some(hash)) => B256::from_json(hash.get()).map(Self::Hash),
            (None, None) => Err("at least one of blockNumber or blockHash is needed".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_numbers_and_objects_are_read() {
        let hash = B256::repeat_byte(0x11);
        let tag = |tag| Ok(BlockArg::Tag(tag));
        assert_eq!(BlockArg::from_json(r#""latest""#), tag(BlockTag::Latest));
        assert_eq!(BlockArg::from_json(r#""0x10""#), tag(BlockTag::Number(16)));
        assert_eq!(
            BlockArg::from_json(r#"{"blockNumber":"0x10"}"#),
            tag(BlockTag::Number(16))
        );
        assert_eq!(
            BlockArg::from_json(r#"{"blockNumber":"safe","blockHash":null}"#),
            tag(BlockTag::Safe)
        );
        assert_eq!(
            BlockArg::from_json(&format!("\"{hash}\"")),
            Ok(BlockArg::Hash(hash))
        );
        let object = format!(r#"{{"blockHash":"{hash}","requireCanonical":true}}"#);
        assert_eq!(BlockArg::from_json(&object), Ok(BlockArg::Hash(hash)));
    }

    #[test]
    fn what_is_no_block_is_refused_in_geths_words() {
        let refused = |json: &str| BlockArg::from_json(json).unwrap_err();
        assert_eq!(refused(r#""0x010""#), "hex number with leading zero digits");
        assert_eq!(refused(r#""10""#), "hex string without 0x prefix");
        assert_eq!(
            refused(r#""0x8000000000000000""#),
            "block number larger than int64"
        );
        assert_eq!(
            BlockTag::from_json("16").unwrap_err(),
            "hex string without 0x prefix"
        );
        let both = format!(r#"{{"blockNumber":"0x1","blockHash":"{}"}}"#, B256::ZERO);
        assert_eq!(
            refused(&both),
            "cannot specify both BlockHash and BlockNumber, choose one or the other"
        );
    }
}
