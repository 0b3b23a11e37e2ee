//! Responses of a beacon endpoint. The blobs in them are shorter than a blob, so no commitment is
//! ever computed and no response accepted.

use crate::InputKind;
use alloy_primitives::{B256, b256};
use serde_json::json;
use starling::rollup::beacon::{BeaconCause, fuzzing};
use starling_proto::derive::BlobRef;

/// The versioned hash of a commitment of zeros.
const ZEROS: B256 = b256!("0x01b0761f87b081d5cf10757ccc89f12be355c70e2e29df288b65b30710dcbcd1");

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let wanted = [(0, ZEROS), (3, B256::repeat_byte(1))];
    let wanted = wanted.map(|(index, versioned_hash)| BlobRef {
        index,
        versioned_hash,
    });
    for wanted in [&wanted[..1], &wanted[..]] {
        for status in [200, 404, 429] {
            note(fuzzing::blobs(status, data, wanted), status, &mut outcome);
            note(
                fuzzing::sidecars(status, data, wanted),
                status,
                &mut outcome,
            );
        }
    }
    outcome
}

fn note<T>(result: Result<T, BeaconCause>, status: u16, outcome: &mut InputKind) {
    let Err(cause) = result else {
        panic!("blobs of an answer without blobs");
    };
    assert_eq!(status == 404, cause == BeaconCause::NotFound);
    outcome.add(&std::mem::discriminant(&cause));
    outcome.scale(cause.to_string().len());
}

pub fn seeds() -> Vec<Vec<u8>> {
    let sidecar = |index: &str, commitment: usize| {
        json!({
            "index": index,
            "blob": "0x0102",
            "kzg_commitment": format!("0x{}", "00".repeat(commitment)),
            "kzg_proof": format!("0x{}", "00".repeat(48)),
            "signed_block_header": {}, "kzg_commitment_inclusion_proof": [],
        })
    };
    let answers = [
        json!({ "data": [] }),
        json!({ "data": ["0x", "0x01"], "finalized": true }),
        json!({ "data": [sidecar("0", 48), sidecar("3", 48)] }),
        json!({ "data": [sidecar("3", 47), sidecar("0", 48), sidecar("0", 0)] }),
        json!({ "data": { "genesis_time": "1" } }),
        json!({ "code": 404, "message": "not found" }),
    ];
    let mut seeds: Vec<Vec<u8>> = answers.iter().map(|json| json.to_string().into()).collect();
    seeds.push(b"<html>too many requests</html>".to_vec());
    seeds.push(Vec::new());
    seeds
}
