//! Configuration of the tools for data directories, and of how much history to keep.

use super::{cache, chain_options, datadir, expand_home};
use crate::{
    chain::{Options, store::IndexWindow},
    cli::{CliError, parse::Values},
};
use std::path::PathBuf;

/// Configuration of `starling import`.
#[derive(Clone, Debug)]
pub struct ImportConfig {
    pub chain: Options,
    /// Files to import, at least one.
    pub files: Vec<PathBuf>,
    pub history: HistoryConfig,
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
}

/// Configuration of `starling db`.
#[derive(Clone, Debug)]
pub struct DbConfig {
    pub datadir: PathBuf,
    pub action: DbAction,
    /// Size of the database's caches, in bytes.
    pub cache: u64,
    pub history: HistoryConfig,
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
