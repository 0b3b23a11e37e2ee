//! The plan of a run: single changes of nodes and links in order of time. Faults that come and go
//! are drawn from the seed here, so that the same seed gives the same plan.

use super::{
    hostile,
    scenario::{LabRhythm, LabScenario, LabTarget, LabVerb, NodeVerb},
    topology::LabTopology,
};
use crate::{LinkConditions, Passage, ladder::Rung};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::BTreeMap, time::Duration};

/// A change of one link.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a plan has few changes, and a `Copy` type cannot have a box"
)]
pub enum LinkChange {
    /// Data vanish in these directions.
    Unplug { up: bool, down: bool },
    /// Connections are reset and refused, or accepted again.
    Refuse(bool),
    /// New delays, rates and shares. A direction that is unplugged stays so.
    Conditions(LinkConditions),
    /// Share of packets that are lost in both directions.
    Loss(f64),
    /// The conditions of the start.
    Heal,
}

impl LinkChange {
    /// Applies the change to a link that had the conditions `first` at the start.
    pub fn apply(&self, first: LinkConditions, now: &mut LinkConditions) {
        match *self {
            Self::Unplug { up, down } => {
                for (is_meant, direction) in [(up, &mut now.up), (down, &mut now.down)] {
                    if is_meant {
                        direction.passage = Passage::Unplugged;
                    }
                }
            }
            Self::Refuse(refuse) => now.refuse = refuse,
            Self::Conditions(mut new) => {
                new.up.passage = now.up.passage;
                new.down.passage = now.down.passage;
                new.refuse = now.refuse;
                *now = new;
            }
            Self::Loss(loss) => (now.up.loss, now.down.loss) = (loss, loss),
            Self::Heal => *now = first,
        }
    }
}

/// A change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The first start of a node that begins late.
    Start,
    Kill,
    Stop,
    Freeze,
    Thaw,
    Restart,
    Wipe,
    Upgrade,
    /// The disk is full.
    FillDisk,
    /// The disk has space again.
    FreeDisk,
    Move,
    NewKey,
    /// A copy of L1's data, to be restored later.
    SnapshotL1,
    /// L1 has the data of its snapshot again, and makes other blocks from there: the reorg.
    RestoreL1,
    /// A restart as a sequencer.
    Promote,
}

impl NodeVerb {
    /// The change of each node that the verb names.
    pub fn change(self) -> NodeChange {
        match self {
            Self::Kill => NodeChange::Kill,
            Self::Stop => NodeChange::Stop,
            Self::Freeze => NodeChange::Freeze,
            Self::Thaw => NodeChange::Thaw,
            Self::Restart => NodeChange::Restart,
            Self::Wipe => NodeChange::Wipe,
            Self::Upgrade => NodeChange::Upgrade,
            Self::Promote => NodeChange::Promote,
            Self::Move => NodeChange::Move,
            Self::NewKey => NodeChange::NewKey,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum LabChange {
    Links(Vec<(usize, LinkChange)>),
    Node(usize, NodeChange),
    Load(u32),
}

impl LabChange {
    /// Whether the change takes an earlier one back: a heal, a start, or space on a full disk.
    pub fn ends_fault(&self) -> bool {
        match self {
            Self::Links(changes) => changes
                .iter()
                .all(|(_, change)| matches!(change, LinkChange::Heal | LinkChange::Refuse(false))),
            Self::Node(_, change) => !matches!(
                change,
                NodeChange::Kill
                    | NodeChange::Stop
                    | NodeChange::Freeze
                    | NodeChange::Wipe
                    | NodeChange::SnapshotL1
                    | NodeChange::FillDisk
            ),
            Self::Load(_) => false,
        }
    }
}

/// A change with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct LabAction {
    pub at: Duration,
    /// The verb of the scenario that the change belongs to; `start` for a late node.
    pub verb: &'static str,
    pub change: LabChange,
    /// Line of the verb in its file.
    pub line: usize,
}

/// All changes of a run, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct LabPlan {
    pub actions: Vec<LabAction>,
    /// Time of the last change that disturbs the network or ends a disturbance. From then on the
    /// heads must converge.
    pub planned_fault_end: Duration,
}

impl LabPlan {
    pub fn new(scenario: &LabScenario, topology: &LabTopology, seed: u64) -> Self {
        let mut planner = LabPlanner {
            topology,
            dice: StdRng::seed_from_u64(seed),
            actions: Vec::new(),
            planned_fault_end: Duration::ZERO,
        };
        let hostile = hostile::peers(&scenario.hostile);
        let hostile = hostile.iter().map(|peer| (&peer.name, peer.line));
        let replicas = scenario.replicas.iter().map(|it| (&it.name, it.line));
        let lines: BTreeMap<&String, usize> = replicas.chain(hostile).collect();
        for (index, node) in topology.nodes.iter().enumerate() {
            if !node.start.is_zero() {
                let line = lines.get(&node.name).copied().unwrap_or(0);
                let change = LabChange::Node(index, NodeChange::Start);
                planner.push(node.start, "start", change, line);
            }
        }
        for step in &scenario.steps {
            planner.verb(step.at, &step.verb, step.line);
        }
        // Stable: verbs of the same time stay in the order of the file.
        planner.actions.sort_by_key(|action| action.at);
        Self {
            actions: planner.actions,
            planned_fault_end: planner.planned_fault_end,
        }
    }
}

struct LabPlanner<'a> {
    topology: &'a LabTopology,
    dice: StdRng,
    actions: Vec<LabAction>,
    planned_fault_end: Duration,
}

impl LabPlanner<'_> {
    fn push(&mut self, at: Duration, verb: &'static str, change: LabChange, line: usize) {
        if !matches!(change, LabChange::Load(_)) {
            self.planned_fault_end = self.planned_fault_end.max(at);
        }
        self.actions.push(LabAction {
            at,
            verb,
            change,
            line,
        });
    }

    fn verb(&mut self, at: Duration, verb: &LabVerb, line: usize) {
        let unplug = LinkChange::Unplug {
            up: true,
            down: true,
        };
        let word = verb.word();
        let change = match verb {
            LabVerb::Cut(target) => self.links(target, unplug),
            LabVerb::CutOneWay(from, to) => self.one_way(from, to),
            LabVerb::Heal(target) => self.links(target, LinkChange::Heal),
            LabVerb::Isolate(node) => self.links(&LabTarget::Node(node.clone()), unplug),
            LabVerb::Split(groups) => self.split(groups, unplug),
            LabVerb::Slow(target, rung) => self.slow(target, rung),
            LabVerb::Lossy(target, loss) => self.links(target, LinkChange::Loss(*loss)),
            LabVerb::Flap(target, rhythm) => return self.flap(at, target, *rhythm, line),
            LabVerb::Storm(nodes, rhythm) => return self.storm(at, nodes, *rhythm, line),
            LabVerb::Load(rate) => LabChange::Load(*rate),
            LabVerb::FillDisk(nodes, until) => {
                self.nodes(at, word, nodes, NodeChange::FillDisk, line);
                return self.nodes(*until, word, nodes, NodeChange::FreeDisk, line);
            }
            LabVerb::Reorg(nodes, until) => {
                self.nodes(at, word, nodes, NodeChange::SnapshotL1, line);
                return self.nodes(*until, word, nodes, NodeChange::RestoreL1, line);
            }
            LabVerb::Nodes(verb, nodes) => {
                return self.nodes(at, word, nodes, verb.change(), line);
            }
        };
        self.push(at, word, change, line);
    }

    fn nodes(
        &mut self,
        at: Duration,
        verb: &'static str,
        nodes: &[String],
        change: NodeChange,
        line: usize,
    ) {
        for node in self.indices(nodes) {
            self.push(at, verb, LabChange::Node(node, change), line);
        }
    }

    fn indices(&self, nodes: &[String]) -> Vec<usize> {
        let index = |name: &String| self.topology.node(name);
        nodes.iter().filter_map(index).collect()
    }

    fn links(&self, target: &LabTarget, change: LinkChange) -> LabChange {
        let links = self.topology.targets(target).into_iter();
        LabChange::Links(links.map(|link| (link, change)).collect())
    }

    /// The target's node, or the first of two, is the near end: the home of a rung that has one.
    fn slow(&self, target: &LabTarget, rung: &Rung) -> LabChange {
        let home = match target {
            LabTarget::All => None,
            LabTarget::Node(name) | LabTarget::Pair(name, _) => self.topology.node(name),
        };
        let links = self.topology.targets(target).into_iter().map(|link| {
            let is_far = home == Some(self.topology.links[link].far);
            let conditions = if is_far {
                rung.conditions.reversed()
            } else {
                rung.conditions
            };
            (link, LinkChange::Conditions(conditions))
        });
        LabChange::Links(links.collect())
    }

    fn one_way(&self, from: &str, to: &str) -> LabChange {
        let ends = self.topology.node(from).zip(self.topology.node(to));
        let link = ends.and_then(|(from, to)| Some((from, self.topology.link(from, to)?)));
        let unplug = link.map(|(from, link)| {
            let up = self.topology.links[link].near == from;
            (link, LinkChange::Unplug { up, down: !up })
        });
        LabChange::Links(unplug.into_iter().collect())
    }

    fn split(&self, groups: &[Vec<String>], unplug: LinkChange) -> LabChange {
        let groups: Vec<Vec<usize>> = groups.iter().map(|group| self.indices(group)).collect();
        let group = |node: usize| groups.iter().position(|group| group.contains(&node));
        let links = self.topology.links.iter().enumerate();
        let links = links.filter(|(_, link)| {
            let ends = group(link.near).zip(group(link.far));
            ends.is_some_and(|(near, far)| near != far)
        });
        LabChange::Links(links.map(|(link, _)| (link, unplug)).collect())
    }

    /// Draws a time around `mean`. Bounds keep a run close to what its scenario says.
    fn draw(&mut self, mean: Duration) -> Duration {
        let uniform: f64 = self.dice.random_range(f64::EPSILON..1.0);
        mean.mul_f64((-uniform.ln()).clamp(0.25, 3.0))
    }

    /// Breaks each link for itself.
    fn flap(&mut self, start: Duration, target: &LabTarget, rhythm: LabRhythm, line: usize) {
        for link in self.topology.targets(target) {
            let mut at = start;
            while at < rhythm.until {
                let healed = (at + self.draw(rhythm.down)).min(rhythm.until);
                for (at, refuse) in [(at, true), (healed, false)] {
                    let change = LabChange::Links(vec![(link, LinkChange::Refuse(refuse))]);
                    self.push(at, "flap", change, line);
                }
                at = healed + self.draw(rhythm.up);
            }
        }
        self.planned_fault_end = self.planned_fault_end.max(rhythm.until);
    }

    /// Kills one random node at a time, and starts it again.
    fn storm(&mut self, start: Duration, nodes: &[String], rhythm: LabRhythm, line: usize) {
        let nodes = self.indices(nodes);
        let mut at = start;
        while at < rhythm.until {
            let Some(node) = nodes.choose(&mut self.dice).copied() else {
                break;
            };
            let started = (at + self.draw(rhythm.down)).min(rhythm.until);
            let changes = [(at, NodeChange::Kill), (started, NodeChange::Restart)];
            for (at, change) in changes {
                self.push(at, "storm", LabChange::Node(node, change), line);
            }
            at = started + self.draw(rhythm.up);
        }
        self.planned_fault_end = self.planned_fault_end.max(rhythm.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::scenario::{names, seconds};

    fn plan(scenario: &LabScenario, seed: u64) -> LabPlan {
        LabPlan::new(scenario, &LabTopology::new(scenario), seed)
    }

    fn base() -> LabScenario {
        LabScenario::new("x", "y").replicas(["a", "b"])
    }

    /// Links: 0 seq-l1, 1 a-l1, 2 a-seq, 3 b-l1, 4 b-seq, 5 b-a.
    #[test]
    fn a_split_cuts_between_groups_only() {
        let groups = vec![names(["seq", "a"]), names(["b"])];
        let plan = plan(&base().at(5, LabVerb::Split(groups)), 1);
        let LabChange::Links(links) = &plan.actions[0].change else {
            panic!("{plan:?}");
        };
        let cut: Vec<usize> = links.iter().map(|(link, _)| *link).collect();
        assert_eq!(cut, [4, 5]);
        assert_eq!(plan.planned_fault_end, seconds(5));
    }

    #[test]
    fn a_one_way_cut_keeps_the_other_direction() {
        let verb = |from: &str, to: &str| LabVerb::CutOneWay(from.into(), to.into());
        let scenario = base().at(1, verb("seq", "b")).at(2, verb("b", "seq"));
        let changes: Vec<_> = plan(&scenario, 1)
            .actions
            .into_iter()
            .map(|it| it.change)
            .collect();
        let unplug = |up, down| LabChange::Links(vec![(4, LinkChange::Unplug { up, down })]);
        assert_eq!(changes, [unplug(false, true), unplug(true, false)]);
    }

    #[test]
    fn a_slow_target_is_the_home_of_its_rung() {
        let rung = Rung::named("home-dsl").unwrap();
        let slow = |target| {
            let scenario = base().at(1, LabVerb::Slow(target, rung));
            let action = plan(&scenario, 1).actions.remove(0);
            let LabChange::Links(links) = action.change else {
                panic!("{action:?}");
            };
            let conditions = |(link, change)| match change {
                LinkChange::Conditions(conditions) => (link, conditions),
                other => panic!("{other:?}"),
            };
            links.into_iter().map(conditions).collect::<Vec<_>>()
        };
        let (home, other) = (rung.conditions, rung.conditions.reversed());
        assert_ne!(home, other);
        // Node `a` is the near end towards the L1 and the sequencer, and the far end towards `b`.
        let node = slow(LabTarget::Node("a".into()));
        assert_eq!(node, [(1, home), (2, home), (5, other)]);
        let pair = |one: &str, two: &str| slow(LabTarget::Pair(one.into(), two.into()));
        assert_eq!(pair("a", "b"), [(5, other)]);
        assert_eq!(pair("b", "a"), [(5, home)]);
        assert!(slow(LabTarget::All).iter().all(|(_, it)| *it == home));
    }

    #[test]
    fn a_seed_gives_one_plan_and_faults_end_in_time() {
        let rhythm = LabRhythm {
            until: seconds(40),
            down: seconds(1),
            up: seconds(2),
        };
        let scenario = base()
            .at(5, LabVerb::Flap(LabTarget::Node("a".into()), rhythm))
            .at(5, LabVerb::Storm(names(["a", "b"]), rhythm));
        let one = plan(&scenario, 7);
        assert_eq!(one, plan(&scenario, 7));
        assert_ne!(one, plan(&scenario, 8));
        assert!(one.actions.len() > 20, "{}", one.actions.len());
        assert_eq!(one.planned_fault_end, seconds(40));
        assert!(one.actions.is_sorted_by_key(|action| action.at));
        let mut down = [0; 4];
        let mut refuse = [false; 6];
        for action in &one.actions {
            match &action.change {
                LabChange::Node(node, NodeChange::Kill) => down[*node] += 1,
                LabChange::Node(node, NodeChange::Restart) => down[*node] -= 1,
                LabChange::Links(links) => {
                    for (link, change) in links {
                        refuse[*link] = *change == LinkChange::Refuse(true);
                    }
                }
                other => panic!("{other:?}"),
            }
            assert!(down.iter().sum::<i32>() <= 1, "one node at a time");
        }
        assert_eq!((down, refuse), ([0; 4], [false; 6]));
    }

    #[test]
    fn a_full_disk_and_a_reorg_are_faults_until_their_end() {
        let scenario = base()
            .at(3, LabVerb::FillDisk(names(["a"]), seconds(9)))
            .at(4, LabVerb::Reorg(names(["l1"]), seconds(10)));
        let plan = plan(&scenario, 1);
        let changes: Vec<_> = plan.actions.iter().map(|it| it.change.clone()).collect();
        let expected = [
            LabChange::Node(2, NodeChange::FillDisk),
            LabChange::Node(0, NodeChange::SnapshotL1),
            LabChange::Node(2, NodeChange::FreeDisk),
            LabChange::Node(0, NodeChange::RestoreL1),
        ];
        assert_eq!(changes, expected);
        assert_eq!(plan.planned_fault_end, seconds(10));
        let ends: Vec<bool> = changes.iter().map(LabChange::ends_fault).collect();
        assert_eq!(ends, [false, false, true, true]);
    }

    #[test]
    fn a_late_node_starts_once_and_load_is_no_fault() {
        let plan = plan(&base().late("c", 20).at(29, LabVerb::Load(5)), 1);
        let start = LabChange::Node(4, NodeChange::Start);
        assert_eq!(plan.actions[0].change, start);
        assert_eq!(plan.planned_fault_end, seconds(20));
    }

    #[test]
    fn healing_restores_the_first_conditions() {
        let first = Rung::named("lan").unwrap().conditions;
        let satellite = Rung::named("satellite").unwrap().conditions;
        let mut now = first;
        let unplug = LinkChange::Unplug {
            up: true,
            down: false,
        };
        unplug.apply(first, &mut now);
        LinkChange::Conditions(satellite).apply(first, &mut now);
        assert_eq!(now.up.passage, Passage::Unplugged, "slow is no heal");
        assert_eq!(now.down, satellite.down);
        LinkChange::Loss(0.3).apply(first, &mut now);
        assert_eq!((now.up.loss, now.down.loss), (0.3, 0.3));
        LinkChange::Refuse(true).apply(first, &mut now);
        LinkChange::Heal.apply(first, &mut now);
        assert_eq!(now, first);
    }
}
