//! The precompiles of each fork: their names, and the limit of the pairing precompile from Karst
//! on.

use super::{ethereum::spec_id, op_spec_id};
use crate::chain::rules::ChainSpec;
use alloy_evm::precompiles::{DynPrecompile, PrecompileInput, PrecompilesMap};
use alloy_primitives::Address;
use op_revm::precompiles::OpPrecompiles;
use revm::precompile::{
    PrecompileHalt, PrecompileId, PrecompileSpecId, Precompiles, bn254, call_eth_precompile,
};
use std::collections::BTreeMap;

/// Longest input in bytes of the pairing precompile from Karst on: 300 pairs (specs: karst
/// exec-engine).
const KARST_PAIRING_LIMIT: usize = 57_600;

/// The precompiles of a block at `timestamp`, by their names in EIP-7910.
pub fn precompiles(spec: &ChainSpec, timestamp: u64) -> BTreeMap<String, Address> {
    let precompiles = match spec.at(timestamp).op {
        Some(fork) => OpPrecompiles::new_with_spec(op_spec_id(fork)).precompiles(),
        None => {
            let spec = PrecompileSpecId::from_spec_id(spec_id(spec, timestamp));
            Precompiles::new(spec)
        }
    };
    let named = precompiles.inner().values();
    named
        .map(|precompile| (precompile.id().name().to_owned(), *precompile.address()))
        .collect()
}

/// Sets Karst's limit on the pairing precompile: op-revm's Karst still has Jovian's limit.
pub(super) fn limit_pairing(precompiles: &mut PrecompilesMap) {
    precompiles.apply_precompile(&bn254::pair::ADDRESS, |_| {
        Some(DynPrecompile::new(
            PrecompileId::Bn254Pairing,
            |input: PrecompileInput<'_>| {
                let pair = |data: &[u8], gas| match data.len() {
                    length if length > KARST_PAIRING_LIMIT => Err(PrecompileHalt::Bn254PairLength),
                    _ => bn254::run_pair(
                        data,
                        bn254::pair::ISTANBUL_PAIR_PER_POINT,
                        bn254::pair::ISTANBUL_PAIR_BASE,
                        gas,
                    ),
                };
                Ok(call_eth_precompile(
                    pair,
                    input.data,
                    input.gas,
                    input.reservoir,
                ))
            },
        ))
    });
}
