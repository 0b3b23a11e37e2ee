//! Checks that endpoints serve the rollup's L1: the endpoint in use at start, and each of several
//! endpoints before its first use.

use super::{L1Client, L1Error, RpcCause, gate::Urgency, read, transport::RpcCall};
use crate::rollup::http::rotation::Tried;
use alloy_primitives::{B256, U64};
use serde_json::json;
use starling_proto::config::RollupConfig;

/// The reason why the endpoint does not serve the rollup's L1. The first two messages begin with
/// op-node's text.
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
    /// Whether the error is permanent, so that another attempt cannot succeed.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::L1(_))
    }
}

/// Checks the chain id and the hash of the L1 block at which the rollup starts (op-node: checks at
/// startup). If the endpoint has pruned that block, this is only logged.
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

impl L1Client {
    /// If there are several endpoints, checks each of them now, so that a wrong one is logged
    /// before it is needed. An endpoint that does not respond is checked again before its first
    /// use.
    pub async fn check_endpoints(&self) {
        for index in 0..self.inner.endpoints.len() {
            if let Err(cause) = self.check_chain_id(index).await
                && !matches!(cause, RpcCause::WrongChain { .. })
            {
                let error = self.error_of(index, "eth_chainId", cause);
                tracing::warn!(%error, "an L1 endpoint cannot be checked; it is checked before its first use");
            }
        }
    }

    /// Checks the chain id of one of several endpoints before its first use. A single endpoint is
    /// not checked here: [`check_chain`] does that, with an error that ends derivation.
    pub(super) async fn check_chain_id(&self, index: usize) -> Result<(), RpcCause> {
        let Some(expected) = self.inner.chain_id else {
            return Ok(());
        };
        if self.inner.endpoints.len() < 2 {
            return Ok(());
        }
        let slot = &self.inner.endpoints[index].chain_id;
        let chain_id = *slot.get_or_try_init(|| self.read_chain_id(index)).await?;
        if chain_id == expected {
            Ok(())
        } else {
            Err(RpcCause::WrongChain { chain_id, expected })
        }
    }

    /// The endpoints that serve another chain. They get no calls, unless all endpoints serve
    /// another chain.
    pub(super) fn wrong_chain_endpoints(&self) -> Tried {
        let mut left_out = Tried::default();
        if !self.all_serve_wrong_chain() {
            let endpoints = 0..self.inner.endpoints.len();
            for index in endpoints.filter(|index| self.serves_wrong_chain(*index)) {
                left_out.add(index);
            }
        }
        left_out
    }

    pub(super) fn all_serve_wrong_chain(&self) -> bool {
        (0..self.inner.endpoints.len()).all(|index| self.serves_wrong_chain(index))
    }

    fn serves_wrong_chain(&self, index: usize) -> bool {
        let chain_id = self.inner.endpoints[index].chain_id.get();
        chain_id.is_some_and(|chain_id| Some(*chain_id) != self.inner.chain_id)
    }

    /// Reads an endpoint's chain id, and logs an error if it is wrong.
    async fn read_chain_id(&self, index: usize) -> Result<u64, RpcCause> {
        let call = RpcCall {
            method: "eth_chainId",
            params: json!([]),
        };
        // Send the request as urgent, since urgent requests may wait for its result.
        let urgent = Self {
            urgency: Urgency::Urgent,
            ..self.clone()
        };
        let responses = urgent
            .send(index, &[call], self.inner.max_response_bytes)
            .await?;
        let response = responses.into_iter().next();
        let response =
            response.unwrap_or_else(|| Err(RpcCause::Malformed("an empty response".into())));
        let chain_id = read::<U64>(&response?)?.to::<u64>();
        if let Some(expected) = self.inner.chain_id.filter(|expected| *expected != chain_id) {
            let endpoint = self.inner.endpoints[index].transport.name();
            tracing::error!(
                %endpoint,
                chain_id,
                expected,
                "this endpoint of --l1 serves another chain, and is left out: correct or remove it"
            );
        }
        Ok(chain_id)
    }
}

#[cfg(test)]
mod tests;
