//! Metrics of a running batcher and a running proposer: every name of op-batcher, op-proposer and
//! op-service with its type and labels, and Starling's own metrics.

use super::*;
use crate::{metrics::assert_all_described, net::wait};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
};

/// A metric: name without prefix, type, label, and the label's values.
type Expected = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

const STAGES: &[&str] = &["opened", "closed", "fully_submitted", "timed_out"];
const TX_STAGES: &[&str] = &["submitted", "success", "failed"];
const CURVES: &[&str] = &["step", "linear", "quadratic", "pid"];

const BATCHER_METRICS: [Expected; 36] = [
    ("info", "gauge", "version", &[]),
    ("up", "gauge", "", &[]),
    ("channel_total", "counter", "stage", STAGES),
    ("last_channel_unix", "gauge", "stage", STAGES),
    (
        "pending_blocks_count",
        "gauge",
        "stage",
        &["opened", "added", "closed"],
    ),
    ("pending_blocks_bytes_total", "counter", "", &[]),
    ("pending_blocks_bytes_current", "gauge", "", &[]),
    ("blocks_added_count", "gauge", "", &[]),
    ("input_bytes", "gauge", "stage", &["added", "closed"]),
    ("ready_bytes", "gauge", "", &[]),
    ("output_bytes", "gauge", "", &[]),
    ("channel_closed_reason", "gauge", "", &[]),
    ("channel_num_frames", "gauge", "", &[]),
    ("channel_compr_ratio", "histogram", "", &[]),
    ("input_bytes_total", "counter", "", &[]),
    ("output_bytes_total", "counter", "", &[]),
    ("blob_used_bytes", "histogram", "", &[]),
    ("batcher_tx_total", "counter", "stage", TX_STAGES),
    ("last_batcher_tx_unix", "gauge", "stage", TX_STAGES),
    ("balance", "gauge", "", &[]),
    ("channel_queue_length", "gauge", "", &[]),
    ("unsafe_da_bytes", "gauge", "", &[]),
    ("pending_da_bytes", "gauge", "", &[]),
    ("unsafe_bytes_ratio", "gauge", "type", CURVES),
    ("throttle_intensity", "gauge", "type", CURVES),
    ("throttle_max_tx_size", "gauge", "", &[]),
    ("throttle_max_block_size", "gauge", "", &[]),
    ("throttle_controller_type", "gauge", "type", CURVES),
    ("throttle_intensity_history", "summary", "", &[]),
    ("pid_controller_error", "gauge", "", &[]),
    ("pid_controller_integral", "gauge", "", &[]),
    ("pid_controller_derivative", "gauge", "", &[]),
    ("pid_response_time", "histogram", "", &[]),
    ("refs_number", "gauge", "type", &["latest", "loaded"]),
    ("refs_number", "gauge", "layer", &["l1", "l2"]),
    (
        "txmgr_tx_publish_error_count",
        "counter",
        "error",
        &["unknown_error"],
    ),
];

const TXMGR_METRICS: [Expected; 17] = [
    ("txmgr_tx_fee_gwei", "gauge", "", &[]),
    ("txmgr_tx_fee_gwei_total", "counter", "", &[]),
    ("txmgr_tx_gas_bump", "gauge", "", &[]),
    ("txmgr_tx_fee_histogram_gwei", "histogram", "", &[]),
    ("txmgr_tx_type", "gauge", "", &[]),
    ("txmgr_tx_confirmed_latency_ms", "gauge", "", &[]),
    ("txmgr_current_nonce", "gauge", "", &[]),
    ("txmgr_pending_txs", "gauge", "", &[]),
    ("txmgr_basefee_wei", "gauge", "", &[]),
    ("txmgr_blob_basefee_wei", "gauge", "", &[]),
    ("txmgr_tipcap_wei", "gauge", "", &[]),
    ("txmgr_blob_tipcap_wei", "gauge", "", &[]),
    ("txmgr_rpc_error_count", "counter", "", &[]),
    ("txmgr_publish_total", "counter", "", &[]),
    ("txmgr_last_publish_unix", "gauge", "", &[]),
    (
        "txmgr_confirm_total",
        "counter",
        "status",
        &["success", "failed"],
    ),
    (
        "txmgr_last_confirm_unix",
        "gauge",
        "status",
        &["success", "failed"],
    ),
];

const OWN_METRICS: [Expected; 6] = [
    ("channel_cost_gwei", "histogram", "", &[]),
    ("blob_fill_ratio", "histogram", "", &[]),
    ("blocks_behind", "gauge", "", &[]),
    ("bytes_behind", "gauge", "", &[]),
    ("inclusion_delay_seconds", "histogram", "", &[]),
    ("runway_hours", "gauge", "", &[]),
];

const PROPOSER_METRICS: [Expected; 9] = [
    ("info", "gauge", "version", &[]),
    ("up", "gauge", "", &[]),
    ("refs_number", "gauge", "layer", &["l2", "l1_origin"]),
    ("refs_time", "gauge", "layer", &["l2"]),
    ("refs_hash", "gauge", "type", &["proposed"]),
    ("refs_seqnr", "gauge", "type", &["proposed"]),
    ("refs_latency", "gauge", "layer", &["l2"]),
    ("proposed_sequence_number", "gauge", "", &[]),
    ("balance", "gauge", "", &[]),
];

/// The response of a metrics server, parsed.
struct Scraped {
    types: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scraped {
    fn of(port: u16) -> Option<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        assert_all_described(&answer);
        let typed = answer.lines().filter_map(|line| {
            let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
            Some((name.to_owned(), kind.to_owned()))
        });
        let samples = answer.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Some(Self {
            types: typed.collect(),
            samples: samples.collect(),
        })
    }

    fn get(&self, name: &str) -> f64 {
        self.samples.get(name).copied().unwrap_or_default()
    }

    /// Panics unless every expected metric is present with its type and each value of its label.
    fn has(&self, prefix: &str, expected: &[Expected]) {
        for (name, kind, label, values) in expected {
            let name = format!("{prefix}{name}");
            assert_eq!(
                self.types.get(&name).map(String::as_str),
                Some(*kind),
                "{name}"
            );
            let begins = |value: &str| format!("{label}=\"{value}");
            for value in if label.is_empty() || values.is_empty() {
                &[""][..]
            } else {
                values
            } {
                let has_label = |sample: &&String| {
                    let rest = sample.strip_prefix(&name);
                    let is_own = rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
                    is_own && (label.is_empty() || sample.contains(&begins(value)))
                };
                let found = self.samples.keys().find(has_label);
                assert!(found.is_some(), "{name} {label}={value}");
            }
        }
    }
}

#[test]
fn a_running_batcher_and_a_running_proposer_have_every_metric() {
    let world = RelayedNetwork::start();
    let port = free_port();
    let options = [
        "--data-availability-type=blobs",
        "--metrics.enabled",
        "--metrics.addr=127.0.0.1",
        &format!("--metrics.port={port}"),
        "--throttle.unsafe-da-bytes-lower-threshold=3200000",
        "--throttle.controller-type=pid",
    ];
    let refused = RelayFault::Error(-32000, "txpool is full");
    world.l1.order("eth_sendRawTransaction", refused, 1);
    let batcher = world.batcher(&options);
    world.all_becomes_safe();
    let scraped = wait("channels in the metrics", PATIENCE, || {
        let channels = "op_batcher_default_channel_total{stage=\"fully_submitted\"}";
        Scraped::of(port).filter(|scraped| scraped.get(channels) > 1.0)
    });
    scraped.has("op_batcher_default_", &BATCHER_METRICS);
    scraped.has("op_batcher_default_", &TXMGR_METRICS);
    scraped.has("starling_batcher_", &OWN_METRICS);
    assert_eq!(scraped.get("op_batcher_default_txmgr_tx_type"), 3.0);
    assert!(scraped.get("op_batcher_default_balance") > 1.0);
    let runway = scraped.get("starling_batcher_runway_hours");
    assert!(runway.is_finite() && runway > 24.0, "{runway}");
    for own in [
        "channel_cost_gwei",
        "blob_fill_ratio",
        "inclusion_delay_seconds",
    ] {
        assert!(
            scraped.get(&format!("starling_batcher_{own}_count")) > 0.0,
            "{own}"
        );
    }
    let in_use = "op_batcher_default_throttle_controller_type{type=\"pid\"}";
    assert_eq!(scraped.get(in_use), 1.0);
    has_proposer_metrics(&world);
    assert_eq!(
        batcher.count("the batcher's balance lasts less than a day"),
        0
    );
}

fn has_proposer_metrics(world: &RelayedNetwork) {
    let port = free_port();
    let options = [
        "--metrics.enabled".to_owned(),
        "--metrics.addr=127.0.0.1".into(),
        format!("--metrics.port={port}"),
    ];
    let key = world.net.accounts[PROPOSER].key_hex();
    let _proposer = world.proposer("proposer", &key, &options);
    let scraped = wait("a proposal in the metrics", PATIENCE, || {
        let proposed = "op_proposer_default_proposed_sequence_number";
        Scraped::of(port).filter(|scraped| scraped.get(proposed) > 0.0)
    });
    scraped.has("op_proposer_default_", &PROPOSER_METRICS);
    scraped.has("op_proposer_default_", &TXMGR_METRICS);
    assert_eq!(scraped.get("op_proposer_default_txmgr_tx_type"), 2.0);
    assert!(scraped.get("op_proposer_default_balance") > 0.0);
}

/// L1 reports a balance of ten gwei: not zero, but less than the spending of a day.
#[test]
fn a_balance_that_lasts_less_than_a_day_is_one_warning() {
    let world = RelayedNetwork::start();
    let little = |balance: &mut serde_json::Value| *balance = serde_json::json!("0x2540be400");
    world
        .l1
        .always("eth_getBalance", RelayFault::Change(little));
    let batcher = world.batcher(&[]);
    batcher.says("the batcher's balance lasts less than a day at the spending of the last hour");
    world.all_becomes_safe();
    world.all_becomes_safe();
    assert_eq!(batcher.count("lasts less than a day"), 1);
}
