//! Checks at start that the endpoints serve the rollup's L1.

use super::{L1Client, L1Error};
use alloy_primitives::B256;
use starling_proto::config::RollupConfig;

/// Why the endpoint does not serve the rollup's L1. The first two messages begin with op-node's text.
#[derive(Debug, thiserror::Error)]
pub enum L1CheckError {
    #[error(
        "incorrect L1 RPC chain id {chain_id}, expected {expected}: give an endpoint of the L1 that rollup.json names with --l1 ({endpoint} \
         serves another)"
    )]
    ChainId {
        endpoint: String,
        chain_id: u64,
        expected: u64,
    },
    #[error(
        "incorrect L1 genesis block hash {hash}, expected {expected}: {endpoint} serves another chain with the same id, or rollup.json is of \
         another chain"
    )]
    Genesis {
        endpoint: String,
        hash: B256,
        expected: B256,
    },
    #[error(transparent)]
    L1(#[from] L1Error),
}

impl L1CheckError {
    /// Whether another attempt cannot help.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::L1(_))
    }
}

/// Checks the chain id and the hash of the L1 block that the rollup starts at (op-node: checks at
/// startup). A block that the endpoint does not have, since it prunes, is only logged.
pub async fn check_chain(l1: &L1Client, rollup: &RollupConfig) -> Result<(), L1CheckError> {
    let chain_id = l1.chain_id().await?;
    if chain_id != rollup.l1_chain_id {
        return Err(L1CheckError::ChainId {
            endpoint: l1.endpoint().to_owned(),
            chain_id,
            expected: rollup.l1_chain_id,
        });
    }
    let genesis = rollup.genesis.l1;
    match l1.block_by_number(genesis.number).await? {
        Some(block) if block.hash != genesis.hash => Err(L1CheckError::Genesis {
            endpoint: l1.endpoint().to_owned(),
            hash: block.hash,
            expected: genesis.hash,
        }),
        Some(_) => Ok(()),
        None => {
            let endpoint = l1.endpoint();
            tracing::warn!(
                endpoint,
                number = genesis.number,
                "L1 does not have the block that the rollup starts at; its hash is not checked"
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
