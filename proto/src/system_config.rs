//! SystemConfig: the parameters that L1 sets for L2, and the log that changes them (specs: system-config).
//!
//! Three sources, one type: rollup.json, the `ConfigUpdate` logs of L1 blocks, and an L2 block, whose header and L1 attributes
//! repeat the parameters it was built with.

use crate::{
    abi::{AbiError, Words},
    config::RollupConfig,
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoError, L1InfoFormat},
    payload::Payload,
};
use alloy_primitives::{Address, B64, B256, Log, U256, b256};
use op_alloy_consensus::{EIP1559ParamError, decode_holocene_extra_data, decode_jovian_extra_data};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// `keccak("ConfigUpdate(uint256,uint8,bytes)")`.
pub const CONFIG_UPDATE_EVENT: B256 =
    b256!("1d2b0bda21d56b8bd12d4f94ebacffdfb35f5e226f84b461103bb8beab6353be");

/// Gas of the Karst upgrade transactions, added to the gas limit of the block that activates Karst.
pub const KARST_UPGRADE_GAS: u64 = 55_370_657;

/// What the SystemConfig contract on L1 says at some L1 block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SystemConfigJson", into = "SystemConfigJson")]
pub struct SystemConfig {
    pub batcher_addr: Address,
    /// Bedrock fee overhead; zero from Ecotone on.
    pub overhead: B256,
    /// Bedrock fee scalar, or from Ecotone the packed base and blob fee scalars (version byte first).
    pub scalar: B256,
    pub gas_limit: u64,
    /// Denominator and elasticity; (0, 0) means the chain's constants. Meaningful from Holocene.
    pub eip1559: Eip1559Params,
    /// Isthmus.
    pub operator_fee_scalar: u32,
    /// Isthmus.
    pub operator_fee_constant: u64,
    /// Jovian, wei.
    pub min_base_fee: u64,
    /// Jovian; 0 means 400.
    pub da_footprint_gas_scalar: u16,
}

/// EIP-1559 parameters as the wire orders them: denominator, then elasticity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eip1559Params {
    pub denominator: u32,
    pub elasticity: u32,
}

impl Eip1559Params {
    /// Eight bytes: denominator ‖ elasticity, as in payload attributes.
    pub fn encode(self) -> B64 {
        (u64::from(self.denominator) << 32 | u64::from(self.elasticity))
            .to_be_bytes()
            .into()
    }

    pub fn decode(bytes: B64) -> Self {
        let both = u64::from_be_bytes(bytes.0);
        Self {
            denominator: (both >> 32) as u32,
            elasticity: both as u32,
        }
    }
}

/// `genesis.system_config` of rollup.json. The fields of later forks may be missing.
#[derive(Serialize, Deserialize)]
struct SystemConfigJson {
    #[serde(rename = "batcherAddr", alias = "batcherAddress")]
    batcher_addr: Address,
    overhead: B256,
    scalar: B256,
    #[serde(rename = "gasLimit")]
    gas_limit: u64,
    #[serde(rename = "eip1559Params", default)]
    eip1559_params: B64,
    #[serde(rename = "operatorFeeParams", default)]
    operator_fee_params: B256,
    #[serde(rename = "minBaseFee", default)]
    min_base_fee: u64,
    #[serde(rename = "daFootprintGasScalar", default)]
    da_footprint_gas_scalar: u16,
}

impl From<SystemConfigJson> for SystemConfig {
    fn from(json: SystemConfigJson) -> Self {
        let (operator_fee_scalar, operator_fee_constant) =
            decode_operator_fee(json.operator_fee_params);
        Self {
            batcher_addr: json.batcher_addr,
            overhead: json.overhead,
            scalar: json.scalar,
            gas_limit: json.gas_limit,
            eip1559: Eip1559Params::decode(json.eip1559_params),
            operator_fee_scalar,
            operator_fee_constant,
            min_base_fee: json.min_base_fee,
            da_footprint_gas_scalar: json.da_footprint_gas_scalar,
        }
    }
}

impl From<SystemConfig> for SystemConfigJson {
    fn from(config: SystemConfig) -> Self {
        let operator_fee =
            u128::from(config.operator_fee_scalar) << 64 | u128::from(config.operator_fee_constant);
        Self {
            batcher_addr: config.batcher_addr,
            overhead: config.overhead,
            scalar: config.scalar,
            gas_limit: config.gas_limit,
            eip1559_params: config.eip1559.encode(),
            operator_fee_params: U256::from(operator_fee).into(),
            min_base_fee: config.min_base_fee,
            da_footprint_gas_scalar: config.da_footprint_gas_scalar,
        }
    }
}

/// Scalar in bytes 20..24, constant in bytes 24..32; the rest is not looked at.
fn decode_operator_fee(word: B256) -> (u32, u64) {
    let low = U256::from_be_bytes(word.0).wrapping_to::<u128>();
    ((low >> 64) as u32, low as u64)
}

/// The two scalars of the L1 fee since Ecotone, packed in [`SystemConfig::scalar`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeeScalars {
    pub base_fee: u32,
    pub blob_base_fee: u32,
}

/// A fee scalar that no rule of Ecotone explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FeeScalarError {
    #[error("fee scalar {0} of version 1 has bytes set that must be zero")]
    Padding(B256),
    #[error("fee scalar {0} has an unknown version")]
    Version(B256),
}

impl FeeScalars {
    /// Version 0 is the Bedrock scalar, saturated at 32 bits; version 1 holds both.
    pub fn decode(scalar: B256) -> Result<Self, FeeScalarError> {
        let word = |at: usize| {
            u32::from_be_bytes([scalar[at], scalar[at + 1], scalar[at + 2], scalar[at + 3]])
        };
        match scalar[0] {
            0 if scalar[1..28].iter().any(|byte| *byte != 0) => Ok(Self {
                base_fee: u32::MAX,
                blob_base_fee: 0,
            }),
            0 => Ok(Self {
                base_fee: word(28),
                blob_base_fee: 0,
            }),
            1 if scalar[1..24].iter().any(|byte| *byte != 0) => {
                Err(FeeScalarError::Padding(scalar))
            }
            1 => Ok(Self {
                base_fee: word(28),
                blob_base_fee: word(24),
            }),
            _ => Err(FeeScalarError::Version(scalar)),
        }
    }

    /// As version 1.
    pub fn encode(self) -> B256 {
        let mut scalar = B256::ZERO;
        scalar[0] = 1;
        scalar[24..28].copy_from_slice(&self.blob_base_fee.to_be_bytes());
        scalar[28..].copy_from_slice(&self.base_fee.to_be_bytes());
        scalar
    }
}

/// A `ConfigUpdate` log that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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

/// Why a block does not tell the configuration it was built with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
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
    /// Applies the configuration logs of an L1 block at `l1_time`. Takes for each receipt whether it succeeded and its logs. A bad
    /// log changes nothing and does not stop the ones after it; its error is returned for the operator.
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

    /// Applies one `ConfigUpdate` log, or leaves everything as it was. `ecotone` says whether Ecotone is active at the time of the
    /// log's L1 block.
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
            // The signer of unsafe blocks is no input of derivation: the node reads it from the contract.
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

    /// The configuration that this block was built with. For genesis it is the configured one.
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
        // The upgrade's gas belongs to its block alone, except on chains that activated Karst before this rule was found.
        let parent_time = time.saturating_sub(rollup.block_time);
        if rollup.forks.activates(Fork::Karst, parent_time, time) && !rollup.keep_karst_upgrade_gas
        {
            config.gas_limit = config.gas_limit.saturating_sub(KARST_UPGRADE_GAS);
        }
        Ok(config)
    }
}

/// The word of the first value, after offset and length.
const VALUE: usize = 2;

fn one_word(data: &[u8]) -> Result<Words<'_>, ConfigUpdateError> {
    values(data, 1)
}

/// ABI `bytes` that hold exactly `count` words, and nothing after them.
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
