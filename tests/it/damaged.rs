//! A node on a damaged database reports the damage and the command that helps, and never returns a
//! wrong value.

use crate::{
    campaign::{
        copy, flush,
        world::{World, datadir},
    },
    net::{Running, call, number, starling, wait},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

const BLOCKS: u64 = 40;
const DEADLINE: Duration = Duration::from_secs(120);

/// Starts a core on this data directory. Returns its RPC URL, or its output if it ended.
fn start(dir: &Path) -> Result<(Running, String), String> {
    let log_path = dir.join("log");
    let log = fs::File::create(&log_path).expect("a log");
    let mut command = starling();
    command
        .args([
            "execution",
            "--http",
            "--http.port=0",
            "--authrpc.port=0",
            "--datadir",
        ])
        .arg(dir);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log);
    let mut process = Running {
        child: command.spawn().expect("it starts"),
    };
    wait("the core", DEADLINE, || {
        let log = || fs::read_to_string(&log_path).expect("a log");
        if process.child.try_wait().expect("a child").is_some() {
            return Some(Err(log()));
        }
        let found = log()
            .split_once(" http=")?
            .1
            .split_once('\n')?
            .0
            .split(' ')
            .next()?
            .to_owned();
        Some(Ok(found))
    })
    .map(|address| (process, format!("http://{address}")))
}

/// Requests for every block, receipt, transaction and log, and for accounts of the transactions.
fn questions(url: &str) -> Vec<(&'static str, Value)> {
    let mut asked = vec![];
    for block in (0..=BLOCKS).map(|number| format!("{number:#x}")) {
        asked.push(("eth_getBlockByNumber", json!([block, true])));
        asked.push(("eth_getBlockReceipts", json!([block])));
        asked.push((
            "eth_getLogs",
            json!([{ "fromBlock": block, "toBlock": block }]),
        ));
        let whole = call(url, "eth_getBlockByNumber", json!([block, true])).expect("a sound block");
        asked.push(("eth_getBlockByHash", json!([whole["hash"], false])));
        for transaction in whole["transactions"].as_array().expect("a list") {
            asked.push(("eth_getTransactionByHash", json!([transaction["hash"]])));
            asked.push(("eth_getTransactionReceipt", json!([transaction["hash"]])));
            let account = transaction["from"].clone();
            asked.push(("eth_getTransactionCount", json!([account, block])));
            asked.push((
                "eth_getBalance",
                json!([transaction["to"].as_str().or(account.as_str()), block]),
            ));
            asked.push((
                "eth_getCode",
                json!([transaction["to"].as_str().or(account.as_str()), block]),
            ));
            asked.push((
                "eth_getStorageAt",
                json!([
                    transaction["to"].as_str().or(account.as_str()),
                    "0x1",
                    block
                ]),
            ));
            asked.push(("eth_getProof", json!([account, ["0x1"], block])));
        }
    }
    asked
}

/// The table files, which contain the rows.
fn tables(dir: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| {
        path.read_dir()
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("an entry").path())
            .collect::<Vec<_>>()
    };
    let keyspaces = entries(&dir.join("chain/keyspaces"));
    let folders = keyspaces
        .iter()
        .flat_map(|keyspace| [keyspace.join("tables"), keyspace.join("blobs")]);
    let mut files: Vec<_> = folders.flat_map(|folder| entries(&folder)).collect();
    files.sort();
    files
}

#[test]
fn a_damaged_table_is_named_and_nothing_wrong_is_answered() {
    let sound = datadir();
    World::open(sound.path(), None).extend(&mut StdRng::seed_from_u64(9), BLOCKS as usize);
    flush(sound.path());
    let (node, url) = start(sound.path()).expect("it is sound");
    let asked = questions(&url);
    let right: Vec<_> = asked
        .iter()
        .map(|(method, params)| call(&url, method, params.clone()).expect(method))
        .collect();
    assert_eq!(
        number(&call(&url, "eth_blockNumber", json!([])).expect("a number")),
        BLOCKS
    );
    drop(node);

    let (mut refused, mut told) = (0, 0);
    for table in tables(sound.path()) {
        let dir = tempfile::tempdir().expect("a folder");
        copy(sound.path(), dir.path());
        let inside = table.strip_prefix(sound.path()).expect("inside");
        flip_a_bit(&dir.path().join(inside));
        let name = inside.display();
        match start(dir.path()) {
            Err(said) => {
                refused += 1;
                let last = said.lines().last().unwrap_or_default();
                assert!(
                    last.contains("starling db verify") || last.contains("starling init"),
                    "{name}: {said}"
                );
                assert!(!said.contains("panic"), "{name}: {said}");
            }
            Ok((_node, url)) => {
                for ((method, params), right) in asked.iter().zip(&right) {
                    match call(&url, method, params.clone()) {
                        Ok(answer) => assert_eq!(answer, *right, "{name}: {method}{params}"),
                        Err(error) => {
                            told += 1;
                            let message = error["message"].as_str().unwrap_or_default();
                            assert!(
                                message.contains("starling db verify"),
                                "{name}: {method}{params}: {error}"
                            );
                        }
                    }
                }
            }
        }
    }
    println!("{refused} tables refused at the start, {told} questions refused");
    assert!(told > 0);
}

/// Flips a bit in the part of a table that holds rows. (The part after the rows is already checked
/// when the table is opened.)
fn flip_a_bit(table: &Path) {
    let mut bytes = fs::read(table).expect("a table");
    let at = bytes.len() / 5;
    bytes[at] ^= 0x10;
    fs::write(table, &bytes).expect("a table");
}
