//! Telemetry of the process: the log on standard error, and metrics for Prometheus. `main` sets up
//! both once. The metrics server bounds its connections; nothing else in this module can be
//! overloaded.

mod causes;
mod descriptions;
mod format;
mod metrics_server;

pub use causes::LoggedCauses;
pub use metrics_server::{MetricsError, MetricsServer};

use std::{io::IsTerminal, sync::OnceLock};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Registry, filter::Targets, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Handle on the active log filter, set by [`init`].
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Log options (`--log.*`, `--verbosity`).
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Name or number of the level, as the user wrote it; [`init`] parses it.
    pub level: String,
    pub format: LogFormat,
    /// Whether to use colours on a terminal.
    pub color: bool,
    /// Whether each line contains the process id.
    pub pid: bool,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Logfmt,
    Json,
    JsonPretty,
}

impl LogFormat {
    /// The format with this name; text for `terminal` and if `name` is `None`.
    pub fn named(name: Option<&str>) -> Self {
        match name {
            Some("logfmt") => Self::Logfmt,
            Some("json") => Self::Json,
            Some("json-pretty") => Self::JsonPretty,
            _ => Self::Text,
        }
    }
}

/// Address of the metrics server for Prometheus (`--metrics.*`).
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// Host name or IP address.
    pub addr: String,
    pub port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum LogSetupError {
    #[error(
        "there is no log level \"{0}\"; use trace, debug, info, warn, error, crit, silent, or a number from 0 to 5"
    )]
    Level(String),
    #[error("the log is set up already")]
    Twice,
    #[error("there is no log whose level could be changed")]
    NoLog,
}

/// Starts logging to standard error, including panics.
pub fn init(config: &LogConfig) -> Result<(), LogSetupError> {
    let (filter, handle) = reload::Layer::new(filter(level(&config.level)?));
    let registry = tracing_subscriber::registry().with(filter);
    let done = match config.format {
        LogFormat::Text => {
            // Colours are for terminals only: a pipe gets none even if they are enabled.
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_target(false);
            let layer = layer.with_ansi(config.color && std::io::stderr().is_terminal());
            registry
                .with(layer.event_format(format::Text {
                    pid: config.pid,
                    color: config.color,
                }))
                .try_init()
        }
        form => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false);
            registry
                .with(layer.event_format(format::Structured {
                    form,
                    pid: config.pid,
                }))
                .try_init()
        }
    };
    done.map_err(|_| LogSetupError::Twice)?;
    // The first call of `init` sets this handle, since logging can be set up only once.
    let _ = FILTER.set(handle);
    log_panics();
    Ok(())
}

/// Sets the minimum level of logged messages (`admin_setLogLevel`).
pub fn set_level(name: &str) -> Result<(), LogSetupError> {
    let filter = filter(level(name)?);
    let handle = FILTER.get().ok_or(LogSetupError::NoLog)?;
    handle.reload(filter).map_err(|_| LogSetupError::NoLog)
}

/// Parses a level: a name that OP Stack programs or `tracing` use, or a number.
fn level(name: &str) -> Result<LevelFilter, LogSetupError> {
    match name.to_ascii_lowercase().as_str() {
        "silent" | "0" => Ok(LevelFilter::OFF),
        "crit" | "eror" | "error" | "1" => Ok(LevelFilter::ERROR),
        "warn" | "2" => Ok(LevelFilter::WARN),
        "info" | "3" => Ok(LevelFilter::INFO),
        "debug" | "dbug" | "4" => Ok(LevelFilter::DEBUG),
        "detail" | "trace" | "trce" | "5" => Ok(LevelFilter::TRACE),
        _ => Err(LogSetupError::Level(name.to_string())),
    }
}

/// Number of a level, as in an execution client's `--verbosity`.
pub fn verbosity(name: &str) -> Result<u8, LogSetupError> {
    Ok(match level(name)? {
        LevelFilter::OFF => 0,
        LevelFilter::ERROR => 1,
        LevelFilter::WARN => 2,
        LevelFilter::INFO => 3,
        LevelFilter::DEBUG => 4,
        LevelFilter::TRACE => 5,
    })
}

/// Filter that logs our own crates at the configured level. Libraries are logged from `warn` up at
/// most, or from `debug` up if the configured level is `trace`.
fn filter(level: LevelFilter) -> Targets {
    let libraries = if level == LevelFilter::TRACE {
        LevelFilter::DEBUG
    } else {
        level.min(LevelFilter::WARN)
    };
    let targets = Targets::new()
        .with_default(libraries)
        .with_target("starling", level)
        .with_target("starling_p2p", level);
    let quiet = if level == LevelFilter::TRACE {
        libraries
    } else {
        level.min(LevelFilter::ERROR)
    };
    // The WebSocket client logs paths and passwords of its endpoints at `debug`.
    let targets = targets.with_target("jsonrpsee-client", level.min(LevelFilter::WARN));
    // discv5 warns every few seconds while it knows no peer, which is normal in a private cluster.
    // gossipsub warns of each malformed message, which the peer's score and our own log also
    // report.
    targets
        .with_target("discv5", quiet)
        .with_target("libp2p_gossipsub::protocol", quiet)
}

fn log_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let message = panic.payload_as_str().unwrap_or("a value that is no text");
        let location = panic
            .location()
            .map(|location| location.to_string())
            .unwrap_or_default();
        tracing::error!(
            thread = thread.name().unwrap_or("unnamed"),
            location,
            "panic: {message}"
        );
        default(panic);
    }));
}

/// Formats an error and its causes as one sentence. A cause whose text is already included is left
/// out.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence.push_str(": ");
            sentence.push_str(&cause);
        }
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_numbers() {
        for (names, expected) in [
            (["silent", "0"], LevelFilter::OFF),
            (["crit", "1"], LevelFilter::ERROR),
            (["WARN", "2"], LevelFilter::WARN),
            (["info", "3"], LevelFilter::INFO),
            (["DEBUG", "4"], LevelFilter::DEBUG),
            (["trace", "5"], LevelFilter::TRACE),
        ] {
            for name in names {
                assert_eq!(level(name).ok(), Some(expected), "{name}");
            }
        }
        assert!(level("loud").is_err());
    }

    #[test]
    fn a_cause_is_said_once() {
        let config = starling_proto::config::RollupConfig::from_json("{").expect_err("no JSON");
        let error = anyhow::Error::from(config).context("--rollup.config: a.json");
        let said = sentence(&error);
        assert!(
            said.starts_with("--rollup.config: a.json: rollup config is not readable: EOF"),
            "{said}"
        );
        assert_eq!(said.matches("EOF").count(), 1, "{said}");
        let error =
            anyhow::Error::from(std::io::Error::other("no disk")).context("it cannot be stored");
        assert_eq!(sentence(&error), "it cannot be stored: no disk");
    }

    #[test]
    fn libraries_are_quieter_than_we_are() {
        let filter = filter(LevelFilter::DEBUG);
        assert!(filter.would_enable("starling::chain", &tracing::Level::DEBUG));
        assert!(!filter.would_enable("libp2p_gossipsub", &tracing::Level::DEBUG));
        assert!(filter.would_enable("libp2p_gossipsub", &tracing::Level::WARN));
        let filter = self::filter(LevelFilter::TRACE);
        assert!(filter.would_enable("libp2p_gossipsub", &tracing::Level::DEBUG));
        assert!(!filter.would_enable("jsonrpsee-client", &tracing::Level::DEBUG));
    }
}
