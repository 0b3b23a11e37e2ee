//! Refuses limits and expectations with which no run could fail, and a proposer without work.

use super::{Checked, refuse};
use crate::lab::scenario::LabScenario;

/// Shortest part of a log line that may be allowed or expected: shorter ones are in many lines.
const SHORTEST: usize = 8;

pub(super) fn check(scenario: &LabScenario) -> Checked {
    let allow = &scenario.allow;
    let errors = allow.errors.iter().map(|text| (text, allow.line));
    let expected = scenario.expect.iter().map(|it| (&it.text, it.line));
    for (text, line) in errors.chain(expected) {
        if text.trim().len() < SHORTEST {
            let message = format!(
                "`{text}` would be in too many log lines; write at least {SHORTEST} characters of \
                 the line"
            );
            return refuse(line, message);
        }
    }
    if allow.agree_within.is_zero() {
        return refuse(
            allow.line,
            "`agree-within` is zero, but a block takes time to reach the nodes; allow a second or more",
        );
    }
    if allow.slowdown.is_some() && scenario.hostile.is_empty() {
        return refuse(
            allow.line,
            "`slowdown` is the limit of a check on hostile peers, and there are none; leave it out",
        );
    }
    if scenario.proposer && !scenario.batcher {
        return refuse(
            scenario.lines.proposer,
            "the proposer proposes safe blocks, and there are none without a batcher; add \
             `batcher = true`",
        );
    }
    let blocks = scenario.length.as_secs() / scenario.block_time.max(1);
    if allow.lag * 2 >= blocks {
        let lag = allow.lag;
        let message = format!(
            "a lag of {lag} blocks is half of the {blocks} blocks of the run or more, so a node \
             that stands still could pass; lower `lag`"
        );
        return refuse(allow.line, message);
    }
    Ok(())
}
