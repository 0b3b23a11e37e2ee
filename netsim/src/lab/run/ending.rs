//! The evidence and the report of a run that has ended.

use super::RunningLab;
use crate::lab::{
    checks::{self, LabEvidence, NodeEvidence},
    error::LabError,
    hostile::{self, evidence as hostile_evidence},
    logs::{LogBlock, LogFindings},
    report::{BlockReport, LabReport, LoadReport, millis, sections},
};
use std::time::{Duration, UNIX_EPOCH};

/// Time after a reorg of L1 in which the sequencer may still build on the old branch.
const NOTICE: Duration = Duration::from_secs(5);

impl RunningLab<'_> {
    /// Time at which the last fault was complete: a restart of many nodes takes longer than planned.
    pub(super) fn last_fault_end(&self) -> Duration {
        let faults = self.faults.iter().filter(|fault| fault.verb != "load");
        let ends = faults.map(|fault| Duration::from_millis(fault.done_ms));
        ends.fold(self.plan.planned_fault_end, Duration::max)
    }

    pub(super) fn report(
        self,
        seed: u64,
        failure: Option<LabError>,
        verified: Vec<Option<Result<(), String>>>,
    ) -> LabReport {
        let nodes = self.network.nodes.iter();
        let logs: Vec<LogFindings> = nodes.map(|node| node.process.findings()).collect();
        let evidence = self.evidence(&logs, verified);
        // A network that broke off early has not had the time that the checks give it.
        let mut checks = match &failure {
            None => checks::check(&evidence),
            Some(_) => Vec::new(),
        };
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let blocks = sections::blocks(&evidence, started);
        let propagation = self.hostile_propagation(&blocks);
        if let Some(propagation) = propagation.as_ref().filter(|_| failure.is_none()) {
            let slowdown = self.scenario.allow.slowdown_limit();
            checks.extend(hostile_evidence::check(
                &self.hostile,
                propagation,
                slowdown,
            ));
        }
        let load = *self.load.lock();
        LabReport {
            scenario: self.scenario.name.clone(),
            purpose: self.scenario.purpose.clone(),
            seed,
            backend: self.network.backend.clone(),
            versions: self.versions.clone(),
            settings: sections::settings(self.scenario),
            started_unix_ms: millis(started),
            length_ms: millis(self.end),
            last_fault_end_ms: millis(self.last_fault_end()),
            passed: failure.is_none() && checks.iter().all(|check| check.passed),
            failure: failure.map(|error| error.to_string()),
            checks,
            nodes: sections::nodes(&self.network, &evidence, &self.usage, started),
            other_links: self.other_packets(),
            controller: self.own_usage,
            link_threads: self.link_usage,
            clocks: std::mem::take(&mut *self.clocks.lock()),
            counters: self.counters.iter().map(|it| it.lock().clone()).collect(),
            links: sections::links(&self.network),
            replaced_l1: self.reorgs.iter().map(|it| it.head - it.fork).sum(),
            faults: self.faults,
            blocks,
            hostile: self.hostile,
            hostile_propagation: propagation,
            transactions: LoadReport {
                sent: load.sent,
                accepted: load.accepted,
            },
        }
    }

    fn hostile_propagation(
        &self,
        blocks: &[BlockReport],
    ) -> Option<hostile_evidence::HostilePropagation> {
        let disturbed = hostile::disturbed(&self.network.topology, &self.faults);
        let run = hostile_evidence::ComparedRun {
            receivers: hostile::receivers(&self.network.topology, &disturbed),
            stalls: self.stalls.clone(),
            end_ms: millis(self.end),
        };
        hostile_evidence::propagation(&self.hostile, blocks, &run)
    }

    /// The texts that the scenario expects, with the nodes whose logs have them.
    fn expected(&self) -> Vec<(String, Vec<String>)> {
        if self.scenario.expect.is_empty() {
            return Vec::new();
        }
        let nodes = self.network.nodes.iter();
        let logs = nodes.map(|node| (node.process.name.as_str(), node.process.log_text()));
        let logs: Vec<(&str, String)> = logs.collect();
        let expected = self.scenario.expect.iter();
        expected
            .map(|it| (it.text.clone(), with_text(&logs, &it.text)))
            .collect()
    }

    /// Packets on each link to a node of another network, in both directions.
    fn other_packets(&self) -> Vec<[u64; 2]> {
        let links = self.network.other_links.iter();
        let packets = links.map(|link| link.counts().map(|direction| direction.packets));
        packets.collect()
    }

    fn evidence(
        &self,
        logs: &[LogFindings],
        verified: Vec<Option<Result<(), String>>>,
    ) -> LabEvidence {
        let nodes = self
            .network
            .nodes
            .iter()
            .zip(logs)
            .zip(verified)
            .enumerate();
        let nodes = nodes.map(|(index, ((node, findings), verified))| NodeEvidence {
            name: node.process.name.clone(),
            role: node.role,
            is_up: self.is_up[index],
            track: self.tracks[index].lock().clone(),
            findings: sections::named(&self.network, findings.clone()),
            peak_kb: self.usage[index]
                .iter()
                .map(|point| point.rss_kb)
                .max()
                .unwrap_or(0),
            verified,
            stop: self.stops[index].clone(),
            safe: self.safe[index],
        });
        let made = logs.iter().flat_map(|log| &log.blocks);
        let is_displaced = |block: &&LogBlock| {
            let after = u64::try_from(NOTICE.as_micros()).unwrap_or(u64::MAX);
            let mut reorgs = self.reorgs.iter();
            reorgs.any(|it| block.origin > Some(it.fork) && block.at < it.at + after)
        };
        let displaced = made.filter(|block| block.is_own).filter(is_displaced);
        LabEvidence {
            displaced: displaced.filter_map(|it| it.hash.parse().ok()).collect(),
            safe_floor: self.scenario.batcher.then_some(self.safe_floor),
            last_fault_end: self.last_fault_end(),
            end: self.end,
            block_time: Duration::from_secs(self.scenario.block_time),
            allow: self.scenario.allow.clone(),
            expected: self.expected(),
            nodes: nodes.collect(),
        }
    }
}

/// Names of the logs, of those with these names, that have a text.
fn with_text<'a>(logs: &'a [(&'a str, String)], text: &str) -> Vec<String> {
    let found = logs.iter().filter(|(_, log)| log.contains(text));
    found.map(|(name, _)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_with_a_text_are_named() {
        let logs = [("a", "one line".to_owned()), ("b", "another".to_owned())];
        assert_eq!(with_text(&logs, "one l"), ["a"]);
        assert_eq!(with_text(&logs, "o"), ["a", "b"]);
        assert!(with_text(&logs, "x").is_empty());
    }
}
