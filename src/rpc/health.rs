//! The health of the rollup node's RPC, in op-service's shapes: `health_status`, and `GET /healthz` for
//! orchestrators. An answer says that the server runs and in which version.

use super::{
    api::{Api, Method, Namespace},
    context::RollupContext,
    error::{Reply, reply},
    params::Args,
};
use crate::version::VERSION;

pub const NAMESPACE: Namespace = Namespace {
    name: "health",
    methods: &[("health_status", Method::Rollup(status))],
    subscriptions: &[],
};

/// Adds `health_status` to the methods of a service. It also answers [`PATH`] if its namespaces name
/// this one.
pub fn add_to(api: &mut Api) {
    api.insert("health_status", |args| {
        let answer = args.at_most(0).and_then(|_| reply(VERSION));
        Box::pin(std::future::ready(answer))
    });
}

/// Path of the check over HTTP.
pub(super) const PATH: &str = "/healthz";

/// Body of the answer to a check over HTTP.
pub(super) fn body() -> String {
    serde_json::json!({ "version": VERSION }).to_string()
}

/// `health_status()`: the version.
fn status(_: &RollupContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(VERSION)
}
