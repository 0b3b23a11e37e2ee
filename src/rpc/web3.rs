//! The `web3` namespace.

use super::{
    api::{Method, Namespace},
    context::RpcContext,
    error::{Reply, reply},
    params::Args,
};
use alloy_primitives::{Bytes, keccak256};

pub const NAMESPACE: Namespace = Namespace {
    name: "web3",
    methods: &[
        ("web3_clientVersion", Method::Quick(client_version)),
        ("web3_sha3", Method::Quick(sha3)),
    ],
    subscriptions: &[],
};

fn client_version(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(&context.client_version)
}

/// `web3_sha3`: Keccak-256, not SHA3-256.
fn sha3(_: &RpcContext, args: Args) -> Reply {
    let data: Bytes = args.at_most(1)?.required()?;
    reply(keccak256(data))
}
