//! Metrics of a running node's swarm: op-node's names, and the arrival of blocks.

use crate::net::{Devnet, Node, ask, call, wait};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(300);

/// The metrics of one scrape, by name and labels.
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
        assert_all_described(&answer);
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

/// Panics unless every metric of a page has a help text.
pub fn assert_all_described(page: &str) {
    let lines: Vec<_> = page.lines().collect();
    let typed = |line: &&str| line.starts_with("# TYPE ");
    for index in (0..lines.len()).filter(|index| typed(&lines[*index])) {
        let before = index.checked_sub(1).map_or("", |before| lines[before]);
        assert!(before.starts_with("# HELP "), "{}", lines[index]);
    }
}

/// Counters that increase with every block.
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
    count_the_blocks_of_a_sequencer(&net, &sequencer);
    count_calls(&net, &replica);
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
    // Even a late block is counted in the last bucket (`+Inf`).
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

/// Checks `starling_p2pBlocks`, which reports the times of single blocks instead of sums.
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

/// Block production: checks that jobs and their durations are counted equally often.
fn count_the_blocks_of_a_sequencer(net: &Devnet, sequencer: &Node) {
    const JOBS: [&str; 3] = [
        "op_node_default_sequencer_building_diff_total",
        "op_node_default_sequencer_sealing_total",
        "op_node_default_transactions_sequenced_total",
    ];
    let first = Scrape::of(net, sequencer).expect("it serves metrics");
    assert_eq!(first.get("op_node_default_sequencer_active"), 1.0);
    let later = wait("more blocks", PATIENCE, || {
        let scrape = Scrape::of(net, sequencer)?;
        let grows = |name: &&str| scrape.get(name) > first.get(name);
        JOBS.iter().all(grows).then_some(scrape)
    });
    for (jobs, durations) in [
        (JOBS[0], "op_node_default_sequencer_building_diff_seconds"),
        (JOBS[1], "op_node_default_sequencer_sealing_seconds"),
    ] {
        let counted = later.get(&format!("{durations}_count"));
        // A job may have ended between the two readings of one scrape.
        assert!((later.get(jobs) - counted).abs() <= 1.0, "{durations}");
    }
    // The histogram counts building time minus block time: at most ten seconds at least once.
    let most = "op_node_default_sequencer_building_diff_seconds_bucket{le=\"10\"}";
    assert!(later.get(most) > 0.0);
    for quiet in ["publishing_errors", "sequencer_resets"] {
        assert_eq!(
            later.0.get(&format!("op_node_default_{quiet}_total")),
            Some(&0.0)
        );
    }
}

/// Checks the counts of calls to the rollup node's endpoint and to L1, by method and outcome, and
/// of HTTP requests.
fn count_calls(net: &Devnet, replica: &Node) {
    let url = replica.rpc.as_deref().expect("a rollup node");
    let before = Scrape::of(net, replica).expect("it serves metrics");
    for _ in 0..3 {
        ask(url, "optimism_syncStatus", json!([]));
    }
    assert!(call(url, "optimism_invented", json!([])).is_err());
    let after = Scrape::of(net, replica).expect("it serves metrics");
    let more = |name: &str| {
        let name = format!("op_node_default_{name}");
        after.get(&name) - before.get(&name)
    };
    let status = "{rpc=\"main\",method=\"optimism_syncStatus\"";
    assert!(more(&format!("rpc_server_requests_total{status}}}")) >= 3.0);
    let answered = format!("rpc_server_responses_total{status},error=\"<nil>\"}}");
    assert!(more(&answered) >= 3.0);
    let size = format!("rpc_server_results_size_total{status}}}");
    assert!(more(&size) > 1_000.0, "three answers of some hundred bytes");
    let durations = format!("rpc_server_request_duration_seconds_count{status}}}");
    assert!(more(&durations) >= 3.0);
    let unknown =
        "rpc_server_responses_total{rpc=\"main\",method=\"<unknown>\",error=\"rpc_-32601\"}";
    assert_eq!(more(unknown), 1.0);
    assert!(more("http_requests_count_total{method=\"POST\"}") >= 4.0);
    let ok = "{method=\"POST\",response_code=\"200\"}";
    for name in [
        "http_responses_count_total",
        "http_request_duration_ms_count",
        "http_response_size_count",
    ] {
        assert!(more(&format!("{name}{ok}")) >= 4.0, "{name}");
    }
    wait("no request in flight", PATIENCE, || {
        let scrape = Scrape::of(net, replica)?;
        let in_flight = "op_node_default_http_inflight_requests_count{method=\"POST\"}";
        (scrape.0.get(in_flight) == Some(&0.0)).then_some(())
    });
    wait("calls to L1", PATIENCE, || {
        let scrape = Scrape::of(net, replica)?;
        let l1 = "{rpc=\"l1\",method=\"eth_getBlockByNumber\"";
        [
            format!("requests_total{l1}}}"),
            format!("responses_total{l1},error=\"<nil>\"}}"),
            format!("results_size_total{l1}}}"),
            format!("request_duration_seconds_count{l1}}}"),
        ]
        .iter()
        .all(|name| {
            let name = format!("op_node_default_rpc_client_{name}");
            scrape.get(&name) > before.get(&name)
        })
        .then_some(())
    });
}

/// Checks the sequencer's side: it publishes blocks, accepts connections, and counts peers that
/// disconnect.
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
