//! A peer made of js-libp2p (`tests/clients/libp2p.mjs`) between two of our nodes. Checked are the
//! blocks that it receives by gossip, relays, requests and serves.

use crate::net::{Devnet, Node, Running, ask, head, number, script, wait};
use serde_json::{Value, json};
use starling_proto::sign;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Longest wait for any condition; generous, since the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// The running script: its events so far, and its standard input for commands.
struct Foreigner {
    _process: Running,
    orders: ChildStdin,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Foreigner {
    fn start(mut command: Command, connect: &str, chain_id: u64) -> Self {
        command.arg(json!({ "connect": connect, "chainId": chain_id }).to_string());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script starts");
        let (orders, output) = (
            child.stdin.take().expect("piped"),
            child.stdout.take().expect("piped"),
        );
        let events = Arc::<Mutex<Vec<Value>>>::default();
        let sink = events.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                sink.lock()
                    .unwrap()
                    .push(serde_json::from_str(&line).expect("a JSON object a line"));
            }
        });
        Self {
            _process: Running { child },
            orders,
            events,
        }
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        self.events
            .lock()
            .unwrap()
            .iter()
            .filter(|event| event["event"] == kind)
            .cloned()
            .collect()
    }

    /// The blocks that the js-libp2p host `host` received by gossip.
    fn gossip(&self, host: &str) -> Vec<Value> {
        self.events("gossip")
            .into_iter()
            .filter(|event| event["host"] == host)
            .collect()
    }

    /// Makes js-libp2p request a block from the node that it is connected to.
    fn fetch(&mut self, number: u64, slash: bool) -> Value {
        let before = self.events("fetched").len();
        writeln!(
            self.orders,
            "{}",
            json!({ "fetch": number, "slash": slash })
        )
        .expect("the script reads its orders");
        wait("an answer to js-libp2p", PATIENCE, || {
            self.events("fetched").into_iter().nth(before)
        })
    }

    /// Requests the blocks up to `first`, some of which js-libp2p missed, under both spellings of
    /// the protocol, and a block of the future. A refusal is one byte.
    fn fetches_missed_blocks(&mut self, sequencer: &Node, first: u64) {
        for (number, slash) in (1..=first).zip([false, true].into_iter().cycle()) {
            let answer = self.fetch(number, slash);
            assert_eq!(
                (&answer["result"], &answer["version"]),
                (&json!(0), &json!(1)),
                "{answer}"
            );
            assert_eq!(
                answer["block"],
                json!({ "number": number, "hash": hash_at(&sequencer.http, number) })
            );
            assert_ne!(
                answer["same"], false,
                "what is served is what was gossiped: {answer}"
            );
        }
        let future = self.fetch(1 << 40, false);
        assert_eq!(
            (&future["result"], &future["length"]),
            (&json!(2), &json!(1)),
            "{future}"
        );
    }

    /// Numbers of the blocks that our nodes requested from js-libp2p and received.
    fn requested_of_it(&self, chain_id: u64) -> BTreeSet<u64> {
        let protocol = format!("/opstack/req/payload_by_number/{chain_id}/0");
        self.events("served")
            .into_iter()
            .filter(|event| event["found"] == true)
            .inspect(|event| assert_eq!(event["protocol"], protocol))
            .filter_map(|event| event["number"].as_u64())
            .collect()
    }

    /// Checks that both js-libp2p hosts receive each block once, from any peer, and that the host
    /// "lurker" receives only blocks that it requested by message id, so that both sides compute
    /// equal ids.
    fn hears_each_block_once(&self, net: &Devnet) {
        wait("gossip at the lurker", PATIENCE, || {
            (self.gossip("lurker").len() >= 3).then_some(())
        });
        let heard = self.gossip("lurker");
        assert!(
            heard.iter().all(|block| block["announced"] == true),
            "{heard:?}"
        );
        let key = std::fs::read_to_string(net.dir.join("sequencer.key")).expect("the key");
        let signer = sign::address(&sign::secret_from_hex(&key).expect("a key"));
        let topic = format!("/optimism/{}/3/blocks", net.l2_chain_id);
        let mut ids = BTreeMap::new();
        for host in ["mesh", "lurker"] {
            let mut numbers = BTreeSet::new();
            for block in self.gossip(host) {
                let number = block["number"].as_u64().expect("a number");
                assert!(
                    numbers.insert(number),
                    "block {number} was delivered twice to the {host} host"
                );
                assert_eq!(block["hash"], hash_at(&net.sequencer().http, number));
                assert_eq!(block["signer"], signer.to_checksum(None));
                assert_eq!(block["topic"], topic);
                let id = ids.entry(number).or_insert_with(|| block["id"].clone());
                assert_eq!(*id, block["id"], "the id of block {number}");
            }
        }
    }
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
fn js_libp2p_hears_passes_on_asks_and_serves() {
    let Some(command) = script("libp2p") else {
        return;
    };
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (sequencer, replica) = (net.sequencer(), net.replicas().remove(0));
    wait("some blocks", PATIENCE, || {
        head(&replica.http).filter(|number| *number >= 1)
    });
    replica.kill9();

    let mut js = Foreigner::start(
        command,
        sequencer.p2p.as_deref().expect("its multiaddr"),
        net.l2_chain_id,
    );
    let ready = wait("js-libp2p", PATIENCE, || {
        js.events("ready").into_iter().next()
    });
    let first = wait("gossip at js-libp2p", PATIENCE, || {
        js.gossip("mesh").into_iter().nth(1)
    });
    let first = first["number"].as_u64().expect("a number");
    js.fetches_missed_blocks(&sequencer, first);

    // Restart the replica so late that gossip no longer announces the blocks that it missed.
    let behind = wait("more blocks", PATIENCE, || {
        head(&sequencer.http).filter(|number| *number >= first + 5)
    });
    let _running = restart_behind(&net, &replica, &ready["addresses"]);
    follows_through_js_libp2p(&sequencer, &replica, behind + 5);
    let requested = js.requested_of_it(net.l2_chain_id);
    assert!(
        requested.contains(&first),
        "block {first} was asked of js-libp2p: {requested:?}"
    );
    js.hears_each_block_once(&net);
}

/// Restarts the replica with the js-libp2p hosts as its only peers.
fn restart_behind(net: &Devnet, replica: &Node, hosts: &Value) -> Running {
    let hosts: Vec<&str> = hosts
        .as_array()
        .expect("addresses")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let options = [
        format!("--p2p.static={}", hosts.join(",")),
        // Listen on a new port, so that peers that know the old address cannot connect.
        "--p2p.listen.tcp=0".into(),
        format!(
            "--p2p.priv.path={}",
            net.dir.join("alone.p2p-key").display()
        ),
    ];
    replica.restart_with(&net.dir.join("alone.log"), &options)
}

/// Checks that the replica reaches a height with the two js-libp2p hosts as its only peers.
fn follows_through_js_libp2p(sequencer: &Node, replica: &Node, height: u64) {
    let reached = wait("blocks through js-libp2p", PATIENCE, || {
        head(&replica.http).filter(|number| *number >= height)
    });
    assert_eq!(
        hash_at(&replica.http, reached),
        hash_at(&sequencer.http, reached)
    );
    assert_eq!(
        number(&ask(&replica.http, "net_peerCount", json!([]))),
        2,
        "the hosts of js-libp2p are all it knows"
    );
}
