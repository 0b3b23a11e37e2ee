//! Counts dropped batcher data by reason, for one log line per L1 block: a channel can contain a
//! million batches that are dropped one by one.

use starling_proto::derive::DropReason;
use std::{collections::BTreeMap, fmt::Write};

/// Counts of the data dropped since the last [`DropReport::take`].
#[derive(Debug, Default)]
pub(super) struct DropReport {
    /// Counts by the label of the [`DropReason`].
    counts: BTreeMap<&'static str, u64>,
}

impl DropReport {
    /// Counts dropped data. Transactions of other senders are not counted: anybody can send
    /// transactions to the inbox at any time.
    pub fn add(&mut self, reason: DropReason, count: u64) {
        if reason != DropReason::Sender {
            let total = self.counts.entry(reason.label()).or_default();
            *total = total.saturating_add(count);
        }
    }

    /// Whether data was dropped for this reason since the last [`DropReport::take`].
    pub fn contains(&self, reason: DropReason) -> bool {
        self.counts.contains_key(reason.label())
    }

    /// Whether only batches for blocks that are already safe were dropped. A pipeline begins before
    /// its safe head, so it drops such batches after each start.
    pub fn is_of_safe_blocks(&self) -> bool {
        let safe = [DropReason::PastBatch, DropReason::BatchBehind].map(DropReason::label);
        self.counts.keys().all(|label| safe.contains(label))
    }

    /// The reasons with their counts, as text; `None` if nothing was dropped. Resets the counts.
    pub fn take(&mut self) -> Option<String> {
        let mut text = String::new();
        for (label, count) in std::mem::take(&mut self.counts) {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string never fails.
            let _ = write!(text, "{comma}{label}: {count}");
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_dropped_batches_are_one_line_of_text() {
        let mut report = DropReport::default();
        assert_eq!(report.take(), None);
        for _ in 0..1_000_000 {
            report.add(DropReason::PastBatch, 1);
        }
        report.add(DropReason::BatchBehind, 1);
        assert!(report.is_of_safe_blocks());
        report.add(DropReason::Frame, 3);
        assert!(!report.is_of_safe_blocks());
        assert!(report.contains(DropReason::Frame));
        assert!(!report.contains(DropReason::InvalidBlock));
        let past = DropReason::PastBatch.label();
        let behind = DropReason::BatchBehind.label();
        let frame = DropReason::Frame.label();
        let text = format!("{behind}: 1, {frame}: 3, {past}: 1000000");
        assert_eq!(report.take(), Some(text));
        assert_eq!(report.take(), None);
        assert!(!report.contains(DropReason::Frame));
        report.add(DropReason::Sender, 1_000);
        assert_eq!(report.take(), None, "anybody can send to the inbox");
    }
}
