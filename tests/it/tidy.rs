//! Checks the architecture's invariants on syntax trees. A failing rule names file and line.
//!
//! `tidy/rules.rs` has the rules, `tidy/exceptions.rs` the exceptions with their reasons, and
//! `tidy/planted.rs` a violation of each kind of rule. `docs/architecture.md` contains the module
//! graph, which `STARLING_TIDY=write cargo test --workspace --test it tidy::` updates.

mod exceptions;
mod facts;
mod graph;
mod manifest;
mod planted;
mod rules;
mod source;
mod workspace;

use exceptions::{EDGES, FEATURES_ONLY, NOT_YET, SAME_NAME};
use graph::Graph;
use rules::{Findings, GROUPS};
use std::fs;
use workspace::{Workspace, root};

/// The document with the module graph, and the lines before and after the graph.
const DOCUMENT: &str = "docs/architecture.md";
const BEGIN: &str = "<!-- module graph: begin -->\n";
const END: &str = "<!-- module graph: end -->";

type Rule = fn(&Workspace) -> Findings;

fn allowed(rule: &str) -> usize {
    NOT_YET
        .iter()
        .find(|(name, _)| *name == rule)
        .map_or(0, |(_, allowed)| *allowed)
}

fn holds(name: &str, rule: Rule) {
    let findings = rule(Workspace::get());
    assert!(
        findings.len() <= allowed(name),
        "{name}: {} findings, {} allowed:\n  {}",
        findings.len(),
        allowed(name),
        findings.join("\n  ")
    );
}

macro_rules! rules {
    ($($name:ident)*) => {
        $(#[test] fn $name() { holds(stringify!($name), rules::$name); })*
        const RULES: &[(&str, Rule)] = &[$((stringify!($name), rules::$name)),*];
    };
}

rules! {
    proto_has_no_io_no_clock_no_async
    p2p_sees_no_chain
    chain_knows_no_network_and_no_l1_client
    rollup_knows_no_libp2p_and_no_revm
    only_the_store_and_the_payload_log_name_fjall
    only_the_peerstore_names_sled
    only_evm_names_revm
    only_rpc_json_reads_requests
    only_the_edges_of_the_swarm_name_libp2p
    only_fork_rs_compares_fork_times
    only_the_node_spawns_long_lived_tasks
    only_owners_start_threads
    no_unbounded_channel
    no_cycle_in_proto
    no_cycle_in_p2p
    no_cycle_in_src
    no_cycle_in_chain
    no_cycle_in_rollup
    no_cycle_in_rpc
    no_cycle_in_netsim
    no_cycle_in_link
    one_name_one_type
    no_function_above_60_lines
    no_match_on_a_bool
    comments_begin_with_a_noun
    every_dependency_is_named
    every_file_says_what_it_is_for
    every_file_is_a_module
    every_skipped_test_is_counted
    nothing_unfinished
}

/// A number in `NOT_YET` that exceeds the current findings would let a new finding pass.
#[test]
fn the_table_is_tight() {
    let count = |rule: &Rule| rule(Workspace::get()).len();
    let counts: Vec<(&str, usize)> = RULES
        .iter()
        .map(|(name, rule)| (*name, count(rule)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let table: Vec<String> = counts
        .iter()
        .map(|entry| format!("    {entry:?},"))
        .collect();
    let loose = NOT_YET
        .iter()
        .any(|(name, n)| !counts.iter().any(|(rule, m)| name == rule && m >= n));
    assert!(
        !loose,
        "tests/it/tidy/exceptions.rs: lower NOT_YET to\n{}",
        table.join("\n")
    );
    for (name, _) in NOT_YET {
        assert!(
            RULES.iter().any(|(rule, _)| rule == name),
            "NOT_YET: no rule {name}"
        );
    }
}

#[test]
fn every_exception_is_used() {
    let tree = Workspace::get();
    for (group, from, to, _) in EDGES {
        let (_, folder, module) = GROUPS
            .iter()
            .find(|(name, ..)| name == group)
            .expect("a group");
        let graph = Graph::of(tree.source(folder), module);
        let edge = graph
            .edges
            .get(*from)
            .is_some_and(|edges| edges.contains_key(*to));
        assert!(edge, "EDGES: {group}: {from} does not name {to}");
    }
    let sources: Vec<_> = tree.sources().collect();
    let double = rules::same_names(&sources, &[]);
    for (name, _) in SAME_NAME {
        let found = double
            .iter()
            .any(|line| line.starts_with(&format!("{name}:")));
        assert!(found, "SAME_NAME: {name} is one type");
    }
    for (name, _) in FEATURES_ONLY {
        let wanted = tree.packages.iter().any(|package| {
            ["dependencies", "dev-dependencies"].iter().any(|section| {
                package
                    .manifest
                    .section(section)
                    .iter()
                    .any(|it| it == name)
            })
        });
        assert!(wanted, "FEATURES_ONLY: no package depends on {name}");
    }
}

#[test]
fn the_document_has_the_module_graph() {
    let mut block = String::new();
    for (label, folder, module) in GROUPS {
        let graph = Graph::of(Workspace::get().source(folder), module);
        let place = [&[*folder], *module].concat().join("/");
        block.push_str(&format!(
            "\n`{place}` ({label}):\n\n```text\n{}```\n",
            graph.text()
        ));
    }
    block.push('\n');
    let file = root().join(DOCUMENT);
    let text = fs::read_to_string(&file).expect("the architecture text");
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the graph");
    let (written, after) = rest.split_once(END).expect("the mark after the graph");
    if written == block {
        return;
    }
    if std::env::var("STARLING_TIDY").is_ok_and(|wish| wish == "write") {
        fs::write(&file, format!("{before}{BEGIN}{block}{END}{after}")).expect("a written file");
        return;
    }
    panic!(
        "{DOCUMENT} has another module graph than the sources. To renew it:\n  \
         STARLING_TIDY=write cargo test --workspace --test it tidy::\n{block}"
    );
}

#[test]
fn ci_requires_what_tests_need() {
    let ci = fs::read_to_string(root().join(".ci/run")).expect("the script of CI");
    let command = "STARLING_FIXTURES=required cargo test --workspace";
    assert!(ci.lines().any(|line| line == command), "{ci}");
}
