//! The `admin` namespace: the block signer that the node follows, the start and stop of the
//! sequencer, peers, servers and files.
//!
//! A caller decides which chain the node follows and whether it makes blocks. Over TCP, the
//! namespace is therefore served only where `--http.api` or `--ws.api` names it, and on the rollup
//! node's RPC with `--rpc.enable-admin`. The sequencer's methods and error texts are op-node's. The
//! methods of [`peers`], [`servers`] and [`files`] are geth's, and the rollup node's RPC has none of
//! them.

mod files;
mod peers;
mod servers;

use super::{
    api::{Method, Namespace, Subscribe},
    context::RollupContext,
    error::{Reply, RpcError, reply},
    opp2p::network,
    optimism::NO_DERIVATION,
    params::Args,
};
use crate::rollup::sequencer::{SequencerControlError, SequencerHandle};
use alloy_primitives::{Address, B256};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;

pub const NAMESPACE: Namespace = Namespace {
    name: "admin",
    methods: &[
        (
            "admin_setUnsafeBlockSigner",
            Method::RollupAsync(set_signer),
        ),
        ("admin_unsafeBlockSigner", Method::RollupAsync(signer)),
        ("admin_startSequencer", Method::RollupAsync(start_sequencer)),
        ("admin_stopSequencer", Method::RollupAsync(stop_sequencer)),
        ("admin_sequencerActive", Method::Rollup(sequencer_active)),
        (
            "admin_setRecoverMode",
            Method::RollupAsync(set_recover_mode),
        ),
        (
            "admin_resetDerivationPipeline",
            Method::Rollup(reset_derivation),
        ),
        ("admin_nodeInfo", Method::Async(peers::node_info)),
        ("admin_peers", Method::Async(peers::peers)),
        ("admin_addPeer", Method::Async(peers::add_peer)),
        ("admin_removePeer", Method::Async(peers::remove_peer)),
        (
            "admin_addTrustedPeer",
            Method::Async(peers::add_trusted_peer),
        ),
        (
            "admin_removeTrustedPeer",
            Method::Async(peers::remove_trusted_peer),
        ),
        ("admin_datadir", Method::Quick(files::datadir)),
        ("admin_exportChain", Method::Async(files::export_chain)),
        ("admin_importChain", Method::Async(files::import_chain)),
        ("admin_startHTTP", Method::Async(servers::start_http)),
        ("admin_stopHTTP", Method::Async(servers::stop_http)),
        ("admin_startWS", Method::Async(servers::start_ws)),
        ("admin_stopWS", Method::Async(servers::stop_ws)),
        ("admin_startRPC", Method::Async(servers::start_http)),
        ("admin_stopRPC", Method::Async(servers::stop_http)),
    ],
    subscriptions: &[("peerEvents", Subscribe::Quick(peers::peer_events))],
};

impl From<SequencerControlError> for RpcError {
    fn from(error: SequencerControlError) -> Self {
        Self::server(error.to_string())
    }
}

/// `admin_setUnsafeBlockSigner(address)`: accepts blocks by this signer from now on. Blocks by the
/// previous signer are accepted until the new signer's first block arrives, or a grace period ends.
/// The setting holds until a restart. On a node that reads the signer from L1, it holds until the
/// next reading (`--l1.runtime-config-reload-interval`).
fn set_signer(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let signer: Address = args.required()?;
        args.at_most(1)?;
        let network = network(&context.network)?;
        network.set_signer(signer).await;
        // The swarm task handles requests in order: once this one returns, the new signer is in
        // force.
        network.signer().await?;
        tracing::warn!(%signer, "an operator set the signer of blocks");
        reply(())
    }
    .boxed()
}

/// `admin_unsafeBlockSigner()`: `null` while the node accepts no signer's blocks.
fn signer(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(network(&context.network)?.signer().await?)
    }
    .boxed()
}

/// `admin_startSequencer(hash)`: starts sequencing if `hash` is the hash of the unsafe head.
fn start_sequencer(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let hash: B256 = args.required()?;
        args.at_most(1)?;
        sequencer(&context)?.start(hash).await?;
        reply(())
    }
    .boxed()
}

/// `admin_stopSequencer()`: stops sequencing and returns the hash of the last block. The next
/// sequencer is started with this hash.
fn stop_sequencer(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(sequencer(&context)?.stop().await?)
    }
    .boxed()
}

/// `admin_sequencerActive()`: `false` also on a node that is no sequencer, and on a sequencer
/// before it begins to sequence.
fn sequencer_active(context: &RollupContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(
        context
            .sequencer
            .as_ref()
            .is_some_and(SequencerHandle::active),
    )
}

/// `admin_setRecoverMode(enabled)`: sets `--sequencer.recover` until a restart. It has no effect on
/// a node that is no sequencer, as in op-node.
fn set_recover_mode(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let enabled: bool = args.required()?;
        args.at_most(1)?;
        if let Some(sequencer) = &context.sequencer {
            sequencer.set_recover(enabled).await?;
            tracing::warn!(enabled, "an operator set the sequencer's recover mode");
        }
        reply(())
    }
    .boxed()
}

/// `admin_resetDerivationPipeline()`: resets derivation to the safe head.
fn reset_derivation(context: &RollupContext, args: Args) -> Reply {
    args.at_most(0)?;
    let missing = || RpcError::server(NO_DERIVATION);
    let driver = &context.rollup.as_ref().ok_or_else(missing)?.driver;
    driver
        .reset()
        .map_err(|error| RpcError::server(error.to_string()))?;
    reply(())
}

fn sequencer(context: &RollupContext) -> Result<&SequencerHandle, SequencerControlError> {
    context
        .sequencer
        .as_ref()
        .ok_or(SequencerControlError::NotEnabled)
}
