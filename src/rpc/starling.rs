//! The `starling` namespace: this node's own methods about its clients.
//!
//! `starling_rpcUsage` lists every key of `--rpc.limits`, so over TCP the namespace is served only
//! where an operator names it. The response comes from counters.

use super::{
    api::{Method, Namespace},
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::Args,
};

pub const NAMESPACE: Namespace = Namespace {
    name: "starling",
    methods: &[("starling_rpcUsage", Method::Quick(rpc_usage))],
    subscriptions: &[],
};

/// `starling_rpcUsage()`: the usage of each key since the node's start, by the key's name.
fn rpc_usage(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let access = context.access.as_ref();
    let access = access.ok_or_else(|| {
        RpcError::server("no usage is counted: give a file of keys and budgets by --rpc.limits")
    })?;
    reply(access.usage())
}
