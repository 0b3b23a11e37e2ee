//! Configuration of the tools for data directories, and of how much history to keep.

use super::{cache, chain_options, datadir, expand_home, geth_log, rules};
use crate::{
    chain::{Options, store::IndexWindow},
    cli::{CliError, parse::Values},
    networks::RollupSource,
    telemetry::LogConfig,
};
use std::path::PathBuf;

/// Configuration of `starling init`.
#[derive(Clone, Debug)]
pub struct InitConfig {
    pub datadir: PathBuf,
    pub genesis: PathBuf,
    /// The chain that the genesis file must belong to, even if the file has no `config`.
    pub rollup: Option<RollupSource>,
    pub log: LogConfig,
}

/// Configuration of `starling import`.
#[derive(Clone, Debug)]
pub struct ImportConfig {
    pub chain: Options,
    /// Files to import, at least one.
    pub files: Vec<PathBuf>,
    pub history: HistoryConfig,
    pub log: LogConfig,
}

/// Configuration of `starling export`.
#[derive(Clone, Debug)]
pub struct ExportConfig {
    pub datadir: PathBuf,
    pub file: PathBuf,
    /// Numbers of the first and the last block to export; `None` for all blocks.
    pub range: Option<(u64, u64)>,
    /// Size of the database's caches, in bytes.
    pub cache: u64,
    pub log: LogConfig,
}

/// Configuration of `starling db`.
#[derive(Clone, Debug)]
pub struct DbConfig {
    pub datadir: PathBuf,
    pub action: DbAction,
    /// Size of the database's caches, in bytes.
    pub cache: u64,
    pub history: HistoryConfig,
    pub log: LogConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DbAction {
    Verify,
    Stats,
    Prune,
    Repair,
}

/// How much history to keep: states, proofs, and indexes of logs and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Number of blocks below the head whose states stay readable; `None` keeps all states.
    pub states: Option<u64>,
    /// Maximum bytes of the trie history for proofs at old blocks; zero means no limit.
    pub proofs: u64,
    /// Whether to keep the addresses and slots that blocks change (`--cache.preimages`).
    pub names: bool,
    /// Range of blocks whose logs are indexed.
    pub logs: IndexWindow,
    /// Whether to index transactions by address.
    pub addresses: bool,
}

impl InitConfig {
    /// `genesis` is the operand of the command.
    pub fn read(
        values: &Values,
        genesis: Option<PathBuf>,
        notices: &mut Vec<String>,
    ) -> Result<Self, CliError> {
        let network = rules::network(values, &["network"])?;
        let rollup = rules::rollup_source(values, network, notices)?;
        let genesis = genesis.ok_or_else(|| {
            let place = rollup.as_ref().and_then(RollupSource::where_genesis_is);
            let place = place.map(|place| format!("; {place}")).unwrap_or_default();
            CliError::Usage(format!(
                "need genesis.json file as the only argument{place}"
            ))
        })?;
        Ok(Self {
            datadir: datadir(values)?,
            genesis,
            rollup,
            log: geth_log(values)?,
        })
    }
}

impl ImportConfig {
    pub fn read(values: &Values, files: Vec<String>) -> Result<Self, CliError> {
        if files.is_empty() {
            return Err(CliError::Usage(
                "This command requires an argument: the files to import".into(),
            ));
        }
        let files = files.iter().map(|file| expand_home(file)).collect();
        Ok(Self {
            chain: chain_options(values)?,
            files,
            history: HistoryConfig::read(values)?,
            log: geth_log(values)?,
        })
    }
}

impl ExportConfig {
    /// Parses the operands: the file, then optionally the first and the last block.
    pub fn read(values: &Values, operands: &[String]) -> Result<Self, CliError> {
        let number = |text: &String| {
            let wrong = || {
                CliError::Usage(format!(
                    "Export error in parsing parameters: block number not an integer: {text}"
                ))
            };
            text.parse::<u64>().map_err(|_| wrong())
        };
        let (file, range) = match operands {
            [file] => (file, None),
            [file, first, last] => (file, Some((number(first)?, number(last)?))),
            [_, _] => {
                return Err(CliError::Usage(
                    "a range has a first and a last block: export FILE FIRST LAST".into(),
                ));
            }
            _ => {
                return Err(CliError::Usage(
                    "This command requires an argument: export FILE [FIRST LAST]".into(),
                ));
            }
        };
        Ok(Self {
            datadir: datadir(values)?,
            file: expand_home(file),
            range,
            cache: cache(values)?,
            log: geth_log(values)?,
        })
    }
}

impl DbConfig {
    pub fn read(values: &Values, action: Option<&str>) -> Result<Self, CliError> {
        let action = match action {
            Some("verify") => DbAction::Verify,
            Some("stats") => DbAction::Stats,
            Some("prune") => DbAction::Prune,
            Some("repair") => DbAction::Repair,
            _ => {
                return Err(CliError::Usage(
                    "db takes one of verify, stats, prune, repair".into(),
                ));
            }
        };
        Ok(Self {
            datadir: datadir(values)?,
            action,
            cache: cache(values)?,
            history: HistoryConfig::read(values)?,
            log: geth_log(values)?,
        })
    }
}

impl HistoryConfig {
    pub(super) fn read(values: &Values) -> Result<Self, CliError> {
        let archive = values.required_text("gcmode")? == "archive";
        let states = Some(values.uint("history.state")?).filter(|blocks| *blocks > 0 && !archive);
        Ok(Self {
            states,
            proofs: values.uint("proofs.max-size")?,
            names: values.bool("cache.preimages")?,
            logs: match values.uint("history.logs")? {
                _ if values.bool("history.logs.disable")? => IndexWindow::Off,
                0 => IndexWindow::All,
                blocks => IndexWindow::Blocks(blocks),
            },
            addresses: values.bool("index.addresses")?,
        })
    }
}
