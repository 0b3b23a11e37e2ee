//! Compares Starling's responses with those of `anvil --optimism`. Both get the same generated
//! transactions and requests. Every kind of difference is explained in `docs/differences.md`; any
//! other difference fails the test.
//!
//! Half of the requests concern executions: traces, simulations, access lists. anvil has no
//! witnesses; instead, the blocks of the run must be executable with Starling's witnesses alone.
//!
//! `STARLING_SEED` repeats a run, `STARLING_DIFFERENTIAL_CASES` sets the number of cases.

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
/// Number of transactions and requests about the chain; requests about executions are as many
/// again.
const CASES: u64 = 2_000;

/// The differences found in a run.
#[derive(Default)]
struct Report {
    /// Number of occurrences of each explained kind.
    explained: BTreeMap<&'static str, usize>,
    /// Unexplained differences, each with its number of occurrences and its first case.
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

/// A run that compares the two nodes.
struct DifferentialRun {
    pair: Pair,
    generator: Generator,
    answers: Answers,
    report: Report,
    /// Number of transactions and requests about the chain so far.
    done: u64,
    /// Number of requests about executions so far.
    executed: u64,
}

impl DifferentialRun {
    /// Sends 16 transactions to both nodes, and mines the valid ones.
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

    /// Sends 40 requests to both nodes.
    fn asks(&mut self) {
        for _ in 0..40 {
            let case = self.generator.question(&self.pair.blocks);
            self.ask(case);
            self.done += 1;
        }
    }

    /// Sends both nodes requests about executions, as many as the other cases of a round.
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

    /// Executes each block of the run with no state except Starling's witness for the block.
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
    // The next section of the document belongs to another test.
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
