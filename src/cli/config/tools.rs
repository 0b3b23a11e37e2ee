//! Configuration of the tools that look after a data directory, and of the history that is kept.

use super::{cache, chain_options, datadir, expand_home};
use crate::{
    chain::{Options, store::IndexWindow},
    cli::{CliError, parse::Values},
};
use std::path::PathBuf;

/// `starling import`.
#[derive(Clone, Debug)]
pub struct ImportConfig {
    pub chain: Options,
    /// At least one.
    pub files: Vec<PathBuf>,
    pub history: HistoryConfig,
}

/// `starling export`.
#[derive(Clone, Debug)]
pub struct ExportConfig {
    pub datadir: PathBuf,
    pub file: PathBuf,
    /// First and last block, both included; `None`: all.
    pub range: Option<(u64, u64)>,
    /// Bytes of the database's caches.
    pub cache: u64,
}

/// `starling db`.
#[derive(Clone, Debug)]
pub struct DbConfig {
    pub datadir: PathBuf,
    pub action: DbAction,
    /// Bytes of the database's caches.
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

/// Windows of the states that are kept, and of the logs and addresses that are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Blocks below the head whose states can be read; `None`: all.
    pub states: Option<u64>,
    /// Bytes of trie history, from which old blocks are proven; zero is no bound.
    pub proofs: u64,
    /// Whether the addresses and slots that blocks change are kept.
    pub names: bool,
    /// Blocks whose logs are indexed.
    pub logs: IndexWindow,
    /// Whether transactions are indexed by address.
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
    /// The operands: file, and perhaps first and last block.
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
