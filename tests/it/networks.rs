//! Known networks and fork overrides, used with an operator's command lines.

use crate::{
    campaign::world::{World, datadir},
    net::starling,
};
use rand::{SeedableRng, rngs::StdRng};
use std::{path::Path, process::Output};

fn run(line: &str) -> (Output, String, String) {
    let out = starling().args(line.split(' ')).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&out.stdout), text(&out.stderr));
    (out, printed, errors)
}

fn prints(line: &str) -> String {
    let (out, printed, errors) = run(line);
    assert!(out.status.success(), "{line}: {errors}");
    printed
}

fn fails(line: &str, code: i32) -> String {
    let (out, _, errors) = run(line);
    assert_eq!(out.status.code(), Some(code), "{line}: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

#[test]
fn networks_are_printed_and_unknown_ones_are_answered_with_the_nearest() {
    let list = prints("networks list");
    assert!(list.lines().any(|name| name == "base-mainnet"), "{list}");
    let dump = prints("networks dump-rollup-config --network=base-mainnet --format=current");
    assert!(dump.contains("\n  \"l2_chain_id\": 8453,\n"), "{dump}");
    let said = fails("networks dump-rollup-config --network=base-mainet", 2);
    assert!(said.contains("did you mean base-mainnet?"), "{said}");
    let said = fails("node", 2);
    assert!(said.starts_with("error: no chain is given: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Command line of an execution core on this directory, with a free port for the Engine API.
fn core(dir: &Path, options: &str) -> String {
    format!(
        "execution --authrpc.port=0 --datadir={} {options}",
        dir.display()
    )
}

#[test]
fn a_start_by_other_rules_is_refused_and_names_the_option() {
    let dir = datadir();
    World::open(dir.path(), None).extend(&mut StdRng::seed_from_u64(2), 3);
    let said = fails(&core(dir.path(), "--override.jovian=1700000004"), 1);
    assert!(
        said.contains("jovian would activate at 1700000004") && said.contains("--override.jovian"),
        "{said}"
    );
    let said = fails(&core(dir.path(), "--override.karst=0"), 1);
    assert!(said.contains("karst would activate at"), "{said}");
    let said = fails(&core(dir.path(), "--op-network=op-mainnet"), 1);
    assert!(said.contains("holds chain 901"), "{said}");
}

#[test]
fn a_path_without_a_database_is_not_answered_with_init() {
    let dir = tempfile::tempdir().expect("a folder");
    for path in [dir.path().to_owned(), dir.path().join("mistyped")] {
        for action in ["verify", "stats", "prune", "repair"] {
            let said = fails(&format!("db {action} --datadir={}", path.display()), 1);
            assert!(
                said.contains("there is no database in") && !said.contains("init"),
                "{action}: {said}"
            );
        }
    }
}
