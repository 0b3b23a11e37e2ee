//! The public report of a lab run: what `netsim run` writes as JSON and page, and `netsim compare`
//! reads. Sections that a run has no values for stay empty.

mod faults;
mod hostile;
mod series;

use super::{
    LabScenario,
    error::LabError,
    report::{LabReport, LinkReport, NodeReport, sections},
    topology::LabRole,
};
use crate::report::{
    LAB_LAYER, RunBan, RunCheck, RunLink, RunNode, RunNodeTraffic, RunPropagation, RunReport,
    RunSpread, RunTraffic, cumulative,
};
use std::collections::BTreeMap;

/// Check that a run without [`LabReport::failure`] passes.
const END_CHECK: &str = "the run reaches its end";
/// Points of the curve of propagation.
const POINTS: usize = 200;

/// Seconds of a time in milliseconds.
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// The report of a scenario whose network did not start.
pub fn not_started(scenario: &LabScenario, seed: u64, error: &LabError) -> RunReport {
    let mut report = RunReport::new(LAB_LAYER, &scenario.name, seed);
    report.purpose.clone_from(&scenario.purpose);
    report.settings = sections::settings(scenario);
    report.checks = vec![RunCheck {
        name: END_CHECK.to_owned(),
        passed: false,
        detail: error.to_string(),
    }];
    report
}

impl LabReport {
    pub fn to_run_report(&self) -> RunReport {
        let length = seconds(self.length_ms);
        let mut report = RunReport::new(LAB_LAYER, &self.scenario, self.seed);
        report.purpose.clone_from(&self.purpose);
        report.backend.clone_from(&self.backend);
        report.versions = self.version_map();
        report.settings.clone_from(&self.settings);
        report.seconds = length;
        report.propagation = self.propagation_curve();
        report.heads = series::heads(&self.nodes);
        report.lag = series::lag(&self.nodes, self.length_ms);
        report.mesh = series::mesh(&self.nodes, &self.counters);
        report.traffic = self.traffic();
        report.cpu = series::cpu(&self.nodes);
        report.cpu.extend(series::controller(&self.controller));
        report.cpu.extend(series::links(&self.link_threads));
        report.memory = series::memory(&self.nodes);
        report.faults = faults::spans(&self.faults, length);
        report.bans = self.bans();
        report.hostile = self.hostile.iter().map(hostile::public).collect();
        report.checks = self.check_list();
        report.figures = self.figures();
        report.nodes = self.nodes.iter().map(public_node).collect();
        report.links = self.link_list();
        report
    }

    fn version_map(&self) -> BTreeMap<String, String> {
        let program = |text: &str| text.trim_start_matches("starling ").to_owned();
        let mut versions = BTreeMap::from([
            ("netsim".to_owned(), self.versions.netsim.clone()),
            ("starling".to_owned(), program(&self.versions.starling)),
        ]);
        let upgrade = self.versions.upgrade.as_deref().map(program);
        versions.extend(upgrade.map(|version| ("starling after upgrade".to_owned(), version)));
        versions
    }

    /// Receipts of the first chain's blocks as new heads. A block that a node imported with others,
    /// after a gap, is neither a receipt nor missed.
    fn propagation_curve(&self) -> Option<RunPropagation> {
        let arrivals = self.blocks.iter().flat_map(|block| &block.arrivals);
        let mut times: Vec<u64> = arrivals.map(|(_, micros)| *micros).collect();
        let is_maker = |node: &NodeReport| node.role == LabRole::Sequencer;
        let chain = series::chains(&self.nodes).next().unwrap_or_default();
        let missed = self.blocks.iter().map(|block| {
            let is_missing = |(_, node): &(usize, &NodeReport)| {
                let last = node.heads.last().map_or(0, |head| head.number);
                node.role.is_l2() && !is_maker(node) && node.is_up && last < block.number
            };
            let nodes = chain.iter().enumerate().filter(is_missing);
            let has_arrived = |at| block.arrivals.iter().any(|(node, _)| *node == at);
            nodes.filter(|(at, _)| !has_arrived(*at)).count() as u64
        });
        let missed = missed.sum();
        let all = RunSpread::of(&mut times, 1e-3)?;
        let expected = times.len() as u64 + missed;
        Some(RunPropagation {
            all,
            curve: cumulative(&times, expected, 1e-3, POINTS),
            hops: Vec::new(),
            missed,
        })
    }

    /// Bytes over the links between nodes with a swarm, and duplicates by the nodes' metrics.
    fn traffic(&self) -> Option<RunTraffic> {
        let is_l2 = |node: usize| self.nodes[node].role.is_l2();
        let is_swarm = |link: &LinkReport| is_l2(link.near) && is_l2(link.far);
        let mut nodes = Vec::new();
        let mut duplicates = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(at, _)| is_l2(*at)) {
            let (mut sent, mut received, mut has_links) = (0, 0, false);
            for link in self.links.iter().filter(|it| is_swarm(it)) {
                let (out, back) = if link.near == index {
                    (link.up.bytes, link.down.bytes)
                } else if link.far == index {
                    (link.down.bytes, link.up.bytes)
                } else {
                    continue;
                };
                (sent, received, has_links) = (sent + out, received + back, true);
            }
            let counters = &self.counters[index];
            let (again, first) = (counters.duplicates.total(), counters.delivered.total());
            // In hundredths, since a spread is made of whole numbers.
            duplicates.extend((again * 100).checked_div(first));
            // Nodes that find each other by discovery have no links between them.
            nodes.extend(has_links.then(|| RunNodeTraffic {
                node: node.name.clone(),
                sent,
                received,
                duplicates: again,
            }));
        }
        let bytes = |of: fn(&RunNodeTraffic) -> u64| -> Option<RunSpread> {
            RunSpread::of(&mut nodes.iter().map(of).collect::<Vec<u64>>(), 1.0)
        };
        let traffic = RunTraffic {
            duplicates: RunSpread::of(&mut duplicates, 0.01),
            sent: bytes(|it| it.sent),
            received: bytes(|it| it.received),
            nodes,
        };
        (traffic.duplicates.is_some() || traffic.sent.is_some()).then_some(traffic)
    }

    fn bans(&self) -> Vec<RunBan> {
        let bans = self.nodes.iter().flat_map(|node| {
            node.bans.iter().map(|ban| RunBan {
                at: seconds(ban.at_ms),
                node: node.name.clone(),
                peer: ban.subject.clone(),
                reason: ban.reason.clone(),
            })
        });
        bans.collect()
    }

    fn check_list(&self) -> Vec<RunCheck> {
        let whole = RunCheck {
            name: END_CHECK.to_owned(),
            passed: self.failure.is_none(),
            detail: match &self.failure {
                Some(failure) => failure.clone(),
                None => format!("{:.1} s", seconds(self.length_ms)),
            },
        };
        let checks = self.checks.iter().map(|verdict| RunCheck {
            name: verdict.check.clone(),
            passed: verdict.passed,
            detail: verdict.detail.clone(),
        });
        [whole].into_iter().chain(checks).collect()
    }

    fn figures(&self) -> BTreeMap<String, f64> {
        let directions = self.links.iter().flat_map(|link| [link.up, link.down]);
        let (lost, resets) = directions.fold((0, 0), |(lost, resets), it| {
            (lost + it.lost, resets + it.resets)
        });
        let figures = [
            ("end of the last fault, s", seconds(self.last_fault_end_ms)),
            ("blocks made", self.blocks.len() as f64),
            ("L1 blocks replaced", self.replaced_l1 as f64),
            ("transactions sent", self.transactions.sent as f64),
            ("transactions accepted", self.transactions.accepted as f64),
            ("packets lost on links", lost as f64),
            ("connections reset by links", resets as f64),
        ];
        let compared = self.hostile_propagation.iter();
        let compared = compared.flat_map(hostile::figures);
        let figures = figures.into_iter().chain(compared);
        figures
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn link_list(&self) -> Vec<RunLink> {
        let name = |node: usize| self.nodes[node].name.clone();
        let links = self.links.iter().map(|link| RunLink {
            near: name(link.near),
            far: name(link.far),
            conditions: link.rung.clone(),
            up: link.up.bytes,
            down: link.down.bytes,
            lost: link.up.lost + link.down.lost,
            resets: link.up.resets + link.down.resets,
        });
        links.collect()
    }
}

fn public_node(node: &NodeReport) -> RunNode {
    RunNode {
        name: node.name.clone(),
        role: node.role.word().to_owned(),
        peer: node.peer.clone(),
        starts: node.starts,
        runs: node.is_up,
        reorgs: node.reorgs.len() as u64,
        disconnects: node.disconnects.clone(),
        warnings: node.warnings.clone(),
        errors: node.errors.clone(),
    }
}

#[cfg(test)]
mod tests;
