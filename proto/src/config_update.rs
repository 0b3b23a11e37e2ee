//! Sources of the system configuration. L1 blocks have `ConfigUpdate` logs. L2 blocks repeat the
//! parameters that they were built with, in their header and L1 attributes.

use crate::{
    abi::{AbiError, Words},
    config::RollupConfig,
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoError, L1InfoFormat},
    payload::Payload,
    system_config::{Eip1559Params, FeeScalarError, FeeScalars, SystemConfig, decode_operator_fee},
};
use alloy_primitives::{B64, B256, Log, U256, b256};
use op_alloy_consensus::{EIP1559ParamError, decode_holocene_extra_data, decode_jovian_extra_data};
use thiserror::Error;

/// `keccak("ConfigUpdate(uint256,uint8,bytes)")`.
pub const CONFIG_UPDATE_EVENT: B256 =
    b256!("1d2b0bda21d56b8bd12d4f94ebacffdfb35f5e226f84b461103bb8beab6353be");

/// Gas of the Karst upgrade transactions, added to the gas limit of the block that activates Karst.
pub const KARST_UPGRADE_GAS: u64 = 55_370_657;

/// The reason why a `ConfigUpdate` log has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ConfigUpdateError {
    #[error("config update has {0} topics, not 3")]
    Topics(usize),
    #[error("config update has an unknown event signature")]
    Event,
    #[error("config update has an unknown version {0}")]
    Version(B256),
    #[error("config update has an unknown type {0}")]
    Type(B256),
    #[error("config update: {0}")]
    Abi(#[from] AbiError),
    #[error("config update begins at {0}, not at 32")]
    Offset(U256),
    #[error("config update claims {claimed} bytes, its type has {expected}")]
    Length { claimed: U256, expected: usize },
    #[error("config update has {0} bytes after its values")]
    Trailing(usize),
    #[error("config update sets only one of denominator and elasticity to zero")]
    Eip1559(Eip1559Params),
    #[error(transparent)]
    FeeScalar(#[from] FeeScalarError),
}

/// The reason why the system configuration cannot be read from an L2 block.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SystemConfigError {
    #[error(transparent)]
    L1Info(#[from] L1InfoError),
    #[error("block at the height of genesis is {got}, not {expected}")]
    WrongGenesis { got: B256, expected: B256 },
    #[error("extra data of block {block}: {cause}")]
    ExtraData {
        block: B256,
        cause: EIP1559ParamError,
    },
}

impl SystemConfig {
    /// Applies the configuration logs of an L1 block at `l1_time`. Each item of `receipts` is
    /// whether the receipt succeeded, and its logs. A malformed log has no effect, and later logs
    /// are still applied. Its error is returned, to be logged for the operator.
    pub fn apply_receipts<'a>(
        &mut self,
        receipts: impl IntoIterator<Item = (bool, &'a [Log])>,
        rollup: &RollupConfig,
        l1_time: u64,
    ) -> Vec<ConfigUpdateError> {
        let ecotone = rollup.forks.is_active(Fork::Ecotone, l1_time);
        receipts
            .into_iter()
            .filter(|(success, _)| *success)
            .flat_map(|(_, logs)| logs)
            .filter(|log| log.address == rollup.l1_system_config_address)
            .filter(|log| log.topics().first() == Some(&CONFIG_UPDATE_EVENT))
            .filter_map(|log| self.apply_log(log, ecotone).err())
            .collect()
    }

    /// Applies one `ConfigUpdate` log; on an error nothing changes. `ecotone` is whether Ecotone is
    /// active at the time of the log's L1 block.
    pub fn apply_log(&mut self, log: &Log, ecotone: bool) -> Result<(), ConfigUpdateError> {
        let &[event, version, update_type] = log.topics() else {
            return Err(ConfigUpdateError::Topics(log.topics().len()));
        };
        if event != CONFIG_UPDATE_EVENT {
            return Err(ConfigUpdateError::Event);
        }
        if !version.is_zero() {
            return Err(ConfigUpdateError::Version(version));
        }
        let data = &log.data.data;
        let kind = u8::try_from(U256::from_be_bytes(update_type.0))
            .map_err(|_| ConfigUpdateError::Type(update_type))?;
        match kind {
            0 => self.batcher_addr = one_word(data)?.address(VALUE)?,
            1 => self.apply_fee_scalars(data, ecotone)?,
            2 => self.gas_limit = one_word(data)?.u64(VALUE)?,
            // Derivation does not depend on the signer of unsafe blocks: the node reads the signer
            // from the contract.
            3 => {}
            4 => {
                let word = one_word(data)?.b256(VALUE)?;
                let params = Eip1559Params::decode(B64::from_slice(&word[24..]));
                if (params.denominator == 0) != (params.elasticity == 0) {
                    return Err(ConfigUpdateError::Eip1559(params));
                }
                self.eip1559 = params;
            }
            5 => {
                let word = one_word(data)?.b256(VALUE)?;
                (self.operator_fee_scalar, self.operator_fee_constant) = decode_operator_fee(word);
            }
            6 => self.min_base_fee = one_word(data)?.u64(VALUE)?,
            7 => self.da_footprint_gas_scalar = one_word(data)?.u16(VALUE)?,
            _ => return Err(ConfigUpdateError::Type(update_type)),
        }
        Ok(())
    }

    fn apply_fee_scalars(&mut self, data: &[u8], ecotone: bool) -> Result<(), ConfigUpdateError> {
        let words = values(data, 2)?;
        let (overhead, scalar) = (words.b256(VALUE)?, words.b256(VALUE + 1)?);
        if ecotone {
            FeeScalars::decode(scalar)?;
            self.overhead = B256::ZERO;
        } else {
            self.overhead = overhead;
        }
        self.scalar = scalar;
        Ok(())
    }

    /// The system configuration that this block was built with; for genesis the configured one.
    pub fn of(payload: &Payload, rollup: &RollupConfig) -> Result<Self, SystemConfigError> {
        let genesis = &rollup.genesis;
        if payload.number() == genesis.l2.number {
            if payload.hash != genesis.l2.hash {
                return Err(SystemConfigError::WrongGenesis {
                    got: payload.hash,
                    expected: genesis.l2.hash,
                });
            }
            return Ok(genesis.system_config.clone());
        }
        let info = L1BlockInfo::of(payload)?;
        let mut config = Self {
            batcher_addr: info.batcher_addr,
            overhead: info.overhead,
            scalar: info.scalar,
            gas_limit: payload.header.gas_limit,
            operator_fee_scalar: info.operator_fee_scalar,
            operator_fee_constant: info.operator_fee_constant,
            da_footprint_gas_scalar: info.da_footprint_gas_scalar,
            ..Self::default()
        };
        if info.format >= L1InfoFormat::Ecotone {
            let scalars = FeeScalars {
                base_fee: info.base_fee_scalar,
                blob_base_fee: info.blob_base_fee_scalar,
            };
            config.scalar = scalars.encode();
        }
        let (time, extra) = (payload.timestamp(), &payload.header.extra_data);
        let bad = |cause| SystemConfigError::ExtraData {
            block: payload.hash,
            cause,
        };
        if rollup.forks.is_active(Fork::Jovian, time) {
            let (elasticity, denominator, min_base_fee) =
                decode_jovian_extra_data(extra).map_err(bad)?;
            config.eip1559 = Eip1559Params {
                denominator,
                elasticity,
            };
            config.min_base_fee = min_base_fee;
        } else if rollup.forks.is_active(Fork::Holocene, time) {
            let (elasticity, denominator) = decode_holocene_extra_data(extra).map_err(bad)?;
            config.eip1559 = Eip1559Params {
                denominator,
                elasticity,
            };
        }
        // The upgrade's gas belongs only to the block that activates Karst, except on chains that
        // activated Karst before this rule existed.
        let parent_time = time.saturating_sub(rollup.block_time);
        if rollup.forks.activates(Fork::Karst, parent_time, time) && !rollup.keep_karst_upgrade_gas
        {
            config.gas_limit = config.gas_limit.saturating_sub(KARST_UPGRADE_GAS);
        }
        Ok(config)
    }
}

/// Index of the first value's word, after offset and length.
const VALUE: usize = 2;

fn one_word(data: &[u8]) -> Result<Words<'_>, ConfigUpdateError> {
    values(data, 1)
}

/// Reads ABI `bytes` that consist of exactly `count` words, with nothing after them.
fn values(data: &[u8], count: usize) -> Result<Words<'_>, ConfigUpdateError> {
    let words = Words(data);
    let (offset, claimed, expected) = (words.u256(0)?, words.u256(1)?, count * 32);
    if offset != U256::from(32) {
        return Err(ConfigUpdateError::Offset(offset));
    }
    if claimed != U256::from(expected) {
        return Err(ConfigUpdateError::Length { claimed, expected });
    }
    words.b256(VALUE + count - 1)?;
    match data.len() - 64 - expected {
        0 => Ok(words),
        trailing => Err(ConfigUpdateError::Trailing(trailing)),
    }
}

#[cfg(test)]
mod tests;
