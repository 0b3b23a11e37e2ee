//! The forks by block number of an Ethereum chain that starts before the merge.

use super::{GenesisError, fields::GenesisFields};
use crate::chain::{
    rows::{Overlay, RowChange, keys},
    rules::{BeforeMerge, ChainSpec, NumberedFork},
};
use alloy_consensus::Header;
use alloy_primitives::U256;

/// The field of `config` that sets the first block of a fork.
fn member(fork: NumberedFork) -> &'static str {
    match fork {
        NumberedFork::Homestead => "homesteadBlock",
        NumberedFork::TangerineWhistle => "eip150Block",
        NumberedFork::SpuriousDragon => "eip158Block",
        NumberedFork::Byzantium => "byzantiumBlock",
        NumberedFork::Constantinople => "constantinopleBlock",
        NumberedFork::Petersburg => "petersburgBlock",
        NumberedFork::Istanbul => "istanbulBlock",
        NumberedFork::MuirGlacier => "muirGlacierBlock",
        NumberedFork::Berlin => "berlinBlock",
        NumberedFork::London => "londonBlock",
        NumberedFork::ArrowGlacier => "arrowGlacierBlock",
        NumberedFork::GrayGlacier => "grayGlacierBlock",
    }
}

/// Whether a fork only delays the difficulty bomb, so that a chain may leave it out.
fn is_optional(fork: NumberedFork) -> bool {
    use NumberedFork::{ArrowGlacier, GrayGlacier, MuirGlacier};
    matches!(fork, MuirGlacier | ArrowGlacier | GrayGlacier)
}

/// Parses the rules before the merge; `None` if the chain is past the merge from genesis on.
pub(super) fn read(config: &GenesisFields<'_>) -> Result<Option<Box<BeforeMerge>>, GenesisError> {
    let total = config.u256("terminalTotalDifficulty")?;
    let Some(terminal_total_difficulty) = total else {
        let problem = "is missing: a chain that never merges is not supported";
        return Err(config.error("terminalTotalDifficulty", problem));
    };
    let mut first_blocks = [None; NumberedFork::ALL.len()];
    let mut earlier = Some(0);
    for (first, fork) in first_blocks.iter_mut().zip(NumberedFork::ALL) {
        *first = config.u64(member(fork))?;
        if fork == NumberedFork::Petersburg && first.is_none() {
            // As in geth, Petersburg starts with Constantinople if `config` sets no block for it.
            *first = earlier;
        }
        if first.is_none() && is_optional(fork) {
            continue;
        }
        if *first < earlier {
            return Err(config.error(member(fork), "is missing, or before an earlier fork"));
        }
        earlier = *first;
    }
    check(config, &first_blocks, terminal_total_difficulty)?;
    let merged = terminal_total_difficulty.is_zero();
    Ok((!merged).then(|| {
        Box::new(BeforeMerge {
            first_blocks,
            terminal_total_difficulty,
        })
    }))
}

fn check(
    config: &GenesisFields<'_>,
    first_blocks: &[Option<u64>],
    terminal_total_difficulty: U256,
) -> Result<(), GenesisError> {
    let first = |fork| first_blocks[fork as usize];
    if terminal_total_difficulty.is_zero() && first(NumberedFork::London) != Some(0) {
        let problem = "is not 0, but terminalTotalDifficulty is: the chain would be past the merge from genesis on";
        return Err(config.error("londonBlock", problem));
    }
    if first(NumberedFork::London).is_none() {
        let problem = "is missing: blocks after the merge have a base fee";
        return Err(config.error("londonBlock", problem));
    }
    if first(NumberedFork::Homestead) != Some(0) {
        let problem = "is not 0: Frontier is not supported";
        return Err(config.error("homesteadBlock", problem));
    }
    if config.u64("eip155Block")? != first(NumberedFork::SpuriousDragon) {
        let problem = "differs from eip158Block: they are one fork here";
        return Err(config.error("eip155Block", problem));
    }
    if config
        .get("daoForkSupport")
        .is_some_and(|support| support.as_bool() == Some(true))
    {
        let problem = "is true: the DAO fork is not supported";
        return Err(config.error("daoForkSupport", problem));
    }
    Ok(())
}

/// Adds the total difficulty row to the state of a genesis block before the merge.
pub(super) fn add_total_difficulty(
    file: &GenesisFields<'_>,
    spec: &ChainSpec,
    header: &Header,
    overlay: &mut Overlay,
) -> Result<(), GenesisError> {
    if spec.before_merge().is_none() {
        return Ok(());
    }
    if spec.at(header.timestamp).shanghai || header.difficulty.is_zero() {
        let problem = "is 0, or shanghaiTime is at genesis, but the chain begins before the merge";
        return Err(file.error("difficulty", problem));
    }
    let row = RowChange {
        before: None,
        after: Some(header.difficulty.to_be_bytes_trimmed_vec().into()),
    };
    overlay.rows.insert(keys::total_difficulty(), row);
    Ok(())
}
