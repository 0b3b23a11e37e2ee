//! Metrics of a running node's swarm: the network's names, and how blocks come.

use crate::net::{Devnet, Node, ask, wait};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(300);

/// Metrics as they are served, by name and labels.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(net: &Devnet, node: &Node) -> Option<Self> {
        let info: Value =
            serde_json::from_str(&fs::read_to_string(net.dir.join("devnet.json")).ok()?).ok()?;
        let node = info["nodes"]
            .as_array()?
            .iter()
            .find(|other| other["name"] == json!(node.name))?;
        let host = node["metrics"]
            .as_str()?
            .strip_prefix("http://")?
            .strip_suffix("/metrics")?;
        let mut stream = TcpStream::connect(host).ok()?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let samples = answer
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '));
        Some(Self(
            samples
                .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
                .collect(),
        ))
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// Counters that grow with every block.
const WITH_BLOCKS: [&str; 6] = [
    "op_node_default_p2p_gossip_events_total{type=\"DELIVER_MESSAGE\"}",
    "op_node_default_p2p_bandwidth_bytes_total{direction=\"in\"}",
    "starling_p2p_gossip_total{verdict=\"accept\"}",
    "starling_p2p_block_arrival_seconds_count",
    "starling_p2p_block_head_seconds_count",
    "starling_p2p_check_seconds_count",
];

#[test]
fn the_metrics_of_a_running_node_move_with_its_blocks_and_peers() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (replica, sequencer) = (net.replicas().remove(0), net.sequencer());
    grow_with_blocks(&net, &replica);
    show_mesh_and_scores(&net, &replica);
    have_the_times_of_each_block(&replica, &sequencer);
    count_the_peers_of_a_publisher(&net, &sequencer, &replica);
}

fn grow_with_blocks(net: &Devnet, replica: &Node) {
    let first = wait("a block by gossip", PATIENCE, || {
        Scrape::of(net, replica)
            .filter(|scrape| WITH_BLOCKS.iter().all(|name| scrape.get(name) > 0.0))
    });
    wait("more blocks by gossip", PATIENCE, || {
        let scrape = Scrape::of(net, replica)?;
        WITH_BLOCKS
            .iter()
            .all(|name| scrape.get(name) > first.get(name))
            .then_some(())
    });
    assert_eq!(first.get("op_node_default_p2p_peer_count"), 1.0);
    assert!(
        first.get("op_node_default_p2p_stream_count") >= 2.0,
        "one each way"
    );
    assert!(first.get("op_node_default_p2p_gossip_events_total{type=\"ADD_PEER\"}") >= 1.0);
    // A block of one second's time is the head well before the next but nine; every block is in the
    // last bucket.
    assert!(first.get("starling_p2p_block_head_seconds_bucket{le=\"+Inf\"}") > 0.0);
}

fn show_mesh_and_scores(net: &Devnet, replica: &Node) {
    wait("the mesh and the scores", PATIENCE, || {
        let scrape = Scrape::of(net, replica)?;
        let scored = |kind: &&str| {
            scrape.get(&format!(
                "op_node_default_peer_scores_bucket{{type=\"{kind}\",le=\"0\"}}"
            )) > 0.0
        };
        (["total", "blocksTimeInMesh", "blocksFirstMessage"]
            .iter()
            .all(scored)
            && scrape.get("starling_p2p_mesh_peers{topic=\"V4\"}") == 1.0)
            .then_some(())
    });
}

/// Checks `starling_p2pBlocks`, which has single blocks in place of sums.
fn have_the_times_of_each_block(replica: &Node, sequencer: &Node) {
    let blocks = wait("blocks that became the head", PATIENCE, || {
        let blocks = ask(&replica.http, "starling_p2pBlocks", json!([]));
        blocks
            .as_array()
            .filter(|blocks| blocks.iter().any(|block| block["head"].is_f64()))
            .cloned()
    });
    let block = blocks
        .iter()
        .find(|block| block["head"].is_f64())
        .expect("one");
    let seconds = |name: &str| block[name].as_f64().expect("seconds");
    assert!(
        seconds("arrived") < seconds("head") && seconds("check") > 0.0,
        "{block}"
    );
    assert!(block["copies"].as_u64() >= Some(1), "{block}");
    let peer = block["peer"].as_str().expect("a peer");
    assert!(
        sequencer
            .p2p
            .as_ref()
            .is_some_and(|address| address.ends_with(peer)),
        "{block}"
    );
}

/// The other side: the sequencer publishes, accepts connections, and counts peers that disconnect.
fn count_the_peers_of_a_publisher(net: &Devnet, sequencer: &Node, replica: &Node) {
    let before = Scrape::of(net, sequencer).expect("it serves metrics");
    assert!(before.get("op_node_default_p2p_gossip_events_total{type=\"PUBLISH_MESSAGE\"}") > 0.0);
    assert!(
        before.get("op_node_default_p2p_accepts{result=\"allow\"}")
            + before.get("op_node_default_p2p_dials{result=\"allow\"}")
            > 0.0
    );
    replica.kill9();
    wait("the peer to be gone", PATIENCE, || {
        let scrape = Scrape::of(net, sequencer)?;
        let gone =
            scrape.get("op_node_default_p2p_gossip_events_total{type=\"REMOVE_PEER\"}") > 0.0;
        (gone && scrape.get("op_node_default_p2p_peer_count") == 0.0).then_some(())
    });
}
