//! The `net` namespace.

use super::{
    api::{Method, Namespace},
    context::RpcContext,
    error::{Reply, reply},
    params::Args,
};
use alloy_primitives::U64;

pub const NAMESPACE: Namespace = Namespace {
    name: "net",
    methods: &[
        ("net_version", Method::Quick(version)),
        ("net_listening", Method::Quick(listening)),
        ("net_peerCount", Method::Quick(peer_count)),
    ],
    subscriptions: &[],
};

/// `net_version`: the chain id, in decimal.
fn version(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(context.chain.spec.chain_id.to_string())
}

fn listening(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(context.network.is_some())
}

fn peer_count(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(U64::from(
        context
            .network
            .as_ref()
            .map_or(0, |network| network.peer_count()),
    ))
}
