//! Converts a flag's text to a typed value. Values from the command line and from the environment
//! are both converted here, so that the same forms are valid.

pub use crate::secret::Secret;

use super::flags::Kind;
use std::time::Duration;

/// A value of a flag's type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Text(String),
    Uint(u64),
    Float(f64),
    Duration(Duration),
    List(Vec<String>),
    Secret(Secret),
}

/// Converts all occurrences of a flag. For a list all count, for other types only the last one. The
/// error says what was expected, but not what was given, since that may be a secret.
pub fn read(kind: Kind, given: &[String]) -> Result<Value, String> {
    let last = given.last().map(String::as_str).unwrap_or_default();
    match kind {
        Kind::Bool => parse_bool(last)
            .map(Value::Bool)
            .ok_or_else(|| "true or false".into()),
        Kind::Text | Kind::Path => Ok(Value::Text(last.to_string())),
        Kind::Url => ["http://", "https://", "ws://", "wss://"]
            .iter()
            .any(|scheme| last.starts_with(scheme))
            .then(|| Value::Text(last.to_string()))
            .ok_or_else(|| "a URL that begins with http://, https://, ws:// or wss://".into()),
        Kind::Ip => last
            .parse::<std::net::IpAddr>()
            .map(|ip| Value::Text(ip.to_string()))
            .map_err(|_| "an IP address".into()),
        Kind::Port => last
            .parse::<u16>()
            .map(|port| Value::Uint(port.into()))
            .map_err(|_| "a port from 0 to 65535".into()),
        Kind::Uint => last
            .parse()
            .map(Value::Uint)
            .map_err(|_| "a whole number that is not negative".into()),
        Kind::Float => match last.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err("a number".into()),
        },
        Kind::Duration => parse_duration(last)
            .map(Value::Duration)
            .ok_or_else(|| "a duration such as 300ms, 1.5s or 1h0m0s".into()),
        Kind::Size => parse_size(last)
            .map(Value::Uint)
            .ok_or_else(|| "a size such as 20GB, 512MB or 1GiB".into()),
        Kind::List => {
            let items = given
                .iter()
                .flat_map(|text| text.split(','))
                .map(str::trim)
                .filter(|item| !item.is_empty());
            Ok(Value::List(items.map(str::to_string).collect()))
        }
        Kind::Choice(choices) => match choices
            .iter()
            .find(|choice| choice.eq_ignore_ascii_case(last))
        {
            Some(choice) => Ok(Value::Text(choice.to_string())),
            None => Err(format!("one of {}", choices.join(", "))),
        },
        Kind::Secret => Ok(Value::Secret(Secret::new(last))),
    }
}

/// The forms that Go's `strconv.ParseBool` accepts.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A duration in the format of Go's `time.ParseDuration`. A negative duration becomes zero, since
/// both mean off in all options.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        nanos = nanos.checked_add(in_nanos(number, unit)?)?;
        rest = tail;
    }
    // The maximum is Go's: 64-bit signed nanoseconds.
    let nanos = u64::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos <= i64::MAX as u64)?;
    Some(if negative {
        Duration::ZERO
    } else {
        Duration::from_nanos(nanos)
    })
}

/// A size in bytes: a whole number, and optionally a unit.
fn parse_size(text: &str) -> Option<u64> {
    let unit = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

fn in_nanos(number: &str, unit: &str) -> Option<u128> {
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    // Digits after the 18th are less than a nanosecond in every unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u128>().ok()? * scale / 10u128.pow(fraction.len() as u32)
    };
    whole.checked_mul(scale)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("20GB", 20_000_000_000),
            ("512 mb", 512_000_000),
            ("1GiB", 1 << 30),
            ("3tib", 3 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for wrong in [
            "",
            "GB",
            "-1",
            "1.5GB",
            "20G B",
            "20 furlongs",
            "99999999999TB",
        ] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn go_durations() {
        for (text, millis) in [
            ("300ms", 300),
            ("1.5s", 1_500),
            ("1h0m0s", 3_600_000),
            ("6m24s", 384_000),
            ("0", 0),
            ("-5s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
        assert_eq!(parse_duration("1.5us"), Some(Duration::from_nanos(1_500)));
        for text in [
            "",
            "5",
            "s",
            "1x",
            "1.2.3s",
            ".s",
            "1s ",
            "--1s",
            "9999999999h",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret =
            Secret::new("0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d");
        assert_eq!(
            format!("{:?}", Value::Secret(secret.clone())),
            "Secret(Secret(…))"
        );
        assert_eq!(secret.bytes().map(|bytes| bytes[0]), Some(0x59));
        assert_eq!(Secret::new("0x12").bytes(), None);
    }

    #[test]
    fn lists_are_repeated_or_comma_separated() {
        let given = ["a, b".to_string(), "c,".to_string()];
        assert_eq!(
            read(Kind::List, &given),
            Ok(Value::List(vec!["a".into(), "b".into(), "c".into()]))
        );
    }

    proptest! {
        #[test]
        fn a_duration_reads_as_go_writes_it(hours in 0u64..10_000, minutes in 0u64..60, seconds in 0u64..60, millis in 0u64..1000) {
            let text = format!("{hours}h{minutes}m{seconds}.{millis:03}s");
            let expected = Duration::from_millis(((hours * 60 + minutes) * 60 + seconds) * 1000 + millis);
            prop_assert_eq!(parse_duration(&text), Some(expected));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.a-zµ]{0,40}") {
            let _ = parse_duration(&text);
        }
    }
}
