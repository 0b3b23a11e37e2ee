//! The `admin` namespace: whose blocks the node follows, by an operator's word.
//!
//! Whoever calls it decides on the chain that is followed: it is served only where it is named with `--http.api` or `--ws.api`, and on
//! the rollup node's RPC with `--rpc.enable-admin`.

use super::{
    RpcContext,
    api::{Method, Namespace},
    error::{Reply, reply},
    opp2p::network,
    params::Args,
};
use alloy_primitives::Address;
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;

pub const NAMESPACE: Namespace = Namespace {
    name: "admin",
    methods: &[
        ("admin_setUnsafeBlockSigner", Method::Async(set_signer)),
        ("admin_unsafeBlockSigner", Method::Async(signer)),
    ],
    subscriptions: &[],
};

/// `admin_setUnsafeBlockSigner(address)`: blocks are accepted by this signer from now on, and by the one before until the first of the
/// new one. It holds until a restart; on a node that asks L1 who signs, until it is asked again (`--l1.runtime-config-reload-interval`).
fn set_signer(context: Arc<RpcContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let signer: Address = args.required()?;
        args.at_most(1)?;
        let network = network(&context)?;
        network.set_signer(signer).await;
        // Questions are answered in their order: then it is in force.
        network.signer().await?;
        tracing::warn!(%signer, "an operator named the signer of blocks");
        reply(())
    }
    .boxed()
}

/// `admin_unsafeBlockSigner()`: `null` while nobody's blocks are accepted.
fn signer(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(network(&context)?.signer().await?)
    }
    .boxed()
}
