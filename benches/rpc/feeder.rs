//! Plays the rollup node: imports blocks through a node's Engine API, and makes each block the
//! head.

use super::client::{Client, body};
use serde_json::{Value, json};
use starling::jwt::JwtSecret;
use starling_proto::payload::{Payload, PayloadVersion};
use std::{net::SocketAddr, path::Path, time::Duration};

/// Timeout of each call.
const PATIENCE: Duration = Duration::from_secs(120);

/// The two calls that import a block and make it the head, serialized ahead of time.
pub struct ImportCalls([String; 2]);

impl ImportCalls {
    pub fn new(block: &Payload) -> Self {
        let payload = block.to_execution_payload(PayloadVersion::V4);
        let root = block.header.parent_beacon_block_root;
        let heads = json!({ "headBlockHash": block.hash, "safeBlockHash": block.hash, "finalizedBlockHash": block.parent_hash() });
        Self([
            body("engine_newPayloadV4", &json!([payload, [], root, []])),
            body("engine_forkchoiceUpdatedV3", &json!([heads, null])),
        ])
    }
}

pub struct Feeder(Client);

impl Feeder {
    /// Connects to an Engine API. `secret` is the file with its JWT secret.
    pub fn connect(addr: SocketAddr, secret: &Path) -> Self {
        let client = Client::connect(addr, PATIENCE).expect("the Engine API answers");
        Self(client.with_secret(JwtSecret::load_or_create(secret).expect("a secret")))
    }

    pub fn import(&mut self, calls: &ImportCalls) {
        for call in &calls.0 {
            let answer = self.0.post(call).expect("an answer");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            let result = &answer["result"];
            let status = result.get("payloadStatus").unwrap_or(result);
            assert_eq!(status["status"], "VALID", "{answer}");
        }
    }

    pub fn import_all<'a>(&mut self, blocks: impl IntoIterator<Item = &'a Payload>) {
        for block in blocks {
            self.import(&ImportCalls::new(block));
        }
    }
}
