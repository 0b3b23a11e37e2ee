//! Secrets in options: no log, no page of metrics, no RPC response and no list of processes shows one.
//!
//! Every option that can hold a secret is given in the environment, which only the user of the process can
//! read. L1 and the beacon API answer, all other endpoints are closed ports.

use crate::{
    derive::{RecordedL1, Recording, verifier::init},
    net::{Running, post, starling, wait},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;
use starling::cli::flags::{Effect, Kind, Role, RoleFlag, of_role};
use starling_testkit::free_port;
use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write as _},
    net::TcpStream,
    path::Path,
    process::Stdio,
    time::Duration,
};

/// Part of every secret that is text.
const HUSH: &str = "hush7d3f";
const KEY: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";
const WORDS: &str = "test test test test test test test test test test test junk";
/// An endpoint at which no program listens.
const CLOSED: &str = "127.0.0.1:9";

/// The key of a program, which excludes the other ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Signing {
    Key,
    Words,
    Remote,
}

/// A URL with a secret user, password, path and query.
fn secret_url(endpoint: &str) -> String {
    let (scheme, host) = endpoint.split_once("://").expect("a URL");
    format!("{scheme}://{HUSH}:{HUSH}@{host}/{HUSH}?key={HUSH}")
}

/// The value of an option that can hold a secret. Options without effect get one, too: the log names
/// them.
fn secret(flag: &RoleFlag, signing: Signing, l1: &RecordedL1) -> Option<String> {
    let name = flag.flag.name;
    let is_meant = match name {
        "private-key" | "p2p.sequencer.key" | "rollup-rpc" => signing == Signing::Key,
        "mnemonic" => signing == Signing::Words,
        "supervisor-rpcs" => signing == Signing::Remote,
        _ if name.starts_with("signer.") => signing == Signing::Remote,
        _ => true,
    };
    if !is_meant || matches!(flag.flag.effect, Effect::Refused(_)) {
        return None;
    }
    let closed = || secret_url(&format!("http://{CLOSED}"));
    let socket = || secret_url(&format!("ws://{CLOSED}"));
    let has_effect = flag.flag.effect == Effect::Works;
    Some(match (name, flag.flag.kind) {
        ("mnemonic", _) => WORDS.into(),
        (_, Kind::Secret) => KEY.into(),
        ("l1" | "l1-eth-rpc", _) => format!("{},{}", secret_url(&l1.url), socket()),
        ("l1.beacon", _) => secret_url(&l1.beacon),
        ("flashblocks-url", _) => socket(),
        ("l1.beacon-header", _) => format!("X-Key: {HUSH}"),
        ("l1.beacon-fallback-header", _) => format!("{CLOSED}=X-Key: {HUSH}"),
        ("signer.header", _) => format!("X-Key={HUSH}"),
        ("signer.address", _) => format!("0x{}", "77".repeat(20)),
        ("l1.beacon-fallbacks" | "l2-eth-rpc" | "rollup-rpc", _) => closed(),
        ("throttle.additional-endpoints" | "supervisor-rpcs", _) => closed(),
        (_, Kind::Url) => closed(),
        (_, Kind::Text | Kind::List) if !has_effect => HUSH.into(),
        _ => return None,
    })
}

/// A running role whose options have secrets.
struct SecretRole {
    process: Running,
    name: String,
    folder: tempfile::TempDir,
    /// Ports of RPCs and of metrics.
    ports: [u16; 3],
}

impl SecretRole {
    fn start(role: Role, signing: Signing, recording: &Recording, l1: &RecordedL1) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ports = [free_port(), free_port(), free_port()];
        let log = fs::File::create(folder.path().join("log")).expect("a log file");
        let mut command = starling();
        command
            .arg(role.name())
            .args(arguments(role, signing, folder.path(), recording, ports));
        let mut count = 0;
        for flag in of_role(role) {
            // geth's deprecated options have no variables.
            let names = flag.env_names();
            if let (Some(value), Some(name)) = (secret(&flag, signing, l1), names.first()) {
                command.env(name, value);
                count += 1;
            }
        }
        assert!(count > 3, "{count} secrets");
        let child = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the role starts");
        Self {
            process: Running { child },
            name: format!("{} with {signing:?}", role.name()),
            folder,
            ports,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Everything that others can see of the role, once it serves its metrics or has ended.
    fn shown(mut self) -> String {
        let metrics = self.ports[2];
        wait(&self.name, Duration::from_secs(60), || {
            let ended = self
                .process
                .child
                .try_wait()
                .is_ok_and(|status| status.is_some());
            (ended || !page(metrics, "/metrics").is_empty()).then_some(())
        });
        // All endpoints fail within this time.
        std::thread::sleep(Duration::from_secs(3));
        let mut shown = processes(self.process.child.id());
        for port in self.ports {
            for path in ["/", "/metrics", "/healthz", "/debug/metrics/prometheus"] {
                shown += &page(port, path);
            }
            for method in METHODS {
                let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": [] });
                let reply = post(&format!("http://127.0.0.1:{port}"), &body.to_string());
                shown += &reply.map(|(_, body)| body).unwrap_or_default();
            }
        }
        self.process.kill9();
        shown + &self.log()
    }
}

const METHODS: [&str; 13] = [
    "rpc_modules",
    "admin_nodeInfo",
    "admin_peers",
    "admin_datadir",
    "web3_clientVersion",
    "eth_syncing",
    "txpool_status",
    "opp2p_self",
    "opp2p_peers",
    "optimism_version",
    "optimism_rollupConfig",
    "optimism_syncStatus",
    "health_status",
];

/// The options without secrets.
fn arguments(
    role: Role,
    signing: Signing,
    folder: &Path,
    recording: &Recording,
    ports: [u16; 3],
) -> Vec<String> {
    let [http, rpc, metrics] = ports;
    let file = |name: &str| recording.folder.join(name).display().to_string();
    let datadir = folder.join("data");
    let mut options = vec![
        format!("--metrics.port={metrics}"),
        "--metrics.addr=127.0.0.1".into(),
    ];
    if signing == Signing::Remote {
        options.push("--signer.tls.enabled=false".into());
    }
    match role {
        Role::Execution => options.extend(["--metrics".into(), "--verbosity=5".into()]),
        _ => options.extend([
            "--metrics.enabled".into(),
            "--log.level=trace".into(),
            "--rpc.addr=127.0.0.1".into(),
            format!("--rpc.port={rpc}"),
            "--rpc.enable-admin".into(),
        ]),
    }
    if matches!(role, Role::Node | Role::Execution) {
        init(&recording.folder, &datadir);
        options.extend(["--http".into(), format!("--http.port={http}")]);
        options.push("--http.api=admin,eth,web3,txpool".into());
    }
    if matches!(role, Role::Node | Role::Rollup | Role::Execution) {
        options.push(format!("--datadir={}", datadir.display()));
        options.push(format!("--rollup.config={}", file("rollup.json")));
        options.push("--p2p.disable".into());
    }
    if matches!(role, Role::Node | Role::Rollup) {
        options.push(format!(
            "--rollup.l1-chain-config={}",
            file("l1-chain-config.json")
        ));
        options.push("--sequencer.enabled".into());
    }
    let factory = format!("game-factory-address=0x{}", "11".repeat(20));
    match role {
        Role::Node => options.extend([
            "--batcher.enabled".into(),
            "--proposer.enabled".into(),
            format!("--proposer.{factory}"),
        ]),
        Role::Batcher => options.push("--hd-path=m/44'/60'/0'/0/0".into()),
        Role::Proposer => options.push(format!("--{factory}")),
        _ => {}
    }
    options
}

/// A page of a server with its head; empty if there is no server.
fn page(port: u16, path: &str) -> String {
    let mut page = String::new();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return page;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut page);
    page
}

/// The command lines and names that the system shows of a process and its child processes, and the
/// environment of the latter.
fn processes(pid: u32) -> String {
    let read = |pid: u32, name: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut shown = read(pid, "cmdline") + &read(pid, "comm");
    for thread in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let thread = thread.file_name().to_string_lossy().into_owned();
        shown += &read(pid, &format!("task/{thread}/comm"));
        for child in read(pid, &format!("task/{thread}/children")).split_whitespace() {
            let child = child.parse().expect("a process id");
            let _ = write!(shown, "{}{}", processes(child), read(child, "environ"));
        }
    }
    shown
}

#[test]
fn no_role_shows_a_secret_of_its_options() {
    let Some(recording) = Recording::of("jovian-blobs") else {
        return;
    };
    let l1 = recording.serve(&[]);
    let roles = [
        (Role::Node, Signing::Key),
        (Role::Node, Signing::Remote),
        (Role::Execution, Signing::Key),
        (Role::Rollup, Signing::Key),
        (Role::Batcher, Signing::Key),
        (Role::Batcher, Signing::Words),
        (Role::Proposer, Signing::Key),
        (Role::Proposer, Signing::Remote),
    ];
    let running = roles.map(|(role, signing)| SecretRole::start(role, signing, &recording, &l1));
    let password = BASE64_STANDARD.encode(format!("{HUSH}:{HUSH}"));
    for role in running {
        let name = role.name.clone();
        let shown = role.shown();
        assert!(!shown.is_empty(), "{name} logs something");
        for secret in [HUSH, KEY, WORDS, &password] {
            let lines: Vec<_> = shown.lines().filter(|line| line.contains(secret)).collect();
            assert!(lines.is_empty(), "{name} shows a secret: {lines:#?}");
        }
    }
}
