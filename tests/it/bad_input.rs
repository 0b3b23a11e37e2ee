//! Bad input by an operator must give one clear sentence with the cause and the next step, a
//! non-zero exit code, and nothing overwritten.

use crate::net::{head, starling, wait};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

fn genesis(chain_id: u64) -> Value {
    json!({
        "config": {
            "chainId": chain_id, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
            "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
            "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0,
        },
        "timestamp": "0x1", "gasLimit": "0x1c9c380", "difficulty": "0x0", "alloc": {
            "0x00000000000000000000000000000000000000aa": {"balance": "0x1"}
        },
    })
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("a temporary file");
}

fn run(args: &[&str]) -> Output {
    starling()
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("starling starts")
}

/// Checks that the program exited by itself with an error, without a panic, and that its output
/// contains all `words`.
fn fails_with(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert_ne!(output.status.code(), Some(0), "it must fail: {text}");
    assert!(
        output.status.code().is_some(),
        "it must exit, not be killed: {text}"
    );
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!text.contains("panicked"), "a panic is no sentence: {text}");
}

/// Every file under a folder with its bytes, except lock files.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path
                .file_name()
                .is_some_and(|name| name.eq_ignore_ascii_case("lock"))
            {
                out.push((
                    path.display().to_string(),
                    fs::read(&path).unwrap_or_default(),
                ));
            }
        }
    }
    out.sort();
    out
}

#[test]
fn a_bad_genesis_is_refused_and_nothing_is_written() {
    let temp = tempfile::tempdir().unwrap();
    let (file, data) = (temp.path().join("genesis.json"), temp.path().join("data"));
    let datadir = format!("--datadir={}", data.display());
    let cases: [(&str, &[&str]); 4] = [
        ("{", &["genesis"]),
        ("{}", &["genesis"]),
        (
            r#"{"config": {"chainId": "many"}, "alloc": {}}"#,
            &["genesis"],
        ),
        (
            r#"{"config": {"chainId": 1, "optimism": {}, "canyonTime": 0}, "gasLimit": "0x1", "difficulty": "0x0", "alloc": {}}"#,
            &["genesis"],
        ),
    ];
    for (text, words) in cases {
        write(&file, text);
        let output = run(&["init", &datadir, file.to_str().unwrap()]);
        fails_with(&output, words);
        fails_with(&output, &[file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            said.matches("EOF").count(),
            usize::from(text == "{"),
            "a cause is said once: {said}"
        );
        assert!(contents(&data).is_empty(), "{text} left files behind");
    }
    fails_with(
        &run(&["init", &datadir, "/nowhere/genesis.json"]),
        &["/nowhere/genesis.json"],
    );
    fails_with(&run(&["init", &datadir]), &["genesis"]);
}

#[test]
fn another_chains_data_directory_stays_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let datadir = format!("--datadir={}", data.display());
    let [one, two] = [1, 2].map(|id| temp.path().join(format!("{id}.json")));
    write(&one, &genesis(1001).to_string());
    write(&two, &{
        let mut other = genesis(1002);
        other["gasLimit"] = json!("0x1c9c381");
        other.to_string()
    });
    let first = run(&["init", &datadir, one.to_str().unwrap()]);
    assert!(
        first.status.success(),
        "{}",
        String::from_utf8_lossy(&first.stderr)
    );
    fails_with(
        &run(&["init", &datadir, two.to_str().unwrap()]),
        &["incompatible genesis", "--datadir"],
    );
    // The first chain's data are kept, and `init` with its genesis again succeeds.
    let again = run(&["init", &datadir, one.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned()
        + &String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}");
    assert!(said.contains("there already"), "{said}");
}

#[test]
fn another_clients_data_directory_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    fs::create_dir_all(data.join("geth/chaindata")).unwrap();
    write(&data.join("geth/chaindata/CURRENT"), "MANIFEST-000001\n");
    let file = temp.path().join("genesis.json");
    write(&file, &genesis(1001).to_string());
    let datadir = format!("--datadir={}", data.display());
    let before = contents(&data);
    fails_with(
        &run(&["init", &datadir, file.to_str().unwrap()]),
        &["geth", data.to_str().unwrap()],
    );
    fails_with(&run(&["execution", &datadir]), &[data.to_str().unwrap()]);
    assert_eq!(before, contents(&data));
}

#[test]
fn a_directory_without_a_chain_says_how_to_make_one() {
    let temp = tempfile::tempdir().unwrap();
    let datadir = format!("--datadir={}", temp.path().join("data").display());
    fails_with(&run(&["execution", &datadir]), &["starling init"]);
}

#[test]
fn a_port_in_use_and_a_second_process_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let datadir = format!("--datadir={}", data.display());
    let file = temp.path().join("genesis.json");
    write(&file, &genesis(1001).to_string());
    assert!(
        run(&["init", &datadir, file.to_str().unwrap()])
            .status
            .success()
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails_with(
        &run(&["execution", &datadir, "--http", "--http.port", &port]),
        &[&port, "--http.port"],
    );

    let free = free_port();
    let mut child = starling()
        .args([
            "execution",
            &datadir,
            "--http",
            &format!("--http.port={free}"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait("the first process", Duration::from_secs(20), || {
        head(&format!("http://127.0.0.1:{free}"))
    });
    fails_with(
        &run(&["execution", &datadir, "--http"]),
        &["in use by process", &child.id().to_string()],
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Makes an initialised OP Stack data directory. Returns its path and that of the matching
/// rollup.json.
fn rollup(temp: &Path) -> (String, String) {
    let mut genesis = genesis(901);
    let config = genesis["config"].as_object_mut().unwrap();
    config.insert(
        "optimism".into(),
        json!({"eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250}),
    );
    for fork in ["regolith", "canyon", "ecotone", "fjord", "granite"] {
        config.insert(format!("{fork}Time"), json!(0));
    }
    let (file, data, rollup) = (
        temp.join("l2.json"),
        temp.join("l2"),
        temp.join("rollup.json"),
    );
    write(&file, &genesis.to_string());
    let datadir = format!("--datadir={}", data.display());
    let output = run(&["init", &datadir, file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let hash = &said[said.find("hash=0x").expect("init names the hash") + 5..][..66];
    let zero = format!("0x{}", "0".repeat(64));
    let json = json!({
        "genesis": {
            "l1": {"hash": format!("0x{}", "5".repeat(64)), "number": 0}, "l2": {"hash": hash, "number": 0}, "l2_time": 1,
            "system_config": {"batcherAddr": format!("0x{}", "1".repeat(40)), "overhead": zero, "scalar": format!("0x{}1", "0".repeat(63)), "gasLimit": 30_000_000},
        },
        "block_time": 2, "max_sequencer_drift": 600, "seq_window_size": 3600, "channel_timeout": 300,
        "l1_chain_id": 900, "l2_chain_id": 901,
        "regolith_time": 0, "canyon_time": 0, "delta_time": 0, "ecotone_time": 0, "fjord_time": 0, "granite_time": 0,
        "batch_inbox_address": format!("0x{}", "2".repeat(40)), "deposit_contract_address": format!("0x{}", "3".repeat(40)),
        "l1_system_config_address": format!("0x{}", "4".repeat(40)),
    });
    write(&rollup, &json.to_string());
    (datadir, format!("--rollup.config={}", rollup.display()))
}

#[test]
fn an_unreadable_key_is_named_and_never_overwritten() {
    let temp = tempfile::tempdir().unwrap();
    let (datadir, config) = rollup(temp.path());
    let key = temp.path().join("key.txt");
    for bad in [
        "",
        "0x12",
        "not a key at all",
        &"f".repeat(64),
        &"0".repeat(64),
    ] {
        write(&key, bad);
        let path = key.to_str().unwrap();
        let output = run(&[
            "node",
            &datadir,
            &config,
            "--p2p.listen.tcp=0",
            &format!("--p2p.priv.path={path}"),
        ]);
        fails_with(&output, &[path]);
        let sequencer = [
            "--sequencer.enabled".to_owned(),
            format!("--p2p.sequencer.key.path={path}"),
            "--p2p.disable".to_owned(),
        ];
        let output = starling()
            .args(["node", &datadir, &config])
            .args(sequencer)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        fails_with(&output, &["key"]);
        assert_eq!(fs::read_to_string(&key).unwrap(), bad);
    }
}

/// Without the blob schedule, a sequencer would write a blob base fee that no verifier derives, and
/// a node that reads L1 could derive no block.
#[test]
fn a_node_on_an_unknown_l1_needs_its_chain_config() {
    let temp = tempfile::tempdir().unwrap();
    let (datadir, config) = rollup(temp.path());
    let (key, l1) = (temp.path().join("key.txt"), temp.path().join("l1.json"));
    write(&key, &"1".repeat(64));
    let option = format!("--rollup.l1-chain-config={}", l1.display());
    let sequencer = format!("--p2p.sequencer.key.path={}", key.display());
    let mut line = vec![
        "node",
        datadir.as_str(),
        &config,
        "--p2p.disable",
        "--sequencer.enabled",
        &sequencer,
    ];
    let without_schedule = [
        "failed to read chain spec: L1 chain 900 ",
        "--rollup.l1-chain-config",
    ];
    fails_with(&run(&line), &without_schedule);
    let replica = [
        "node",
        &datadir,
        &config,
        "--p2p.disable",
        "--l1=http://127.0.0.1:9",
    ];
    fails_with(&run(&replica), &without_schedule);
    line.push(&option);
    fails_with(
        &run(&line),
        &["failed to read chain spec: ", l1.to_str().unwrap()],
    );
    for (text, words) in [
        ("{", "not readable"),
        (
            r#"{"chainId": 900, "cancunTime": 0}"#,
            "L1 chain config does not have a blob schedule config",
        ),
        (
            r#"{"config": {"chainId": 1, "blobSchedule": {}}}"#,
            "l1 chain config chain ID mismatch: 1 != 900",
        ),
    ] {
        write(&l1, text);
        fails_with(
            &run(&["node", &datadir, &config, "--p2p.disable", &option]),
            &[words, l1.to_str().unwrap()],
        );
    }
}

#[test]
fn a_rollup_config_of_another_chain_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (datadir, config) = rollup(temp.path());
    let path = config.trim_start_matches("--rollup.config=").to_owned();
    let text = fs::read_to_string(&path).unwrap();
    write(Path::new(&path), &text.replace("901", "902"));
    fails_with(&run(&["node", &datadir, &config]), &["902", "901", &path]);
    write(Path::new(&path), "{");
    fails_with(&run(&["node", &datadir, &config]), &[&path]);
}

#[test]
fn an_unknown_flag_suggests_the_nearest() {
    fails_with(&run(&["node", "--p2p.statik=x"]), &["--p2p.static"]);
    fails_with(&run(&["execution", "--htpp"]), &["--http"]);
    fails_with(&run(&["nodes"]), &["node"]);
}
