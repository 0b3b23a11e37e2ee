//! The file of `--rpc.limits`, in TOML.
//!
//! ```toml
//! [costs]
//! default = 1
//! eth_call = 10
//! "debug_*" = 100
//!
//! [address]                    # of each address, over all keys
//! per-second = 1000
//! burst = 5000
//!
//! [anonymous]                  # without this table a key is required
//! namespaces = ["eth", "net", "web3"]
//!
//! [[key]]
//! name = "indexer"
//! key = "…"                    # or sha256 = "…", the hash of the key in hex
//! namespaces = ["eth", "net", "web3", "debug"]
//! methods = ["trace_block"]
//! per-second = 500
//! burst = 2000
//! ```
//!
//! Operators write this file by hand, so every error names the key or the member that is wrong.

use super::{ADDRESSES, Access, CallerRules, CallerUsage, Costs, MAX_KEY};
use crate::rpc::cost_gate::{Budget, CostBucket};
use lru::LruCache;
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

/// Name of callers without a key in the response of `starling_rpcUsage`.
const ANONYMOUS: &str = "anonymous";
/// Shortest key, in characters: 16 from a password generator cannot be guessed.
const MIN_KEY: usize = 16;
/// Largest file, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// The reason why the file of `--rpc.limits` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is larger than 16 MiB", .0.display())]
    Large(PathBuf),
    #[error("it is no TOML of this form: {0}")]
    Toml(#[from] toml::de::Error),
    #[error("key {name}: {problem}")]
    Key { name: String, problem: String },
    #[error("{table}: {problem}")]
    Table {
        table: &'static str,
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    #[serde(default)]
    costs: BTreeMap<String, u64>,
    address: Option<AddressTable>,
    anonymous: Option<CallerTable>,
    #[serde(default, rename = "key")]
    keys: Vec<KeyTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AddressTable {
    per_second: u64,
    burst: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CallerTable {
    namespaces: Option<BTreeSet<String>>,
    #[serde(default)]
    methods: BTreeSet<String>,
    per_second: Option<u64>,
    burst: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct KeyTable {
    name: String,
    key: Option<String>,
    sha256: Option<String>,
    namespaces: Option<BTreeSet<String>>,
    #[serde(default)]
    methods: BTreeSet<String>,
    per_second: Option<u64>,
    burst: Option<u64>,
}

impl KeyTable {
    /// The key's SHA-256, computed from `key` or given as `sha256`.
    fn hash(&self) -> Result<[u8; 32], String> {
        match (&self.key, &self.sha256) {
            (Some(key), None) if (MIN_KEY..=MAX_KEY).contains(&key.len()) => {
                Ok(Sha256::digest(key).into())
            }
            (Some(_), None) => Err(format!("it has not {MIN_KEY} to {MAX_KEY} characters")),
            (None, Some(hash)) => alloy_primitives::hex::decode_to_array(hash)
                .map_err(|error| format!("sha256 is not 32 bytes in hex: {error}")),
            _ => Err("give either key or sha256".to_owned()),
        }
    }
}

/// A budget from its settings. `burst` defaults to ten seconds of `rate`, or to `highest` (the cost
/// of the most expensive method) if that is more. Fails if some method could never pass.
fn budget(rate: u64, burst: Option<u64>, highest: u64) -> Result<Budget, String> {
    let burst = burst.unwrap_or(rate.saturating_mul(10).max(highest));
    if rate == 0 {
        return Err("per-second is 0: nothing would ever pass".to_owned());
    }
    if burst < highest {
        return Err(format!(
            "burst is {burst}, and a call of {highest} would never pass"
        ));
    }
    Ok(Budget { rate, burst })
}

impl Costs {
    fn read(named: BTreeMap<String, u64>) -> Self {
        let mut costs = Self {
            methods: HashMap::new(),
            namespaces: HashMap::new(),
            default: 1,
        };
        for (name, cost) in named {
            match name.strip_suffix("_*") {
                Some(namespace) => drop(costs.namespaces.insert(namespace.to_owned(), cost)),
                None if name == "default" => costs.default = cost,
                None => drop(costs.methods.insert(name, cost)),
            }
        }
        costs
    }
}

impl Access {
    /// Reads the file of `--rpc.limits`.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let unreadable = |source| AccessError::Read {
            path: path.to_owned(),
            source,
        };
        if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE {
            return Err(AccessError::Large(path.to_owned()));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Parses the text of the file of `--rpc.limits`.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let file: LimitsFile = toml::from_str(text)?;
        let costs = Costs::read(file.costs);
        let highest = costs.highest();
        let mut access = Self {
            rules: Vec::with_capacity(file.keys.len() + 1),
            by_hash: HashMap::new(),
            anonymous: None,
            costs,
            address: None,
            addresses: Mutex::new(LruCache::new(ADDRESSES)),
        };
        if let Some(AddressTable { per_second, burst }) = file.address {
            let budget = budget(per_second, burst, highest);
            access.address = Some(budget.map_err(|problem| AccessError::Table {
                table: "address",
                problem,
            })?);
        }
        for key in file.keys {
            access.add_key(key, highest)?;
        }
        if let Some(table) = file.anonymous {
            access.anonymous = Some(access.rules.len());
            let rules = rules(ANONYMOUS.to_owned(), table, highest);
            access
                .rules
                .push(rules.map_err(|problem| AccessError::Table {
                    table: ANONYMOUS,
                    problem,
                })?);
        }
        Ok(access)
    }

    fn add_key(&mut self, key: KeyTable, highest: u64) -> Result<(), AccessError> {
        let hash = key.hash();
        let name = key.name;
        let failed = |problem: String| AccessError::Key {
            name: name.clone(),
            problem,
        };
        if name == ANONYMOUS || self.rules.iter().any(|rules| rules.name == name) {
            return Err(failed("another has this name".to_owned()));
        }
        let hash = hash.map_err(&failed)?;
        if self.by_hash.insert(hash, self.rules.len()).is_some() {
            return Err(failed("another has the same key".to_owned()));
        }
        let table = CallerTable {
            namespaces: key.namespaces,
            methods: key.methods,
            per_second: key.per_second,
            burst: key.burst,
        };
        let rules = rules(name.clone(), table, highest).map_err(failed)?;
        self.rules.push(rules);
        Ok(())
    }
}

fn rules(name: String, table: CallerTable, highest: u64) -> Result<CallerRules, String> {
    let budget = match (table.per_second, table.burst) {
        (Some(rate), burst) => Some(budget(rate, burst, highest)?),
        (None, Some(_)) => return Err("burst is given without per-second".to_owned()),
        (None, None) => None,
    };
    Ok(CallerRules {
        name,
        namespaces: table.namespaces,
        methods: table.methods,
        budget,
        bucket: Mutex::new(CostBucket::default()),
        usage: CallerUsage::default(),
    })
}
