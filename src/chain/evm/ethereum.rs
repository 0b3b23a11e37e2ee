//! The EVM of Ethereum chains, at every fork.

use super::{Db, EvmUse, for_simulation};
use crate::chain::{
    evm::{deadline::interruptible, watch::Watcher},
    rules::{ChainSpec, NumberedFork},
};
use alloy_evm::{EthEvm, EthEvmFactory, Evm, EvmEnv, EvmFactory, precompiles::PrecompilesMap};
use revm::{
    context::{BlockEnv, CfgEnv},
    primitives::hardfork::SpecId,
};

pub(super) fn evm(
    spec: &ChainSpec,
    block: BlockEnv,
    db: Db,
    purpose: EvmUse,
) -> EthEvm<Db, Watcher, PrecompilesMap> {
    let timestamp = block.timestamp.saturating_to();
    let mut cfg = CfgEnv::new_with_spec(spec_id_of(spec, &block)).with_chain_id(spec.chain_id);
    if purpose == EvmUse::Simulation {
        for_simulation(&mut cfg);
    }
    if let Some(params) = spec.blob_params(timestamp) {
        cfg.set_max_blobs_per_tx(params.max_blobs_per_tx);
    }
    let env = EvmEnv::new(cfg, block);
    let mut evm = EthEvmFactory::default().create_evm_with_inspector(db, env, Watcher::default());
    evm.set_inspector_enabled(false);
    if purpose != EvmUse::Block {
        let mut inner = evm.into_inner();
        interruptible(&mut inner.instruction);
        evm = EthEvm::new(inner, false);
    }
    evm
}

/// The EVM specification of a block: by number before the merge, by time after it. A block without
/// randomness is before the merge.
fn spec_id_of(spec: &ChainSpec, block: &BlockEnv) -> SpecId {
    match spec.before_merge().filter(|_| block.prevrandao.is_none()) {
        Some(rules) => match rules.fork_at(block.number.saturating_to()) {
            None => SpecId::FRONTIER,
            Some(NumberedFork::Homestead) => SpecId::HOMESTEAD,
            Some(NumberedFork::TangerineWhistle) => SpecId::TANGERINE,
            Some(NumberedFork::SpuriousDragon) => SpecId::SPURIOUS_DRAGON,
            Some(NumberedFork::Byzantium) => SpecId::BYZANTIUM,
            Some(NumberedFork::Constantinople) => SpecId::CONSTANTINOPLE,
            Some(NumberedFork::Petersburg) => SpecId::PETERSBURG,
            Some(NumberedFork::Istanbul) => SpecId::ISTANBUL,
            Some(NumberedFork::MuirGlacier) => SpecId::MUIR_GLACIER,
            Some(NumberedFork::Berlin) => SpecId::BERLIN,
            Some(NumberedFork::London) => SpecId::LONDON,
            Some(NumberedFork::ArrowGlacier) => SpecId::ARROW_GLACIER,
            Some(NumberedFork::GrayGlacier) => SpecId::GRAY_GLACIER,
        },
        None => spec_id(spec, block.timestamp.saturating_to()),
    }
}

/// The EVM specification of a block after the merge.
pub(super) fn spec_id(spec: &ChainSpec, timestamp: u64) -> SpecId {
    let active = spec.at(timestamp);
    if active.osaka {
        SpecId::OSAKA
    } else if active.prague {
        SpecId::PRAGUE
    } else if active.cancun {
        SpecId::CANCUN
    } else if active.shanghai {
        SpecId::SHANGHAI
    } else {
        SpecId::MERGE
    }
}
