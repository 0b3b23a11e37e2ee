//! The HTML page of a run. Sections without values are left out.

use super::{
    LAB_LAYER, RunReport, RunSeries, RunSpread, calibration,
    chart::{ChartUnit, LineChart, bars, escape},
    style, tables,
    text::{bytes, number},
};
use std::fmt::Write;

/// Largest number of bans in the table.
const BANS: usize = 200;
/// Largest number of nodes with a bar.
const BARS: usize = 128;

/// A picture of the propagation in several runs, each with a name. It has its styles within, for
/// light and dark.
pub fn propagation_picture(title: &str, runs: &[(String, &RunReport)]) -> String {
    let series = runs.iter().filter_map(|(name, report)| {
        let points = report.propagation.as_ref()?.curve.clone();
        let name = name.clone();
        Some(RunSeries { name, points })
    });
    let chart = LineChart {
        title,
        x: "ms after the publication",
        y: "share of the receipts",
        unit: ChartUnit::Percent,
        series: series.collect(),
        least_y: 1.0,
        ..LineChart::default()
    };
    chart.svg(&format!("{}{}", style::COLOURS, style::CHART))
}

/// The whole page.
pub fn page(report: &RunReport) -> String {
    let title = escape(&format!("{}: {}", report.layer, report.name));
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>{}{}{}</style></head>\
         <body><main>",
        style::COLOURS,
        style::CHART,
        style::PAGE
    );
    out.push_str(&head(report));
    out.push_str("<div class=\"cards\">");
    let sections = [
        checks,
        calibration::section,
        heads,
        propagation,
        mesh,
        traffic,
        resources,
        joining,
        faults,
        tables::hostile,
        bans,
        tables::nodes,
        tables::links,
        tables::logs,
        figures,
        settings,
    ];
    sections
        .iter()
        .for_each(|section| out.push_str(&section(report)));
    out.push_str("</div></main></body></html>\n");
    out
}

fn head(report: &RunReport) -> String {
    let mut out = format!("<h1>{}</h1>", escape(&report.name));
    if !report.purpose.is_empty() {
        let _ = write!(out, "<p>{}</p>", escape(&report.purpose));
    }
    let mut facts = vec![
        format!("Layer {}", report.layer),
        format!("seed {}", report.seed),
    ];
    if !report.backend.is_empty() {
        facts.push(format!("backend {}", report.backend));
    }
    let versions = report.versions.iter();
    facts.extend(versions.map(|(program, version)| format!("{program} {version}")));
    let _ = write!(out, "<p class=\"soft\">{}</p>", escape(&facts.join(" · ")));
    out.push_str("<div class=\"tiles\">");
    let mut tile = |value: String, label: &str| {
        let value = escape(&value);
        let _ = write!(
            out,
            "<div class=\"tile\"><b>{value}</b><span>{label}</span></div>"
        );
    };
    if let Some(passed) = report.passed() {
        let count = report.checks.iter().filter(|it| it.passed).count();
        let verdict = if passed { "Passed" } else { "Failed" };
        tile(
            verdict.to_owned(),
            &format!("{count} of {} checks", report.checks.len()),
        );
    }
    if let Some(propagation) = &report.propagation {
        let all = &propagation.all;
        tile(format!("{} ms", number(all.p50)), "propagation, median");
        tile(format!("{} ms", number(all.p99)), "propagation, p99");
        tile(number(all.count as f64), "receipts");
        tile(number(propagation.missed as f64), "receipts missed");
    }
    let traffic = report.traffic.as_ref();
    if let Some(duplicates) = traffic.and_then(|it| it.duplicates) {
        tile(number(duplicates.p50), "duplicates per node and block");
    }
    if report.seconds > 0.0 {
        tile(format!("{} s", number(report.seconds)), "length of the run");
    }
    out.push_str("</div>");
    out
}

pub(super) fn card(class: &str, title: &str, body: &str) -> String {
    format!("<section class=\"card {class}\"><h2>{title}</h2>{body}</section>")
}

/// A table whose columns after the first `texts` ones are numbers.
pub(super) fn table(
    texts: usize,
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let class = |column: usize| if column < texts { "" } else { " class=\"n\"" };
    let mut out = String::from("<div class=\"scroll\"><table><tr>");
    for (column, name) in header.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(column), escape(name));
    }
    out.push_str("</tr>");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(column), escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    out
}

const SPREAD: [&str; 5] = ["", "p50", "p90", "p99", "max"];

fn spread_row(label: &str, spread: &RunSpread, form: fn(f64) -> String) -> Vec<String> {
    let mut row = vec![label.to_owned()];
    row.extend([spread.p50, spread.p90, spread.p99, spread.max].map(form));
    row
}

fn checks(report: &RunReport) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for check in &report.checks {
        let (class, verdict) = if check.passed {
            ("good", "✓ passed")
        } else {
            ("bad", "✗ failed")
        };
        let _ = write!(
            rows,
            "<tr><td class=\"{class}\">{verdict}</td><td>{}</td><td class=\"soft\">{}</td></tr>",
            escape(&check.name),
            escape(&check.detail)
        );
    }
    let header = "<tr><th>Verdict</th><th>Check</th><th>Evidence</th></tr>";
    let body = format!("<div class=\"scroll\"><table>{header}{rows}</table></div>");
    card("wide", "Checks", &body)
}

/// Seconds between two readings of a lab's node above which it was down: they are usually one or two
/// seconds apart.
const DOWN: f64 = 5.0;

/// A chart over the time of the run, with its faults.
fn timeline(report: &RunReport, y: &str, series: &[RunSeries]) -> String {
    let chart = LineChart {
        x: "s since the start",
        y,
        series: series.to_vec(),
        faults: &report.faults,
        least_x: report.seconds,
        least_y: 1.0,
        gap: (report.layer == LAB_LAYER).then_some(DOWN),
        ..LineChart::default()
    };
    chart.svg("")
}

fn heads(report: &RunReport) -> String {
    let mut out = String::new();
    if !report.heads.is_empty() {
        let chart = LineChart {
            x: "s since the start",
            y: "height of the head",
            series: report.heads.clone(),
            faults: &report.faults,
            least_x: report.seconds,
            floating: true,
            steps: true,
            ..LineChart::default()
        };
        out.push_str(&card("", "Heads of the nodes", &chart.svg("")));
    }
    if !report.lag.is_empty() {
        let chart = timeline(report, "blocks behind the newest", &report.lag);
        out.push_str(&card("", "Lag of the heads", &chart));
    }
    out
}

fn propagation(report: &RunReport) -> String {
    let Some(propagation) = &report.propagation else {
        return String::new();
    };
    let is_lab = report.layer == LAB_LAYER;
    let curves = |series| {
        let chart = LineChart {
            x: if is_lab {
                "ms after the sequencer's log line"
            } else {
                "ms after the publication"
            },
            y: "share of the receipts",
            unit: ChartUnit::Percent,
            series,
            least_y: 1.0,
            ..LineChart::default()
        };
        chart.svg("")
    };
    let all = vec![RunSeries {
        name: "all receipts".to_owned(),
        points: propagation.curve.clone(),
    }];
    let mut out = card("", "Propagation", &curves(all));
    let hops = propagation.hops.iter().filter(|hop| !hop.curve.is_empty());
    let hops = hops.map(|hop| RunSeries {
        name: format!("hop {}", hop.hop),
        points: hop.curve.clone(),
    });
    let hops: Vec<RunSeries> = hops.collect();
    if !hops.is_empty() {
        out.push_str(&card("", "Propagation by hop", &curves(hops)));
    }
    let rows = propagation.hops.iter().map(|hop| {
        let label = format!("hop {}", hop.hop);
        let mut row = spread_row(&label, &hop.times, number);
        row.push(format!("{:.2} %", hop.share * 100.0));
        row
    });
    let all = [spread_row("all", &propagation.all, number), vec![]].concat();
    let all = [all, vec!["100 %".to_owned()]].concat();
    let header = ["ms", "p50", "p90", "p99", "max", "receipts"];
    let body = table(1, &header, rows.chain([all]));
    out.push_str(&card("", "Propagation in numbers", &body));
    out
}

fn mesh(report: &RunReport) -> String {
    if report.mesh.is_empty() {
        return String::new();
    }
    let chart = timeline(report, "peers in the mesh", &report.mesh);
    card("", "Gossip mesh", &chart)
}

fn traffic(report: &RunReport) -> String {
    let Some(traffic) = &report.traffic else {
        return String::new();
    };
    let mut rows = Vec::new();
    if let Some(spread) = &traffic.duplicates {
        rows.push(spread_row("duplicates per block", spread, number));
    }
    for (label, spread) in [("sent", &traffic.sent), ("received", &traffic.received)] {
        rows.extend(spread.iter().map(|it| spread_row(label, it, bytes)));
    }
    let mut out = String::new();
    if !rows.is_empty() {
        let body = table(1, &SPREAD, rows.into_iter());
        out.push_str(&card("", "Traffic per node", &body));
    }
    let nodes = &traffic.nodes[..traffic.nodes.len().min(BARS)];
    if nodes.is_empty() {
        return out;
    }
    let mut chart = |title: &str, unit, colour, value: fn(&super::RunNodeTraffic) -> u64| {
        let values = nodes.iter().map(|it| (it.node.as_str(), value(it) as f64));
        let values: Vec<(&str, f64)> = values.collect();
        out.push_str(&card("", title, &bars(unit, "per node", colour, &values)));
    };
    chart("Bytes received", ChartUnit::Bytes, 0, |it| it.received);
    chart("Bytes sent", ChartUnit::Bytes, 1, |it| it.sent);
    chart("Duplicates", ChartUnit::Number, 2, |it| it.duplicates);
    out
}

fn resources(report: &RunReport) -> String {
    let mut out = String::new();
    let charts = [
        ("Processor", "% of a core", &report.cpu),
        ("Memory", "MB resident", &report.memory),
    ];
    for (title, y, series) in charts {
        if !series.is_empty() {
            out.push_str(&card("", title, &timeline(report, y, series)));
        }
    }
    out
}

fn joining(report: &RunReport) -> String {
    let Some(joining) = &report.joining else {
        return String::new();
    };
    let spreads = [
        ("gap, blocks", &joining.gap),
        ("first gossiped block, s", &joining.first_block),
        ("synced, s", &joining.synced),
    ];
    let rows = spreads.into_iter().filter_map(|(label, spread)| {
        let spread = spread.as_ref()?;
        Some(spread_row(label, spread, number))
    });
    let sentence = format!(
        "<p class=\"soft\">{} joined, {} of them had not caught up at the end.</p>",
        joining.joined, joining.unfinished
    );
    let body = format!("{sentence}{}", table(1, &SPREAD, rows));
    card("", "Nodes that joined", &body)
}

/// A time on the axis of the run, to hundredths.
fn seconds(value: f64) -> String {
    ChartUnit::Number.write(value)
}

fn faults(report: &RunReport) -> String {
    if report.faults.is_empty() {
        return String::new();
    }
    let rows = report.faults.iter().map(|fault| {
        let until = fault.until.map_or("–".to_owned(), seconds);
        vec![fault.what.clone(), seconds(fault.from), until]
    });
    let body = table(1, &["Fault", "from, s", "until, s"], rows);
    card("", "Faults", &body)
}

fn bans(report: &RunReport) -> String {
    if report.bans.is_empty() {
        return String::new();
    }
    let rows = report.bans.iter().take(BANS).map(|ban| {
        let texts = [&ban.node, &ban.peer, &ban.reason].map(String::clone);
        [&texts[..], &[seconds(ban.at)]].concat()
    });
    let mut body = table(3, &["Node", "Peer", "Reason", "at, s"], rows);
    if report.bans.len() > BANS {
        let more = report.bans.len() - BANS;
        let _ = write!(body, "<p class=\"soft\">{more} more are in the JSON.</p>");
    }
    card("wide", "Bans", &body)
}

fn figures(report: &RunReport) -> String {
    if report.figures.is_empty() {
        return String::new();
    }
    let figures = report.figures.iter();
    let rows = figures.map(|(name, value)| vec![name.clone(), number(*value)]);
    card("", "Further figures", &table(1, &["Figure", "Value"], rows))
}

fn settings(report: &RunReport) -> String {
    if report.settings.is_empty() {
        return String::new();
    }
    let settings = report.settings.iter();
    let rows = settings.map(|(name, value)| vec![name.clone(), value.clone()]);
    card("", "Settings", &table(2, &["Setting", "Value"], rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunPropagation;

    #[test]
    fn the_axis_of_propagation_names_its_zero() {
        let page_of = |layer| {
            let mut report = RunReport::new(layer, "x", 1);
            report.propagation = Some(RunPropagation {
                curve: vec![[1.0, 0.5], [2.0, 1.0]],
                ..RunPropagation::default()
            });
            page(&report)
        };
        assert!(page_of("model").contains("ms after the publication"));
        let lab = page_of(LAB_LAYER);
        assert!(
            lab.contains("ms after the sequencer&#39;s log line"),
            "{lab}"
        );
    }
}
