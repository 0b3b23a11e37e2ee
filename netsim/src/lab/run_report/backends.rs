//! One scenario on both backends: the same verdicts, and the difference in propagation.

use crate::{
    lab::links::LabBackend,
    report::{RunCheck, RunReport},
};

/// Name of the check that compares the verdicts.
const CHECK: &str = "same verdicts on both backends";

/// Adds to the report of a run on the packet backend what differs from the same scenario's on the
/// stream backend.
pub fn compare(stream: &RunReport, packet: &mut RunReport) {
    let verdict = same_verdicts(stream, packet);
    packet.checks.push(RunCheck {
        name: CHECK.to_owned(),
        passed: verdict.is_ok(),
        detail: verdict.unwrap_or_else(|difference| difference),
    });
    let spreads = [stream, &*packet].map(|it| it.propagation.as_ref().map(|it| it.all));
    let [Some(stream), Some(packet_spread)] = spreads else {
        return;
    };
    for (name, stream, packet_ms) in [
        ("p50", stream.p50, packet_spread.p50),
        ("p99", stream.p99, packet_spread.p99),
    ] {
        let stream_name = format!("propagation {name} on stream, ms");
        packet.figures.insert(stream_name, stream);
        let longer = format!("propagation {name} longer on packet, ms");
        packet.figures.insert(longer, packet_ms - stream);
    }
}

/// The comparison in a report, for a terminal.
pub fn summary(report: &RunReport) -> String {
    let checks = report.checks.iter().filter(|check| check.name == CHECK);
    let verdict = |check: &RunCheck| {
        let word = if check.passed { "ok  " } else { "FAIL" };
        format!("  {word} {CHECK:<34} {}", check.detail)
    };
    let figures = report.figures.iter();
    let compared =
        figures.filter(|(name, _)| name.contains("on stream") || name.contains("on packet"));
    let figures = compared.map(|(name, value)| format!("       {name}: {value:.1}"));
    let lines: Vec<String> = checks.map(verdict).chain(figures).collect();
    lines.join("\n")
}

/// The number of equal verdicts, or the first difference.
fn same_verdicts(stream: &RunReport, packet: &RunReport) -> Result<String, String> {
    if packet.backend != LabBackend::Packet.to_string() {
        return Err(format!("the backend was {}", packet.backend));
    }
    let word = |passed: bool| if passed { "passed" } else { "failed" };
    for check in &stream.checks {
        let name = &check.name;
        let other = packet.checks.iter().find(|it| it.name == *name);
        let Some(other) = other else {
            return Err(format!("{name}: only on stream"));
        };
        if other.passed != check.passed {
            let [on_stream, on_packet] = [check.passed, other.passed].map(word);
            return Err(format!(
                "{name}: {on_stream} on stream, {on_packet} on packet"
            ));
        }
    }
    let [stream, packet] = [stream, packet].map(|it| it.checks.len());
    if stream == packet {
        Ok(format!("{stream} checks"))
    } else {
        Err(format!("{stream} checks on stream, {packet} on packet"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RunPropagation, RunSpread};

    fn report(backend: &str, verdicts: &[(&str, bool)], p50: f64) -> RunReport {
        let mut report = RunReport::new("lab", "x", 1);
        backend.clone_into(&mut report.backend);
        let checks = verdicts.iter().map(|(name, passed)| RunCheck {
            name: (*name).to_owned(),
            passed: *passed,
            detail: String::new(),
        });
        report.checks = checks.collect();
        report.propagation = Some(RunPropagation {
            all: RunSpread {
                p50,
                p99: 2.0 * p50,
                ..RunSpread::default()
            },
            ..RunPropagation::default()
        });
        report
    }

    fn verdict(stream: &RunReport, mut packet: RunReport) -> (bool, String) {
        compare(stream, &mut packet);
        let check = packet.checks.pop().unwrap();
        assert_eq!(check.name, CHECK);
        (check.passed, check.detail)
    }

    #[test]
    fn a_report_has_the_difference_between_both_backends() {
        let stream = report("stream", &[("one head", true), ("bans", false)], 36.0);
        let mut packet = report("packet", &[("bans", false), ("one head", true)], 39.0);
        compare(&stream, &mut packet);
        assert_eq!(packet.checks[2].detail, "2 checks");
        assert!(packet.checks[2].passed);
        assert_eq!(packet.figures["propagation p50 on stream, ms"], 36.0);
        assert_eq!(packet.figures["propagation p50 longer on packet, ms"], 3.0);
        assert_eq!(packet.figures["propagation p99 longer on packet, ms"], 6.0);
    }

    #[test]
    fn every_difference_of_verdicts_fails_the_check() {
        let stream = report("stream", &[("one head", true), ("bans", true)], 1.0);
        let with = |backend, verdicts| verdict(&stream, report(backend, verdicts, 1.0));
        let failed = |text: &str| (false, text.to_owned());
        assert_eq!(
            with("packet", &[("one head", true), ("bans", false)]),
            failed("bans: passed on stream, failed on packet")
        );
        assert_eq!(
            with("packet", &[("one head", true)]),
            failed("bans: only on stream")
        );
        assert_eq!(
            with(
                "packet",
                &[("one head", true), ("bans", true), ("new", true)]
            ),
            failed("2 checks on stream, 3 on packet")
        );
        assert_eq!(
            with(
                "stream: no /dev/net/tun",
                &[("one head", true), ("bans", true)]
            ),
            failed("the backend was stream: no /dev/net/tun")
        );
    }
}
