//! Formats of log lines: text for people, logfmt and JSON for programs.

use super::LogFormat;
use serde_json::{Map, Value};
use std::fmt;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Text format: `2026-11-21T02:03:04.000000Z INFO  message key=value`.
pub struct Text {
    pub pid: bool,
    pub color: bool,
}

/// Structured formats: one line per record, except for `json-pretty`, which has several.
pub struct Structured {
    pub form: LogFormat,
    pub pid: bool,
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (message, fields) = read(event);
        SystemTime.format_time(&mut writer)?;
        let level = *event.metadata().level();
        if self.color && writer.has_ansi_escapes() {
            write!(writer, " \x1b[{}m{level:<5}\x1b[0m {message}", color(level))?;
        } else {
            write!(writer, " {level:<5} {message}")?;
        }
        for (key, value) in with_pid(fields, self.pid) {
            write!(writer, " {key}={}", logfmt(&value))?;
        }
        writeln!(writer)
    }
}

impl<S, N> FormatEvent<S, N> for Structured
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let (message, fields) = read(event);
        let mut record = Map::new();
        record.insert("t".into(), time.into());
        record.insert(
            "lvl".into(),
            event.metadata().level().to_string().to_lowercase().into(),
        );
        record.insert("msg".into(), message.into());
        record.extend(with_pid(fields, self.pid));
        writeln!(writer, "{}", write_record(self.form, &record))
    }
}

fn write_record(form: LogFormat, record: &Map<String, Value>) -> String {
    match form {
        LogFormat::Json => serde_json::to_string(record).unwrap_or_default(),
        LogFormat::JsonPretty => serde_json::to_string_pretty(record).unwrap_or_default(),
        LogFormat::Text | LogFormat::Logfmt => record
            .iter()
            .map(|(key, value)| format!("{key}={}", logfmt(value)))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// A value in logfmt: quoted if it could be read as more than one word. Line breaks are always
/// escaped.
fn logfmt(value: &Value) -> String {
    match value {
        Value::String(text)
            if !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\')) =>
        {
            text.clone()
        }
        other => other.to_string(),
    }
}

fn with_pid(mut fields: Map<String, Value>, pid: bool) -> Map<String, Value> {
    if pid {
        fields.insert("pid".into(), std::process::id().into());
    }
    fields
}

fn color(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        _ => 36,
    }
}

fn read(event: &Event<'_>) -> (String, Map<String, Value>) {
    let mut fields = Fields::default();
    event.record(&mut fields);
    (fields.message, fields.rest)
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.rest.insert(name.to_string(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("msg".into(), "two words\nand a line".into());
        record.insert("number".into(), 7.into());
        record.insert("peer".into(), "16Uiu2".into());
        record
    }

    #[test]
    fn a_logfmt_record_is_one_line() {
        assert_eq!(
            write_record(LogFormat::Logfmt, &record()),
            r#"msg="two words\nand a line" number=7 peer=16Uiu2"#
        );
    }

    #[test]
    fn json_reads_back() {
        for form in [LogFormat::Json, LogFormat::JsonPretty] {
            let read: Map<String, Value> =
                serde_json::from_str(&write_record(form, &record())).expect("JSON");
            assert_eq!(read, record());
        }
        assert!(!write_record(LogFormat::Json, &record()).contains('\n'));
    }
}
