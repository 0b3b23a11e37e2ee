//! `netsim compare A.json B.json`: the figures of two runs that differ, and by how much.

use super::{RunReport, RunSpread, read, text::columns, text::number};
use std::{collections::BTreeMap, fmt::Write, path::PathBuf};

/// Compare two reports: print the figures that differ, and by how much.
///
/// Example: netsim compare before.json after.json --above 5
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Report of the first run (JSON)
    before: PathBuf,
    /// Report of the second run (JSON)
    after: PathBuf,
    /// Leave out figures that moved by at most so many percent
    #[arg(long, default_value_t = 0.0, value_parser = parse_percent)]
    above: f64,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.parse().ok();
    let percent = percent.filter(|it| it.is_finite() && *it >= 0.0);
    percent.ok_or_else(|| "write a number of percent, such as 5".to_owned())
}

pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let [before, after] = [read(&args.before)?, read(&args.after)?];
    print!("{}", compare(&before, &after, args.above));
    Ok(())
}

/// The comparison as text. Figures that moved by at most `above` percent are counted only.
pub fn compare(before: &RunReport, after: &RunReport, above: f64) -> String {
    let mut out = format!(
        "A: {} ({}, seed {})\nB: {} ({}, seed {})\n",
        before.name, before.layer, before.seed, after.name, after.layer, after.seed
    );
    for (label, a, b) in [
        ("version of", &before.versions, &after.versions),
        ("setting", &before.settings, &after.settings),
    ] {
        for (name, a, b) in differing(a, b) {
            let _ = writeln!(out, "{label} {name}: {a} → {b}");
        }
    }
    if before.backend != after.backend {
        let _ = writeln!(out, "backend: {} → {}", before.backend, after.backend);
    }
    for (name, a, b) in differing(&verdicts(before), &verdicts(after)) {
        let _ = writeln!(out, "check {name}: {a} → {b}");
    }
    out.push('\n');
    out.push_str(&moved(&figures(before), &figures(after), above));
    out
}

/// Keys whose texts differ, with both texts.
fn differing<'a>(
    a: &'a BTreeMap<String, String>,
    b: &'a BTreeMap<String, String>,
) -> Vec<(&'a str, &'a str, &'a str)> {
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort();
    keys.dedup();
    let text = |map: &'a BTreeMap<String, String>, key: &str| map.get(key).map_or("–", |it| it);
    let rows = keys
        .into_iter()
        .map(|key| (&**key, text(a, key), text(b, key)));
    rows.filter(|(_, a, b)| a != b).collect()
}

fn verdicts(report: &RunReport) -> BTreeMap<String, String> {
    let verdict = |passed| if passed { "passed" } else { "failed" };
    let checks = report.checks.iter();
    checks
        .map(|check| (check.name.clone(), verdict(check.passed).to_owned()))
        .collect()
}

fn moved(a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>, above: f64) -> String {
    let header = ["", "A", "B", "B − A", "%"].map(str::to_owned).to_vec();
    let (mut rows, mut lone, mut still) = (vec![header], Vec::new(), 0);
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let (Some(a), Some(b)) = (a.get(key), b.get(key)) else {
            let side = if a.contains_key(key) { "A" } else { "B" };
            lone.push(format!("only {side} has {key}"));
            continue;
        };
        let change = b - a;
        let percent = change / a.abs() * 100.0;
        if change == 0.0 || percent.abs() <= above {
            still += 1;
            continue;
        }
        let sign = |text: String| {
            if change > 0.0 {
                format!("+{text}")
            } else {
                text
            }
        };
        let percent = if percent.is_finite() {
            sign(format!("{percent:.1}"))
        } else {
            "–".to_owned()
        };
        rows.push(vec![
            key.clone(),
            number(*a),
            number(*b),
            sign(number(change)),
            percent,
        ]);
    }
    let mut out = if rows.len() > 1 {
        columns(&rows)
    } else {
        String::new()
    };
    let _ = writeln!(
        out,
        "Figures that moved: {}; others: {still}.",
        rows.len() - 1
    );
    for line in lone {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// The figures of a report by name, with their units.
fn figures(report: &RunReport) -> BTreeMap<String, f64> {
    let mut out = report.figures.clone();
    for (name, unit, spread) in spreads(report) {
        let values = [
            ("p50", spread.p50),
            ("p90", spread.p90),
            ("p99", spread.p99),
            ("max", spread.max),
            ("mean", spread.mean),
        ];
        out.extend(values.map(|(label, value)| (format!("{name} {label}{unit}"), value)));
    }
    for (name, unit, series) in [
        ("processor", ", %", &report.cpu),
        ("memory", ", MB", &report.memory),
        ("lag", ", blocks", &report.lag),
    ] {
        out.extend(series.iter().filter_map(|it| {
            let most = it.points.iter().map(|point| point[1]).reduce(f64::max)?;
            Some((format!("{name} of {}, most{unit}", it.name), most))
        }));
    }
    if let Some(propagation) = &report.propagation {
        out.insert("receipts missed".to_owned(), propagation.missed as f64);
    }
    let bans = report.bans.len() as f64;
    out.insert("bans".to_owned(), bans);
    out
}

/// All distributions of a report, with names and units.
fn spreads(report: &RunReport) -> Vec<(String, &'static str, RunSpread)> {
    let mut out = Vec::new();
    let mut add = |name: &str, unit, spread: Option<RunSpread>| {
        out.extend(spread.map(|spread| (name.to_owned(), unit, spread)));
    };
    if let Some(propagation) = &report.propagation {
        add("propagation", ", ms", Some(propagation.all));
        for hop in &propagation.hops {
            let name = format!("propagation at hop {}", hop.hop);
            add(&name, ", ms", Some(hop.times));
        }
    }
    if let Some(traffic) = &report.traffic {
        add("duplicates per node and block", "", traffic.duplicates);
        add("sent per node", ", B", traffic.sent);
        add("received per node", ", B", traffic.received);
    }
    if let Some(joining) = &report.joining {
        add("gap of joining nodes", ", blocks", joining.gap);
        add("first gossiped block", ", s", joining.first_block);
        add("synced", ", s", joining.synced);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(p50: f64) -> RunReport {
        let mut report = RunReport::new("lab", "flap", 7);
        report.propagation = Some(crate::report::RunPropagation {
            all: RunSpread {
                p50,
                p99: 40.0,
                ..RunSpread::default()
            },
            ..Default::default()
        });
        report
    }

    #[test]
    fn a_comparison_names_what_moved_and_by_how_much() {
        let (before, mut after) = (report(10.0), report(12.5));
        after.settings.insert("nodes".to_owned(), "64".to_owned());
        after.figures.insert("resets".to_owned(), 3.0);
        let text = compare(&before, &after, 0.0);
        let line = text
            .lines()
            .find(|it| it.starts_with("propagation p50, ms"));
        let words: Vec<&str> = line.unwrap().split_whitespace().skip(3).collect();
        assert_eq!(words, ["10", "12.5", "+2.50", "+25.0"]);
        assert!(text.contains("setting nodes: – → 64"));
        assert!(
            text.contains("Figures that moved: 1; others: 6.")
                && text.contains("only B has resets")
        );
        assert!(compare(&before, &after, 25.0).contains("Figures that moved: 0; others: 7."));
    }
}
