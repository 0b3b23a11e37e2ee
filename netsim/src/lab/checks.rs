//! The checks of every run: pure functions of the evidence that a run leaves. Scenarios only set
//! their limits. Runs with hostile peers and with another chain have further checks, which are in
//! [`super::hostile::evidence`] and [`super::other_chain`].

use super::{
    logs::LogFindings, process::ProcessEnd, report::LabVerdict, rpc::LabBlock,
    scenario::LabAllowance, topology::LabRole, watch::HeadTrack,
};
use alloy_primitives::B256;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Time before the end in which the nodes must be seen on one head once more.
const FINAL_DISAGREEMENT: Duration = Duration::from_secs(3);

/// The evidence of one node.
#[derive(Clone, Debug)]
pub struct NodeEvidence {
    pub name: String,
    pub role: LabRole,
    /// Whether the node ran at the end.
    pub is_up: bool,
    pub track: HeadTrack,
    pub findings: LogFindings,
    /// Largest resident memory that was seen, in kilobytes.
    pub peak_kb: u64,
    /// Damage that `starling db verify` found; `None` if it was not run.
    pub verified: Option<Result<(), String>>,
    /// The first end after SIGINT that was no success.
    pub stop: ProcessEnd,
    /// The node's safe head at the end.
    pub safe: Option<LabBlock>,
}

/// The evidence of a whole run.
#[derive(Clone, Debug)]
pub struct LabEvidence {
    pub last_fault_end: Duration,
    pub end: Duration,
    pub block_time: Duration,
    pub allow: LabAllowance,
    /// The texts that the scenario expects in logs, with the names of the nodes whose logs have
    /// them.
    pub expected: Vec<(String, Vec<String>)>,
    pub nodes: Vec<NodeEvidence>,
    /// Blocks whose L1 origin was removed by a reorg that the scenario made.
    pub displaced: BTreeSet<B256>,
    /// Highest safe head before the L1 reorgs of the scenario and after its last fault; `None` if no
    /// batcher makes blocks safe.
    pub safe_floor: Option<u64>,
}

/// A sentence about what was seen: `Ok` passes.
type CheckFinding = Result<String, String>;

/// A check with its name.
type LabCheck = (&'static str, fn(&LabEvidence) -> CheckFinding);

const CHECKS: [LabCheck; 13] = [
    ("one head on all nodes", agreement),
    ("blocks are made", progress),
    ("one hash per height", one_hash),
    ("accepted blocks on all nodes", accepted_blocks),
    ("no unsafe reorg", no_reorg),
    ("safe heads on one chain", safe_heads),
    ("no honest peer banned", no_ban),
    ("disconnects and bans have reasons", reasons),
    ("no log line above warn", no_error),
    ("expected log lines", expectations),
    ("memory within its budget", memory),
    ("databases are sound", databases),
    ("nodes stop on SIGINT", stops),
];

/// Runs all checks.
pub fn check(evidence: &LabEvidence) -> Vec<LabVerdict> {
    let run = |(name, check): &LabCheck| {
        let finding = check(evidence);
        LabVerdict {
            check: (*name).to_owned(),
            passed: finding.is_ok(),
            detail: finding.unwrap_or_else(|failure| failure),
        }
    };
    CHECKS.iter().map(run).collect()
}

impl LabEvidence {
    fn swarm(&self) -> impl Iterator<Item = &NodeEvidence> {
        self.nodes.iter().filter(|node| node.role.is_l2())
    }

    fn sequencer(&self) -> Option<&NodeEvidence> {
        self.nodes
            .iter()
            .find(|node| node.role == LabRole::Sequencer)
    }

    /// Several blocks of one height, which only some scenarios may have, and only until the nodes
    /// must agree.
    fn forks(&self, at: Duration, found: String) -> CheckFinding {
        if self.allow.forks && at <= self.last_fault_end + self.allow.agree_within {
            return Ok(format!("allowed: {found}"));
        }
        Err(found)
    }

    /// `fine` if no node has a problem, and otherwise the problems of all nodes.
    fn all(&self, fine: String, problem: impl Fn(&NodeEvidence) -> Option<String>) -> CheckFinding {
        let problems: Vec<String> = self.nodes.iter().filter_map(problem).collect();
        if problems.is_empty() {
            return Ok(fine);
        }
        Err(problems.join("; "))
    }
}

impl NodeEvidence {
    /// Number and hash of the head at a time.
    fn head_at(&self, at: Duration) -> Option<(u64, B256)> {
        let heads = &self.track.heads;
        let after = heads.partition_point(|head| head.at <= at);
        let head = heads.get(after.checked_sub(1)?)?;
        Some((head.number, head.hash))
    }

    /// Numbers and hashes of the blocks in the node's log.
    fn logged(&self) -> impl Iterator<Item = (u64, B256)> {
        let blocks = self.findings.blocks.iter();
        blocks.filter_map(|block| Some((block.number, block.hash.parse().ok()?)))
    }

    /// Whether the node has a block. A block that neither a sample nor the log names, because many
    /// arrived at once, is below a later block of `chain`, which is the sequencer's.
    fn has(&self, number: u64, hash: B256, chain: &BTreeMap<u64, B256>) -> bool {
        if let Some(own) = self.track.chain.get(&number) {
            return *own == hash;
        }
        let mut later = self.track.chain.range(number..);
        let is_below = chain.get(&number) == Some(&hash)
            && later.any(|(number, hash)| chain.get(number) == Some(hash));
        is_below || self.logged().any(|block| block == (number, hash))
    }
}

/// After the last fault, the nodes that ran at the end are never on different heads for longer than
/// the scenario allows, and at the end only for a moment.
fn agreement(evidence: &LabEvidence) -> CheckFinding {
    let nodes: Vec<&NodeEvidence> = evidence.swarm().filter(|node| node.is_up).collect();
    if nodes.len() < 2 {
        return Err("fewer than two nodes ran at the end".into());
    }
    let spells = disagreements(evidence, &nodes);
    let within = evidence.allow.agree_within;
    let is_too_long = |spell: &Disagreement| {
        let length = spell.to - spell.from;
        length > within || (spell.to == evidence.end && length > FINAL_DISAGREEMENT)
    };
    if let Some(spell) = spells.iter().find(|spell| is_too_long(spell)) {
        let [from, to] = [spell.from, spell.to].map(|at| at.as_secs_f64());
        return Err(format!(
            "heads differed from {from:.1} s to {to:.1} s: {}",
            spell.why
        ));
    }
    let first = spells
        .first()
        .filter(|spell| spell.from == evidence.last_fault_end);
    let after = first.map_or(Duration::ZERO, |spell| spell.to - spell.from);
    Ok(format!("{:.1} s after the last fault", after.as_secs_f64()))
}

/// A time in which the nodes are not on one head.
struct Disagreement {
    from: Duration,
    to: Duration,
    /// The last reason.
    why: String,
}

/// All disagreements after the last fault. Short ones are normal: a block is on its way.
fn disagreements(evidence: &LabEvidence, nodes: &[&NodeEvidence]) -> Vec<Disagreement> {
    let samples = nodes.iter().flat_map(|node| &node.track.heads);
    let is_after = |at: &Duration| *at > evidence.last_fault_end && *at < evidence.end;
    let mut instants: BTreeSet<Duration> = samples.map(|head| head.at).filter(is_after).collect();
    instants.insert(evidence.last_fault_end);
    let mut spells: Vec<Disagreement> = Vec::new();
    let mut is_open = false;
    for at in instants {
        let why = disagreement(evidence, nodes, at);
        match (why, spells.last_mut().filter(|_| is_open)) {
            (Some(why), None) => {
                let (from, to) = (at, evidence.end);
                spells.push(Disagreement { from, to, why });
                is_open = true;
            }
            (Some(why), Some(spell)) => spell.why = why,
            (None, Some(spell)) => {
                spell.to = at;
                is_open = false;
            }
            (None, None) => {}
        }
    }
    spells
}

/// The first reason why the nodes are not on one head at a time.
fn disagreement(evidence: &LabEvidence, nodes: &[&NodeEvidence], at: Duration) -> Option<String> {
    let heads: Vec<_> = nodes.iter().map(|node| (node, node.head_at(at))).collect();
    let highest = heads
        .iter()
        .filter_map(|(_, head)| *head)
        .max_by_key(|head| head.0)?;
    let chain = evidence.sequencer().map(|node| &node.track.chain);
    for (node, head) in &heads {
        let name = &node.name;
        let Some((number, hash)) = head else {
            return Some(format!("{name} has no head"));
        };
        if number + evidence.allow.lag < highest.0 {
            return Some(format!(
                "{name} is at block {number}, the highest is {}",
                highest.0
            ));
        }
        let canonical = chain.and_then(|chain| chain.get(number));
        if canonical.is_some_and(|canonical| canonical != hash) {
            return Some(format!(
                "{name} has another block {number} than the sequencer: {hash}"
            ));
        }
    }
    None
}

/// The sequencer makes at least half of the blocks of the time after the last fault.
fn progress(evidence: &LabEvidence) -> CheckFinding {
    let sequencer = evidence.sequencer().ok_or("there is no sequencer")?;
    let number = |at| sequencer.head_at(at).map_or(0, |head| head.0);
    let (first, end) = (number(evidence.last_fault_end), number(evidence.end));
    let made = end.saturating_sub(first);
    let time = evidence
        .end
        .saturating_sub(evidence.last_fault_end)
        .as_secs_f64();
    let expected = time / evidence.block_time.as_secs_f64().max(1.0) / 2.0;
    let text = format!("{made} blocks in the last {time:.0} s, up to block {end}");
    if made as f64 >= expected.floor().max(1.0) {
        return Ok(text);
    }
    Err(text)
}

/// Nodes only accept blocks that the sequencer signed, so two hashes of a height are two
/// signatures. The second is right where an L1 reorg has removed the origin of the first, and a
/// scenario with two sequencers makes them itself.
fn one_hash(evidence: &LabEvidence) -> CheckFinding {
    let mut heights: BTreeMap<u64, BTreeMap<B256, BTreeSet<&str>>> = BTreeMap::new();
    for node in evidence.swarm() {
        let doubles = node.track.doubles.iter();
        let doubles =
            doubles.flat_map(|(number, hashes)| hashes.iter().map(move |hash| (number, hash)));
        let hashes = node.track.chain.iter().chain(doubles);
        for (number, hash) in hashes.filter(|(_, hash)| !evidence.displaced.contains(*hash)) {
            let hashes = heights.entry(*number).or_default();
            hashes.entry(*hash).or_default().insert(&node.name);
        }
    }
    let first_seen = |number: u64| {
        let heads = evidence.swarm().flat_map(|node| &node.track.heads);
        let times = heads.filter(|head| head.number >= number);
        times.map(|head| head.at).min().unwrap_or_default()
    };
    let doubles = heights.iter().filter(|(_, hashes)| hashes.len() > 1);
    // The last one decides, since forks are allowed until a time.
    let last = doubles.max_by_key(|(number, _)| first_seen(**number));
    let Some((number, hashes)) = last else {
        return Ok(format!("{} heights", heights.len()));
    };
    let seen = hashes.iter().map(|(hash, nodes)| {
        let nodes: Vec<&str> = nodes.iter().copied().collect();
        format!("{hash} on {}", nodes.join(", "))
    });
    let seen = format!(
        "block {number} was {}",
        seen.collect::<Vec<_>>().join(", and ")
    );
    evidence.forks(first_seen(*number), seen)
}

/// Every running node has each block that a node accepted after the last fault, except those of the
/// last seconds, which may be on their way. Logs also have blocks that were a head for less than the
/// time between two samples.
fn accepted_blocks(evidence: &LabEvidence) -> CheckFinding {
    let sequencer = evidence.sequencer().ok_or("there is no sequencer")?;
    let height = |at: Duration| sequencer.head_at(at).map_or(0, |head| head.0);
    // Forks are allowed until the nodes must agree.
    let within = evidence.allow.agree_within;
    let grace = Some(within).filter(|_| evidence.allow.forks);
    let first = height(evidence.last_fault_end + grace.unwrap_or_default()) + 1;
    let last = height(evidence.end.saturating_sub(FINAL_DISAGREEMENT));
    let last = last.saturating_sub(evidence.allow.lag);
    let mut accepted: BTreeMap<(u64, B256), &str> = BTreeMap::new();
    for node in evidence.swarm() {
        let chain = node.track.chain.iter();
        let blocks = chain.map(|(number, hash)| (*number, *hash));
        for (number, hash) in blocks.chain(node.logged()) {
            if (first..=last).contains(&number) && !evidence.displaced.contains(&hash) {
                accepted.entry((number, hash)).or_insert(&node.name);
            }
        }
    }
    let chain = &sequencer.track.chain;
    evidence.all(format!("{} blocks", accepted.len()), |node| {
        if !node.role.is_l2() || !node.is_up {
            return None;
        }
        let mut blocks = accepted.iter();
        let lacked = blocks.find(|((number, hash), _)| !node.has(*number, *hash, chain));
        let ((number, hash), other) = lacked?;
        let name = &node.name;
        Some(format!("{name} lacks block {number} of {other}: {hash}"))
    })
}

fn no_reorg(evidence: &LabEvidence) -> CheckFinding {
    let mut last = Duration::ZERO;
    let mut problems = Vec::new();
    for node in &evidence.nodes {
        let reorgs = node.track.reorgs.iter();
        let reorgs = reorgs.filter(|reorg| !evidence.displaced.contains(&reorg.from));
        let Some(reorg) = reorgs.max_by_key(|reorg| reorg.at) else {
            continue;
        };
        last = last.max(reorg.at);
        let (name, number, at) = (&node.name, reorg.number, reorg.at.as_secs_f64());
        problems.push(format!("{name} replaced block {number} at {at:.1} s"));
    }
    if problems.is_empty() {
        return Ok("none".into());
    }
    evidence.forks(last, problems.join("; "))
}

/// At the end, the safe heads of the running nodes are blocks of the sequencer's chain, and higher
/// than they were before an L1 reorg and after the last fault: batches arrive until the end.
fn safe_heads(evidence: &LabEvidence) -> CheckFinding {
    let Some(floor) = evidence.safe_floor else {
        return Ok("no batcher".into());
    };
    let sequencer = evidence.sequencer().ok_or("there is no sequencer")?;
    let numbers = evidence
        .nodes
        .iter()
        .filter_map(|node| Some(node.safe?.number));
    let lowest = numbers.min().unwrap_or(0);
    evidence.all(format!("at least block {lowest}"), |node| {
        if !node.role.is_l2() || !node.is_up {
            return None;
        }
        let name = &node.name;
        let Some(LabBlock { number, hash, .. }) = node.safe else {
            return Some(format!("{name} has no safe head"));
        };
        let canonical = sequencer.track.chain.get(&number);
        if canonical.is_some_and(|canonical| *canonical != hash) {
            return Some(format!("{name} has another safe block {number}: {hash}"));
        }
        (number <= floor).then(|| format!("{name} is safe up to block {number}, after {floor}"))
    })
}

/// All peers of a lab but the hostile ones are honest.
fn no_ban(evidence: &LabEvidence) -> CheckFinding {
    let hostile = evidence.nodes.iter();
    let hostile = hostile.filter(|node| node.role == LabRole::Hostile);
    let hostile: BTreeSet<&str> = hostile.map(|node| node.name.as_str()).collect();
    evidence.all("none".into(), |node| {
        let mut bans = node.findings.bans.iter();
        let ban = bans.find(|ban| !hostile.contains(ban.subject.as_str()))?;
        let (name, subject, reason) = (&node.name, &ban.subject, &ban.reason);
        Some(format!("{name} banned {subject}: {reason}"))
    })
}

/// Nodes log the reasons that they write into their ledgers.
fn reasons(evidence: &LabEvidence) -> CheckFinding {
    let honest = evidence.nodes.iter();
    let honest = honest.filter(|node| node.role != LabRole::Hostile);
    let disconnects = honest.flat_map(|node| node.findings.disconnects.values());
    let count: u64 = disconnects.sum();
    evidence.all(format!("{count} disconnects"), |node| {
        if node.role == LabRole::Hostile {
            return None;
        }
        let name = &node.name;
        let mut bans = node.findings.bans.iter();
        if let Some(ban) = bans.find(|ban| ban.reason.is_empty()) {
            return Some(format!("{name} banned {} without a reason", ban.subject));
        }
        let count = node.findings.disconnects.get("")?;
        Some(format!(
            "{name} logged {count} disconnects without a reason"
        ))
    })
}

fn no_error(evidence: &LabEvidence) -> CheckFinding {
    let is_allowed = |line: &str| evidence.allow.errors.iter().any(|part| line.contains(part));
    evidence.all("none".into(), |node| {
        let mut errors = node.findings.errors.iter();
        let error = errors.find(|line| !is_allowed(line))?;
        Some(format!("{}: {error}", node.name))
    })
}

fn expectations(evidence: &LabEvidence) -> CheckFinding {
    let mut found = Vec::new();
    for (text, nodes) in &evidence.expected {
        if nodes.is_empty() {
            return Err(format!("no log has `{text}`"));
        }
        found.push(format!("`{text}` in the log of {}", nodes.join(", ")));
    }
    if found.is_empty() {
        return Ok("none".into());
    }
    Ok(found.join("; "))
}

fn memory(evidence: &LabEvidence) -> CheckFinding {
    let budget = evidence.allow.memory_mb;
    let swarm = evidence.nodes.iter().filter(|node| node.role.has_chain());
    let highest = swarm.max_by_key(|node| node.peak_kb).ok_or("no node ran")?;
    if highest.peak_kb == 0 {
        return Err("no memory was measured".into());
    }
    let peak = highest.peak_kb >> 10;
    let text = format!(
        "at most {peak} MB ({}), the budget is {budget} MB",
        highest.name
    );
    if peak <= budget {
        return Ok(text);
    }
    Err(text)
}

fn databases(evidence: &LabEvidence) -> CheckFinding {
    let verified = evidence
        .nodes
        .iter()
        .filter(|node| node.verified.is_some())
        .count();
    if verified == 0 {
        return Err("no database was verified".into());
    }
    evidence.all(format!("{verified} verified"), |node| {
        let damage = node.verified.as_ref()?.as_ref().err()?;
        Some(format!("{}: {damage}", node.name))
    })
}

fn stops(evidence: &LabEvidence) -> CheckFinding {
    evidence.all("all".into(), |node| {
        let is_failed = node.stop != ProcessEnd::Success;
        is_failed.then(|| format!("{} {}", node.name, node.stop))
    })
}

#[cfg(test)]
mod tests;
