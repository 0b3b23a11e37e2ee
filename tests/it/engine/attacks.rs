//! Requests that no rollup node should send, and callers that are not the rollup node.

use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn invalid_payloads_of_every_kind_leave_the_chain_as_it_is() {
    let mut family = Family::start();
    let good = family.good.payload.clone();
    let unsigned: Bytes = vec![0x02, 0xc0].into();
    let mut bad: Vec<(&str, Value)> = WRONG_PARTS
        .map(|(name, change)| (name, changed(&good, change)))
        .into();
    bad.push((
        "a broken transaction",
        changed(&good, |p| p.transactions.push(unsigned)),
    ));
    for (name, payload) in &bad {
        family.refuses(name, payload);
    }
    family.accepts_the_good_block();
}

/// A change that makes a block invalid.
type Change = fn(&mut Payload);

const WRONG_PARTS: [(&str, Change); 13] = [
    ("state root", |p| p.header.state_root = B256::repeat_byte(1)),
    ("receipts root", |p| {
        p.header.receipts_root = B256::repeat_byte(1)
    }),
    ("logs bloom", |p| p.header.logs_bloom = Default::default()),
    ("gas used", |p| p.header.gas_used += 1),
    ("gas limit", |p| p.header.gas_limit = 1),
    ("base fee", |p| {
        p.header.base_fee_per_gas = p.header.base_fee_per_gas.map(|fee| fee + 1)
    }),
    ("timestamp", |p| p.header.timestamp -= 2),
    ("number", |p| p.header.number += 1),
    ("blob gas", |p| p.header.blob_gas_used = Some(7)),
    ("excess blob gas", |p| p.header.excess_blob_gas = Some(1)),
    ("withdrawals root", |p| {
        p.header.withdrawals_root = Some(B256::repeat_byte(1))
    }),
    ("a transaction twice", |p| {
        p.transactions = [p.transactions.clone(), p.transactions.clone()].concat()
    }),
    ("no transactions", |p| p.transactions.clear()),
];

/// A core whose head is `parent`, and two descendants of it: `good` and the child of `good`.
struct Family {
    core: Core,
    parent: Made,
    good: Made,
    child: Made,
}

impl Family {
    fn start() -> Self {
        let mut core = Core::start();
        let genesis = core.genesis();
        let parent = core.extend(&genesis, 3, 0).remove(2);
        let good = core.build(&parent, 0);
        core.make_head(&good);
        let child = core.build(&good, 0);
        core.make_head(&parent);
        Self {
            core,
            parent,
            good,
            child,
        }
    }

    /// Checks that a payload is INVALID when inserted, inserted again, named as head, and named as
    /// a parent.
    fn refuses(&mut self, name: &str, payload: &Value) {
        let parent = json!(self.parent.hash);
        let is_invalid = |status: &Value| {
            assert_eq!(
                (&status["status"], &status["latestValidHash"]),
                (&json!("INVALID"), &parent),
                "{name}: {status}"
            );
        };
        let status = self.core.insert(payload);
        is_invalid(&status);
        assert!(
            status["validationError"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty()),
            "{name}"
        );
        assert_eq!(self.core.insert(payload), status, "{name}");
        let hash = block_hash(payload);
        is_invalid(&self.core.forkchoice(hash));
        let orphan = changed(&self.child.payload, |p| p.header.parent_hash = hash);
        let of_child = self.core.insert(&orphan);
        is_invalid(&of_child);
        assert_eq!(
            of_child["validationError"],
            "links to previously rejected block"
        );
        assert_eq!(self.core.latest(), self.parent.hash, "{name}");
    }

    /// Checks that a payload is INVALID without a valid ancestor in the status. Returns the status.
    fn refuses_without_an_ancestor(&mut self, payload: &Value) -> Value {
        let status = self.core.insert(payload);
        assert_eq!(
            (&status["status"], &status["latestValidHash"]),
            (&json!("INVALID"), &Value::Null),
            "{status}"
        );
        status
    }

    fn accepts_the_good_block(&mut self) {
        assert_eq!(self.core.latest(), self.parent.hash);
        assert_eq!(self.core.insert(&self.good.payload)["status"], "VALID");
        self.core.make_head(&self.child);
    }
}

fn block_hash(payload: &Value) -> B256 {
    payload["blockHash"].as_str().unwrap().parse().unwrap()
}

#[test]
fn payloads_that_are_no_blocks_are_refused_and_not_remembered() {
    let mut family = Family::start();
    let good = family.good.payload.clone();
    // As in op-geth, extra data are checked before the parent, and the invalid block is not
    // remembered.
    let forbidden: [Change; 2] = [
        |p| p.header.extra_data = Bytes::new(),
        |p| p.header.extra_data = vec![1; 1].into_iter().chain([0; 16]).collect(),
    ];
    for payload in forbidden.map(|change| changed(&good, change)) {
        family.refuses_without_an_ancestor(&payload);
        let as_head = family.core.forkchoice(block_hash(&payload));
        assert_eq!(as_head["status"], "SYNCING");
        assert_eq!(family.core.latest(), family.parent.hash);
    }
    // A hash that does not match the block.
    for member in ["blockHash", "stateRoot"] {
        let mut payload = good.clone();
        payload[member] = json!(B256::repeat_byte(3));
        let status = family.refuses_without_an_ancestor(&payload);
        assert!(
            status["validationError"]
                .as_str()
                .unwrap()
                .contains("block hash"),
            "{status}"
        );
    }
    let mut payload = good.clone();
    payload["withdrawals"] =
        json!([{ "index": "0x0", "validatorIndex": "0x0", "address": LOGGER, "amount": "0x1" }]);
    assert_eq!(family.core.insert(&payload)["status"], "INVALID");
    for params in [
        json!([good, [B256::ZERO], B256::ZERO, []]),
        json!([good, [], B256::ZERO, ["0x00"]]),
    ] {
        let status = family.core.ask("engine_newPayloadV4", params);
        assert_eq!(status["status"], "INVALID");
    }
    family.accepts_the_good_block();
}

#[test]
fn an_unknown_parent_is_no_fault_and_makes_no_head() {
    let mut family = Family::start();
    let lost = changed(&family.good.payload, |p| {
        p.header.parent_hash = B256::repeat_byte(5)
    });
    assert_eq!(
        family.core.insert(&lost),
        json!({ "status": "SYNCING", "latestValidHash": null, "validationError": null })
    );
    let as_head = family.core.forkchoice(block_hash(&lost));
    assert_eq!(as_head["status"], "SYNCING");
    family.accepts_the_good_block();
}

/// Replaces one member after another of valid requests by an invalid value. Every response must be
/// an error or a status; the core must not crash, and no head may move.
#[test]
fn nothing_a_client_sends_moves_a_head_or_crashes() {
    let mut core = Core::start();
    let genesis = core.genesis();
    let head = core.extend(&genesis, 1, 0).remove(0);
    let good = core.build(&head, 0);
    let mut asked = 0;
    for (method, params) in &right_requests(&head, &good) {
        for pointer in pointers(params) {
            for value in &wrong_values() {
                let mut params = params.clone();
                *params.pointer_mut(&pointer).unwrap() = value.clone();
                asked += 1;
                match core.call(method, params) {
                    Err(error) => {
                        let code = error["code"].as_i64().unwrap();
                        assert!(
                            [-32602, -38001, -38002, -38003, -38004, -38005].contains(&code),
                            "{method} {pointer} {value}: {error}"
                        );
                    }
                    Ok(answer) => assert!(!answer.is_null(), "{method} {pointer} {value}"),
                }
            }
        }
    }
    assert!(asked > 700, "{asked}");
    assert_eq!(core.latest(), head.hash);
    assert_eq!(core.insert(&good.payload)["status"], "VALID");
}

/// Valid requests of a rollup node whose head is `head` and whose next block is `good`.
fn right_requests(head: &Made, good: &Made) -> [(&'static str, Value); 9] {
    let state = json!({ "headBlockHash": head.hash, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
    let started = json!([state, attributes(head, 9)]);
    [
        (
            "engine_newPayloadV4",
            json!([good.payload, [], B256::ZERO, []]),
        ),
        ("engine_newPayloadV2", json!([good.payload])),
        ("engine_forkchoiceUpdatedV3", started.clone()),
        ("engine_forkchoiceUpdatedV1", started),
        ("engine_getPayloadV4", json!(["0x0300000000000000"])),
        ("engine_getPayloadBodiesByHashV1", json!([[head.hash]])),
        ("engine_getPayloadBodiesByRangeV1", json!(["0x1", "0x1"])),
        (
            "engine_exchangeCapabilities",
            json!([["engine_newPayloadV4"]]),
        ),
        (
            "engine_signalSuperchainV1",
            json!([{ "recommended": B256::ZERO, "required": B256::ZERO }]),
        ),
    ]
}

fn wrong_values() -> [Value; 13] {
    [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1.5),
        json!(""),
        json!("0x"),
        json!("0x1"),
        json!("0xzz"),
        json!(format!("0x{}", "f".repeat(64))),
        json!("ff".repeat(600)),
        json!([]),
        json!([null]),
        json!({}),
    ]
}

/// JSON pointers to all values in a JSON tree.
fn pointers(value: &Value) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(at, item)| (at.to_string(), item))
            .collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), member))
            .collect(),
        _ => vec![],
    };
    let below = |(at, value): &(String, &Value)| {
        let at = at.clone();
        std::iter::once(format!("/{at}"))
            .chain(
                pointers(value)
                    .into_iter()
                    .map(move |rest| format!("/{at}{rest}")),
            )
            .collect::<Vec<_>>()
    };
    inner.iter().flat_map(below).collect()
}

#[test]
fn only_who_knows_the_secret_is_served() {
    let mut core = Core::start();
    let file = core.dir.path().join("data/geth/jwtsecret");
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(core.ask("eth_chainId", json!([])), "0x385");
    assert_eq!(
        core.call("net_version", json!([])).unwrap_err()["code"],
        -32601
    );

    let refused = |authorization: &str| post(&core, authorization, "localhost");
    let now = seconds();
    let own = |issued: u64| authorization_header(&core.secret, issued);
    assert_eq!(refused(""), (401, "missing token\n".into()));
    assert_eq!(
        refused("authorization: Bearer x\r\n").1,
        "token contains an invalid number of segments\n"
    );
    assert_eq!(refused(&own(now - 3600)), (401, "stale token\n".into()));
    assert_eq!(refused(&own(now + 3600)), (401, "future token\n".into()));
    assert_eq!(
        refused(&authorization_header(&other_secret(), now)),
        (401, "signature is invalid\n".into())
    );
    assert_eq!(post(&core, &own(now), "evil.example").0, 403);
    assert_eq!(post(&core, &own(now), "localhost").0, 200);
}

fn other_secret() -> JwtSecret {
    JwtSecret::from_hex(&"11".repeat(32)).unwrap()
}

fn authorization_header(secret: &JwtSecret, issued: u64) -> String {
    format!("authorization: {}\r\n", secret.authorization(issued))
}

/// Sends a request over HTTP. Returns status and body of the response.
fn post(core: &Core, authorization: &str, host: &str) -> (u16, String) {
    let mut connection = connect(&core.address);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\n{authorization}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.get_mut().write_all(head.as_bytes()).unwrap();
    read_answer(&mut connection)
}

/// Requests a WebSocket. Returns the connection and the status line of the response.
fn handshake(core: &Core, authorization: &str) -> (BufReader<TcpStream>, String) {
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut connection = connect(&core.address);
    connection
        .get_mut()
        .write_all(format!("{request}{authorization}\r\n").as_bytes())
        .unwrap();
    let mut status = String::new();
    connection.read_line(&mut status).unwrap();
    (connection, status)
}

#[test]
fn a_websocket_shows_its_token_once_in_the_handshake() {
    let core = Core::start();
    let now = seconds();
    for authorization in ["".to_owned(), authorization_header(&other_secret(), now)] {
        let (_, status) = handshake(&core, &authorization);
        assert!(status.contains("401"), "{status}");
    }
    let (mut connection, status) = handshake(&core, &authorization_header(&core.secret, now));
    assert!(status.contains("101"), "{status}");
    let mut line = status;
    while line.trim() != "" {
        line.clear();
        connection.read_line(&mut line).unwrap();
    }
    // One masked text frame with a mask of zeros.
    let text = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
    let frame = [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], &text[..]].concat();
    connection.get_mut().write_all(&frame).unwrap();
    let mut head = [0; 2];
    connection.read_exact(&mut head).unwrap();
    let mut answer = vec![0; usize::from(head[1])];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(
        String::from_utf8(answer).unwrap(),
        r#"{"jsonrpc":"2.0","id":1,"result":"0x385"}"#
    );
}

#[test]
fn a_bad_secret_file_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (datadir, genesis_path, secret) = (
        dir.path().join("data"),
        dir.path().join("genesis.json"),
        dir.path().join("secret"),
    );
    std::fs::write(&genesis_path, genesis().to_string()).unwrap();
    std::fs::write(&secret, "0x1234").unwrap();
    let datadir = format!("--datadir={}", datadir.display());
    assert!(
        starling()
            .arg("init")
            .arg(&datadir)
            .arg(&genesis_path)
            .output()
            .unwrap()
            .status
            .success()
    );
    let run = starling()
        .args([
            "execution",
            &datadir,
            "--authrpc.port=0",
            &format!("--authrpc.jwtsecret={}", secret.display()),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        !run.status.success()
            && said.contains("--authrpc.jwtsecret")
            && said.contains("32 bytes in hex"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "0x1234");
}
