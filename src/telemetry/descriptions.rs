//! The help text of every metric (`# HELP`). A metric is described here and recorded where its event
//! happens; a test finds the ones that are not described.

/// Names without their common prefix, and their help texts.
type HelpTexts = &'static [(&'static str, &'static str)];

/// Prefixes of op-node's metrics, of op-batcher's and of op-proposer's.
const NODE: &str = "op_node_default_";
const BATCHER: &str = "op_batcher_default_";
const PROPOSER: &str = "op_proposer_default_";
/// Prefix of our own metrics.
const OWN: &str = "starling_";

const GROUPS: [(&str, HelpTexts); 12] = [
    (NODE, STARTED),
    (BATCHER, STARTED),
    (PROPOSER, STARTED),
    (NODE, REFERENCES),
    (PROPOSER, REFERENCES),
    (BATCHER, TRANSACTIONS),
    (PROPOSER, TRANSACTIONS),
    (NODE, OF_NODE),
    (NODE, OF_SWARM),
    (BATCHER, OF_BATCHER),
    (PROPOSER, OF_PROPOSER),
    (OWN, OF_STARLING),
];

/// Events that are counted as `<name>_total`, with the time of the last one as `last_<name>_unix`.
const EVENTS: HelpTexts = &[
    ("sequencing_errors", "errors of block production"),
    ("publishing_errors", "blocks that could not be published"),
    (
        "sequencer_inconsistent_l1_origin",
        "L1 origins that did not fit the unsafe head",
    ),
    ("sequencer_resets", "resets of the sequencer"),
    ("derived_batches", "batches that derivation has read"),
    ("pipeline_resets", "resets of derivation"),
    ("derivation_errors", "errors of derivation"),
    ("channel_timeout", "channels that timed out"),
    ("frame_added", "frames that derivation has accepted"),
    ("head_channel", "channels that derivation began to read"),
];

const STARTED: HelpTexts = &[
    ("info", "Version of the program; the value is always 1"),
    ("up", "1 once the program has started"),
];

const REFERENCES: HelpTexts = &[
    ("refs_number", "Number of a block, by layer and kind"),
    ("refs_time", "Timestamp of a block, by layer and kind"),
    (
        "refs_hash",
        "First eight bytes of a block's hash as a number, by layer and kind",
    ),
    (
        "refs_seqnr",
        "Number of an L2 block within its epoch, by kind",
    ),
    (
        "refs_latency",
        "Timestamp of a block minus the time at which it was seen, in seconds",
    ),
];

const TRANSACTIONS: HelpTexts = &[
    (
        "txmgr_tx_fee_gwei",
        "Fee of the last confirmed transaction, in gwei",
    ),
    (
        "txmgr_tx_fee_gwei_total",
        "Sum of the fees of confirmed transactions, in gwei",
    ),
    (
        "txmgr_tx_fee_histogram_gwei",
        "Fees of confirmed transactions, in gwei",
    ),
    (
        "txmgr_tx_gas_bump",
        "Fee increases that the last confirmed transaction needed",
    ),
    ("txmgr_tx_type", "Type of the last confirmed transaction"),
    (
        "txmgr_tx_confirmed_latency_ms",
        "Time until the last transaction was confirmed, in milliseconds",
    ),
    ("txmgr_current_nonce", "Nonce that was used last"),
    ("txmgr_pending_txs", "Transactions that are not confirmed"),
    ("txmgr_basefee_wei", "Base fee of L1, in wei"),
    ("txmgr_blob_basefee_wei", "Blob base fee of L1, in wei"),
    ("txmgr_tipcap_wei", "Suggested priority fee of L1, in wei"),
    (
        "txmgr_blob_tipcap_wei",
        "Suggested priority fee of blob transactions, in wei",
    ),
    (
        "txmgr_rpc_error_count",
        "Publications that reached no L1 endpoint",
    ),
    ("txmgr_publish_total", "Transactions that L1 accepted"),
    (
        "txmgr_last_publish_unix",
        "Time at which L1 last accepted a transaction",
    ),
    (
        "txmgr_confirm_total",
        "Confirmed transactions, by their status",
    ),
    (
        "txmgr_last_confirm_unix",
        "Time at which a transaction was last confirmed, by its status",
    ),
    (
        "txmgr_tx_publish_error_count",
        "Publications that failed, by reason",
    ),
];

const OF_NODE: HelpTexts = &[
    (
        "channel_input_bytes",
        "Bytes of frames that derivation has accepted",
    ),
    (
        "derivation_idle",
        "1 while all available L1 blocks are derived",
    ),
    (
        "http_inflight_requests_count",
        "HTTP requests that are being answered, by HTTP method",
    ),
    (
        "http_request_duration_ms",
        "Time until an HTTP response, in milliseconds",
    ),
    (
        "http_request_latency_seconds",
        "Time until an HTTP response, in seconds",
    ),
    ("http_requests_count_total", "HTTP requests, by HTTP method"),
    ("http_response_size", "Bytes of HTTP responses"),
    (
        "http_responses_count_total",
        "HTTP responses, by HTTP method and status",
    ),
    ("l1_reorg_depth", "Depths of reorgs of L1's head, in blocks"),
    (
        "l1_request_seconds",
        "Durations of requests to L1, by method",
    ),
    (
        "l1_source_cache_add",
        "Additions to the cache of L1 blocks, by whether they evicted others",
    ),
    (
        "l1_source_cache_get",
        "Lookups in the cache of L1 blocks, by whether they found a block",
    ),
    ("l1_source_cache_size", "Blocks in the cache of L1 blocks"),
    (
        "rpc_client_notifications_received_total",
        "Events of subscriptions, by client and method",
    ),
    (
        "rpc_client_params_size_total",
        "Bytes of parameters of calls, by client and method",
    ),
    (
        "rpc_client_request_duration_seconds",
        "Durations of calls, by client and method",
    ),
    (
        "rpc_client_requests_total",
        "Calls that were sent, by client and method",
    ),
    (
        "rpc_client_responses_total",
        "Calls that ended, by client, method and error",
    ),
    (
        "rpc_client_results_size_total",
        "Bytes of results of calls, by client and method",
    ),
    (
        "rpc_server_params_size_total",
        "Bytes of parameters of served calls, by method",
    ),
    (
        "rpc_server_request_duration_seconds",
        "Durations of served calls, by method",
    ),
    (
        "rpc_server_requests_total",
        "Calls that have arrived, by method",
    ),
    (
        "rpc_server_responses_total",
        "Calls that were answered, by method and error",
    ),
    (
        "rpc_server_results_size_total",
        "Bytes of results of served calls, by method",
    ),
    ("sequencer_active", "1 while this node sequences"),
    (
        "sequencer_building_diff_seconds",
        "Build times of blocks minus the block time, in seconds",
    ),
    ("sequencer_building_diff_total", "Blocks that were built"),
    ("sequencer_sealing_seconds", "Durations of sealing a block"),
    ("sequencer_sealing_total", "Blocks that were sealed"),
    (
        "transactions_sequenced_total",
        "Transactions in the blocks that were sequenced here",
    ),
];

const OF_SWARM: HelpTexts = &[
    (
        "p2p_accepts",
        "Incoming connections, by whether they were admitted",
    ),
    (
        "p2p_bandwidth_bytes_total",
        "Bytes on streams with peers, by direction",
    ),
    ("p2p_dials", "Dials, by whether they were allowed"),
    ("p2p_gossip_events_total", "Events of gossip, by type"),
    ("p2p_ip_unbans", "Addresses whose ban has ended"),
    (
        "p2p_payload_by_number",
        "Number of the block that was last requested, by role",
    ),
    (
        "p2p_payloads_quarantine_total",
        "Blocks that wait for their parents",
    ),
    ("p2p_peer_count", "Connected peers"),
    ("p2p_peer_unbans", "Peers whose ban has ended"),
    (
        "p2p_req_duration_seconds",
        "Durations of requests between peers, by role, method and result",
    ),
    (
        "p2p_req_total",
        "Requests between peers, by role, method and result",
    ),
    ("p2p_stream_count", "Open streams with peers"),
    ("peer_scores", "Scores of peers, by part of the score"),
];

const OF_BATCHER: HelpTexts = &[
    ("channel_total", "Channels, by stage"),
    (
        "last_channel_unix",
        "Time at which a channel last reached a stage",
    ),
    (
        "pending_blocks_count",
        "Blocks that wait, by stage of their channel",
    ),
    (
        "pending_blocks_bytes_total",
        "Sum of the sizes of blocks that were loaded, in bytes",
    ),
    (
        "pending_blocks_bytes_current",
        "Size of the blocks that are in no channel, in bytes",
    ),
    (
        "blocks_added_count",
        "Blocks that were added to the open channel",
    ),
    ("input_bytes", "Uncompressed bytes of a channel, by stage"),
    (
        "ready_bytes",
        "Compressed bytes that are ready to be sent in the open channel",
    ),
    ("output_bytes", "Compressed bytes of the last channel"),
    (
        "channel_closed_reason",
        "Number of the reason why the last channel was closed",
    ),
    ("channel_num_frames", "Frames of the last channel"),
    (
        "channel_compr_ratio",
        "Compressed size of channels divided by their uncompressed size",
    ),
    ("input_bytes_total", "Uncompressed bytes of all channels"),
    ("output_bytes_total", "Compressed bytes of all channels"),
    ("blob_used_bytes", "Used bytes of blobs"),
    ("batcher_tx_total", "Transactions of batches, by stage"),
    (
        "last_batcher_tx_unix",
        "Time at which a transaction of batches last reached a stage",
    ),
    ("balance", "Balance of the account, in ether"),
    (
        "channel_queue_length",
        "Channels that are not complete on L1",
    ),
    (
        "unsafe_da_bytes",
        "Estimated bytes on L1 of the blocks that are not safe",
    ),
    (
        "pending_da_bytes",
        "Estimated bytes on L1 of the blocks that are not sent",
    ),
    (
        "unsafe_bytes_ratio",
        "Unsafe bytes divided by the threshold of throttling, by controller",
    ),
    (
        "throttle_intensity",
        "Intensity of throttling from 0 to 1, by controller",
    ),
    ("throttle_intensity_history", "Intensities of throttling"),
    (
        "throttle_max_tx_size",
        "Limit of a transaction's size that throttling sets, in bytes",
    ),
    (
        "throttle_max_block_size",
        "Limit of a block's size that throttling sets, in bytes",
    ),
    (
        "throttle_controller_type",
        "1 for the controller of throttling that is in use",
    ),
    ("pid_controller_error", "Error term of the PID controller"),
    (
        "pid_controller_integral",
        "Integral term of the PID controller",
    ),
    (
        "pid_controller_derivative",
        "Derivative term of the PID controller",
    ),
    (
        "pid_response_time",
        "Durations of updates of the PID controller, in seconds",
    ),
    (
        "refs_number",
        "Number of L1's newest block, and of the last loaded block",
    ),
];

const OF_PROPOSER: HelpTexts = &[
    ("balance", "Balance of the account, in ether"),
    (
        "proposed_sequence_number",
        "Number of the last proposed block, or time of the last proposed super root",
    ),
];

const OF_STARLING: HelpTexts = &[
    ("info", "Version of the program; the value is always 1"),
    (
        "batcher_blob_fill_ratio",
        "Used share of the blobs of a channel",
    ),
    (
        "batcher_blocks_behind",
        "Blocks that are not safe and not on L1",
    ),
    (
        "batcher_bytes_behind",
        "Bytes of the blocks that are not safe and not on L1",
    ),
    (
        "batcher_channel_cost_gwei",
        "Costs of channels on L1, in gwei",
    ),
    (
        "batcher_inclusion_delay_seconds",
        "Time until L1 has confirmed data",
    ),
    (
        "batcher_runway_hours",
        "Hours for which the balance lasts at the present rate",
    ),
    (
        "derivation_dropped_total",
        "Data on L1 that derivation has dropped, by reason",
    ),
    ("derivation_ended", "1 once derivation has ended"),
    ("execute_seconds", "Durations of executing a block"),
    ("head_number", "Number of the head"),
    ("p2p_banned_peers", "Banned peers"),
    ("p2p_bans_total", "Bans of peers, by reason"),
    (
        "p2p_block_arrival_seconds",
        "Time from a block's timestamp until it arrived",
    ),
    (
        "p2p_block_head_seconds",
        "Time from a block's timestamp until it was the head",
    ),
    (
        "p2p_candidates_dialled_total",
        "Peers that discovery has found and that were dialled",
    ),
    (
        "p2p_check_seconds",
        "Durations of checks of gossiped blocks",
    ),
    ("p2p_disconnects_total", "Disconnects of peers, by reason"),
    (
        "p2p_discovery_alive",
        "Nodes of the discovery table that are connected",
    ),
    ("p2p_discovery_known", "Nodes of this chain that are known"),
    ("p2p_discovery_table", "Nodes in the discovery table"),
    (
        "p2p_fetch_total",
        "Requests for single blocks that were sent, by result",
    ),
    ("p2p_gap_blocks", "Blocks of the gap that is being filled"),
    ("p2p_gossip_total", "Gossiped messages, by verdict"),
    ("p2p_mesh_peers", "Peers in the mesh, by topic"),
    ("p2p_offences_total", "Offences of peers, by reason"),
    (
        "p2p_own_peer_ids_total",
        "Connections with a peer that has this node's own peer id",
    ),
    (
        "p2p_range_blocks_total",
        "Blocks that were fetched in ranges",
    ),
    (
        "p2p_range_serve_total",
        "Requests for ranges that were served, by result",
    ),
    (
        "p2p_range_total",
        "Requests for ranges that were sent, by result",
    ),
    (
        "p2p_refused_candidates_total",
        "Peers that discovery has found and that were refused, by reason",
    ),
    (
        "p2p_refused_connections_total",
        "Connections that were refused, by reason",
    ),
    (
        "p2p_refused_records_total",
        "Node records that were refused, by reason",
    ),
    (
        "p2p_serve_total",
        "Requests for single blocks that were served, by result",
    ),
    (
        "p2p_shared_peer_ids_total",
        "Times that two nodes connected with one peer id",
    ),
    ("p2p_unbans_total", "Bans that have ended, by reason"),
    ("persist_seconds", "Durations of storing a group of blocks"),
    ("persisted_blocks_total", "Blocks that were stored"),
    ("seal_seconds", "Durations of sealing a built block"),
    ("sequencer_active", "1 while this node sequences"),
    ("sequencer_ended", "1 once sequencing has ended"),
    (
        "sequencer_foreign_blocks_total",
        "Blocks with our signature that another process has made",
    ),
    (
        "sequencer_l1_reorgs_total",
        "Reorgs of L1 after which the sequencer rewound",
    ),
    (
        "unsafe_signer_changes_total",
        "Changes of the block signer on L1",
    ),
];

/// Every metric's name and help text.
fn all() -> impl Iterator<Item = (String, String)> {
    let grouped = GROUPS.into_iter().flat_map(|(prefix, group)| {
        let described = group.iter();
        described.map(move |(name, help)| (format!("{prefix}{name}"), (*help).to_owned()))
    });
    let events = EVENTS.iter().flat_map(|(name, events)| {
        [
            (format!("{NODE}{name}_total"), format!("Count of {events}")),
            (
                format!("{NODE}last_{name}_unix"),
                format!("Time of the last of {events}"),
            ),
        ]
    });
    grouped.chain(events)
}

/// Gives all help texts to the recorder. It keeps them by name, whatever the kind of the metric.
pub fn describe_all() {
    for (name, help) in all() {
        metrics::describe_gauge!(name, help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    /// The sources below `folder`, without this file and tests.
    fn sources(folder: &Path, found: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if ["descriptions", "tests"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next();
                found.push_str(code.unwrap_or_default());
            }
        }
    }

    /// The string literals that follow `start` in `code`.
    fn literals<'a>(code: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
        let after = code.split(start).skip(1);
        let texts = after.filter_map(|rest| rest.trim_start().strip_prefix('"'));
        texts.filter_map(|text| text.split_once('"').map(|(name, _)| name))
    }

    #[test]
    fn every_metric_is_described() {
        let mut code = String::new();
        for folder in ["src", "p2p/src"] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            sources(&root.join(folder), &mut code);
        }
        let mut names = BTreeSet::new();
        for start in [
            "gauge!(",
            "counter!(",
            "histogram!(",
            "const COUNTER: &str =",
        ] {
            names.extend(literals(&code, start).map(str::to_owned));
            let of_batcher = format!("{start}name!(");
            names.extend(literals(&code, &of_batcher).map(|name| format!("{BATCHER}{name}")));
            let of_transactions = format!("{start}name(");
            for name in literals(&code, &of_transactions) {
                names.extend([BATCHER, PROPOSER].map(|prefix| format!("{prefix}txmgr_{name}")));
            }
        }
        for start in ["CountedEvent::new(", "CountedEvent::labelled("] {
            let events = literals(&code, start).map(|name| format!("{NODE}{name}_total"));
            names.extend(events);
        }
        assert!(names.len() > 130, "{}", names.len());
        let described: BTreeSet<_> = all().map(|(name, _)| name).collect();
        let missing: Vec<_> = names.difference(&described).collect();
        assert!(missing.is_empty(), "without a help text: {missing:?}");
    }
}
