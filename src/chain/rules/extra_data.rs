//! The extra data of an OP header: EIP-1559 parameters from Holocene on, with a minimum base fee
//! from Jovian on.

use super::{Active, BaseFeeParams, ChainSpec};
use alloy_primitives::{B64, Bytes};
use starling_proto::{fork::Fork, system_config::Eip1559Params};

/// The decoded extra data of an OP header from Holocene on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraData {
    /// EIP-1559 parameters. Each fits 32 bits and is not zero.
    pub params: BaseFeeParams,
    /// Minimum base fee in wei; zero before Jovian.
    pub min_base_fee: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtraDataError {
    #[error("extra data is {0}, must be empty before Holocene")]
    NotEmpty(Bytes),
    #[error("extra data has {have} bytes, want {want}")]
    Length { have: usize, want: usize },
    #[error("extra data has version {have}, want {want}")]
    Version { have: u8, want: u8 },
    #[error("the EIP-1559 denominator in the extra data is zero")]
    ZeroDenominator,
    #[error("the EIP-1559 elasticity in the extra data is zero")]
    ZeroElasticity,
    #[error("the EIP-1559 parameter {0} does not fit the extra data")]
    TooLarge(u64),
}

impl ExtraData {
    /// Decodes extra data in the form of the active fork: `0 ‖ denominator ‖ elasticity` in
    /// Holocene, `1 ‖ denominator ‖ elasticity ‖ minimum base fee` from Jovian on. Zero parameters
    /// are rejected, since no base fee can be computed from them.
    pub fn decode(bytes: &Bytes, active: &Active) -> Result<Self, ExtraDataError> {
        let (version, want) = if active.is_op(Fork::Jovian) {
            (1, 17)
        } else {
            (0, 9)
        };
        if bytes.len() != want {
            return Err(ExtraDataError::Length {
                have: bytes.len(),
                want,
            });
        }
        if bytes[0] != version {
            return Err(ExtraDataError::Version {
                have: bytes[0],
                want: version,
            });
        }
        let (params, minimum) = bytes[1..].split_at(8);
        let params = Eip1559Params::decode(B64::from_slice(params));
        if params.denominator == 0 {
            return Err(ExtraDataError::ZeroDenominator);
        }
        if params.elasticity == 0 {
            return Err(ExtraDataError::ZeroElasticity);
        }
        let params = BaseFeeParams {
            denominator: params.denominator.into(),
            elasticity: params.elasticity.into(),
        };
        Ok(Self {
            params,
            min_base_fee: minimum.try_into().map(u64::from_be_bytes).unwrap_or(0),
        })
    }

    /// The extra data of a block at `timestamp` whose attributes have these parameters. If both
    /// parameters are zero, the chain's constants are encoded instead. Empty before Holocene.
    pub fn encode(
        spec: &ChainSpec,
        timestamp: u64,
        attributes: Eip1559Params,
        min_base_fee: u64,
    ) -> Result<Bytes, ExtraDataError> {
        let active = spec.at(timestamp);
        if !active.is_op(Fork::Holocene) {
            return Ok(Bytes::new());
        }
        let params = match attributes {
            Eip1559Params {
                denominator: 0,
                elasticity: 0,
            } => {
                let constants = spec.base_fee_constants(timestamp);
                let fit =
                    |value: u64| u32::try_from(value).map_err(|_| ExtraDataError::TooLarge(value));
                Eip1559Params {
                    denominator: fit(constants.denominator)?,
                    elasticity: fit(constants.elasticity)?,
                }
            }
            Eip1559Params { denominator: 0, .. } => return Err(ExtraDataError::ZeroDenominator),
            Eip1559Params { elasticity: 0, .. } => return Err(ExtraDataError::ZeroElasticity),
            given => given,
        };
        let jovian = active.is_op(Fork::Jovian);
        let mut bytes = vec![u8::from(jovian)];
        bytes.extend_from_slice(params.encode().as_slice());
        if jovian {
            bytes.extend_from_slice(&min_base_fee.to_be_bytes());
        }
        Ok(bytes.into())
    }
}
