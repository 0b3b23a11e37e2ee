//! The faults of a world that are active. Faults of one kind may overlap: each begins and ends by
//! itself, and their common effect is computed from those that are active.

use super::{
    plan::{SimFault, TimedFault},
    queue::SimTime,
};
use std::collections::BTreeSet;

/// The active faults by their index in the plan, in the order in which they began.
#[derive(Debug, Default)]
pub struct ActiveFaults {
    faults: Vec<(usize, TimedFault)>,
    /// Indices of the flapping links that are cut at present.
    flapped: BTreeSet<usize>,
}

impl ActiveFaults {
    pub fn begin(&mut self, index: usize, fault: TimedFault) {
        self.faults.push((index, fault));
    }

    pub fn end(&mut self, index: usize) {
        self.faults.retain(|(other, _)| *other != index);
        self.flapped.remove(&index);
    }

    /// Cuts or connects a flapping link.
    pub fn flap(&mut self, index: usize, cut: bool) {
        if cut {
            self.flapped.insert(index);
        } else {
            self.flapped.remove(&index);
        }
    }

    fn iter(&self) -> impl Iterator<Item = SimFault> {
        self.faults.iter().map(|(_, timed)| timed.fault)
    }

    /// Whether a fault cuts the wire from one node to another.
    pub fn cuts(&self, from: usize, to: usize) -> bool {
        self.faults.iter().any(|(index, timed)| match timed.fault {
            SimFault::Partition { side, one_way } => {
                let inside = |node: usize| side & (1 << node) != 0;
                inside(from) != inside(to) && (inside(from) || !one_way)
            }
            SimFault::Flap { a, b, .. } => {
                self.flapped.contains(index) && ((a, b) == (from, to) || (b, a) == (from, to))
            }
            _ => false,
        })
    }

    /// Percentage of gossip messages and requests that are lost: that of the worst fault.
    pub fn loss(&self) -> u32 {
        let percent = |fault| match fault {
            SimFault::Lossy { percent } => percent,
            _ => 0,
        };
        self.iter().map(percent).max().unwrap_or(0)
    }

    /// Percentage of messages that arrive twice: that of the worst fault.
    pub fn duplicates(&self) -> u32 {
        let percent = |fault| match fault {
            SimFault::Duplicates { percent } => percent,
            _ => 0,
        };
        self.iter().map(percent).max().unwrap_or(0)
    }

    /// Largest time by which messages overtake each other.
    pub fn reorder(&self) -> SimTime {
        let time = |fault| match fault {
            SimFault::Reorder { by } => by,
            _ => 0,
        };
        self.iter().map(time).max().unwrap_or(0)
    }

    /// Largest time by which messages of a node are late.
    pub fn slow(&self, node: usize) -> SimTime {
        let time = |fault| match fault {
            SimFault::Slow { node: of, by } if of == node => by,
            _ => 0,
        };
        self.iter().map(time).max().unwrap_or(0)
    }

    /// Error of a node's wall clock in seconds: that of the fault that began last.
    pub fn skew(&self, node: usize) -> i64 {
        let error = |fault| match fault {
            SimFault::Skew { node: of, seconds } if of == node => Some(seconds),
            _ => None,
        };
        self.iter().filter_map(error).last().unwrap_or(0)
    }

    /// Time until which a node is frozen; 0 if it is not.
    pub fn frozen_until(&self, node: usize) -> SimTime {
        let freezes =
            |timed: &TimedFault| matches!(timed.fault, SimFault::Freeze { node: of } if of == node);
        let frozen = self.faults.iter().filter(|(_, timed)| freezes(timed));
        frozen.map(|(_, timed)| timed.until).max().unwrap_or(0)
    }

    /// Whether a crash keeps a node down.
    pub fn is_down(&self, node: usize) -> bool {
        self.iter()
            .any(|fault| matches!(fault, SimFault::Crash { node: of, .. } if of == node))
    }

    pub fn is_l1_down(&self) -> bool {
        self.iter().any(|fault| fault == SimFault::L1Outage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: usize = 3;

    /// A weaker and a stronger fault of each kind that lasts.
    fn kinds() -> Vec<[SimFault; 2]> {
        let partition = |side, one_way| SimFault::Partition { side, one_way };
        let lossy = |percent| SimFault::Lossy { percent };
        let duplicates = |percent| SimFault::Duplicates { percent };
        let crash = |power| SimFault::Crash { node: 1, power };
        let flap = |period| SimFault::Flap { a: 1, b: 2, period };
        vec![
            [partition(0b001, false), partition(0b011, false)],
            [partition(0b010, true), partition(0b010, false)],
            [lossy(5), lossy(40)],
            [
                SimFault::Slow { node: 1, by: 5 },
                SimFault::Slow { node: 1, by: 9 },
            ],
            [duplicates(5), duplicates(60)],
            [SimFault::Reorder { by: 5 }, SimFault::Reorder { by: 9 }],
            [flap(5), flap(9)],
            [crash(false), crash(true)],
            [SimFault::Freeze { node: 1 }, SimFault::Freeze { node: 1 }],
            [
                SimFault::Skew {
                    node: 1,
                    seconds: -9,
                },
                SimFault::Skew {
                    node: 1,
                    seconds: 40,
                },
            ],
            [SimFault::L1Outage, SimFault::L1Outage],
        ]
    }

    /// Everything that active faults do.
    fn effects(active: &ActiveFaults) -> String {
        let cuts = |from| [0, 1, 2].map(|to| active.cuts(from, to));
        let of_node = |node| {
            let (slow, skew) = (active.slow(node), active.skew(node));
            format!(
                "{slow} {skew} {} {}",
                active.frozen_until(node),
                active.is_down(node)
            )
        };
        let global = (active.loss(), active.duplicates(), active.reorder());
        let wires = [0, 1, 2].map(cuts);
        let nodes: Vec<String> = (0..NODES).map(of_node).collect();
        format!("{global:?} {} {wires:?} {nodes:?}", active.is_l1_down())
    }

    fn begin(active: &mut ActiveFaults, index: usize, fault: SimFault) {
        let until = 100 + index as SimTime;
        active.begin(
            index,
            TimedFault {
                from: 0,
                until,
                fault,
            },
        );
        active.flap(index, true);
    }

    #[test]
    fn the_end_of_a_fault_does_not_end_another_of_its_kind() {
        for kind in kinds() {
            for [first, second] in [kind, [kind[1], kind[0]]] {
                for stays in [0, 1] {
                    let mut alone = ActiveFaults::default();
                    begin(&mut alone, stays, [first, second][stays]);
                    let mut both = ActiveFaults::default();
                    begin(&mut both, 0, first);
                    begin(&mut both, 1, second);
                    both.end(1 - stays);
                    assert_eq!(effects(&both), effects(&alone), "{first:?}, {second:?}");
                    assert_ne!(
                        effects(&both),
                        effects(&ActiveFaults::default()),
                        "{first:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_last_of_overlapping_faults_leaves_no_effect() {
        for [first, second] in kinds() {
            let mut active = ActiveFaults::default();
            begin(&mut active, 0, first);
            begin(&mut active, 1, second);
            active.end(0);
            active.end(1);
            assert_eq!(effects(&active), effects(&ActiveFaults::default()));
        }
    }

    #[test]
    fn a_flapping_link_is_not_connected_across_a_partition() {
        let mut active = ActiveFaults::default();
        let (a, b, period) = (0, 1, 5);
        let partition = SimFault::Partition {
            side: 0b001,
            one_way: false,
        };
        begin(&mut active, 0, partition);
        begin(&mut active, 1, SimFault::Flap { a, b, period });
        active.flap(1, false);
        assert!(active.cuts(a, b) && active.cuts(b, a));
        active.end(1);
        assert!(active.cuts(a, b) && active.cuts(b, a));
        active.end(0);
        assert!(!active.cuts(a, b) && !active.cuts(b, a));
    }
}
