//! Refuses scenarios that cannot run to their end: unknown names, times after the end, verbs on
//! nodes in the wrong state, and networks that are still broken when the checks look at them.

mod hostile;
mod limits;
mod verbs;

use super::{
    error::LabFileError,
    links::LabBackend,
    other_chain,
    plan::{LabAction, LabChange, LabPlan, LinkChange, NodeChange},
    scenario::{
        BATCHER, L1, LabRhythm, LabScenario, LabStep, LabTarget, LabVerb, NodeVerb, PROPOSER,
    },
    topology::{L1_INDEX, LabRole, LabTopology, SEQUENCER_INDEX},
};
use crate::{LinkConditions, Passage, nearest::nearest};
use std::{collections::BTreeSet, time::Duration};

/// Largest number of replicas. They have 2,080 links between them and to the sequencer. `starling
/// devnet` creates at most 50 of them, and the others are copies (`network/copies.rs`).
const MAX_REPLICAS: usize = 64;
/// Longest name of a node, so that tables stay readable.
const LONGEST_NAME: usize = 16;
/// Largest number of steps. Each of them may change all links.
const MAX_STEPS: usize = 1_000;
/// Largest number of faults that the seed draws in a run, about. The plan has two changes for each.
const MAX_DRAWN: f64 = 100_000.0;

type Checked = Result<(), LabFileError>;

fn refuse<T>(line: usize, message: impl Into<String>) -> Result<T, LabFileError> {
    Err(LabFileError::new(line, message))
}

pub(super) fn check(scenario: &LabScenario) -> Checked {
    check_names(scenario)?;
    let topology = LabTopology::new(scenario);
    hostile::check_hostile(scenario, &topology)?;
    let mut given = BTreeSet::new();
    for link in &scenario.links {
        let (near, far) = (&link.near, &link.far);
        let pair = LabTarget::Pair(near.clone(), far.clone());
        check_target(scenario, &topology, link.line, &pair)?;
        if !given.insert(topology.targets(&pair)) {
            let message =
                format!("the link between {near} and {far} is given twice; leave one out");
            return refuse(link.line, message);
        }
    }
    if let Some(step) = scenario.steps.get(MAX_STEPS) {
        let count = scenario.steps.len();
        let message = format!("{count} steps are too many; use at most {MAX_STEPS}");
        return refuse(step.line, message);
    }
    for step in &scenario.steps {
        check_step(scenario, &topology, step)?;
    }
    check_drawn(scenario, &topology)?;
    for replica in &scenario.replicas {
        let what = format!("{} starts", replica.name);
        check_time(scenario, replica.line, &what, replica.start)?;
    }
    check_storms(scenario)?;
    verbs::check(scenario, &topology)?;
    check_backend(scenario)?;
    limits::check(scenario)?;
    let plan = every_seed(scenario, &topology);
    hostile::check_evidence(scenario, &topology, &plan)?;
    let end = check_states(&topology, &plan)?;
    check_end(scenario, &topology, &plan, &end)
}

fn check_names(scenario: &LabScenario) -> Checked {
    let lines = &scenario.lines;
    if scenario.purpose.trim().is_empty() {
        return refuse(
            lines.purpose,
            "`purpose` is empty; say in one sentence what the scenario is for",
        );
    }
    if scenario.replicas.is_empty() {
        return refuse(
            lines.replicas,
            "there are no replicas, so the checks have nobody to compare; name one in `replicas` or \
             `late`",
        );
    }
    let count = scenario.replicas.len() + usize::from(scenario.bootnode.is_some());
    if count > MAX_REPLICAS {
        return refuse(
            lines.replicas,
            format!("{count} replicas are too many; use at most {MAX_REPLICAS}"),
        );
    }
    let mut seen = BTreeSet::from([L1, BATCHER, PROPOSER]);
    let replicas = scenario.replicas.iter();
    let replicas = replicas.map(|replica| (replica.name.as_str(), replica.line));
    let bootnode = scenario.bootnode.as_deref();
    let bootnode = bootnode.map(|name| (name, lines.bootnode));
    for (name, line) in [(scenario.sequencer.as_str(), lines.sequencer)]
        .into_iter()
        .chain(replicas)
        .chain(bootnode)
    {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
            let message = format!(
                "`{name}` is no name of a node; use at most {LONGEST_NAME} of a-z, 0-9 and -"
            );
            return refuse(line, message);
        }
        if scenario.other_chain > 0 && name.starts_with(other_chain::PREFIX) {
            let message = format!("`{name}` begins like a node of the other chain; rename it");
            return refuse(line, message);
        }
        if name == "all" || !seen.insert(name) {
            return refuse(line, format!("`{name}` is taken already; use another name"));
        }
    }
    let hostile = hostile::names(scenario);
    let twice = hostile
        .iter()
        .find(|(name, _)| seen.contains(name.as_str()));
    if let Some((name, line)) = twice {
        let message = format!("`{name}` is the name of a hostile peer and of a node");
        return refuse(*line, message);
    }
    Ok(())
}

/// On the packet backend, a node reaches other hosts over the links of its topology only.
fn check_backend(scenario: &LabScenario) -> Checked {
    if scenario.backend != LabBackend::Packet {
        return Ok(());
    }
    let refused = |line, what: &str| {
        let message = format!("{what}; use the backend `stream`");
        refuse(line, message)
    };
    if scenario.bootnode.is_some() {
        let what = "the backend `packet` joins nodes by links, and nodes that find each other \
                    through a bootnode have none between them";
        return refused(scenario.lines.bootnode, what);
    }
    if scenario.other_chain > 0 {
        let what = "the backend `packet` has no links to the nodes of another chain";
        return refused(scenario.lines.other_chain, what);
    }
    let is_move = |step: &&LabStep| matches!(step.verb, LabVerb::Nodes(NodeVerb::Move, _));
    if let Some(step) = scenario.steps.iter().find(is_move) {
        let what = "move changes addresses on loopback, which hosts of the backend `packet` do not \
                    share";
        return refused(step.line, what);
    }
    Ok(())
}

fn check_time(scenario: &LabScenario, line: usize, what: &str, at: Duration) -> Checked {
    if at < scenario.length {
        return Ok(());
    }
    let (at, end) = (at.as_secs_f64(), scenario.length.as_secs_f64());
    refuse(
        line,
        format!("{what} at {at} s, but the run ends at {end} s"),
    )
}

fn check_node(scenario: &LabScenario, line: usize, name: &str) -> Checked {
    let names = scenario.node_names();
    if names.iter().any(|other| other == name) {
        return Ok(());
    }
    let names = names.iter().map(String::as_str);
    refuse(
        line,
        format!("no node is called `{name}`{}", nearest(name, names)),
    )
}

fn check_target(
    scenario: &LabScenario,
    topology: &LabTopology,
    line: usize,
    target: &LabTarget,
) -> Checked {
    match target {
        LabTarget::All => return Ok(()),
        LabTarget::Node(name) => {
            check_node(scenario, line, name)?;
            if topology.targets(target).is_empty() {
                return refuse(line, format!("{name} has no links; name an honest node"));
            }
        }
        LabTarget::Pair(one, other) => {
            check_node(scenario, line, one)?;
            check_node(scenario, line, other)?;
            if topology.targets(target).is_empty() {
                return refuse(
                    line,
                    format!(
                        "there is no link between {one} and {other}; see `netsim/scenarios/README.md`"
                    ),
                );
            }
        }
    }
    Ok(())
}

fn check_step(scenario: &LabScenario, topology: &LabTopology, step: &LabStep) -> Checked {
    let line = step.line;
    let target = |target: &LabTarget| check_target(scenario, topology, line, target);
    let rhythm = |rhythm: &LabRhythm| check_rhythm(scenario, step, rhythm);
    check_time(scenario, line, step.verb.word(), step.at)?;
    hostile::check_roles(topology, step)?;
    match &step.verb {
        LabVerb::Cut(it) | LabVerb::Heal(it) | LabVerb::Slow(it, _) | LabVerb::Lossy(it, _) => {
            target(it)
        }
        LabVerb::CutOneWay(from, to) => target(&LabTarget::Pair(from.clone(), to.clone())),
        LabVerb::Isolate(node) => {
            target(&LabTarget::Node(node.clone()))?;
            hostile::check_isolated(scenario, step)
        }
        LabVerb::Split(groups) => {
            check_groups(scenario, line, groups)?;
            hostile::check_isolated(scenario, step)?;
            check_split(topology, line, groups)
        }
        LabVerb::Flap(it, times) => target(it).and_then(|()| rhythm(times)),
        LabVerb::Storm(nodes, times) => {
            check_nodes(scenario, line, nodes).and_then(|()| rhythm(times))
        }
        LabVerb::Load(_) => Ok(()),
        LabVerb::Nodes(_, nodes) | LabVerb::FillDisk(nodes, _) | LabVerb::Reorg(nodes, _) => {
            check_nodes(scenario, line, nodes)
        }
    }
}

fn check_nodes(scenario: &LabScenario, line: usize, nodes: &[String]) -> Checked {
    if nodes.is_empty() {
        return refuse(line, "the verb names no node; name at least one");
    }
    nodes
        .iter()
        .try_for_each(|node| check_node(scenario, line, node))
}

fn check_groups(scenario: &LabScenario, line: usize, groups: &[Vec<String>]) -> Checked {
    if groups.len() < 2 {
        return refuse(line, "a split needs at least two groups");
    }
    let mut seen = BTreeSet::new();
    for group in groups {
        check_nodes(scenario, line, group)?;
        if let Some(twice) = group.iter().find(|node| !seen.insert(*node)) {
            return refuse(
                line,
                format!("`{twice}` is in two groups; leave it out of one"),
            );
        }
    }
    Ok(())
}

/// A split must cut a link: batcher and proposer, for example, have none between them.
fn check_split(topology: &LabTopology, line: usize, groups: &[Vec<String>]) -> Checked {
    let group = |node: usize| {
        let name = &topology.nodes[node].name;
        groups.iter().position(|group| group.contains(name))
    };
    let is_cut = |(near, far): (Option<usize>, Option<usize>)| {
        near.is_some() && far.is_some() && near != far
    };
    let mut links = topology.links.iter();
    if links.any(|link| is_cut((group(link.near), group(link.far)))) {
        return Ok(());
    }
    refuse(
        line,
        "the split cuts no link: there is none between its groups; name nodes that have links",
    )
}

fn check_rhythm(scenario: &LabScenario, step: &LabStep, rhythm: &LabRhythm) -> Checked {
    let word = step.verb.word();
    check_time(scenario, step.line, &format!("{word} ends"), rhythm.until)?;
    if rhythm.until <= step.at {
        return refuse(
            step.line,
            format!("{word} ends before it begins; raise `until`"),
        );
    }
    if rhythm.down.is_zero() || rhythm.up.is_zero() {
        return refuse(
            step.line,
            format!("{word} needs times above zero for `down` and `up`"),
        );
    }
    Ok(())
}

/// Faults that come and go are bounded before the plan is drawn, since it has all of them.
fn check_drawn(scenario: &LabScenario, topology: &LabTopology) -> Checked {
    let mut faults = 0.0;
    for step in &scenario.steps {
        let (links, rhythm) = match &step.verb {
            LabVerb::Flap(target, rhythm) => (topology.targets(target).len(), rhythm),
            LabVerb::Storm(_, rhythm) => (1, rhythm),
            _ => continue,
        };
        let span = rhythm.until.saturating_sub(step.at).as_secs_f64();
        faults += links as f64 * span / (rhythm.down + rhythm.up).as_secs_f64();
        if faults > MAX_DRAWN {
            let word = step.verb.word();
            let message = format!(
                "with this {word} the run has about {faults:.0} faults; use at most {MAX_DRAWN}: \
                 raise `down` and `up`, or lower `until`"
            );
            return refuse(step.line, message);
        }
    }
    Ok(())
}

/// A plan that stands for those of all seeds. A storm kills some of its nodes, and which ones only
/// the seed knows, so here it kills all of them at its begin and starts them at its end. Links that
/// flap are whole at their `until` with every seed.
fn every_seed(scenario: &LabScenario, topology: &LabTopology) -> LabPlan {
    let mut plan = LabPlan::new(scenario, topology, 0);
    plan.actions.retain(|action| action.verb != "storm");
    for step in &scenario.steps {
        let LabVerb::Storm(nodes, rhythm) = &step.verb else {
            continue;
        };
        let times = [
            (step.at, NodeChange::Kill),
            (rhythm.until, NodeChange::Restart),
        ];
        for (at, change) in times {
            let nodes = nodes.iter().filter_map(|name| topology.node(name));
            plan.actions.extend(nodes.map(|node| LabAction {
                at,
                verb: step.verb.word(),
                change: LabChange::Node(node, change),
                line: step.line,
            }));
        }
    }
    plan.actions.sort_by_key(|action| action.at);
    plan
}

/// A node in a storm changes its state at times that only the seed knows.
fn check_storms(scenario: &LabScenario) -> Checked {
    for (index, storm) in scenario.steps.iter().enumerate() {
        let LabVerb::Storm(nodes, rhythm) = &storm.verb else {
            continue;
        };
        for (other, step) in scenario.steps.iter().enumerate() {
            let is_during = step.at >= storm.at && step.at <= rhythm.until;
            let mut named = step.verb.nodes().iter();
            let hit = named.find(|node| nodes.contains(node));
            if let Some(node) = hit.filter(|_| is_during && other != index) {
                let (word, until) = (step.verb.word(), rhythm.until.as_secs_f64());
                let message = format!(
                    "{word} on {node}, which is in a storm until {until} s; choose another time or node"
                );
                return refuse(step.line, message);
            }
        }
    }
    Ok(())
}

/// State of a node's process in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlannedState {
    Absent,
    Up,
    Down,
    Frozen,
}

impl PlannedState {
    /// The state after a change, or how the node is called that cannot have it.
    fn after(self, change: NodeChange) -> Result<Self, &'static str> {
        match (self, change) {
            (Self::Absent, NodeChange::Start) => Ok(Self::Up),
            (Self::Absent, _) => Err("has not started yet"),
            (_, NodeChange::FillDisk | NodeChange::FreeDisk) => Ok(self),
            (Self::Frozen, NodeChange::Thaw) => Ok(Self::Up),
            (Self::Frozen, NodeChange::Kill) | (Self::Up, NodeChange::Kill | NodeChange::Stop) => {
                Ok(Self::Down)
            }
            (Self::Frozen, _) => Err("is frozen"),
            (Self::Up, NodeChange::Freeze) => Ok(Self::Frozen),
            (Self::Up, NodeChange::SnapshotL1 | NodeChange::RestoreL1) => Ok(Self::Up),
            (
                Self::Up | Self::Down,
                NodeChange::Restart
                | NodeChange::Upgrade
                | NodeChange::Promote
                | NodeChange::Move
                | NodeChange::NewKey,
            ) => Ok(Self::Up),
            (Self::Down, NodeChange::Wipe) => Ok(Self::Down),
            (Self::Down, _) => Err("is down"),
            (Self::Up, _) => Err("is running"),
        }
    }
}

/// Follows the states of all nodes. Returns those at the end.
fn check_states(topology: &LabTopology, plan: &LabPlan) -> Result<Vec<PlannedState>, LabFileError> {
    let first = |start: Duration| {
        if start.is_zero() {
            PlannedState::Up
        } else {
            PlannedState::Absent
        }
    };
    let mut states: Vec<PlannedState> = topology
        .nodes
        .iter()
        .map(|node| first(node.start))
        .collect();
    for LabAction {
        at,
        verb,
        change,
        line,
    } in &plan.actions
    {
        let LabChange::Node(node, change) = change else {
            continue;
        };
        let name = &topology.nodes[*node].name;
        // Whether a storm kills a frozen node depends on the seed.
        let is_frozen = *verb == "storm" && states[*node] == PlannedState::Frozen;
        let after = if is_frozen {
            Err("is frozen")
        } else {
            states[*node].after(*change)
        };
        match after {
            Ok(state) => states[*node] = state,
            Err(how) => {
                let at = at.as_secs_f64();
                return refuse(*line, format!("{verb} at {at} s, but {name} {how} then"));
            }
        }
        if *change == NodeChange::Wipe && *node <= SEQUENCER_INDEX {
            let message = format!("{name} cannot be wiped: the network's blocks come from it");
            return refuse(*line, message);
        }
        if *change == NodeChange::Wipe && !topology.nodes[*node].role.has_chain() {
            return refuse(*line, format!("{name} stores no data that could be wiped"));
        }
    }
    Ok(states)
}

fn check_time_after_faults(scenario: &LabScenario, plan: &LabPlan) -> Checked {
    let within = scenario.time_after_faults();
    let needed = plan.planned_fault_end + within;
    if needed <= scenario.length {
        return Ok(());
    }
    let (who, purpose) = if within > scenario.allow.agree_within {
        ("the batcher needs", "make blocks safe")
    } else {
        ("the nodes have", "agree")
    };
    let [fault_end, within, needed] =
        [plan.planned_fault_end, within, needed].map(|time| time.as_secs_f64());
    let message = format!(
        "the last fault is at {fault_end} s and {who} {within} s to {purpose}: set `seconds` to at \
         least {needed}"
    );
    refuse(scenario.lines.length, message)
}

/// At the end, blocks must be made and reach every running node, and the checks need their time.
fn check_end(
    scenario: &LabScenario,
    topology: &LabTopology,
    plan: &LabPlan,
    states: &[PlannedState],
) -> Checked {
    check_time_after_faults(scenario, plan)?;
    let line = scenario.lines.length;
    let is_up = |node: usize| states[node] == PlannedState::Up;
    for node in [L1_INDEX, SEQUENCER_INDEX] {
        if !is_up(node) {
            let name = &topology.nodes[node].name;
            let message = format!("{name} does not run at the end, so no blocks are made then");
            return refuse(line, message);
        }
    }
    let open = open_links(topology, plan);
    let reached = reached(topology, &open, is_up);
    let is_reached = |node: &usize| scenario.bootnode.is_some() || reached.contains(node);
    let running: Vec<usize> = (0..topology.nodes.len())
        .filter(|node| topology.nodes[*node].role.is_l2() && is_up(*node))
        .collect();
    if running.len() < 2 {
        return refuse(
            line,
            "no replica runs at the end, so the checks have nobody to compare",
        );
    }
    if let Some(lost) = running.iter().find(|node| !is_reached(node)) {
        let name = &topology.nodes[*lost].name;
        let message = format!("{name} is still cut off at the end: heal its links");
        return refuse(line, message);
    }
    if let Some(link) = (0..open.len()).find(|link| !open[*link] && feeds_l1(topology, *link)) {
        let [near, far] = topology.ends(link);
        let message = format!("the link between {near} and {far} is closed at the end: heal it");
        return refuse(line, message);
    }
    if topology.node(BATCHER).is_some_and(|node| !is_up(node)) {
        let message = format!("{BATCHER} does not run at the end, so no blocks become safe then");
        return refuse(line, message);
    }
    Ok(())
}

/// Whether the sequencer reads L1 through a link, or batcher or proposer bring its blocks there.
fn feeds_l1(topology: &LabTopology, link: usize) -> bool {
    let link = &topology.links[link];
    let is_poster = matches!(
        topology.nodes[link.near].role,
        LabRole::Batcher | LabRole::Proposer
    );
    is_poster || (link.near == SEQUENCER_INDEX && link.far == L1_INDEX)
}

/// Whether each link carries data in both directions at the end.
fn open_links(topology: &LabTopology, plan: &LabPlan) -> Vec<bool> {
    let first = |link: usize| topology.links[link].conditions;
    let mut links: Vec<LinkConditions> = (0..topology.links.len()).map(first).collect();
    for action in &plan.actions {
        if let LabChange::Links(changes) = &action.change {
            for (link, change) in changes {
                LinkChange::apply(change, first(*link), &mut links[*link]);
            }
        }
    }
    let is_open = |conditions: &LinkConditions| {
        let directions = [conditions.up, conditions.down];
        let passes = directions
            .iter()
            .all(|it| it.passage == Passage::Open && it.loss < 1.0);
        passes && !conditions.refuse
    };
    links.iter().map(is_open).collect()
}

/// Running nodes that blocks of the sequencer reach over the swarm at the end, through open links.
fn reached(
    topology: &LabTopology,
    open: &[bool],
    is_up: impl Fn(usize) -> bool,
) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([SEQUENCER_INDEX]);
    loop {
        let before = reached.len();
        for (at, link) in topology
            .links
            .iter()
            .enumerate()
            .filter(|(at, _)| open[*at])
        {
            let is_swarm = [link.near, link.far]
                .iter()
                .all(|node| topology.nodes[*node].role.is_l2() && is_up(*node));
            let is_new = reached.contains(&link.near) || reached.contains(&link.far);
            if is_swarm && is_new {
                reached.extend([topology.links[at].near, link.far]);
            }
        }
        if reached.len() == before {
            return reached;
        }
    }
}

#[cfg(test)]
mod tests;
