//! Metrics of the rollup node under op-node's names: the heads of L1 and L2, and events with their
//! count and last time. The metric handles are created once, since the driver may set them
//! thousands of times a second.

use crate::{
    clock::since_epoch,
    rollup::{
        engine::{BlockAt, Engine},
        status::RollupStatus,
    },
    version::VERSION,
};
use alloy_primitives::B256;
use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use starling_proto::{
    attributes::L1Block,
    config::RollupGenesis,
    derive::{DropCounts, DropReason, ReadCounts},
    l1info::L2BlockRef,
    payload::BlockId,
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Shortest time between two updates of the unsafe head's metrics. Each update reads a block.
const UNSAFE_HEAD_PAUSE: Duration = Duration::from_millis(500);

/// Counts an event and records when it last happened.
pub(super) struct CountedEvent {
    total: Counter,
    last: Gauge,
}

impl CountedEvent {
    /// `name` is the metric's name without op-node's prefix.
    pub fn new(name: &str) -> Self {
        Self::labelled(name, Vec::new())
    }

    fn labelled(name: &str, labels: Vec<Label>) -> Self {
        let total = format!("op_node_default_{name}_total");
        let last = format!("op_node_default_last_{name}_unix");
        Self {
            total: counter!(total, labels.clone()),
            last: gauge!(last, labels),
        }
    }

    /// Counts `times` occurrences, the last one at the present time.
    pub fn record(&self, times: u64) {
        if times > 0 {
            self.total.increment(times);
            self.last.set(since_epoch().as_secs_f64());
        }
    }
}

/// Gauges of one head, or of its L1 origin.
struct BlockGauges {
    number: Gauge,
    time: Gauge,
    hash: Gauge,
    latency: Gauge,
    seen: Option<B256>,
}

impl BlockGauges {
    fn new(layer: &'static str, kind: &'static str) -> Self {
        let labels = [("layer", layer), ("type", kind)];
        Self {
            number: gauge!("op_node_default_refs_number", &labels),
            time: gauge!("op_node_default_refs_time", &labels),
            hash: gauge!("op_node_default_refs_hash", &labels),
            latency: gauge!("op_node_default_refs_latency", &labels),
            seen: None,
        }
    }

    /// Sets the gauges to `block`. `time` is its time in Unix seconds; `None` leaves the gauges of
    /// time and latency unchanged. The latency is the block's time minus the time at which the
    /// block was first seen here.
    fn set(&mut self, block: BlockId, time: Option<u64>) {
        if self.seen.replace(block.hash) == Some(block.hash) {
            return;
        }
        self.number.set(block.number as f64);
        // Export the first eight bytes of the hash as a number: a divergence between two nodes
        // shows in a chart.
        let prefix = block.hash.first_chunk::<8>().copied().unwrap_or_default();
        self.hash.set(u64::from_le_bytes(prefix) as f64);
        if let Some(time) = time {
            self.time.set(time as f64);
            self.latency.set(time as f64 - since_epoch().as_secs_f64());
        }
    }
}

/// Gauges of an L2 block and its L1 origin.
struct L2Gauges {
    block: BlockGauges,
    origin: BlockGauges,
    sequence_number: Gauge,
}

impl L2Gauges {
    fn new(kind: &'static str) -> Self {
        Self {
            block: BlockGauges::new("l2", kind),
            origin: BlockGauges::new("l1_origin", kind),
            sequence_number: gauge!("op_node_default_refs_seqnr", "type" => kind),
        }
    }

    fn set(&mut self, block: Option<L2BlockRef>) {
        let Some(block) = block else { return };
        self.block.set(block.id, Some(block.time));
        self.origin.set(block.origin, None);
        self.sequence_number.set(block.sequence_number as f64);
    }

    /// Sets all gauges to zero, which in op-node's metrics means that there is no such block.
    fn clear(&mut self) {
        let none = BlockId {
            number: 0,
            hash: B256::ZERO,
        };
        self.block.set(none, None);
        self.origin.set(none, None);
        self.sequence_number.set(0.0);
    }
}

/// Metrics of reorgs of L1's head.
pub(super) struct L1HeadMetrics {
    reorg_depth: Histogram,
}

impl L1HeadMetrics {
    pub fn new() -> Self {
        Self {
            reorg_depth: histogram!("op_node_default_l1_reorg_depth"),
        }
    }

    /// Records the depth of a reorg if `head` is not above `last` and does not extend it. A depth
    /// of zero means another block of the same height (op-node: L1 head signal).
    pub fn on_head(&self, last: Option<&L1Block>, head: &L1Block) {
        let Some(last) = last.filter(|last| ![head.hash, head.parent_hash].contains(&last.hash))
        else {
            return;
        };
        if let Some(depth) = last.number.checked_sub(head.number) {
            self.reorg_depth.record(depth as f64);
        }
    }
}

/// Labels of op-node's L1 caches, all reported for our single cache of whole blocks.
const L1_CACHES: [&str; 3] = ["headers", "txs", "receipts"];

/// Metrics of the cache of L1 blocks.
#[derive(Clone)]
pub(super) struct L1CacheMetrics {
    size: [Gauge; 3],
    hits: [Counter; 3],
    misses: [Counter; 3],
    additions: [Counter; 3],
    evicting_additions: [Counter; 3],
}

impl L1CacheMetrics {
    pub fn new() -> Self {
        let counters = |name: &'static str, label: &'static str, value: &'static str| {
            L1_CACHES.map(|kind| counter!(name, "type" => kind, label => value))
        };
        let (get, add) = (
            "op_node_default_l1_source_cache_get",
            "op_node_default_l1_source_cache_add",
        );
        Self {
            size: L1_CACHES
                .map(|kind| gauge!("op_node_default_l1_source_cache_size", "type" => kind)),
            hits: counters(get, "hit", "true"),
            misses: counters(get, "hit", "false"),
            additions: counters(add, "evicted", "false"),
            evicting_additions: counters(add, "evicted", "true"),
        }
    }

    /// Records a lookup of a block.
    pub fn on_get(&self, is_hit: bool) {
        let counters = if is_hit { &self.hits } else { &self.misses };
        counters.iter().for_each(|counter| counter.increment(1));
    }

    /// Records an added block. `size` is the number of cached blocks, and `evicts` states whether
    /// other blocks were dropped.
    pub fn on_add(&self, size: usize, evicts: bool) {
        let counters = if evicts {
            &self.evicting_additions
        } else {
            &self.additions
        };
        counters.iter().for_each(|counter| counter.increment(1));
        self.size.iter().for_each(|gauge| gauge.set(size as f64));
    }
}

/// Metrics of the heads that the driver publishes, and of derivation.
pub(super) struct DerivationMetrics {
    l1: [BlockGauges; 4],
    pending_safe: L2Gauges,
    /// Gauges of the local-safe head and of the safe head.
    safe: [L2Gauges; 2],
    finalized: L2Gauges,
    backup_unsafe: L2Gauges,
    idle: Gauge,
    pub resets: CountedEvent,
    pub errors: CountedEvent,
    channel_timeouts: CountedEvent,
    frames: CountedEvent,
    head_channels: CountedEvent,
    channel_bytes: Counter,
    singular_batches: CountedEvent,
    span_batches: CountedEvent,
}

impl DerivationMetrics {
    pub fn new() -> Self {
        let l1 = ["l1_head", "l1_safe", "l1_finalized", "l1_derived"];
        let derived_batches =
            |kind| CountedEvent::labelled("derived_batches", vec![Label::new("type", kind)]);
        Self {
            l1: l1.map(|kind| BlockGauges::new("l1", kind)),
            pending_safe: L2Gauges::new("l2_pending_safe"),
            safe: ["l2_local_safe", "l2_safe"].map(L2Gauges::new),
            finalized: L2Gauges::new("l2_finalized"),
            backup_unsafe: L2Gauges::new("l2_backup_unsafe"),
            idle: gauge!("op_node_default_derivation_idle"),
            resets: CountedEvent::new("pipeline_resets"),
            errors: CountedEvent::new("derivation_errors"),
            channel_timeouts: CountedEvent::new("channel_timeout"),
            frames: CountedEvent::new("frame_added"),
            head_channels: CountedEvent::new("head_channel"),
            channel_bytes: counter!("op_node_default_channel_input_bytes"),
            singular_batches: derived_batches("singular"),
            span_batches: derived_batches("span"),
        }
    }

    /// Counts data that the pipeline has read and dropped since the last call.
    pub fn on_progress(&self, reads: &ReadCounts, drops: &DropCounts) {
        let refused = drops.get(DropReason::Frame) + drops.get(DropReason::LateFrame);
        self.frames.record(reads.frames.saturating_sub(refused));
        self.head_channels.record(reads.head_channels);
        self.channel_bytes.increment(reads.channel_bytes);
        self.singular_batches.record(reads.singular_batches);
        self.span_batches.record(reads.span_batches);
        self.channel_timeouts
            .record(drops.get(DropReason::ChannelTimeout));
    }

    /// Reports the heads. The gauges of an unknown head keep their last values.
    pub fn on_status(&mut self, status: &RollupStatus) {
        let l1 = [
            status.head_l1,
            status.safe_l1,
            status.finalized_l1,
            status.current_l1,
        ];
        for (gauges, block) in self.l1.iter_mut().zip(l1) {
            if let Some(block) = block {
                gauges.set(block.id(), Some(block.time));
            }
        }
        self.pending_safe.set(status.pending_safe_l2);
        let safe = [status.local_safe_l2, status.safe_l2];
        for (gauges, block) in self.safe.iter_mut().zip(safe) {
            gauges.set(block);
        }
        self.finalized.set(status.finalized_l2);
    }

    /// Reports the unsafe head that is reinstated if the rest of a span batch is invalid.
    pub fn set_backup_unsafe(&mut self, block: Option<L2BlockRef>) {
        match block {
            Some(_) => self.backup_unsafe.set(block),
            None => self.backup_unsafe.clear(),
        }
    }

    /// Reports whether all available L1 blocks have been derived.
    pub fn set_idle(&self, idle: bool) {
        self.idle.set(f64::from(u8::from(idle)));
    }
}

/// Reports that the node runs, and its version.
pub fn report_start() {
    gauge!("op_node_default_info", "version" => VERSION).set(1.0);
    gauge!("op_node_default_up").set(1.0);
}

/// Updates the unsafe head's metrics until the token is cancelled or the core has stopped.
pub async fn follow_unsafe_head(engine: Engine, genesis: RollupGenesis, token: CancellationToken) {
    let follow = async {
        let mut heads = engine.heads();
        let mut gauges = ["l2_unsafe", "l2_cross_unsafe"].map(L2Gauges::new);
        loop {
            heads.mark_unchanged();
            let head = engine.block(BlockAt::Head).await.ok().flatten();
            let head = head.and_then(|head| L2BlockRef::of(&head, &genesis).ok());
            for gauges in &mut gauges {
                gauges.set(head);
            }
            if heads.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(UNSAFE_HEAD_PAUSE).await;
        }
    };
    token.run_until_cancelled(follow).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    /// Runs `record` and returns the metrics that it has set, one line each.
    fn rendered(record: impl FnOnce()) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, record);
        let text = recorder.handle().render();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn heads_are_reported_under_op_nodes_names() {
        let now = since_epoch().as_secs();
        let mut hash = B256::with_last_byte(1);
        hash.0[0] = 2;
        let head = L1Block {
            number: 7,
            hash,
            time: now - 100,
            ..Default::default()
        };
        let safe = L2BlockRef {
            id: BlockId { number: 9, hash },
            parent_hash: B256::ZERO,
            time: now - 50,
            origin: BlockId {
                number: 5,
                hash: B256::ZERO,
            },
            sequence_number: 3,
        };
        let status = RollupStatus {
            head_l1: Some(head),
            current_l1: Some(L1Block { number: 6, ..head }),
            local_safe_l2: Some(safe),
            safe_l2: Some(safe),
            ..Default::default()
        };
        let lines = rendered(|| {
            let mut metrics = DerivationMetrics::new();
            metrics.on_status(&status);
            metrics.set_idle(true);
            report_start();
        });
        let number = |layer: &str, kind: &str, value: u64| {
            format!("op_node_default_refs_number{{layer=\"{layer}\",type=\"{kind}\"}} {value}")
        };
        for line in [
            number("l1", "l1_head", 7),
            number("l1", "l1_derived", 6),
            number("l2", "l2_safe", 9),
            number("l2", "l2_local_safe", 9),
            number("l1_origin", "l2_safe", 5),
            "op_node_default_refs_seqnr{type=\"l2_safe\"} 3".to_owned(),
            "op_node_default_refs_hash{layer=\"l1\",type=\"l1_head\"} 2".to_owned(),
            format!(
                "op_node_default_refs_time{{layer=\"l2\",type=\"l2_safe\"}} {}",
                now - 50
            ),
            "op_node_default_derivation_idle 1".to_owned(),
            "op_node_default_up 1".to_owned(),
        ] {
            assert!(lines.contains(&line), "{line} is not in {lines:#?}");
        }
        let latency = "op_node_default_refs_latency{layer=\"l1\",type=\"l1_head\"} -";
        let latency = lines.iter().find_map(|line| line.strip_prefix(latency));
        let latency: f64 = latency
            .and_then(|text| text.parse().ok())
            .expect("a latency");
        assert!((100.0..110.0).contains(&latency), "{latency}");
    }

    #[test]
    fn events_are_counted_and_dated() {
        let lines = rendered(|| {
            let metrics = DerivationMetrics::new();
            metrics.resets.record(2);
            metrics.resets.record(1);
            metrics.errors.record(0);
            let reads = ReadCounts {
                span_batches: 4,
                head_channels: 3,
                channel_bytes: 5_000,
                ..Default::default()
            };
            metrics.on_progress(&reads, &DropCounts::default());
        });
        let total = |name: &str, count: u64| format!("op_node_default_{name}_total {count}");
        assert!(lines.contains(&total("pipeline_resets", 3)), "{lines:#?}");
        assert!(lines.contains(&total("derivation_errors", 0)), "{lines:#?}");
        let spans = "op_node_default_derived_batches_total{type=\"span\"} 4".to_owned();
        assert!(lines.contains(&spans), "{lines:#?}");
        assert!(lines.contains(&total("head_channel", 3)), "{lines:#?}");
        let bytes = "op_node_default_channel_input_bytes 5000".to_owned();
        assert!(lines.contains(&bytes), "{lines:#?}");
        let last = "op_node_default_last_pipeline_resets_unix ";
        let last = lines.iter().find_map(|line| line.strip_prefix(last));
        let last: f64 = last.and_then(|text| text.parse().ok()).expect("a date");
        assert!((since_epoch().as_secs_f64() - last).abs() < 60.0);
    }

    #[test]
    fn a_backup_of_the_unsafe_head_is_zero_where_there_is_none() {
        let block = L2BlockRef {
            id: BlockId {
                number: 9,
                hash: B256::with_last_byte(1),
            },
            parent_hash: B256::ZERO,
            time: 7,
            origin: BlockId {
                number: 5,
                hash: B256::with_last_byte(2),
            },
            sequence_number: 3,
        };
        let number = |layer: &str, value: u64| {
            let labels = format!("layer=\"{layer}\",type=\"l2_backup_unsafe\"");
            format!("op_node_default_refs_number{{{labels}}} {value}")
        };
        for (given, expected) in [(Some(block), (9, 5)), (None, (0, 0))] {
            let lines = rendered(|| {
                let mut metrics = DerivationMetrics::new();
                metrics.set_backup_unsafe(Some(block));
                metrics.set_backup_unsafe(given);
            });
            let shown = [number("l2", expected.0), number("l1_origin", expected.1)];
            assert!(shown.iter().all(|line| lines.contains(line)), "{lines:#?}");
        }
    }

    #[test]
    fn heads_of_l1_that_go_back_are_recorded_by_depth() {
        let block = |number: u64, branch: u8| L1Block {
            number,
            hash: B256::repeat_byte(branch + number as u8),
            parent_hash: B256::repeat_byte(branch + number as u8 - 1),
            ..Default::default()
        };
        let recorded = |last: L1Block, head: L1Block| {
            let lines = rendered(|| L1HeadMetrics::new().on_head(Some(&last), &head));
            ["count", "sum"].map(|part| {
                let name = format!("op_node_default_l1_reorg_depth_{part} ");
                let value = lines.iter().find_map(|line| line.strip_prefix(&name));
                value.map_or(0, |value| value.parse::<u64>().unwrap())
            })
        };
        assert_eq!(recorded(block(20, 0), block(17, 100)), [1, 3]);
        assert_eq!(recorded(block(20, 0), block(20, 100)), [1, 0]);
        for quiet in [block(20, 0), block(21, 0), block(23, 100)] {
            assert_eq!(recorded(block(20, 0), quiet), [0, 0], "{quiet:?}");
        }
    }

    #[test]
    fn the_cache_of_l1_blocks_counts_under_the_names_of_op_nodes_caches() {
        let lines = rendered(|| {
            let metrics = L1CacheMetrics::new();
            metrics.on_add(1, false);
            metrics.on_add(1, true);
            metrics.on_get(true);
            metrics.on_get(false);
            metrics.on_get(false);
        });
        for kind in L1_CACHES {
            let name = "op_node_default_l1_source_cache";
            for line in [
                format!("{name}_size{{type=\"{kind}\"}} 1"),
                format!("{name}_get{{type=\"{kind}\",hit=\"true\"}} 1"),
                format!("{name}_get{{type=\"{kind}\",hit=\"false\"}} 2"),
                format!("{name}_add{{type=\"{kind}\",evicted=\"true\"}} 1"),
                format!("{name}_add{{type=\"{kind}\",evicted=\"false\"}} 1"),
            ] {
                assert!(lines.contains(&line), "{line} is not in {lines:#?}");
            }
        }
    }
}
