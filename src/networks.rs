//! Rollup configurations by network name or from a file (`--network`, `--rollup.config`), and the
//! output of `starling networks`.
//!
//! The table of public chains is in [`starling_proto::network`].

pub mod rules;
#[cfg(test)]
mod tests;

use starling_proto::{
    config::{ConfigError, RollupConfig, RollupJsonFormat},
    network::{self, KnownNetwork},
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// The source of a chain's rollup configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollupSource {
    /// A rollup.json file.
    File(PathBuf),
    /// The name of a known network.
    Network(&'static str),
}

/// A network name that is not in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no network {given}{}; `starling networks list` shows all", nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
pub struct UnknownNetwork {
    given: String,
    nearest: Option<&'static str>,
}

/// The reason why a rollup configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("--rollup.config: {} cannot be read: {error}; check the path and its permissions", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("--rollup.config: {}: {error}", path.display())]
    Malformed { path: PathBuf, error: ConfigError },
    #[error("--network: {0}")]
    Unknown(#[from] UnknownNetwork),
}

impl fmt::Display for RollupSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Network(name) => write!(f, "the network {name}"),
        }
    }
}

impl RollupSource {
    /// The known network with this name, in upper or lower case.
    pub fn named(name: &str) -> Result<Self, UnknownNetwork> {
        Ok(Self::Network(find(name)?.name))
    }

    /// Reads the configuration.
    pub fn read(&self) -> Result<RollupConfig, SourceError> {
        match self {
            Self::File(path) => read_file(path),
            Self::Network(name) => Ok(find(name)?.rollup),
        }
    }
}

fn read_file(path: &Path) -> Result<RollupConfig, SourceError> {
    let path_of = || path.to_path_buf();
    let text = std::fs::read_to_string(path).map_err(|error| SourceError::Unreadable {
        path: path_of(),
        error,
    })?;
    RollupConfig::from_json(&text).map_err(|error| SourceError::Malformed {
        path: path_of(),
        error,
    })
}

/// The network with this name, or an error that suggests the nearest name.
pub fn find(name: &str) -> Result<KnownNetwork, UnknownNetwork> {
    KnownNetwork::find(name).ok_or_else(|| UnknownNetwork {
        given: name.to_owned(),
        nearest: nearest(name),
    })
}

/// The name to suggest for an unknown one: the first name that begins with it and a dash. Otherwise
/// the name with the smallest edit distance, if that is at most half the name's length.
fn nearest(unknown: &str) -> Option<&'static str> {
    let unknown = unknown.to_lowercase();
    let start = format!("{unknown}-");
    if let Some(longer) = network::names().find(|name| name.starts_with(&start)) {
        return Some(longer);
    }
    let distance = |name: &str| strsim::damerau_levenshtein(&unknown, name);
    network::names()
        .map(|name| (distance(name), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 2)
        .map(|(_, name)| name)
}

/// The output of `starling networks list`: one name per line.
pub fn list() -> String {
    network::names().map(|name| format!("{name}\n")).collect()
}

/// The output of `starling networks dump-rollup-config`, in the given format.
pub fn dump(name: &str, format: RollupJsonFormat) -> Result<String, UnknownNetwork> {
    Ok(find(name)?.rollup.to_json_as(format) + "\n")
}
