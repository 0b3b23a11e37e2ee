//! Options of the tracing methods: nested tracers, overrides, durations.

use crate::InputKind;
use starling::rpc::{debug::options::TraceCallOptions, params::Arg, trace_session::TraceOptions};

const SEEDS: [&str; 6] = [
    r#"{"enableMemory":true,"disableStack":false,"limit":200,"timeout":"1m30s","reexec":128}"#,
    r#"{"tracer":"callTracer","tracerConfig":{"withLog":true,"onlyTopCall":false}}"#,
    r#"{"tracer":"muxTracer","tracerConfig":{"prestateTracer":{"diffMode":true},"4byteTracer":null,"muxTracer":{"noopTracer":{}}}}"#,
    r#"{"tracer":"flatCallTracer","tracerConfig":{"convertParityErrors":true,"includePrecompiles":true},"txIndex":"0x1"}"#,
    r#"{"tracer":"erc7562Tracer","tracerConfig":{"stackTopItemsSize":3,"ignoredOpcodes":["0x1","0x60"],"withLog":true}}"#,
    r#"{"stateOverrides":{"0x00000000000000000000000000000000000000aa":{"balance":"0x1","code":"0x00","stateDiff":{}}},"blockOverrides":{"number":"0x1","time":"0x2"}}"#,
];

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    // A method receives its parameters as JSON values, so the input must be JSON text.
    let Ok(text) = std::str::from_utf8(data) else {
        return outcome;
    };
    if serde_json::from_str::<&serde_json::value::RawValue>(text).is_err() {
        return outcome;
    }
    match TraceCallOptions::from_json(text.trim()) {
        Ok(options) => {
            outcome.add(&options.trace.tracer);
            let alone = TraceOptions::from_json(text.trim());
            assert_eq!(alone.map(|it| it.tracer), Ok(options.trace.tracer));
        }
        Err(error) => outcome.add(&error),
    }
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}
