//! The module graph: which room of a folder names which other one.
//!
//! A room is a direct child of a module, with everything below it. The file of the module itself is
//! a room too, called by the module's name (`chain` in `src/chain`, `lib` at the root).

use super::source::{Crate, Resolved};
use std::collections::{BTreeMap, BTreeSet};

pub struct Graph {
    pub rooms: BTreeSet<String>,
    /// From a room to the rooms that it names; each with one place as an example.
    pub edges: BTreeMap<String, BTreeMap<String, String>>,
}

impl Graph {
    /// The rooms of the module `prefix` of `source`, without its test code.
    pub fn of(source: &Crate, prefix: &[&str]) -> Self {
        let prefix: Vec<String> = prefix.iter().map(|&part| part.to_owned()).collect();
        let top = prefix.last().map_or("lib", String::as_str);
        let room = |path: &[String]| {
            let child = path.strip_prefix(prefix.as_slice())?.first();
            let is_module = |name: &&String| {
                source
                    .modules
                    .contains(&[prefix.as_slice(), &[name.to_string()]].concat())
            };
            Some(
                child
                    .filter(is_module)
                    .map_or(top, String::as_str)
                    .to_owned(),
            )
        };
        let mut graph = Self {
            rooms: BTreeSet::new(),
            edges: BTreeMap::new(),
        };
        graph
            .rooms
            .extend(source.modules.iter().filter_map(|module| room(module)));
        for name in source.production_names() {
            let Some(from) = room(&name.place.module) else {
                continue;
            };
            let Resolved::Inside(target) = source.resolve(name) else {
                continue;
            };
            if let Some(to) = room(&target).filter(|to| *to != from) {
                let example = format!(
                    "{}:{} names {}",
                    name.place.file,
                    name.place.line,
                    target.join("::")
                );
                graph
                    .edges
                    .entry(from)
                    .or_default()
                    .entry(to)
                    .or_insert(example);
            }
        }
        graph
    }

    /// Takes one edge out: an allowed pair.
    pub fn without(mut self, from: &str, to: &str) -> Self {
        if let Some(edges) = self.edges.get_mut(from) {
            edges.remove(to);
        }
        self
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(room) = open.pop() {
            for to in self.edges.get(room).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.as_str()) {
                    open.push(to);
                }
            }
        }
        reached
    }

    /// Sets of rooms that name each other, directly or through others.
    pub fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> = self
            .rooms
            .iter()
            .map(|room| (room.as_str(), self.reach(room)))
            .collect();
        let mut cycles: Vec<BTreeSet<String>> = Vec::new();
        for room in &self.rooms {
            let back = |other: &&&str| reach[*other].contains(room.as_str());
            let cycle: BTreeSet<String> = reach[room.as_str()]
                .iter()
                .filter(back)
                .map(|other| other.to_string())
                .collect();
            if cycle.contains(room) && !cycles.contains(&cycle) {
                cycles.push(cycle);
            }
        }
        cycles
    }

    /// One line for each room that stands in a cycle, with its edges in there.
    pub fn cycle_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for cycle in self.cycles() {
            for room in &cycle {
                let edges = self.edges.get(room).into_iter().flatten();
                let inside: Vec<String> = edges
                    .filter(|(to, _)| cycle.contains(*to))
                    .map(|(to, example)| format!("\n      -> {to} ({example})"))
                    .collect();
                lines.push(format!("{room}{}", inside.concat()));
            }
        }
        lines
    }

    /// The graph as text: rooms from the ground up, each with the rooms that it names.
    pub fn text(&self) -> String {
        let cycles = self.cycles();
        let cycle = |room: &str| cycles.iter().position(|cycle| cycle.contains(room));
        let same = |a: &str, b: &str| cycle(a).is_some() && cycle(a) == cycle(b);
        let width = self.rooms.iter().map(String::len).max().unwrap_or(0);
        let mut left: BTreeSet<&str> = self.rooms.iter().map(String::as_str).collect();
        let mut out = String::new();
        while !left.is_empty() {
            let waits = |room: &str, left: &BTreeSet<&str>| {
                let named = self.edges.get(room).into_iter().flat_map(BTreeMap::keys);
                named
                    .into_iter()
                    .any(|to| left.contains(to.as_str()) && !same(room, to))
            };
            // A cycle is written when none of its rooms waits for one outside of it.
            let ready = |room: &str| {
                !left
                    .iter()
                    .any(|other| (*other == room || same(room, other)) && waits(other, &left))
            };
            let layer: Vec<&str> = left.iter().copied().filter(|room| ready(room)).collect();
            for room in &layer {
                let named: Vec<&str> = self
                    .edges
                    .get(*room)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .map(String::as_str)
                    .collect();
                let mark = cycle(room).map_or(String::new(), |n| format!(" (cycle {})", n + 1));
                let line = format!("{room:width$} -> {}{mark}", named.join(" "));
                out.push_str(line.trim_end_matches(" -> ").trim_end());
                out.push('\n');
            }
            left.retain(|room| !layer.contains(room));
        }
        out
    }
}
