//! The module graph: for each module in a folder, the other modules that it names.
//!
//! A node of the graph is a direct child of the folder's module, with everything below it. The
//! parent module's own file is a node too, called by its name (`chain` in `src/chain`, `lib` at the
//! root).

use super::source::{Crate, Resolved};
use std::collections::{BTreeMap, BTreeSet};

pub struct Graph {
    pub modules: BTreeSet<String>,
    /// From each module to the modules that it names, each with one location as an example.
    pub edges: BTreeMap<String, BTreeMap<String, String>>,
}

impl Graph {
    /// The graph of the modules below the module `prefix` of `source`, without test code.
    pub fn of(source: &Crate, prefix: &[&str]) -> Self {
        let prefix: Vec<String> = prefix.iter().map(|&part| part.to_owned()).collect();
        let top = prefix.last().map_or("lib", String::as_str);
        let module_of = |path: &[String]| {
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
            modules: BTreeSet::new(),
            edges: BTreeMap::new(),
        };
        graph
            .modules
            .extend(source.modules.iter().filter_map(|path| module_of(path)));
        for name in source.production_names() {
            let Some(from) = module_of(&name.place.module) else {
                continue;
            };
            let Resolved::Inside(target) = source.resolve(name) else {
                continue;
            };
            if let Some(to) = module_of(&target).filter(|to| *to != from) {
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

    /// Removes one edge, which is allowed.
    pub fn without(mut self, from: &str, to: &str) -> Self {
        if let Some(edges) = self.edges.get_mut(from) {
            edges.remove(to);
        }
        self
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for to in self.edges.get(module).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.as_str()) {
                    open.push(to);
                }
            }
        }
        reached
    }

    /// Sets of modules that depend on each other in cycles, directly or through others.
    pub fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> = self
            .modules
            .iter()
            .map(|module| (module.as_str(), self.reach(module)))
            .collect();
        let mut cycles: Vec<BTreeSet<String>> = Vec::new();
        for module in &self.modules {
            let back = |other: &&&str| reach[*other].contains(module.as_str());
            let cycle: BTreeSet<String> = reach[module.as_str()]
                .iter()
                .filter(back)
                .map(|other| other.to_string())
                .collect();
            if cycle.contains(module) && !cycles.contains(&cycle) {
                cycles.push(cycle);
            }
        }
        cycles
    }

    /// One line for each module in a cycle, with its edges inside the cycle.
    pub fn cycle_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for cycle in self.cycles() {
            for module in &cycle {
                let edges = self.edges.get(module).into_iter().flatten();
                let inside: Vec<String> = edges
                    .filter(|(to, _)| cycle.contains(*to))
                    .map(|(to, example)| format!("\n      -> {to} ({example})"))
                    .collect();
                lines.push(format!("{module}{}", inside.concat()));
            }
        }
        lines
    }

    /// The graph as text: each module, after its dependencies, with the modules that it names.
    pub fn text(&self) -> String {
        let cycles = self.cycles();
        let cycle = |module: &str| cycles.iter().position(|cycle| cycle.contains(module));
        let same = |a: &str, b: &str| cycle(a).is_some() && cycle(a) == cycle(b);
        let width = self.modules.iter().map(String::len).max().unwrap_or(0);
        let mut left: BTreeSet<&str> = self.modules.iter().map(String::as_str).collect();
        let mut out = String::new();
        while !left.is_empty() {
            let waits = |module: &str, left: &BTreeSet<&str>| {
                let named = self.edges.get(module).into_iter().flat_map(BTreeMap::keys);
                named
                    .into_iter()
                    .any(|to| left.contains(to.as_str()) && !same(module, to))
            };
            // A cycle is printed when all dependencies outside of it have been printed.
            let ready = |module: &str| {
                !left
                    .iter()
                    .any(|other| (*other == module || same(module, other)) && waits(other, &left))
            };
            let layer: Vec<&str> = left
                .iter()
                .copied()
                .filter(|module| ready(module))
                .collect();
            for module in &layer {
                let named: Vec<&str> = self
                    .edges
                    .get(*module)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .map(String::as_str)
                    .collect();
                let mark = cycle(module).map_or(String::new(), |n| format!(" (cycle {})", n + 1));
                let line = format!("{module:width$} -> {}{mark}", named.join(" "));
                out.push_str(line.trim_end_matches(" -> ").trim_end());
                out.push('\n');
            }
            left.retain(|module| !layer.contains(module));
        }
        out
    }
}
