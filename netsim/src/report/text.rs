//! Reports as tables of plain text, for a terminal.

use super::{RunReport, RunSpread};
use std::fmt::Write;

/// Lays out rows below a header: the first column to the left, the others to the right.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            if column == 0 {
                let _ = write!(line, "{cell}{gap}");
            } else {
                let _ = write!(line, "  {gap}{cell}");
            }
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// A number with three digits, all digits before the point, or as a whole number.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || value.fract() == 0.0 {
        grouped(value)
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.2e}")
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes in the unit that it fits.
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KB", "MB", "GB"];
    let unit = (value.max(1.0).log10() / 3.0).floor().min(3.0);
    format!(
        "{} {}",
        number(value / 1_000_f64.powf(unit)),
        UNITS[unit as usize]
    )
}

fn cells(spread: Option<&RunSpread>, form: fn(f64) -> String) -> Vec<String> {
    match spread {
        Some(it) => [it.p50, it.p90, it.p99, it.max].map(form).into(),
        None => vec!["–".to_owned(); 4],
    }
}

fn row(label: &str, cells: Vec<String>) -> Vec<String> {
    [vec![label.to_owned()], cells].concat()
}

fn header(label: &str, names: &[&str]) -> Vec<String> {
    row(label, names.iter().map(|it| (*it).to_owned()).collect())
}

/// The propagation of all runs in one table, then the details of each.
pub fn text(reports: &[RunReport]) -> String {
    let mut rows = vec![header(
        "propagation, ms",
        &["p50", "p90", "p99", "max", "missed"],
    )];
    for report in reports {
        let propagation = report.propagation.as_ref();
        let mut cells = cells(propagation.map(|it| &it.all), number);
        cells.push(propagation.map_or("–".to_owned(), |it| number(it.missed as f64)));
        rows.push(row(&report.name, cells));
    }
    let mut out = columns(&rows);
    for report in reports {
        let _ = write!(
            out,
            "\n{}, seed {}\n{}",
            report.name,
            report.seed,
            details(report)
        );
    }
    out
}

fn details(report: &RunReport) -> String {
    let mut rows = vec![header("", &["p50", "p90", "p99", "max"])];
    for hop in report.propagation.iter().flat_map(|it| &it.hops) {
        let label = format!("hop {} ({:.1} %), ms", hop.hop, hop.share * 100.0);
        rows.push(row(&label, cells(Some(&hop.times), number)));
    }
    if let Some(traffic) = &report.traffic {
        let each = [
            ("duplicates per node and block", &traffic.duplicates),
            ("sent per node", &traffic.sent),
            ("received per node", &traffic.received),
        ];
        for (number_of, (label, spread)) in each.into_iter().enumerate() {
            let form = if number_of == 0 { number } else { bytes };
            rows.push(row(label, cells(spread.as_ref(), form)));
        }
    }
    if let Some(joining) = &report.joining {
        let label = format!("{} joined: gap, blocks", joining.joined);
        rows.push(row(&label, cells(joining.gap.as_ref(), number)));
        let first = cells(joining.first_block.as_ref(), number);
        rows.push(row("first gossiped block after, s", first));
        rows.push(row(
            "synced after, s",
            cells(joining.synced.as_ref(), number),
        ));
    }
    let mut out = columns(&rows);
    for check in &report.checks {
        let verdict = if check.passed { "passed" } else { "FAILED" };
        let _ = writeln!(out, "{verdict}: {} ({})", check.name, check.detail);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_their_groups() {
        let written = [0.0, 0.004, 7.0, 12.34, 1234.5, -1_234_567.0].map(number);
        assert_eq!(
            written,
            ["0", "4.00e-3", "7", "12.3", "1,234", "-1,234,567"]
        );
        let written = [0.0, 999.0, 5_120.0, 2.5e9, 7e13].map(bytes);
        assert_eq!(written, ["0 B", "999 B", "5.12 KB", "2.50 GB", "70,000 GB"]);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "10"], ["long", "1"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "a     10\nlong   1\n");
    }
}
