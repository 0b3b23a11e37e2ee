use super::*;
use crate::cli::value;
use std::collections::HashSet;

#[test]
fn names_and_environment_are_unique_in_a_role() {
    for role in Role::ALL {
        let (mut names, mut variables) = (HashSet::new(), HashSet::new());
        for flag in of_role(role) {
            assert!(names.insert(flag.name.clone()), "--{} twice in {}", flag.name, role.name());
            for variable in flag.env_names() {
                assert!(variables.insert(variable.clone()), "{variable} twice in {}", role.name());
            }
        }
    }
}

#[test]
fn every_default_has_the_form_of_its_flag() {
    for flag in sections().flat_map(|section| section.flags).filter(|flag| !flag.default.is_empty()) {
        assert!(value::read(flag.kind, &[flag.default.to_string()]).is_ok(), "--{}", flag.name);
    }
}

/// Defaults that differ on purpose: another program's data directory is never ours, our caches are smaller, and a week of states serves
/// proofs of withdrawals.
const OWN_DEFAULTS: [&str; 3] = ["datadir", "cache", "history.state"];

/// Every option of op-node and op-geth is known, with the environment variables and the default that operators know.
#[test]
fn the_table_agrees_with_the_list_of_options() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/facts/flags.csv");
    let Ok(list) = std::fs::read_to_string(path) else {
        println!("skipped: ../shared/facts is absent");
        return;
    };
    let mut compared = 0;
    for line in list.lines().skip(1) {
        let columns = columns(line);
        let program = match columns[0].as_str() {
            "op-node" => Program::OpNode,
            "op-geth" => Program::OpGeth,
            _ => continue,
        };
        // clap makes these two itself; and one timeout is an error in op-node too.
        if columns[1].starts_with("help") || columns[1].starts_with("version") || columns[1] == "l2.follow.source.rpc-timeout" {
            continue;
        }
        // An execution core's swarm is the rollup node's, and so are its options.
        if program == Program::OpGeth && columns[1] == "p2p.static" {
            continue;
        }
        let flag = sections()
            .filter(|section| section.program == program)
            .flat_map(|section| section.flags)
            .find(|flag| flag.name == columns[1])
            .unwrap_or_else(|| panic!("--{} is not in the table", columns[1]));
        let variables: Vec<&str> = columns[4].split_whitespace().collect();
        assert_eq!(flag.env_names(program), variables, "--{}", flag.name);
        if !OWN_DEFAULTS.contains(&flag.name) {
            assert_eq!(flag.default, columns[3], "--{}", flag.name);
        }
        assert_eq!(flag.kind == Kind::Bool, columns[2] == "bool", "--{}", flag.name);
        compared += 1;
    }
    assert!(compared > 200, "only {compared} options were compared");
}

/// A line of the list, whose columns may stand in quotes.
fn columns(line: &str) -> Vec<String> {
    let (mut columns, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            letter => columns.last_mut().expect("there is always a column").push(letter),
        }
    }
    columns
}
