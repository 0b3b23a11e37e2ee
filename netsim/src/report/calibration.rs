//! Labs beside the model of their networks, as a table of text and as sections of a page.

use super::{
    RunCalibration, RunReport,
    chart::{ChartUnit, LineChart, escape},
    page::{card, table},
    text::{columns, number},
};
use std::fmt::Write;

const HEADER: [&str; 13] = [
    "network",
    "lab p50",
    "model",
    "shared",
    "lab p99",
    "model",
    "shared",
    "copies lab",
    "model",
    "mesh lab",
    "model",
    "work",
    "wait",
];

/// The meaning of the columns.
const LEGEND: &str = "All times are milliseconds. `model` has a processor for each node, and `shared` \
those of the machine that ran the labs. `copies` and `mesh` are per node. `work` is the processor time \
of a block at a node, with its share of the links, and `wait` the time for which threads of a node \
waited for a processor because of a block.";

fn rows(report: &RunReport) -> impl Iterator<Item = Vec<String>> + '_ {
    report.calibration.iter().map(cells)
}

fn cells(row: &RunCalibration) -> Vec<String> {
    let compared = |model: f64, lab: f64| {
        let deviation = (RunCalibration::ratio(model, lab) - 1.0) * 100.0;
        format!("{} ({deviation:+.0} %)", number(model))
    };
    let (lab, model, shared) = (&row.lab, &row.model, &row.shared);
    let mut cells = vec![row.name()];
    for (lab, model, shared) in [
        (lab.p50, model.p50, shared.p50),
        (lab.p99, model.p99, shared.p99),
    ] {
        cells.extend([number(lab), compared(model, lab), compared(shared, lab)]);
    }
    cells.extend(row.copies.map(number));
    cells.extend(row.mesh.map(number));
    cells.extend([row.work, row.wait].map(number));
    cells
}

/// The table of all networks, and a sentence for each.
pub fn calibration_text(report: &RunReport) -> String {
    let header = HEADER.map(str::to_owned).to_vec();
    let all: Vec<Vec<String>> = [header].into_iter().chain(rows(report)).collect();
    let mut out = columns(&all);
    let _ = writeln!(out, "\n{LEGEND}");
    for row in &report.calibration {
        let _ = writeln!(out, "{}: {}", row.name(), row.reading());
    }
    out
}

/// The table, and a chart with the curves of each network.
pub fn section(report: &RunReport) -> String {
    if report.calibration.is_empty() {
        return String::new();
    }
    let mut body = table(1, &HEADER, rows(report));
    let _ = write!(body, "<p class=\"soft\">{}</p>", escape(LEGEND));
    for row in &report.calibration {
        let (name, reading) = (escape(&row.name()), escape(&row.reading()));
        let _ = write!(body, "<p class=\"soft\">{name}: {reading}</p>");
    }
    let mut out = card("wide", "Labs and models", &body);
    for row in &report.calibration {
        let chart = LineChart {
            x: "ms after the sequencer's log line",
            y: "share of the arrivals",
            unit: ChartUnit::Percent,
            series: row.curves.clone(),
            least_y: 1.0,
            ..LineChart::default()
        };
        out.push_str(&card("", &escape(&row.name()), &chart.svg("")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{super::RunSpread, *};

    fn spread(p50: f64, p99: f64) -> RunSpread {
        RunSpread {
            count: 1,
            p50,
            p99,
            ..RunSpread::default()
        }
    }

    fn report() -> RunReport {
        let mut report = RunReport::new("calibration", "x", 1);
        report.calibration = vec![RunCalibration {
            nodes: 16,
            links: "<lan>".to_owned(),
            lab: spread(10.0, 30.0),
            model: spread(6.0, 8.0),
            shared: spread(9.0, 31.5),
            ..RunCalibration::default()
        }];
        report
    }

    #[test]
    fn the_table_has_deviations_and_the_share_of_the_processors() {
        let text = calibration_text(&report());
        assert!(text.contains("6 (-40 %)  9 (-10 %)"), "{text}");
        assert!(text.contains("31.5 (+5 %)"), "{text}");
        let gap = "p50: the lab is 4 ms slower than the model, and waiting for the processor \
                   explains 75 % of it";
        assert!(text.contains(gap), "{text}");
        assert!(text.contains("p99: the lab is 22 ms slower"), "{text}");
        assert!(
            !text.contains("with shared processors the model is"),
            "{text}"
        );
        let mut report = report();
        let row = &mut report.calibration[0];
        (row.work, row.line_work, row.background) = (2.0, 3.5, 0.7);
        (row.shared.p50, row.shared.p99) = (12.6, 22.0);
        let text = calibration_text(&report);
        let slow = "too slow: it has 3.50 ms of work for a block at a node, as in the line, and \
                    this lab's nodes needed 2 ms; p99";
        let fast = "too fast: it leaves out the work between blocks, which takes 70 % of the \
                    processors";
        assert!(text.contains(slow) && text.contains(fast), "{text}");
        report.calibration[0].work = 4.0;
        let text = calibration_text(&report);
        assert!(
            text.contains("too slow: its processors do all work in the order"),
            "{text}"
        );
    }

    #[test]
    fn the_page_escapes_names_and_is_left_out_without_rows() {
        let page = section(&report());
        assert!(page.contains("16 nodes, &lt;lan&gt;") && !page.contains("<lan>"));
        assert_eq!(section(&RunReport::new("lab", "x", 1)), "");
    }
}
