//! *Adding a node*, in the way an operator does it: with a shell script that runs each component as
//! a separate process. Also a whole local network that is stopped, killed and restarted.

use crate::net::{Devnet, ask, call, signal, starling, wait};
use alloy_primitives::{Address, Bytes, TxKind, U256};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Longest wait for heads to rise: debug builds are slow on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_node_is_added_and_all_are_stopped_and_started_by_a_script() {
    let curl = Command::new("curl").arg("--version").output().ok();
    if starling_testkit::require(curl, "curl").is_none() {
        return;
    }
    // This network provides the chain's files and the accounts for a transaction.
    let net = Devnet::start_whole(&["--replicas=0", "--l2.block-time=1", "--l1.block-time=2"]);
    let to = TxKind::Call(Address::repeat_byte(0x42));
    let account = net.accounts[0].clone();
    let raw = account.sign(net.l2_chain_id, 0, to, U256::from(7), Bytes::new(), 21_000);
    let files = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(&net.dir)
        .expect("the network's folder")
        .flatten()
    {
        if entry.path().is_file() {
            let copy = files.path().join(entry.file_name());
            std::fs::copy(entry.path(), copy).expect("a copy");
        }
    }
    drop(net);
    let folder = tempfile::tempdir().expect("a folder");
    let ports: Vec<String> = (0..12).map(|_| free_port().to_string()).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/adding_a_node.sh");
    let output = Command::new("bash")
        .arg(script)
        .arg(starling().get_program())
        .args([files.path(), folder.path()])
        .arg(raw.to_string())
        .args(&ports)
        .stdin(Stdio::null())
        .output()
        .expect("bash runs the script");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("all heads move again"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A local network whose data folder is kept when its processes end.
struct KeptNetwork<'a> {
    child: Child,
    dir: &'a Path,
}

impl<'a> KeptNetwork<'a> {
    fn start(dir: &'a Path) -> Self {
        let info = dir.join("devnet.json");
        let _ = std::fs::remove_file(&info);
        let log = std::fs::File::create(dir.with_extension("log")).expect("a log");
        let child = starling()
            .arg("devnet")
            .arg(format!("--datadir={}", dir.display()))
            .args(["--replicas=1", "--l2.block-time=1", "--l1.block-time=2"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the network starts");
        wait("devnet.json", Duration::from_secs(90), || {
            info.is_file().then_some(())
        });
        Self { child, dir }
    }

    fn info(&self) -> Value {
        let text = std::fs::read_to_string(self.dir.join("devnet.json")).expect("devnet.json");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Unsafe, safe and finalized head of the replica, and the newest L2 block proposed on L1.
    fn heads(&self) -> Option<[u64; 4]> {
        let info = self.info();
        let nodes = info["nodes"].as_array().expect("nodes");
        let field = |role: &str, field: &str| {
            let node = nodes.iter().find(|node| node["role"] == role)?;
            node[field].as_str().map(str::to_owned)
        };
        let status = call(&field("replica", "rpc")?, "optimism_syncStatus", json!([])).ok()?;
        let number = |head: &str| status[head]["number"].as_u64();
        let oracle =
            json!([{ "to": info["contracts"]["output_oracle"], "data": "0x4599c788" }, "latest"]);
        let proposed = ask(&field("l1", "http")?, "eth_call", oracle);
        let proposed: U256 = proposed.as_str()?.parse().ok()?;
        Some([
            number("unsafe_l2")?,
            number("safe_l2")?,
            number("finalized_l2")?,
            proposed.to(),
        ])
    }

    /// Waits until all four numbers exceed those in `before`.
    fn rises_above(&self, before: [u64; 4]) -> [u64; 4] {
        wait(&format!("heads above {before:?}"), LIMIT, || {
            let now = self.heads()?;
            now.iter()
                .zip(before)
                .all(|(now, before)| *now > before)
                .then_some(now)
        })
    }

    /// Signals the network's main process, and waits until its node processes have ended too. After
    /// a kill the nodes stop by themselves; the batcher first waits for L1.
    fn end(mut self, by: Signal) {
        let info = self.info();
        let nodes = info["nodes"].as_array().expect("nodes").iter();
        let pids: Vec<u64> = nodes.filter_map(|node| node["pid"].as_u64()).collect();
        signal(self.child.id() as i32, by);
        let _ = self.child.wait();
        wait("the nodes to end", LIMIT, || {
            let is_gone = |pid: &u64| !Path::new(&format!("/proc/{pid}")).exists();
            pids.iter().all(is_gone).then_some(())
        });
    }
}

impl Drop for KeptNetwork<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_network_that_is_stopped_and_killed_as_a_whole_goes_on_in_its_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("net");
    let mut heads = [0; 4];
    for by in [Signal::SIGINT, Signal::SIGKILL] {
        let net = KeptNetwork::start(&dir);
        heads = net.rises_above(heads);
        net.end(by);
    }
    let net = KeptNetwork::start(&dir);
    net.rises_above(heads);
    net.end(Signal::SIGINT);
}
