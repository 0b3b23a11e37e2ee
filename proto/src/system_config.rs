//! SystemConfig: the parameters that L1 sets for L2 (specs: system-config), and their form in
//! rollup.json.
//!
//! `config_update.rs` reads these parameters from the logs of L1 blocks and from L2 blocks.

use alloy_primitives::{Address, B64, B256, U256};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The parameters in the SystemConfig contract at some L1 block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SystemConfigJson", into = "SystemConfigJson")]
pub struct SystemConfig {
    /// Address whose transactions to the batch inbox are read as batches.
    pub batcher_addr: Address,
    /// Bedrock fee overhead; zero from Ecotone on.
    pub overhead: B256,
    /// Bedrock fee scalar. From Ecotone on the packed base fee and blob base fee scalars, after a
    /// version byte.
    pub scalar: B256,
    /// Gas limit of L2 blocks.
    pub gas_limit: u64,
    /// EIP-1559 denominator and elasticity, used from Holocene on; (0, 0) stands for the chain's
    /// constants.
    pub eip1559: Eip1559Params,
    /// Scalar of the operator fee, from Isthmus on.
    pub operator_fee_scalar: u32,
    /// Constant part of the operator fee, from Isthmus on.
    pub operator_fee_constant: u64,
    /// Minimum base fee in wei, from Jovian on.
    pub min_base_fee: u64,
    /// Gas scalar of the data availability footprint, from Jovian on; 0 stands for 400.
    pub da_footprint_gas_scalar: u16,
}

impl SystemConfig {
    /// The scalars of the L1 fee since Ecotone. A Bedrock scalar that was set before Ecotone and
    /// does not fit 32 bits counts as the largest one that fits.
    pub fn fee_scalars(&self) -> Result<FeeScalars, FeeScalarError> {
        match FeeScalars::decode(self.scalar) {
            Err(FeeScalarError::Wide(_)) => Ok(FeeScalars {
                base_fee: u32::MAX,
                blob_base_fee: 0,
            }),
            decoded => decoded,
        }
    }
}

/// EIP-1559 parameters, in the order of their encoding: denominator, then elasticity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eip1559Params {
    /// Denominator of a change of the base fee.
    pub denominator: u32,
    /// Gas limit divided by gas target.
    pub elasticity: u32,
}

impl Eip1559Params {
    /// Encodes the parameters in eight bytes: denominator ‖ elasticity, as in payload attributes.
    pub fn encode(self) -> B64 {
        (u64::from(self.denominator) << 32 | u64::from(self.elasticity))
            .to_be_bytes()
            .into()
    }

    /// Decodes the eight bytes of [`encode`](Self::encode).
    pub fn decode(bytes: B64) -> Self {
        let both = u64::from_be_bytes(bytes.0);
        Self {
            denominator: (both >> 32) as u32,
            elasticity: both as u32,
        }
    }
}

/// `genesis.system_config` in rollup.json. The fields of later forks are optional.
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

/// Decodes the operator fee: the scalar is in bytes 20..24, the constant in bytes 24..32. Other
/// bytes are ignored.
pub(crate) fn decode_operator_fee(word: B256) -> (u32, u64) {
    let low = U256::from_be_bytes(word.0).wrapping_to::<u128>();
    ((low >> 64) as u32, low as u64)
}

/// The two scalars of the L1 fee since Ecotone, packed in [`SystemConfig::scalar`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeeScalars {
    /// Scalar of the L1 base fee.
    pub base_fee: u32,
    /// Scalar of the L1 blob base fee.
    pub blob_base_fee: u32,
}

/// A fee scalar whose form Ecotone does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum FeeScalarError {
    #[error("fee scalar {0} of version 0 does not fit 32 bits")]
    Wide(B256),
    #[error("fee scalar {0} of version 1 has bytes set that must be zero")]
    Padding(B256),
    #[error("fee scalar {0} has an unknown version")]
    Version(B256),
}

impl FeeScalars {
    /// Decodes the packed word: version 0 is the Bedrock scalar, version 1 has both scalars. This
    /// is the rule for an update, which has no effect unless its word decodes.
    /// [`SystemConfig::fee_scalars`] is the rule for a word that the configuration already has.
    pub fn decode(scalar: B256) -> Result<Self, FeeScalarError> {
        let word = |at: usize| {
            u32::from_be_bytes([scalar[at], scalar[at + 1], scalar[at + 2], scalar[at + 3]])
        };
        match scalar[0] {
            0 if scalar[1..28].iter().any(|byte| *byte != 0) => Err(FeeScalarError::Wide(scalar)),
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

    /// Encodes both scalars in version 1.
    pub fn encode(self) -> B256 {
        let mut scalar = B256::ZERO;
        scalar[0] = 1;
        scalar[24..28].copy_from_slice(&self.blob_base_fee.to_be_bytes());
        scalar[28..].copy_from_slice(&self.base_fee.to_be_bytes());
        scalar
    }
}
