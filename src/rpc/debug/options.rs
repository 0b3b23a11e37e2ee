//! Options of the tracing methods: the tracer with its own options, time limits, overrides.

use crate::{
    chain::evm::{NamedTracer, Overrides, ScriptSource, StructLogConfig, TracerConfig},
    rpc::{
        eth::overrides::member,
        json,
        params::{Arg, Quantity, kind, unfit},
        trace_session::TraceOptions,
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, time::Duration};

/// Maximum levels of nested `muxTracer`, including the outermost.
const MUX_DEPTH: usize = 4;

/// Options of `debug_traceCall`.
#[derive(Clone, Debug, Default)]
pub struct TraceCallOptions {
    pub trace: TraceOptions,
    pub overrides: Overrides,
    /// Index of a transaction of the block: the call runs before it instead of after the block.
    pub tx_index: Option<usize>,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self::new(TracerConfig::StructLog(StructLogConfig::default()), None)
    }
}

/// The members of the options object that this node uses, not yet parsed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OptionMembers<'a> {
    tracer: Option<String>,
    timeout: Option<String>,
    #[serde(borrow)]
    tracer_config: Option<&'a RawValue>,
    #[serde(borrow)]
    state_overrides: Option<&'a RawValue>,
    #[serde(borrow)]
    block_overrides: Option<&'a RawValue>,
    #[serde(borrow)]
    tx_index: Option<&'a RawValue>,
}

fn members<'a>(json: &'a str, go_type: &str) -> Result<OptionMembers<'a>, String> {
    if kind(json) != "object" {
        return Err(unfit(kind(json), go_type));
    }
    json::read(json).map_err(|error| error.to_string())
}

fn read<T: DeserializeOwned + Default>(json: Option<&RawValue>) -> Result<T, String> {
    match json.map(RawValue::get).filter(|json| *json != "null") {
        None => Ok(T::default()),
        Some(json) => json::read(json).map_err(|error| error.to_string()),
    }
}

fn trace_options(json: &str, members: &OptionMembers<'_>) -> Result<TraceOptions, String> {
    let tracer = match members.tracer.as_deref() {
        // The struct logger's options are not in `tracerConfig`, but next to it.
        None => TracerConfig::StructLog(json::read(json).map_err(|error| error.to_string())?),
        Some(name) => named(name, members.tracer_config, MUX_DEPTH)?,
    };
    let timeout = members.timeout.as_deref().map(duration).transpose()?;
    Ok(TraceOptions::new(tracer, timeout))
}

impl Arg for TraceOptions {
    fn from_json(json: &str) -> Result<Self, String> {
        trace_options(json, &members(json, "tracers.TraceConfig")?)
    }
}

impl Arg for TraceCallOptions {
    fn from_json(json: &str) -> Result<Self, String> {
        const CONFIG: &str = "TraceCallConfig";
        let members = members(json, "tracers.TraceCallConfig")?;
        let index = members.tx_index.filter(|index| index.get() != "null");
        let index = index.map(|index| Quantity::from_json(index.get()));
        Ok(Self {
            trace: trace_options(json, &members)?,
            overrides: Overrides {
                state: member(CONFIG, "StateOverrides", members.state_overrides)?,
                block: member(CONFIG, "BlockOverrides", members.block_overrides)?,
            },
            tx_index: index
                .transpose()?
                .map(|Quantity(index)| usize::try_from(index).unwrap_or(usize::MAX)),
        })
    }
}

/// The tracer with this name and configuration.
fn named(name: &str, config: Option<&RawValue>, depth: usize) -> Result<TracerConfig, String> {
    Ok(match name {
        // Struct logs are written while they are recorded, which a tracer inside `muxTracer` cannot
        // do.
        "" | "structLogger" if depth == MUX_DEPTH => TracerConfig::StructLog(read(config)?),
        "callTracer" => TracerConfig::Call(read(config)?),
        "flatCallTracer" => TracerConfig::FlatCall(read(config)?),
        "prestateTracer" => TracerConfig::Prestate(read(config)?),
        "4byteTracer" => TracerConfig::FourByte,
        "noopTracer" => TracerConfig::Noop,
        "erc7562Tracer" => TracerConfig::Erc7562(read(config)?),
        "muxTracer" if depth > 0 => {
            let parts: BTreeMap<String, Box<RawValue>> = read(config)?;
            let part = |(name, config): (String, Box<RawValue>)| {
                Ok::<_, String>(NamedTracer {
                    config: named(&name, Some(&config), depth - 1)?,
                    name,
                })
            };
            TracerConfig::Mux(parts.into_iter().map(part).collect::<Result<_, _>>()?)
        }
        other => match script(other, config).filter(|_| depth == MUX_DEPTH) {
            Some(source) => TracerConfig::Script(source),
            None => {
                let name = crate::rpc::error::cut(other);
                return Err(format!("tracer {name:?} not found"));
            }
        },
    })
}

/// A tracer in JavaScript: one of geth's scripts by its name, or the text of a script. `None` for
/// an unknown name.
fn script(name: &str, config: Option<&RawValue>) -> Option<ScriptSource> {
    let code = match name {
        "callTracerLegacy" => include_str!("scripts/call.js"),
        "prestateTracerLegacy" => include_str!("scripts/prestate.js"),
        "4byteTracerLegacy" => include_str!("scripts/four_byte.js"),
        "noopTracerLegacy" => include_str!("scripts/noop.js"),
        "opcountTracer" => include_str!("scripts/opcount.js"),
        "unigramTracer" => include_str!("scripts/unigram.js"),
        "bigramTracer" => include_str!("scripts/bigram.js"),
        "trigramTracer" => include_str!("scripts/trigram.js"),
        "evmdisTracer" => include_str!("scripts/evmdis.js"),
        name if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => return None,
        code => code,
    };
    Some(ScriptSource {
        name: crate::rpc::error::cut(name).to_owned(),
        code: code.to_owned(),
        config: config.map_or("{}", RawValue::get).to_owned(),
    })
}

/// Parses a duration in Go's form, such as `1m30s` or `200ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {:?}", crate::rpc::error::cut(text));
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0f64;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let number = rest
            .find(|digit: char| !digit.is_ascii_digit() && digit != '.')
            .ok_or_else(invalid)?;
        let (digits, after) = rest.split_at(number);
        let unit = after
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        seconds += digits.parse::<f64>().map_err(|_| invalid())? * scale;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::evm::{CallTracerConfig, PrestateConfig};

    #[test]
    fn options_name_a_tracer_and_its_options() {
        let options = |json: &str| TraceOptions::from_json(json).map(|it| it.tracer);
        let logs = StructLogConfig {
            enable_memory: true,
            limit: 7,
            ..StructLogConfig::default()
        };
        let json = r#"{"enableMemory":true,"limit":7,"reexec":100,"overrides":null}"#;
        assert_eq!(options(json), Ok(TracerConfig::StructLog(logs)));
        let call = CallTracerConfig {
            with_log: true,
            ..CallTracerConfig::default()
        };
        let json = r#"{"tracer":"callTracer","tracerConfig":{"withLog":true}}"#;
        assert_eq!(options(json), Ok(TracerConfig::Call(call)));
        let json = r#"{"tracer":"muxTracer","tracerConfig":{"callTracer":null,"prestateTracer":{"diffMode":true}}}"#;
        let Ok(TracerConfig::Mux(parts)) = options(json) else {
            panic!("no mux");
        };
        let diff = PrestateConfig {
            diff_mode: true,
            ..PrestateConfig::default()
        };
        assert_eq!(
            parts[0].config,
            TracerConfig::Call(CallTracerConfig::default())
        );
        assert_eq!(parts[1].config, TracerConfig::Prestate(diff));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        let refused = |json: &str| TraceOptions::from_json(json).unwrap_err();
        assert_eq!(
            refused("[]"),
            "json: cannot unmarshal array into Go value of type tracers.TraceConfig"
        );
        assert_eq!(refused(r#"{"tracer":"x"}"#), "tracer \"x\" not found");
        for name in ["", "structLogger"] {
            let parts = format!(r#"{{"{name}":{{}},"callTracer":{{}}}}"#);
            let mux = format!(r#"{{"tracer":"muxTracer","tracerConfig":{parts}}}"#);
            assert_eq!(refused(&mux), format!("tracer {name:?} not found"));
        }
        let mut deep = r#"{"muxTracer":null}"#.to_owned();
        for _ in 0..8 {
            deep = format!(r#"{{"muxTracer":{deep}}}"#);
        }
        let deep = format!(r#"{{"tracer":"muxTracer","tracerConfig":{deep}}}"#);
        assert_eq!(refused(&deep), "tracer \"muxTracer\" not found");
        assert!(refused(r#"{"timeout":"5"}"#).starts_with("time: invalid duration"));
    }

    #[test]
    fn durations_are_gos() {
        let millis = |text: &str| duration(text).map(|it| it.as_millis());
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("1.5s"), Ok(1_500));
        assert_eq!(millis("200ms"), Ok(200));
        assert_eq!(millis("0"), Ok(0));
        for text in ["", "s", "-1s", "1", "1d", "1e400h", "1..s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
