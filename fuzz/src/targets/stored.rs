//! Rows of the stores (peerstore records, rows of the payload log), and responses of routers
//! (NAT-PMP).

use crate::{InputKind, fixtures};
use starling::chain::payload_log;
use starling_p2p::fuzzing::{StoreRecord, pmp_reply};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let split = data
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(data.len());
    let (key, value) = (&data[..split], data.get(split + 1..).unwrap_or_default());
    match std::str::from_utf8(key)
        .ok()
        .and_then(|key| StoreRecord::read(key, value))
    {
        None => outcome.add(&"no record"),
        Some(record) => {
            let written = record.value().expect("a record that was read is there");
            let again = StoreRecord::read(&record.key(), &written);
            assert_eq!(
                again.as_ref(),
                Some(&record),
                "{}",
                String::from_utf8_lossy(&written)
            );
            outcome.add(&std::mem::discriminant(&record));
            outcome.add(&record.removed().value());
        }
    }
    if let Some((payload, origin)) = payload_log::decode(data) {
        assert_eq!(
            payload_log::encode(&payload, origin),
            data,
            "a row has one encoding"
        );
    }
    // The checksum stops every mutation, so also try the input with a correct one.
    if data.len() > 40 {
        let sum = alloy_primitives::keccak256(&data[40..]);
        let row = [&data[..8], sum.as_slice(), &data[40..]].concat();
        let decoded = payload_log::decode(&row);
        outcome.add(&decoded.is_some());
        if let Some((payload, origin)) = decoded {
            assert_eq!(
                payload_log::encode(&payload, origin),
                row,
                "a row has one encoding"
            );
            outcome.scale(payload.transactions.len());
        }
    }
    for operation in 0..3 {
        outcome.add(&pmp_reply(data, operation));
    }
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = super::gossip::blocks()
        .iter()
        .map(|block| payload_log::encode(block, 1))
        .collect();
    let peer = "/AASQQAQIEBGU27GEZEUTNYS3I2FYVYYZYODTJFKSTU5LSIRNX4LYAAFVFIM3LTI";
    let ban = r#"{"expiry":50,"lastUpdate":3,"reason":"score -120","address":"203.0.113.5","unknown":[1]}"#;
    for (key, value) in [
        (format!("/peers/ban_expiration{peer}"), ban),
        (format!("/peers/blocked{peer}"), ""),
        ("/ips/ban_expiration/2001:db8::1".into(), ban),
        ("/ips/blocked/203.0.113.5".into(), ""),
        ("/subnets/blocked/10.0.0.0/8".into(), ""),
        ("/nodes/00ff".into(), r#"{"enr":"enr:-x","seen":8}"#),
    ] {
        seeds.push(format!("{key}\n{value}").into_bytes());
    }
    let score = r#"{"lastUpdate":9,"peerScores":{"gossip":{"total":1.5},"reqResp":{"errorResponses":1e300}}}"#.to_owned();
    for score in fixtures::strings(&["p2p-wire/score-record-json.json"])
        .into_iter()
        .chain([score])
    {
        seeds.push(format!("/peers/scores{peer}\n{score}").into_bytes());
    }
    seeds.push([0, 128, 0, 0, 0, 0, 0, 9, 203, 0, 113, 5].to_vec());
    seeds.push([0, 130, 0, 0, 0, 0, 0, 9, 0x24, 6, 0x24, 7, 0, 0, 14, 16].to_vec());
    seeds
}
