//! Methods that older rollup nodes still call. One signals which protocol version the chain's
//! governance recommends and requires; the other exchanges the parameters of the merge.

use super::engine;
use crate::rpc::{
    context::RpcContext,
    error::{Reply, reply},
    params::{Args, Json},
};
use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::rpc::engine_backend::halt::{Halt, HaltAt};

/// The protocol version that this node supports: 9.0.0, the last one that was signalled (specs:
/// superchain-upgrades, protocol version).
const SUPPORTED: [u32; 3] = [9, 0, 0];

#[derive(Deserialize)]
struct Signal {
    recommended: B256,
    required: B256,
}

/// Major, minor and patch number of a protocol version of type 0. `None` for another type, and for
/// a version with a build identifier.
fn version(encoded: B256) -> Option<[u32; 3]> {
    let number = |at: usize| u32::from_be_bytes(encoded[at..at + 4].try_into().unwrap_or_default());
    (encoded[0] == 0 && encoded[8..16] == [0; 8]).then(|| [number(16), number(20), number(24)])
}

/// Encodes a protocol version as type 0, without a build identifier.
fn encoded(numbers: [u32; 3]) -> B256 {
    let mut encoded = B256::ZERO;
    for (at, number) in [16, 20, 24].into_iter().zip(numbers) {
        encoded[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
    encoded
}

/// The most significant number (major, minor or patch) by which `encoded` is ahead of our version;
/// `None` if it is not ahead.
fn ahead(encoded: B256) -> Option<HaltAt> {
    let theirs = version(encoded)?;
    let levels = [HaltAt::Major, HaltAt::Minor, HaltAt::Patch];
    let (level, (theirs, ours)) = levels
        .into_iter()
        .zip(theirs.into_iter().zip(SUPPORTED))
        .find(|(_, (a, b))| a != b)?;
    (theirs > ours).then_some(level)
}

pub fn signal(context: &RpcContext, mut args: Args) -> Reply {
    let signal: Option<Json<Signal>> = args.optional()?;
    args.at_most(1)?;
    let Some(Json(signal)) = signal else {
        return reply(encoded(SUPPORTED));
    };
    if ahead(signal.recommended).is_some() {
        tracing::warn!(recommended = %signal.recommended, "a newer protocol version is recommended: update this node");
    }
    if let Some(level) = ahead(signal.required) {
        tracing::error!(required = %signal.required, "a newer protocol version is required: update this node");
        if let Some(halt) = engine(context)?
            .halt
            .as_ref()
            .filter(|halt| level <= halt.at)
        {
            tracing::error!("the node stops, as --rollup.halt says");
            halt.token.cancel();
        }
    }
    reply(encoded(SUPPORTED))
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct TransitionConfiguration {
    terminal_total_difficulty: Value,
    terminal_block_hash: Value,
    terminal_block_number: Value,
}

/// Returns its parameters unchanged: the merge is long past, so nothing is checked.
pub fn exchange_transition_configuration(_: &RpcContext, mut args: Args) -> Reply {
    let Json(given): Json<TransitionConfiguration> = args.required()?;
    args.at_most(1)?;
    reply(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        let [major, minor, patch] = SUPPORTED;
        assert_eq!(version(encoded(SUPPORTED)), Some(SUPPORTED));
        assert_eq!(ahead(encoded(SUPPORTED)), None);
        assert_eq!(ahead(encoded([major + 1, 0, 0])), Some(HaltAt::Major));
        assert_eq!(ahead(encoded([major, minor + 1, 0])), Some(HaltAt::Minor));
        assert_eq!(
            ahead(encoded([major, minor, patch + 1])),
            Some(HaltAt::Patch)
        );
        assert_eq!(ahead(encoded([major - 1, minor + 7, patch + 7])), None);
        assert!(HaltAt::Major <= HaltAt::Patch && HaltAt::Patch > HaltAt::Minor);
        let mut other = encoded([major + 1, 0, 0]);
        other[0] = 1;
        assert_eq!(ahead(other), None);
    }
}
