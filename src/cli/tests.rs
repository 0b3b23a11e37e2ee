//! Tests of the command line, by subject. Each flag must change one field of the configuration.

mod forms;
mod help;
mod l1;
mod networks;
mod p2p;
mod posters;
mod rollup;
mod rpc;
mod signing;
mod tools;

use super::{config::*, *};
use std::{collections::HashMap, time::Duration};

fn parse_with(line: &str, environment: &[(&str, &str)]) -> Result<Parsed, CliError> {
    let environment: HashMap<&str, &str> = environment.iter().copied().collect();
    let argv = line.split_whitespace().map(str::to_string);
    super::parse(argv, &|name| {
        environment.get(name).map(|value| value.to_string())
    })
}

fn node(line: &str, environment: &[(&str, &str)]) -> Result<(NodeConfig, Vec<String>), CliError> {
    let parsed = parse_with(
        &format!("starling node --rollup.config=r.json {line}"),
        environment,
    )?;
    match parsed.invocation {
        Invocation::Node(config) => Ok((*config, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
