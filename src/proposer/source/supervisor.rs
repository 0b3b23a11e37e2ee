//! Super roots from op-supervisors (specs: interop, super roots). The heads are those of the
//! supervisor that has synced least of L1. A root comes from the first supervisor with a valid
//! response.

use super::ProposalSourceError;
use crate::{
    l2_source::{L2SourceError, RpcEndpoint},
    proposer::schedule::{Proposal, SourceReading},
    rollup::l1::RpcCause,
};
use alloy_primitives::{B256, Bytes, U64, U256, keccak256};
use serde::Deserialize;
use serde_json::{Value, json};
use starling_proto::payload::BlockId;
use std::time::Duration;

const SUPERVISOR: &str = "supervisor";
const SYNC_STATUS: &str = "supervisor_syncStatus";
const SUPER_ROOT: &str = "supervisor_superRootAtTimestamp";
/// The only supported version of super roots.
const VERSION: u8 = 1;
/// Largest number of chains in a super root; actual clusters have a handful.
const MAX_CHAINS: usize = 1_024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SupervisorStatusResponse {
    /// The L1 block that all chains have synced; all zeros if the supervisor does not know it.
    #[serde(rename = "minSyncedL1")]
    min_synced_l1: BlockId,
    safe_timestamp: u64,
    finalized_timestamp: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SuperRootResponse {
    cross_safe_derived_from: BlockId,
    timestamp: U64,
    super_root: B256,
    version: Bytes,
    chains: Vec<ChainRootResponse>,
}

#[derive(Deserialize)]
struct ChainRootResponse {
    /// Chain id: decimal, or hex with 0x, as a string or a number.
    #[serde(rename = "chainID")]
    chain_id: Value,
    /// Output root of the chain's last block at or before the timestamp.
    canonical: B256,
}

/// Clients of supervisors of one cluster.
#[derive(Clone)]
pub struct Supervisors {
    endpoints: Vec<RpcEndpoint>,
}

impl Supervisors {
    /// Creates clients for the URLs (`--supervisor-rpcs`) without connecting. `timeout` is per
    /// request.
    pub fn new(urls: &[String], timeout: Duration) -> Result<Self, L2SourceError> {
        let endpoint = |url: &String| RpcEndpoint::new(SUPERVISOR, url, timeout);
        let endpoints: Vec<_> = urls.iter().map(endpoint).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(L2SourceError::Empty(SUPERVISOR));
        }
        Ok(Self { endpoints })
    }

    pub(super) async fn heads(&self) -> Result<SourceReading, ProposalSourceError> {
        let calls = self.endpoints.iter().map(|endpoint| async {
            let status: SupervisorStatusResponse = endpoint.call(SYNC_STATUS, json!([])).await?;
            if status.min_synced_l1.hash.is_zero() {
                let cause = RpcCause::Malformed("it has no view of L1 yet".into());
                return Err(endpoint.wrong(SYNC_STATUS, cause));
            }
            Ok(status)
        });
        let answers = futures::future::join_all(calls).await;
        let (known, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let least = known
            .into_iter()
            .flatten()
            .min_by_key(|status| status.min_synced_l1.number);
        let Some(least) = least else {
            return Err(none(failed.into_iter().filter_map(Result::err)));
        };
        Ok(SourceReading {
            current_l1: least.min_synced_l1,
            head_l1: least.min_synced_l1.number,
            safe: least.safe_timestamp,
            finalized: least.finalized_timestamp,
        })
    }

    pub(super) async fn super_root(&self, time: u64) -> Result<Proposal, ProposalSourceError> {
        let mut failures = Vec::new();
        for endpoint in &self.endpoints {
            let params = json!([U64::from(time)]);
            let answer = endpoint.call(SUPER_ROOT, params).await;
            let read =
                |answer| read(answer, time).map_err(|cause| endpoint.wrong(SUPER_ROOT, cause));
            match answer.and_then(read) {
                Ok(proposal) => return Ok(proposal),
                Err(error) => failures.push(error),
            }
        }
        Err(none(failures.into_iter()))
    }
}

fn none(failures: impl Iterator<Item = L2SourceError>) -> ProposalSourceError {
    let texts: Vec<String> = failures.map(|error| error.to_string()).collect();
    ProposalSourceError::NoSupervisor(texts.join("; "))
}

/// Checks that the super root is the hash of the response's parts, for the requested time.
fn read(answer: SuperRootResponse, time: u64) -> Result<Proposal, RpcCause> {
    if answer.version[..] != [VERSION] {
        let text = format!("unsupported super root version {}", answer.version);
        return Err(RpcCause::Malformed(text));
    }
    let got: u64 = answer.timestamp.to();
    if got != time {
        let text = format!("asked for the super root at {time}, got that at {got}");
        return Err(RpcCause::Untrue(text));
    }
    if answer.chains.is_empty() || answer.chains.len() > MAX_CHAINS {
        let text = format!("a super root of {} chains", answer.chains.len());
        return Err(RpcCause::Malformed(text));
    }
    let mut chains: Vec<(U256, B256)> = answer
        .chains
        .iter()
        .map(|chain| Ok((chain_id(&chain.chain_id)?, chain.canonical)))
        .collect::<Result<_, RpcCause>>()?;
    chains.sort_by_key(|(id, _)| *id);
    let mut extra = vec![VERSION];
    extra.extend(time.to_be_bytes());
    for (id, output) in chains {
        extra.extend(id.to_be_bytes::<32>());
        extra.extend(output);
    }
    let root = keccak256(&extra);
    if root != answer.super_root {
        let text = format!(
            "the super root at {time} is {}, its parts give {root}",
            answer.super_root
        );
        return Err(RpcCause::Untrue(text));
    }
    Ok(Proposal {
        sequence: time,
        root,
        extra: extra.into(),
        current_l1: answer.cross_safe_derived_from,
    })
}

fn chain_id(value: &Value) -> Result<U256, RpcCause> {
    let id = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().map(U256::from),
    };
    id.ok_or_else(|| RpcCause::Malformed("a chain id that is no number".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response for one chain. The root is computed here from its parts: version, time, id,
    /// output.
    fn answer(id: Value) -> Value {
        let output = B256::repeat_byte(0xaa);
        let mut bytes = vec![1];
        bytes.extend(1_000u64.to_be_bytes());
        bytes.extend(U256::from(901).to_be_bytes::<32>());
        bytes.extend(output);
        json!({
            "crossSafeDerivedFrom": { "hash": B256::repeat_byte(1), "number": 7 },
            "timestamp": "0x3e8",
            "superRoot": keccak256(&bytes),
            "version": "0x01",
            "chains": [{ "chainID": id, "canonical": output, "pending": "0x" }],
        })
    }

    fn of(value: Value) -> Result<Proposal, RpcCause> {
        read(serde_json::from_value(value).unwrap(), 1_000)
    }

    #[test]
    fn a_super_root_is_that_of_its_parts() {
        for id in [json!("901"), json!("0x385"), json!(901)] {
            let proposal = of(answer(id)).unwrap();
            assert_eq!((proposal.sequence, proposal.extra.len()), (1_000, 9 + 64));
            assert_eq!(proposal.current_l1.number, 7);
            assert_eq!(keccak256(&proposal.extra), proposal.root);
        }
    }

    #[test]
    fn chains_are_sorted_by_id() {
        let output = |byte| B256::repeat_byte(byte);
        let mut bytes = vec![1];
        bytes.extend(1_000u64.to_be_bytes());
        for (id, byte) in [(9u64, 2u8), (10, 1)] {
            bytes.extend(U256::from(id).to_be_bytes::<32>());
            bytes.extend(output(byte));
        }
        let mut value = answer(json!("9"));
        value["chains"] = json!([
            { "chainID": "10", "canonical": output(1) },
            { "chainID": "9", "canonical": output(2) },
        ]);
        value["superRoot"] = json!(keccak256(&bytes));
        assert_eq!(of(value).unwrap().extra, Bytes::from(bytes));
    }

    #[test]
    fn wrong_answers_are_refused() {
        let wrong = |name: &str, value: Value| {
            let mut answer = answer(json!("901"));
            answer[name] = value;
            of(answer).unwrap_err()
        };
        let hash = json!(B256::repeat_byte(3));
        assert!(matches!(wrong("superRoot", hash), RpcCause::Untrue(_)));
        assert!(matches!(
            wrong("timestamp", json!("0x3e9")),
            RpcCause::Untrue(_)
        ));
        assert!(matches!(
            wrong("version", json!("0x02")),
            RpcCause::Malformed(_)
        ));
        assert!(matches!(wrong("chains", json!([])), RpcCause::Malformed(_)));
        assert!(of(answer(json!("x"))).is_err());
        assert!(of(answer(json!("902"))).is_err());
    }
}
