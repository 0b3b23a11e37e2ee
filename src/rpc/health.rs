//! The health of the rollup node's RPC, in op-service's shapes: `health_status`, and `GET /healthz`
//! for orchestrators. A response shows that the server runs, and its version.

use super::{
    api::{Api, Method, Namespace},
    error::{Reply, reply},
    params::Args,
};
use crate::version::VERSION;

pub const NAMESPACE: Namespace = Namespace {
    name: "health",
    methods: &[("health_status", Method::Plain(status))],
    subscriptions: &[],
};

/// Adds `health_status` to the methods of a service. The service also responds to [`PATH`] if its
/// namespaces include `health`.
pub fn add_to(api: &mut Api) {
    api.insert("health_status", |args| {
        Box::pin(std::future::ready(status(args)))
    });
}

/// Path of the health check over HTTP.
pub(super) const PATH: &str = "/healthz";

/// Body of the response to a health check over HTTP.
pub(super) fn body() -> String {
    serde_json::json!({ "version": VERSION }).to_string()
}

/// `health_status()`: the version of the node.
fn status(args: Args) -> Reply {
    args.at_most(0)?;
    reply(VERSION)
}
