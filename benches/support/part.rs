//! Processes of a bench: the bench runs its own program again, with a role and the role's
//! arguments.

use std::{
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

const ROLE: &str = "STARLING_BENCH_ROLE";
const WORDS: &str = "STARLING_BENCH_WORDS";

/// Role and arguments of this process; `None` in the process that a user started.
pub fn role() -> Option<(String, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let words = std::env::var(WORDS).expect("words come with a role");
    Some((role, words.split_whitespace().map(str::to_owned).collect()))
}

/// A process of the bench. Dropping it closes the process's standard input and waits until it
/// exits.
pub struct Part {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Part {
    pub fn start(role: &str, words: &[&str]) -> Self {
        let program = std::env::current_exe().expect("the bench has a path");
        let mut child = Command::new(program)
            .env(ROLE, role)
            .env(WORDS, words.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    pub fn line(&mut self) -> String {
        self.lines
            .next()
            .expect("it says something")
            .expect("it can be read")
    }

    pub fn figures<const N: usize>(&mut self) -> [f64; N] {
        let line = self.line();
        let figures: Vec<f64> = line
            .split_whitespace()
            .filter_map(|figure| figure.parse().ok())
            .collect();
        figures
            .try_into()
            .unwrap_or_else(|_| panic!("{N} figures, not {line}"))
    }

    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}").expect("it listens");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
