//! Names of the members of rollup.json. op-node's decoder matches names without case and ignores
//! unknown ones, so a fork time with a typing error is a fork that never begins.

use super::json::key;
use crate::fork::Fork;
use serde_json::{Map, Value};

/// The objects of the document by path, and the names in each. The times of forks are missing.
const OBJECTS: [(&str, &[&str]); 7] = [
    (
        "",
        &[
            "genesis",
            "block_time",
            "max_sequencer_drift",
            "seq_window_size",
            "channel_timeout",
            "l1_chain_id",
            "l2_chain_id",
            "interop_time",
            "lagoon_time",
            "keep_karst_upgrade_gas",
            "batch_inbox_address",
            "deposit_contract_address",
            "l1_system_config_address",
            "chain_op_config",
            "alt_da",
            "pectra_blob_schedule_time",
            // Names of earlier versions; the first one has no effect any more.
            "protocol_versions_address",
            "da_challenge_address",
            "da_challenge_window",
            "da_resolve_window",
            "use_plasma",
        ],
    ),
    ("genesis", &["l1", "l2", "l2_time", "system_config"]),
    ("genesis.l1", &["hash", "number"]),
    ("genesis.l2", &["hash", "number"]),
    (
        "genesis.system_config",
        &[
            "batcherAddr",
            "batcherAddress",
            "overhead",
            "scalar",
            "gasLimit",
            "eip1559Params",
            "operatorFeeParams",
            "minBaseFee",
            "daFootprintGasScalar",
        ],
    ),
    (
        "chain_op_config",
        &[
            "eip1559Elasticity",
            "eip1559_elasticity",
            "eip1559Denominator",
            "eip1559_denominator",
            "eip1559DenominatorCanyon",
            "eip1559_denominator_canyon",
        ],
    ),
    (
        "alt_da",
        &[
            "da_challenge_contract_address",
            "da_commitment_type",
            "da_max_input_size",
            "da_challenge_window",
            "da_resolve_window",
        ],
    ),
];

/// A member of a rollup.json that no version of the document has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMember {
    /// Path of the object with the member; empty for the document.
    pub object: &'static str,
    /// Name of the member.
    pub name: String,
    /// Names that the object may have.
    pub known: Vec<String>,
}

/// Names in the object with this path.
fn names(path: &str, names: &[&str]) -> Vec<String> {
    let times = Fork::ALL.into_iter().filter(|fork| *fork != Fork::Bedrock);
    let times = times.map(key).filter(|_| path.is_empty());
    names
        .iter()
        .map(|name| name.to_string())
        .chain(times)
        .collect()
}

/// The object with this path.
fn object<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let parts = path.split('.').filter(|part| !part.is_empty());
    let mut found = document;
    for part in parts {
        found = found.get_mut(part)?;
    }
    found.as_object_mut()
}

/// Gives the members of a document the names that the reader knows, where they differ in case
/// only. Returns the members that are still unknown.
pub(super) fn correct(document: &mut Value) -> Vec<UnknownMember> {
    let mut unknown = Vec::new();
    for (path, known) in OBJECTS {
        let known = names(path, known);
        let Some(members) = object(document, path) else {
            continue;
        };
        let given: Vec<String> = members.keys().cloned().collect();
        for name in given.into_iter().filter(|name| !known.contains(name)) {
            let same = |other: &&String| other.eq_ignore_ascii_case(&name);
            match known.iter().find(same) {
                Some(right) => {
                    let value = members.remove(&name).unwrap_or_default();
                    let exact = members.entry(right).or_insert(Value::Null);
                    if exact.is_null() {
                        *exact = value;
                    }
                }
                None => unknown.push(UnknownMember {
                    object: path,
                    name,
                    known: known.clone(),
                }),
            }
        }
    }
    unknown
}
