//! `starling execution` with a swarm follows the chain without a rollup node and without L1.

use crate::net::{Devnet, Running, ask, call, head, starling, wait};
use alloy_primitives::Address;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Stdio, time::Duration};

const PATIENCE: Duration = Duration::from_secs(180);

/// Starts an execution core and reads the URL of its JSON-RPC from the log.
fn core(options: &[String], log: &Path) -> (Running, String) {
    let file = fs::File::create(log).expect("a log file");
    let mut command = starling();
    command
        .arg("execution")
        .args(["--http", "--http.port=0", "--authrpc.port=0"])
        .args(options);
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a log file"))
        .stderr(file);
    let mut process = Running {
        child: command.spawn().expect("it starts"),
    };
    let url = wait("JSON-RPC", PATIENCE, || {
        let text = fs::read_to_string(log).unwrap_or_default();
        if let Ok(Some(status)) = process.child.try_wait() {
            panic!("it ended with {status}: {text}");
        }
        // Require the end of the line, so that the URL is complete.
        let rest = text.split_once(" http=")?.1.split_once('\n')?.0;
        rest.split(' ')
            .next()
            .map(|address| format!("http://{address}"))
    });
    (process, url)
}

/// Address of the signer whose blocks the network follows.
fn signer(net: &Devnet) -> Address {
    let key = fs::read_to_string(net.dir.join("sequencer.key")).expect("the key");
    starling_proto::sign::address(&starling_proto::sign::secret_from_hex(&key).expect("a key"))
}

/// Makes a core's data directory. Returns options for following the sequencer's swarm and the
/// blocks of `signer`. The first three options do not concern the swarm.
fn following(net: &Devnet, signer: Address) -> [String; 9] {
    let datadir = format!("--datadir={}", net.dir.join("core").display());
    let made = starling()
        .arg("init")
        .arg(&datadir)
        .arg(net.dir.join("l2-genesis.json"))
        .output()
        .expect("it runs");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    [
        datadir,
        format!("--authrpc.jwtsecret={}", net.dir.join("jwt").display()),
        format!("--rollup.config={}", net.dir.join("rollup.json").display()),
        format!(
            "--p2p.static={}",
            net.sequencer().p2p.as_deref().expect("its multiaddr")
        ),
        format!("--p2p.unsafe.block.signer={signer}"),
        format!("--p2p.priv.path={}", net.dir.join("core.p2p-key").display()),
        "--p2p.listen.ip=127.0.0.1".into(),
        "--p2p.listen.tcp=0".into(),
        "--p2p.no-discovery".into(),
    ]
}

fn hash_at(url: &str, number: u64) -> Value {
    ask(
        url,
        "eth_getBlockByNumber",
        json!([format!("{number:#x}"), false]),
    )["hash"]
        .clone()
}

#[test]
fn a_core_alone_follows_the_swarm_that_it_is_told_of_and_joins_none_unasked() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=0"]);
    let sequencer = net.sequencer();
    // The core starts late, so that it has to request the first blocks.
    wait("some blocks", PATIENCE, || {
        head(&sequencer.http).filter(|number| *number >= 3)
    });
    let options = following(&net, signer(&net));
    let (running, url) = core(&options, &net.dir.join("core.log"));
    let reached = wait("blocks by the swarm", PATIENCE, || {
        head(&url).filter(|number| *number >= 6)
    });
    assert_eq!(hash_at(&url, reached), hash_at(&sequencer.http, reached));
    assert_eq!(ask(&url, "net_peerCount", json!([])), json!("0x1"));
    drop(running);

    // Without swarm options no swarm is started, even if rollup.json is given.
    let (_running, url) = core(&options[..3], &net.dir.join("alone.log"));
    let stands = head(&url).expect("it answers");
    wait("more blocks", PATIENCE, || {
        head(&sequencer.http).filter(|number| *number >= stands + 3)
    });
    assert_eq!(head(&url), Some(stands));
    assert!(matches!(call(&url, "net_peerCount", json!([])), Ok(count) if count == json!("0x0")));
}

#[test]
fn a_core_without_l1_follows_the_signer_that_an_operator_names() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=0"]);
    let (sequencer, before) = (net.sequencer(), Address::repeat_byte(7));
    let options = [
        &following(&net, before)[..],
        &["--http.api=eth,net,admin".into()],
    ]
    .concat();
    let (_running, url) = core(&options, &net.dir.join("core.log"));
    wait("the sequencer", PATIENCE, || {
        (ask(&url, "net_peerCount", json!([])) == json!("0x1")).then_some(())
    });
    let stands = head(&sequencer.http).expect("it answers");
    wait("blocks that are refused", PATIENCE, || {
        head(&sequencer.http).filter(|number| *number >= stands + 3)
    });
    assert_eq!(head(&url), Some(0));
    assert_eq!(
        ask(&url, "admin_unsafeBlockSigner", json!([])),
        json!(before)
    );
    assert!(call(&url, "admin_setUnsafeBlockSigner", json!([])).is_err());

    assert_eq!(
        ask(&url, "admin_setUnsafeBlockSigner", json!([signer(&net)])),
        Value::Null
    );
    assert_eq!(
        ask(&url, "admin_unsafeBlockSigner", json!([])),
        json!(signer(&net))
    );
    let reached = wait("blocks that are accepted", PATIENCE, || {
        head(&url).filter(|number| *number >= stands + 3)
    });
    assert_eq!(hash_at(&url, reached), hash_at(&sequencer.http, reached));
    assert!(
        call(&sequencer.http, "admin_unsafeBlockSigner", json!([])).is_err(),
        "served where it is named alone"
    );
}
