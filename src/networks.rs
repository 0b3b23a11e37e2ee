//! Rollup configurations by network name or from a file (`--network`, `--rollup.config`), and the
//! output of `starling networks`.
//!
//! The table of public chains is in [`starling_proto::network`].

pub mod rules;
#[cfg(test)]
mod tests;

use starling_proto::{
    config::{ConfigError, RollupConfig, RollupJsonFormat, UnknownMember},
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
#[error(
    "there is no network {given}{}; `starling networks list` shows all, and a chain without a name here is given by its files: its genesis to `starling init`, its rollup.json to --rollup.config",
    nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
)]
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

    /// The sentence that says where the genesis file of a known network is; `None` for a file, whose
    /// chain may be any.
    pub fn where_genesis_is(&self) -> Option<String> {
        match self {
            Self::File(_) => None,
            Self::Network(name) => Some(genesis_hint(&find(name).ok()?)),
        }
    }

    /// Logs the members of a rollup.json that are ignored because their names are not known, each
    /// with the nearest name. A fork whose time is misspelt never begins.
    pub fn log_unknown_members(&self) {
        for sentence in self.unknown_members() {
            tracing::warn!("--rollup.config: {self}: {sentence}");
        }
    }

    fn unknown_members(&self) -> Vec<String> {
        let Self::File(path) = self else {
            return Vec::new();
        };
        // A file that cannot be read is an error of `read`.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let unknown = RollupConfig::unknown_members(&text);
        unknown.iter().map(describe_unknown).collect()
    }

    /// Reads the configuration.
    pub fn read(&self) -> Result<RollupConfig, SourceError> {
        match self {
            Self::File(path) => read_file(path),
            Self::Network(name) => Ok(find(name)?.rollup),
        }
    }
}

fn describe_unknown(member: &UnknownMember) -> String {
    let name = &member.name;
    let place = match member.object {
        "" => String::new(),
        object => format!(" in {object}"),
    };
    let distance =
        |known: &String| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    let nearest = member.known.iter().min_by_key(|known| distance(known));
    let nearest = nearest.filter(|known| distance(known) <= 2.max(known.len() * 2 / 5));
    let hint = nearest.map(|known| format!("; did you mean {known}?"));
    format!(
        "the member {name}{place} is not known, and is ignored{}",
        hint.unwrap_or_default()
    )
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

/// The registry of the public chains.
const REGISTRY: &str = "https://github.com/ethereum-optimism/superchain-registry";

/// L1 networks at the end of the names of public chains. The registry has a folder for each.
const L1_NAMES: [&str; 3] = ["mainnet", "sepolia", "sepolia-devnet-2"];

/// Networks that are not in the registry any more.
const NOT_IN_REGISTRY: [&str; 2] = ["base-mainnet", "base-sepolia"];

fn genesis_hint(network: &KnownNetwork) -> String {
    let name = network.name;
    let first = network.rollup.genesis.l2.number;
    let in_registry = parts(name).filter(|_| !NOT_IN_REGISTRY.contains(&name));
    match in_registry {
        _ if first > 0 => format!(
            "{name} begins here with block {first}, and no genesis file holds the state of that block: a directory of this network cannot be made here"
        ),
        Some((chain, l1)) => format!(
            "genesis files are not built in: that of {name} is superchain/extra/genesis/{l1}/{chain}.json.zst in {REGISTRY}; \
             unpack it there with `zstd -d -D superchain/extra/dictionary superchain/extra/genesis/{l1}/{chain}.json.zst -o {name}.json`, \
             and run `starling init --datadir DIR --network {name} {name}.json`"
        ),
        None => format!(
            "genesis files are not built in: take that of {name} from the chain's operator, and run `starling init --datadir DIR --network {name} FILE`"
        ),
    }
}

/// The parts of a network's name: the chain and its L1.
fn parts(name: &str) -> Option<(&str, &str)> {
    let split = |l1: &'static str| Some((name.strip_suffix(l1)?.strip_suffix('-')?, l1));
    L1_NAMES.into_iter().find_map(split)
}

/// The name to suggest for an unknown one: the first name that begins with it and a dash. Otherwise
/// the nearest name in which chain and L1 each differ by a typing error or two. A name of another
/// chain is no suggestion: the registry has dropped chains, whose names are similar to others.
fn nearest(unknown: &str) -> Option<&'static str> {
    let unknown = unknown.to_lowercase();
    let start = format!("{unknown}-");
    if let Some(longer) = network::names().find(|name| name.starts_with(&start)) {
        return Some(longer);
    }
    let (chain, l1) = unknown.rsplit_once('-').unwrap_or((&unknown, ""));
    let distance = |name: &'static str| {
        let (other_chain, other_l1) = name.rsplit_once('-')?;
        let of_chain = strsim::damerau_levenshtein(chain, other_chain);
        let of_l1 = strsim::damerau_levenshtein(l1, other_l1);
        let alike = of_chain <= 1 + chain.len() / 6 && of_l1 <= 2;
        let whole = strsim::damerau_levenshtein(&unknown, name);
        (alike || whole <= 1).then_some((whole, name))
    };
    let nearest = network::names().filter_map(distance).min();
    nearest.map(|(_, name)| name)
}

/// The output of `starling networks list`: one name per line.
pub fn list() -> String {
    network::names().map(|name| format!("{name}\n")).collect()
}

/// The output of `starling networks dump-rollup-config`, in the given format.
pub fn dump(name: &str, format: RollupJsonFormat) -> Result<String, UnknownNetwork> {
    Ok(find(name)?.rollup.to_json_as(format) + "\n")
}
