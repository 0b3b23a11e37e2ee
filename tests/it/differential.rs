//! Our answers beside those of `anvil --optimism`: the same generated transactions and questions to
//! both. Every kind of difference is explained in `docs/differences.md`; another one fails the
//! test.
//!
//! Half of the questions are about executions: traces, simulations, access lists. anvil has no
//! witnesses, so those of the run's blocks must suffice to execute them.
//!
//! `STARLING_SEED` repeats a run, `STARLING_DIFFERENTIAL_CASES` says how many cases it has.

mod cases;
mod compare;
mod contracts;
mod explained;
mod forms;
mod nodes;
mod substitutes;

use crate::{net::call, rpc_live::check_witness};
use cases::{Case, Generator, authorities};
use compare::{Answers, Difference};
use explained::{Seen, kinds};
use nodes::Pair;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SEND: &str = "eth_sendRawTransaction";
const SEED: u64 = 2;
/// Transactions and questions about the chain. There are as many questions about executions.
const CASES: u64 = 2_000;

/// The differences of a run.
#[derive(Default)]
struct Report {
    /// How often each kind was seen.
    explained: BTreeMap<&'static str, usize>,
    /// With how often it was seen, and for what first.
    unexplained: BTreeMap<String, (usize, String)>,
}

impl Report {
    fn note(&mut self, method: &str, params: &Value, differences: Vec<Difference>) {
        for difference in differences {
            let seen = Seen {
                method,
                params,
                difference: &difference,
            };
            match kinds().find(|(_, explains)| explains(&seen)) {
                Some((name, _)) => *self.explained.entry(name).or_default() += 1,
                None => {
                    let first = || (0, params.to_string().chars().take(400).collect());
                    self.unexplained
                        .entry(format!("{method} {difference}"))
                        .or_insert_with(first)
                        .0 += 1;
                }
            }
        }
    }

    fn lines(&self) -> String {
        let lines = self.unexplained.iter().take(100);
        lines
            .map(|(line, (count, params))| {
                format!(
                    "{count:5} {}   <- {params}\n",
                    line.chars().take(2400).collect::<String>()
                )
            })
            .collect()
    }

    fn counts(&self) -> String {
        self.explained
            .iter()
            .map(|(name, count)| format!("{count:5} {name}\n"))
            .collect()
    }
}

/// A comparison of the two nodes.
struct DifferentialRun {
    pair: Pair,
    generator: Generator,
    answers: Answers,
    report: Report,
    /// Transactions and questions about the chain.
    done: u64,
    /// Questions about executions.
    executed: u64,
}

impl DifferentialRun {
    /// Sends 16 transactions to both nodes, and mines those that are right.
    fn sends(&mut self) {
        let mut block = Vec::new();
        for n in 0..16 {
            let case = if n % 4 == 3 {
                self.generator.refused()
            } else {
                self.generator.transaction()
            };
            let (raw, wanted) = match case {
                Case::Send(raw) => (raw.to_string(), Some(raw)),
                Case::Refused(raw) => (raw, None),
                Case::Ask(..) => continue,
            };
            let params = json!([raw]);
            let [ours, theirs] = self.pair.send(&raw, &params);
            assert!(wanted.is_none() || ours.is_ok(), "{ours:?}");
            block.extend(wanted);
            let blocks = &self.pair.blocks;
            let found = self.answers.compare(blocks, SEND, &params, ours, theirs);
            self.report.note(SEND, &params, found);
            self.done += 1;
        }
        self.pair.mine(&block);
    }

    /// Asks both nodes 40 questions.
    fn asks(&mut self) {
        for _ in 0..40 {
            let case = self.generator.question(&self.pair.blocks);
            self.ask(case);
            self.done += 1;
        }
    }

    /// Asks both nodes as many questions about executions as a round has other cases.
    fn executions(&mut self) {
        for _ in 0..56 {
            let case = self.generator.execution(&self.pair.blocks);
            self.ask(case);
            self.executed += 1;
        }
    }

    fn ask(&mut self, case: Case) {
        let Pair {
            ours,
            theirs,
            blocks,
            ..
        } = &self.pair;
        let Case::Ask(method, params) = case else {
            return;
        };
        let [for_us, for_them] = self.answers.translate(blocks, &params);
        let mut ours = call(ours, method, for_us);
        let mut theirs = substitutes::ask(theirs, method, &for_them);
        forms::align(method, &params, &mut ours, &mut theirs);
        let found = self.answers.compare(blocks, method, &params, ours, theirs);
        self.report
            .note(method, &self.answers.describe(&params), found);
    }

    /// Executes each block of the run with nothing but our witness of it.
    fn witnesses(&self) {
        for number in 1..self.pair.blocks.len() {
            let block = json!(format!("{number:#x}"));
            check_witness(&self.pair.ours, self.pair.spec(), &block);
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {value}"))
    })
}

#[test]
fn answers_differ_from_anvils_only_as_explained() {
    let seed = setting("STARLING_SEED", SEED);
    let cases = setting("STARLING_DIFFERENTIAL_CASES", CASES);
    let Some(pair) = Pair::start(&contracts::alloc(&authorities())) else {
        return;
    };
    let mut run = DifferentialRun {
        generator: Generator::new(seed, pair.chain_id),
        pair,
        answers: Answers::default(),
        report: Report::default(),
        done: 0,
        executed: 0,
    };
    while run.done < cases {
        run.sends();
        run.asks();
        run.executions();
    }
    run.witnesses();
    let DifferentialRun {
        report,
        done,
        executed,
        ..
    } = run;
    println!(
        "{done} cases and {executed} executions of seed {seed}, with differences:\n{}",
        report.counts()
    );
    assert!(
        report.unexplained.is_empty(),
        "not in docs/differences.md, seed {seed}:\n{}",
        report.lines()
    );
    if (seed, cases) == (SEED, CASES) {
        let never: Vec<_> = kinds()
            .map(|(name, _)| name)
            .filter(|name| !report.explained.contains_key(*name))
            .collect();
        assert!(
            never.is_empty(),
            "no longer so, remove it from docs/differences.md: {never:?}"
        );
    }
}

#[test]
fn every_kind_of_difference_is_documented() {
    let document = include_str!("../../docs/differences.md");
    // The next part has a table of its own, of another test.
    let (document, _) = document
        .split_once("## Answers of the recorded chains")
        .expect("the next part");
    let rows = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1);
    let documented: Vec<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .map(str::trim)
        .collect();
    for (name, _) in kinds() {
        assert_eq!(
            documented.iter().filter(|row| *row == name).count(),
            1,
            "{name}"
        );
    }
    assert_eq!(documented.len(), kinds().count(), "{documented:?}");
}
