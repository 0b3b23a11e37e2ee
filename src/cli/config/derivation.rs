//! Options for deriving the safe chain from L1: `--verifier.*`, `--finality.*`, `--safedb.path`.

use super::{CliError, Values, expand_home};
use crate::rollup::{driver::DriverConfig, finality};
use std::path::PathBuf;

/// Options for deriving the safe chain and recording safe heads.
#[derive(Clone, Debug)]
pub struct DerivationOptions {
    pub driver: DriverConfig,
    /// Folder for the safe head database. With `None`, safe heads are in the data directory and not
    /// served.
    pub safe_db: Option<PathBuf>,
    /// Whether to read the message passer's storage root from the state even if the header contains
    /// it.
    pub withdrawal_root_from_state: bool,
}

impl DerivationOptions {
    pub(super) fn read(values: &Values) -> Result<Self, CliError> {
        let or_default = |given: u64, default: u64| if given == 0 { default } else { given };
        let lookback = or_default(values.uint("finality.lookback")?, finality::LOOKBACK as u64);
        Ok(Self {
            driver: DriverConfig {
                l1_confs: values.uint("verifier.l1-confs")?,
                finality_lookback: usize::try_from(lookback).unwrap_or(usize::MAX),
                finality_delay: or_default(values.uint("finality.delay")?, finality::DELAY),
            },
            safe_db: values.text("safedb.path")?.map(|path| expand_home(&path)),
            withdrawal_root_from_state: values.bool("fetch-withdrawal-root-from-state")?,
        })
    }
}
