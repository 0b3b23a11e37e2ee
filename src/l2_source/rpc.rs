//! L2 in other processes: pairs of a rollup node and an execution client. With several pairs,
//! requests go to the pair of the active sequencer.

use super::{
    L2SourceError, RpcEndpoint, SourceHeads,
    active::ActiveChoice,
    endpoint::{L2_CLIENT, ROLLUP_NODE},
    response,
};
use crate::rollup::{l1::RpcCause, output::RollupOutput};
use alloy_primitives::U64;
use serde_json::{Value, json, value::RawValue};
use starling_proto::{
    config::RollupConfig,
    payload::{BlockId, Payload},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

const BY_NUMBER: &str = "eth_getBlockByNumber";

/// Addresses of the rollup nodes and execution clients to read L2 from.
#[derive(Clone, Debug, PartialEq)]
pub struct L2Endpoints {
    /// URLs of the rollup nodes (`--rollup-rpc`).
    pub rollup: Vec<String>,
    /// Their execution clients (`--l2-eth-rpc`), in the order of the rollup nodes; empty if the
    /// caller reads no blocks.
    pub eth: Vec<String>,
    /// Interval of checking whether the sequencer in use is active
    /// (`--active-sequencer-check-duration`). Unused with one pair.
    pub check_interval: Duration,
    /// Timeout of a request (`--network-timeout`).
    pub timeout: Duration,
}

impl L2Endpoints {
    /// Fails if `rollup` is empty, or if `eth` is neither empty nor as long as `rollup`.
    pub fn check(&self) -> Result<(), L2SourceError> {
        let (rollup, eth) = (self.rollup.len(), self.eth.len());
        if rollup == 0 {
            Err(L2SourceError::Empty(ROLLUP_NODE))
        } else if eth != 0 && rollup != eth {
            Err(L2SourceError::Mismatch { rollup, eth })
        } else {
            Ok(())
        }
    }
}

struct EndpointPair {
    rollup: RpcEndpoint,
    eth: Option<RpcEndpoint>,
}

/// Clients of all endpoint pairs, and the pair in use.
pub struct RpcSource {
    pairs: Vec<EndpointPair>,
    choice: Mutex<ActiveChoice>,
}

impl RpcSource {
    /// Creates the clients without connecting.
    pub fn new(endpoints: &L2Endpoints) -> Result<Self, L2SourceError> {
        endpoints.check()?;
        let timeout = endpoints.timeout;
        let mut eth = endpoints.eth.iter();
        let pair = |rollup: &String| {
            let eth = eth.next();
            let eth = eth.map(|url| RpcEndpoint::new(L2_CLIENT, url, timeout));
            Ok(EndpointPair {
                rollup: RpcEndpoint::new(ROLLUP_NODE, rollup, timeout)?,
                eth: eth.transpose()?,
            })
        };
        let pairs = endpoints.rollup.iter().map(pair);
        let pairs = pairs.collect::<Result<Vec<_>, L2SourceError>>()?;
        let choice = ActiveChoice::new(pairs.len(), endpoints.check_interval);
        Ok(Self {
            pairs,
            choice: Mutex::new(choice),
        })
    }

    pub(super) fn name(&self) -> Arc<str> {
        let index = self.choice.try_lock().map_or(0, |choice| choice.index());
        self.pairs[index].rollup.name()
    }

    pub(super) async fn rollup_config(&self) -> Result<RollupConfig, L2SourceError> {
        let config: Box<RawValue> = self
            .call_rollup("optimism_rollupConfig", json!([]))
            .await?
            .1;
        Ok(RollupConfig::from_json(config.get())?)
    }

    pub(super) async fn heads(&self) -> Result<SourceHeads, L2SourceError> {
        const METHOD: &str = "optimism_syncStatus";
        let (node, status) = self.call_rollup(METHOD, json!([])).await?;
        response::heads(&status).map_err(|cause| node.wrong(METHOD, cause))
    }

    pub(super) async fn output_at(&self, number: u64) -> Result<RollupOutput, L2SourceError> {
        const METHOD: &str = "optimism_outputAtBlock";
        let params = json!([U64::from(number)]);
        let (node, output) = self.call_rollup(METHOD, params).await?;
        response::output(&output, number).map_err(|cause| node.wrong(METHOD, cause))
    }

    pub(super) async fn block(&self, number: u64) -> Result<Option<Payload>, L2SourceError> {
        let (client, block) = self.read_block(number, true).await?;
        response::block(&block, number).map_err(|cause| client.wrong(BY_NUMBER, cause))
    }

    pub(super) async fn block_id(&self, number: u64) -> Result<Option<BlockId>, L2SourceError> {
        let (client, block) = self.read_block(number, false).await?;
        response::block_id(&block, number).map_err(|cause| client.wrong(BY_NUMBER, cause))
    }

    async fn call_rollup(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<(&RpcEndpoint, Box<RawValue>), L2SourceError> {
        let pair = self.active().await?;
        self.call(&pair.rollup, method, params).await
    }

    async fn read_block(
        &self,
        number: u64,
        whole: bool,
    ) -> Result<(&RpcEndpoint, Box<RawValue>), L2SourceError> {
        let pair = self.active().await?;
        let client = pair.eth.as_ref().ok_or(L2SourceError::Empty(L2_CLIENT))?;
        let params = json!([U64::from(number), whole]);
        self.call(client, BY_NUMBER, params).await
    }

    async fn call<'a>(
        &self,
        endpoint: &'a RpcEndpoint,
        method: &'static str,
        params: Value,
    ) -> Result<(&'a RpcEndpoint, Box<RawValue>), L2SourceError> {
        let called = endpoint.call(method, params).await;
        if let Err(L2SourceError::Call { cause, .. }) = &called
            && !matches!(cause, RpcCause::Refused { .. })
        {
            self.choice.lock().await.has_failed();
        }
        Ok((endpoint, called?))
    }

    /// The pair of the active sequencer. If the last check is older than the interval, the pair in
    /// use is checked again. If its sequencer is not active, the other pairs are checked in turn.
    async fn active(&self) -> Result<&EndpointPair, L2SourceError> {
        let mut choice = self.choice.lock().await;
        let before = choice.index();
        if !choice.is_due(Instant::now()) {
            return Ok(&self.pairs[before]);
        }
        for _ in 0..self.pairs.len() {
            let pair = &self.pairs[choice.index()];
            let is_active = pair.rollup.call("admin_sequencerActive", json!([])).await;
            match is_active {
                Ok(true) => {
                    choice.is_active(Instant::now());
                    if choice.index() != before {
                        tracing::info!(url = %pair.rollup.name(), "Found new active sequencer");
                    }
                    return Ok(pair);
                }
                Ok(false) => {
                    tracing::debug!(url = %pair.rollup.name(), "Current sequencer is not active, trying next");
                }
                Err(error) => {
                    tracing::warn!(%error, "Error querying active sequencer, trying next");
                }
            }
            choice.go_on();
        }
        let names: Vec<_> = self.pairs.iter().map(|pair| pair.rollup.name()).collect();
        Err(L2SourceError::NoActive(names.join(" ")))
    }
}
