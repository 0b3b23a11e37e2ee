//! Logs of nodes, read after a run: errors, bans and disconnects with their reasons, and the times
//! at which blocks were made or arrived. Lines have a time, a level, a message and fields.

use std::collections::BTreeMap;

/// Days from March of year zero to 1970, as [`days_since_1970`] counts them.
const EPOCH: u64 = 719_469;

/// Messages of a sequencer's and a replica's new head.
const MADE: &str = "made a block";
const ARRIVED: &str = "block";

/// Messages about bans, as far as they name a peer or an address.
const BANS: [&str; 3] = ["peer banned", "peer would be banned", "address banned"];

/// A ban in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBan {
    /// Microseconds since 1970.
    pub at: u64,
    /// Peer id, or address.
    pub subject: String,
    pub reason: String,
}

/// A new head in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock {
    /// Microseconds since 1970.
    pub at: u64,
    pub number: u64,
    pub hash: String,
    /// Whether the node made the block itself.
    pub is_own: bool,
    /// Number of the L1 block that the block builds on, where the log has it.
    pub origin: Option<u64>,
}

/// The events of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFindings {
    /// Lines at level error.
    pub errors: Vec<String>,
    /// Number of lines at level warn, by message.
    pub warnings: BTreeMap<String, u64>,
    pub bans: Vec<LogBan>,
    /// Number of disconnects, by reason.
    pub disconnects: BTreeMap<String, u64>,
    pub blocks: Vec<LogBlock>,
}

impl LogFindings {
    pub fn read(log: &str) -> Self {
        let mut findings = Self::default();
        for line in log.lines() {
            findings.line(line);
        }
        findings
    }

    fn line(&mut self, line: &str) {
        // A panic has no level: it is written by the standard library.
        if line.contains("panicked at") {
            self.errors.push(line.to_owned());
            return;
        }
        let mut words = line.splitn(3, ' ');
        let (Some(time), Some(level), Some(rest)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let Some(at) = unix_micros(time) else {
            return;
        };
        let (message, fields) = split_fields(rest.trim_start());
        match level {
            "ERROR" | "CRIT" => self.errors.push(line.to_owned()),
            "WARN" => *self.warnings.entry(message.to_owned()).or_default() += 1,
            _ => {}
        }
        let field = |name: &str| field(fields, name).unwrap_or_default().to_owned();
        if BANS.contains(&message) {
            let subject = field("peer") + &field("address");
            let reason = field("reason");
            self.bans.push(LogBan {
                at,
                subject,
                reason,
            });
        } else if message == "peer disconnected" {
            *self.disconnects.entry(field("reason")).or_default() += 1;
        } else if message == MADE || message == ARRIVED {
            let number = field("number").parse();
            self.blocks.extend(number.ok().map(|number| LogBlock {
                at,
                number,
                hash: field("hash"),
                is_own: message == MADE,
                origin: field("l1_origin").parse().ok(),
            }));
        }
    }
}

/// Splits a line into its message and its fields. The first word with `=` begins the fields.
fn split_fields(rest: &str) -> (&str, &str) {
    let mut start = 0;
    for word in rest.split(' ') {
        if word.contains('=') {
            return (rest[..start].trim_end(), &rest[start..]);
        }
        start += word.len() + 1;
    }
    (rest.trim_end(), "")
}

/// The value of a field, without its quotes.
fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    let start = if fields.starts_with(&format!("{name}=")) {
        0
    } else {
        fields.find(&format!(" {name}="))? + 1
    };
    let value = &fields[start + name.len() + 1..];
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split(' ').next(),
    }
}

/// Microseconds since 1970 of a time such as `2026-11-27T07:40:28.242222Z`.
fn unix_micros(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.')?;
    let mut time = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    let days = days_since_1970(year, month, day)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros)
}

/// Days of the Gregorian calendar, counted in years that begin in March, so that the leap day is
/// the last day of a year.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year.checked_sub(1)?, month + 9)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    days.checked_sub(EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_microsecond() {
        assert_eq!(unix_micros("1970-01-01T00:00:00.000001Z"), Some(1));
        // `date -u -d 2026-11-27T07:40:28 +%s`
        let expected = 1_795_765_228 * 1_000_000 + 242_222;
        assert_eq!(unix_micros("2026-11-27T07:40:28.242222Z"), Some(expected));
        assert_eq!(
            unix_micros("2024-02-29T00:00:00.0Z"),
            Some(1_709_164_800_000_000)
        );
        assert_eq!(unix_micros("yesterday"), None);
    }

    #[test]
    fn events_are_found_and_other_lines_are_not() {
        let log = "\
2026-11-27T07:40:28.242222Z INFO  block age=0 hash=0xab number=7
2026-11-27T07:40:29.242222Z INFO  made a block ahead=1 hash=0xcd l1_origin=1 number=8
2026-11-27T07:40:29.300000Z INFO  blocks whose proofs are kept blocks=0
2026-11-27T07:40:30.242222Z WARN  peer banned evidence=\"a b=c\" peer=16Uiu reason=wrong_signer until=9
2026-11-27T07:40:30.242222Z WARN  address banned address=10.0.0.1 reason=many evidence=x
2026-11-27T07:40:31.242222Z INFO  peer disconnected peer=16Uiu reason=\"no answer\"
2026-11-27T07:40:32.242222Z ERROR the check of a message panicked peer=16Uiu
thread 'x' panicked at src/y.rs:1:1:
2026-11-27T07:40:28.626674Z INFO  JSON-RPC is served error=none
a line without a time ERROR
";
        let findings = LogFindings::read(log);
        assert_eq!(findings.errors.len(), 2, "{:?}", findings.errors);
        assert_eq!(findings.warnings["peer banned"], 1);
        let bans: Vec<_> = findings
            .bans
            .iter()
            .map(|it| (&*it.subject, &*it.reason))
            .collect();
        assert_eq!(bans, [("16Uiu", "wrong_signer"), ("10.0.0.1", "many")]);
        assert_eq!(findings.disconnects["no answer"], 1);
        let blocks: Vec<_> = findings
            .blocks
            .iter()
            .map(|it| (it.number, it.is_own))
            .collect();
        assert_eq!(blocks, [(7, false), (8, true)]);
        assert_eq!(findings.blocks[0].hash, "0xab");
        let origins: Vec<_> = findings.blocks.iter().map(|it| it.origin).collect();
        assert_eq!(origins, [None, Some(1)]);
    }
}
