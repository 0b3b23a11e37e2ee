//! The program `netsim sim`, run by tests.

use std::process::{Command, Output, Stdio};

/// `netsim sim` with these arguments.
pub fn sim<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsim"));
    command.arg("sim").args(args).stdin(Stdio::null());
    command
}

/// The output of `netsim sim` with these arguments, which are separated by spaces.
pub fn output(args: &str) -> Output {
    sim(args.split_whitespace()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A number of seeds from the environment.
pub fn count(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().expect("a number of seeds"),
        Err(_) => default,
    }
}
