//! Our answers beside those of `anvil --optimism`: the same generated transactions and questions to
//! both. Every kind of difference is explained in `docs/differences.md`; another one fails the
//! test.
//!
//! `STARLING_SEED` repeats a run, `STARLING_DIFFERENTIAL_CASES` says how many cases it has.

mod cases;
mod compare;
mod contracts;
mod explained;
mod nodes;

use crate::net::call;
use cases::{Case, Generator, authorities};
use compare::{Answers, Difference};
use explained::{KINDS, Seen};
use nodes::Pair;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SEND: &str = "eth_sendRawTransaction";
const SEED: u64 = 2;
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
            match KINDS.iter().find(|(_, explains)| explains(&seen)) {
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
    done: u64,
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
        let Pair {
            ours,
            theirs,
            blocks,
            ..
        } = &self.pair;
        for _ in 0..40 {
            let Case::Ask(method, params) = self.generator.question(blocks) else {
                continue;
            };
            let [for_us, for_them] = self.answers.translate(blocks, &params);
            let (ours, theirs) = (call(ours, method, for_us), call(theirs, method, for_them));
            let found = self.answers.compare(blocks, method, &params, ours, theirs);
            self.report
                .note(method, &self.answers.describe(&params), found);
            self.done += 1;
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
    };
    while run.done < cases {
        run.sends();
        run.asks();
    }
    let DifferentialRun { report, done, .. } = run;
    println!(
        "{done} cases of seed {seed}, with differences:\n{}",
        report.counts()
    );
    assert!(
        report.unexplained.is_empty(),
        "not in docs/differences.md, seed {seed}:\n{}",
        report.lines()
    );
    if (seed, cases) == (SEED, CASES) {
        let never: Vec<_> = KINDS
            .iter()
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
    for (name, _) in KINDS {
        assert_eq!(
            documented.iter().filter(|row| *row == name).count(),
            1,
            "{name}"
        );
    }
    assert_eq!(documented.len(), KINDS.len(), "{documented:?}");
}
