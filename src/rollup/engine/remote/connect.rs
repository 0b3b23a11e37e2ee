//! The first contact with the execution client, and the watch over its head. An unreachable client
//! is waited for, and a client of another chain is refused. If a client was restarted or has moved
//! its head by itself, its heads are read again.

use super::{
    EngineClient, LabelMoves, RemoteState,
    blocks::link_of,
    branch::{after_restart, hash_of},
    rpc::{EngineStatus, HeadHashes},
};
use crate::{
    chain::Heads,
    rollup::engine::error::{CoreError, EngineCallError, EngineCause, EngineConnectError},
};
use alloy_primitives::{B256, U64};
use serde_json::{Value, json};
use starling_proto::payload::BlockId;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Pause between two attempts to reach the client at start.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two log lines while waiting for the client.
const REMINDER: Duration = Duration::from_secs(60);
/// Interval of comparing the client's head with the head that was set last.
const LOOK: Duration = Duration::from_secs(2);
/// Time after which unchanged heads are sent to the client again. Our own core follows its own
/// swarm after ten minutes without a fork choice.
const REPEAT: Duration = Duration::from_secs(60);

/// JSON-RPC error code of a method that the client does not serve.
const NO_METHOD: i64 = -32601;

impl EngineClient {
    /// Waits until the client responds, and checks that it has the rollup's chain. `source` names
    /// the rollup configuration in errors. Fails at once on an error that waiting cannot cure.
    pub async fn connect(&self, source: &str) -> Result<(), EngineConnectError> {
        let mut logged: Option<Instant> = None;
        loop {
            let error = match self.check(source).await {
                Ok(()) => return Ok(()),
                Err(EngineConnectError::Call(error)) if !is_final(&error.cause) => error,
                Err(error) => return Err(error),
            };
            if logged.is_none_or(|at| at.elapsed() >= REMINDER) {
                logged = Some(Instant::now());
                tracing::warn!(endpoint = %self.endpoint(), cause = %error.cause, "waiting for the execution client (--l2): start it, or check its address and --authrpc.port");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn check(&self, source: &str) -> Result<(), EngineConnectError> {
        let rpc = &self.0.rpc;
        let named = || (self.endpoint(), source.to_owned());
        let have: U64 = rpc.call("eth_chainId", json!([])).await?;
        let (have, want) = (have.to::<u64>(), self.0.rollup.l2_chain_id);
        if have != want {
            let (endpoint, source_name) = named();
            return Err(EngineConnectError::OtherChain {
                endpoint,
                source_name,
                have,
                want,
            });
        }
        let genesis = self.0.rollup.genesis.l2;
        let found = self.header_at(json!(U64::from(genesis.number))).await?;
        let have = found.map_or(B256::ZERO, |found| found.hash);
        if have != genesis.hash {
            let (endpoint, source_name) = named();
            return Err(EngineConnectError::OtherGenesis {
                endpoint,
                source_name,
                have,
                want: genesis.hash,
            });
        }
        let served: Result<Value, EngineCallError> =
            rpc.call("engine_exchangeCapabilities", json!([[]])).await;
        if let Err(error) = served {
            if matches!(
                error.cause,
                EngineCause::Refused {
                    code: NO_METHOD,
                    ..
                }
            ) {
                return Err(EngineConnectError::NoEngineApi(self.endpoint()));
            }
            return Err(error.into());
        }
        let mut state = self.0.state.lock().await;
        let read = self.read_heads(&mut state).await;
        self.publish(&state);
        match read {
            Ok(()) => Ok(()),
            Err(CoreError::Remote(error)) => Err(error.into()),
            Err(CoreError::Chain(error)) => Err(EngineConnectError::Heads(error)),
        }
    }

    /// Compares the client's head with ours periodically, until the token is cancelled.
    pub async fn watch(self, token: CancellationToken) {
        let watch = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Err(error) = self.look().await {
                    tracing::debug!(%error, "the execution client's heads cannot be compared");
                }
            }
        };
        token.run_until_cancelled(watch).await;
    }

    pub(super) async fn look(&self) -> Result<(), CoreError> {
        let mut state = self.lock().await?;
        let latest = self.header_at(json!("latest")).await;
        let latest = latest.map_err(|error| self.suspected(error))?;
        if latest.is_none_or(|latest| latest.hash != state.expected().hash) {
            let read = self.read_heads(&mut state).await;
            self.publish(&state);
            return read;
        }
        if state.heads_set_at.is_some_and(|at| at.elapsed() >= REPEAT) {
            let head = state.heads.head;
            self.restore(&mut state, head).await?;
        }
        Ok(())
    }

    /// Reads the heads from the client. Blocks whose states it has lost are executed again first. If
    /// our earlier safe and finalized heads are still on the client's chain, they are set on the
    /// client again.
    pub(super) async fn read_heads(&self, state: &mut RemoteState) -> Result<(), CoreError> {
        self.suspect();
        self.0.cache.lock().cut_all();
        self.continue_revival(state).await?;
        let before = state.heads;
        let client = self.client_heads().await?;
        let client = self.settle_head(state, client).await?;
        state.heads = client;
        let mut kept = LabelMoves::default();
        if state.is_read {
            kept.safe = self.still(state, before.safe).await?;
            kept.finalized = self.still(state, before.finalized).await?;
        }
        state.protected = self.still(state, state.protected).await?;
        state.heads = after_restart(client, kept);
        if state.is_read && client.head != before.head {
            tracing::warn!(head = %client.head, before = %before.head, endpoint = %self.endpoint(), "the execution client has another head than it was given: it was restarted, or something else moves its head");
        }
        state.is_read = true;
        let labels = |heads: &Heads| (heads.safe, heads.finalized);
        if labels(&state.heads) != labels(&client) {
            self.repeat_labels(&state.heads).await?;
        }
        self.trust();
        Ok(())
    }

    /// The heads that the client reports.
    pub(super) async fn client_heads(&self) -> Result<Heads, CoreError> {
        let latest = self.header_at(json!("latest")).await?;
        let latest = latest.ok_or_else(|| {
            let cause = EngineCause::Malformed("it has no latest block".into());
            self.0.rpc.error("eth_getBlockByNumber", cause)
        })?;
        let head = link_of(&latest);
        self.0.cache.lock().add_link(head);
        Ok(Heads {
            head: head.id,
            timestamp: head.timestamp,
            safe: self.label("safe").await?,
            finalized: self.label("finalized").await?,
        })
    }

    /// The block with this tag; `None` if the client returns null or an error, as clients do before
    /// the tag is set.
    async fn label(&self, tag: &str) -> Result<Option<BlockId>, CoreError> {
        match self.header_at(json!(tag)).await {
            Ok(found) => Ok(found.map(|found| link_of(&found).id)),
            Err(EngineCallError {
                cause: EngineCause::Refused { .. },
                ..
            }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns `block` if it is on the client's chain.
    async fn still(
        &self,
        state: &RemoteState,
        block: Option<BlockId>,
    ) -> Result<Option<BlockId>, CoreError> {
        let Some(block) = block else { return Ok(None) };
        Ok(self.is_canonical(state, block).await?.then_some(block))
    }

    async fn repeat_labels(&self, heads: &Heads) -> Result<(), CoreError> {
        let hashes = HeadHashes {
            head: heads.head.hash,
            safe: hash_of(heads.safe),
            finalized: hash_of(heads.finalized),
        };
        let forks = &self.0.rollup.forks;
        match self.0.rpc.forkchoice(hashes, None, forks).await? {
            (EngineStatus::Valid, _) => Ok(()),
            _ => Err(self.failure(EngineCause::Syncing(heads.head.hash))),
        }
    }

    /// Marks our copy of the client's heads as correct.
    pub(super) fn trust(&self) {
        self.0.suspect.store(false, Ordering::Relaxed);
    }
}

/// Whether another attempt would fail in the same way.
fn is_final(cause: &EngineCause) -> bool {
    matches!(cause, EngineCause::Unauthorized(_))
}
