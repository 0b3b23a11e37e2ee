//! L1 attributes: the first transaction of every L2 block, which describes the block's L1 origin
//! (specs: deposits, L1 attributes).
//!
//! The calldata has four formats, each with its own selector and length. [`L1BlockInfo::decode`]
//! reads the attributes of untrusted blocks. [`l1_info_tx`] builds the transaction in the format of
//! the block's fork.

use crate::{
    abi::{AbiError, Words},
    config::RollupGenesis,
    deposit::l1_info_source_hash,
    fork::{Fork, ForkSchedule},
    payload::{BlockId, Payload, decode_transaction},
    system_config::{FeeScalarError, SystemConfig},
};
use alloy_primitives::{Address, B256, Bytes, U256, address, hex};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use thiserror::Error;

/// Sender of L1 attributes and upgrade transactions: an address without a private key.
pub const DEPOSITOR: Address = address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001");
/// The predeploy that the L1 attributes transaction calls.
pub const L1_BLOCK: Address = address!("4200000000000000000000000000000000000015");
/// Gas limit of the L1 attributes transaction since Regolith.
const GAS: u64 = 1_000_000;
/// Gas limit of the L1 attributes transaction before Regolith; not counted against the block's
/// limit.
const GAS_BEFORE_REGOLITH: u64 = 150_000_000;
/// The data availability footprint's gas scalar if the system configuration sets none.
const DEFAULT_DA_FOOTPRINT_GAS_SCALAR: u16 = 400;

/// The layouts of the L1 attributes' calldata, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum L1InfoFormat {
    /// Eight ABI words.
    Bedrock,
    /// Packed fields, with the blob base fee.
    Ecotone,
    /// Ecotone's fields, and the operator fee.
    Isthmus,
    /// Isthmus's fields, and the data availability footprint.
    Jovian,
}

impl L1InfoFormat {
    const ALL: [Self; 4] = [Self::Bedrock, Self::Ecotone, Self::Isthmus, Self::Jovian];

    /// The first four bytes of the calldata.
    pub const fn selector(self) -> [u8; 4] {
        match self {
            Self::Bedrock => hex!("015d8eb9"),
            Self::Ecotone => hex!("440a5e20"),
            Self::Isthmus => hex!("098999be"),
            Self::Jovian => hex!("3db6be2b"),
        }
    }

    /// Length of the calldata in bytes, with the selector.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> usize {
        match self {
            Self::Bedrock => 4 + 8 * 32,
            Self::Ecotone => 164,
            Self::Isthmus => 176,
            Self::Jovian => 178,
        }
    }

    /// The format for a block at `l2_time` with a parent at `parent_l2_time`. The block that
    /// activates a fork still uses the format before the fork, because the new contract is only
    /// deployed later in the same block.
    pub fn at(forks: &ForkSchedule, l2_time: u64, parent_l2_time: u64) -> Self {
        let in_use = |fork| {
            forks.is_active(fork, l2_time) && !forks.activates(fork, parent_l2_time, l2_time)
        };
        if in_use(Fork::Jovian) {
            Self::Jovian
        } else if in_use(Fork::Isthmus) {
            Self::Isthmus
        } else if in_use(Fork::Ecotone) {
            Self::Ecotone
        } else {
            Self::Bedrock
        }
    }
}

/// L1 attributes: the data about an L1 block that L2 receives. Fields that the format lacks are
/// zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1BlockInfo {
    /// Layout of the calldata.
    pub format: L1InfoFormat,
    /// Number of the L1 block.
    pub number: u64,
    /// Timestamp of the L1 block, in Unix seconds.
    pub time: u64,
    /// Base fee of the L1 block, in wei.
    pub base_fee: U256,
    /// Hash of the L1 block.
    pub hash: B256,
    /// Distance of the L2 block from the first L2 block with the same L1 origin.
    pub sequence_number: u64,
    /// Address whose transactions to the batch inbox are read as batches.
    pub batcher_addr: Address,
    /// Overhead of the L1 fee in gas; Bedrock's format only.
    pub overhead: B256,
    /// Scalar of the L1 fee; Bedrock's format only.
    pub scalar: B256,
    /// Scalar of the L1 base fee, from Ecotone on.
    pub base_fee_scalar: u32,
    /// Scalar of the blob base fee, from Ecotone on.
    pub blob_base_fee_scalar: u32,
    /// Blob base fee of the L1 block in wei, from Ecotone on.
    pub blob_base_fee: U256,
    /// Scalar of the operator fee, from Isthmus on.
    pub operator_fee_scalar: u32,
    /// Operator fee per transaction in wei, from Isthmus on.
    pub operator_fee_constant: u64,
    /// Gas scalar of the data availability footprint, from Jovian on.
    pub da_footprint_gas_scalar: u16,
}

/// The reason why a block's L1 origin cannot be read from its first transaction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum L1InfoError {
    #[error("L1 attributes have the unknown selector {0}")]
    Selector(Bytes),
    #[error("L1 attributes of format {format:?} have {len} bytes")]
    Length { format: L1InfoFormat, len: usize },
    #[error("L1 attributes: {0}")]
    Abi(#[from] AbiError),
    #[error("batcher hash is not an address")]
    Batcher,
    #[error("block {0} has no transactions, so no L1 attributes")]
    Empty(BlockId),
    #[error("first transaction of block {0} is not an L1 attributes deposit")]
    NotAttributes(BlockId),
    #[error("block {got} at the height of genesis is not {expected}")]
    WrongGenesis { got: B256, expected: B256 },
}

impl L1BlockInfo {
    /// Decodes the calldata of L1 attributes, in the format of its selector. Fails unless the
    /// calldata has exactly the length of that format.
    pub fn decode(calldata: &[u8]) -> Result<Self, L1InfoError> {
        let format = calldata
            .first_chunk()
            .and_then(|selector| {
                L1InfoFormat::ALL
                    .into_iter()
                    .find(|format| format.selector() == *selector)
            })
            .ok_or_else(|| {
                L1InfoError::Selector(Bytes::copy_from_slice(&calldata[..calldata.len().min(4)]))
            })?;
        if calldata.len() != format.len() {
            return Err(L1InfoError::Length {
                format,
                len: calldata.len(),
            });
        }
        match format {
            L1InfoFormat::Bedrock => Self::decode_bedrock(&calldata[4..]),
            _ => Self::decode_packed(format, calldata),
        }
    }

    fn decode_bedrock(arguments: &[u8]) -> Result<Self, L1InfoError> {
        let words = Words(arguments);
        Ok(Self {
            number: words.u64(0)?,
            time: words.u64(1)?,
            base_fee: words.u256(2)?,
            hash: words.b256(3)?,
            sequence_number: words.u64(4)?,
            batcher_addr: words.address(5)?,
            overhead: words.b256(6)?,
            scalar: words.b256(7)?,
            ..Self::empty(L1InfoFormat::Bedrock)
        })
    }

    /// Decodes the formats since Ecotone: a packed layout to which later forks append fields. The
    /// caller has checked the length.
    fn decode_packed(format: L1InfoFormat, calldata: &[u8]) -> Result<Self, L1InfoError> {
        let mut rest = &calldata[4..];
        let mut info = Self::empty(format);
        info.base_fee_scalar = u32::from_be_bytes(take(&mut rest));
        info.blob_base_fee_scalar = u32::from_be_bytes(take(&mut rest));
        info.sequence_number = u64::from_be_bytes(take(&mut rest));
        info.time = u64::from_be_bytes(take(&mut rest));
        info.number = u64::from_be_bytes(take(&mut rest));
        info.base_fee = U256::from_be_bytes(take::<32>(&mut rest));
        info.blob_base_fee = U256::from_be_bytes(take::<32>(&mut rest));
        info.hash = B256::new(take(&mut rest));
        let batcher_hash = B256::new(take(&mut rest));
        info.batcher_addr = Address::from_word(batcher_hash);
        if info.batcher_addr.into_word() != batcher_hash {
            return Err(L1InfoError::Batcher);
        }
        if format >= L1InfoFormat::Isthmus {
            info.operator_fee_scalar = u32::from_be_bytes(take(&mut rest));
            info.operator_fee_constant = u64::from_be_bytes(take(&mut rest));
        }
        if format >= L1InfoFormat::Jovian {
            info.da_footprint_gas_scalar = u16::from_be_bytes(take(&mut rest));
        }
        Ok(info)
    }

    fn empty(format: L1InfoFormat) -> Self {
        Self {
            format,
            number: 0,
            time: 0,
            base_fee: U256::ZERO,
            hash: B256::ZERO,
            sequence_number: 0,
            batcher_addr: Address::ZERO,
            overhead: B256::ZERO,
            scalar: B256::ZERO,
            base_fee_scalar: 0,
            blob_base_fee_scalar: 0,
            blob_base_fee: U256::ZERO,
            operator_fee_scalar: 0,
            operator_fee_constant: 0,
            da_footprint_gas_scalar: 0,
        }
    }

    /// Encodes the calldata in the format of these attributes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.format.len());
        out.extend(self.format.selector());
        if self.format == L1InfoFormat::Bedrock {
            out.extend(U256::from(self.number).to_be_bytes::<32>());
            out.extend(U256::from(self.time).to_be_bytes::<32>());
            out.extend(self.base_fee.to_be_bytes::<32>());
            out.extend(self.hash);
            out.extend(U256::from(self.sequence_number).to_be_bytes::<32>());
            out.extend(self.batcher_addr.into_word());
            out.extend(self.overhead);
            out.extend(self.scalar);
            return out.into();
        }
        out.extend(self.base_fee_scalar.to_be_bytes());
        out.extend(self.blob_base_fee_scalar.to_be_bytes());
        out.extend(self.sequence_number.to_be_bytes());
        out.extend(self.time.to_be_bytes());
        out.extend(self.number.to_be_bytes());
        out.extend(self.base_fee.to_be_bytes::<32>());
        out.extend(self.blob_base_fee.to_be_bytes::<32>());
        out.extend(self.hash);
        out.extend(self.batcher_addr.into_word());
        if self.format >= L1InfoFormat::Isthmus {
            out.extend(self.operator_fee_scalar.to_be_bytes());
            out.extend(self.operator_fee_constant.to_be_bytes());
        }
        if self.format >= L1InfoFormat::Jovian {
            out.extend(self.da_footprint_gas_scalar.to_be_bytes());
        }
        out.into()
    }

    /// The L1 block that these attributes describe.
    pub fn origin(&self) -> BlockId {
        BlockId {
            hash: self.hash,
            number: self.number,
        }
    }

    /// Decodes the L1 attributes of a block from its first transaction.
    pub fn of(payload: &Payload) -> Result<Self, L1InfoError> {
        let first = payload
            .transactions
            .first()
            .ok_or(L1InfoError::Empty(payload.id()))?;
        match decode_transaction(first) {
            Ok(OpTxEnvelope::Deposit(deposit)) => Self::decode(&deposit.input),
            _ => Err(L1InfoError::NotAttributes(payload.id())),
        }
    }
}

/// Splits `N` bytes off the front. Returns zeros if there are too few, but all callers have checked
/// the length.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk() {
        Some((chunk, tail)) => {
            *rest = tail;
            *chunk
        }
        None => [0; N],
    }
}

/// The fields of an L1 block that the L1 attributes carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Origin {
    /// Hash of the L1 block.
    pub hash: B256,
    /// Number of the L1 block.
    pub number: u64,
    /// Timestamp of the L1 block, in Unix seconds.
    pub time: u64,
    /// Base fee of the L1 block, in wei.
    pub base_fee: u64,
    /// Blob base fee of the L1 block in wei, by the L1 chain's own blob schedule; 1 for a block
    /// without excess blob gas.
    pub blob_base_fee: u128,
}

/// Builds the L1 attributes transaction of the L2 block at `l2_time`, with a parent at
/// `parent_l2_time` (both in Unix seconds).
///
/// Fails if the fee scalar in the system configuration has an unknown form. The form only matters
/// from Ecotone on.
pub fn l1_info_tx(
    forks: &ForkSchedule,
    config: &SystemConfig,
    origin: &L1Origin,
    sequence_number: u64,
    l2_time: u64,
    parent_l2_time: u64,
) -> Result<TxDeposit, FeeScalarError> {
    let format = L1InfoFormat::at(forks, l2_time, parent_l2_time);
    let mut info = L1BlockInfo {
        number: origin.number,
        time: origin.time,
        base_fee: U256::from(origin.base_fee),
        hash: origin.hash,
        sequence_number,
        batcher_addr: config.batcher_addr,
        ..L1BlockInfo::empty(format)
    };
    if format == L1InfoFormat::Bedrock {
        info.overhead = config.overhead;
        info.scalar = config.scalar;
    } else {
        let scalars = config.fee_scalars()?;
        info.base_fee_scalar = scalars.base_fee;
        info.blob_base_fee_scalar = scalars.blob_base_fee;
        info.blob_base_fee = U256::from(origin.blob_base_fee);
    }
    if format >= L1InfoFormat::Isthmus {
        info.operator_fee_scalar = config.operator_fee_scalar;
        info.operator_fee_constant = config.operator_fee_constant;
    }
    if format >= L1InfoFormat::Jovian {
        info.da_footprint_gas_scalar = match config.da_footprint_gas_scalar {
            0 => DEFAULT_DA_FOOTPRINT_GAS_SCALAR,
            scalar => scalar,
        };
    }
    let regolith = forks.is_active(Fork::Regolith, l2_time);
    Ok(TxDeposit {
        source_hash: l1_info_source_hash(origin.hash, sequence_number),
        from: DEPOSITOR,
        to: L1_BLOCK.into(),
        mint: 0,
        value: U256::ZERO,
        gas_limit: if regolith { GAS } else { GAS_BEFORE_REGOLITH },
        is_system_transaction: !regolith,
        input: info.encode(),
    })
}

/// An L2 block and its L1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2BlockRef {
    /// Number and hash of the L2 block.
    pub id: BlockId,
    /// Hash of the parent block.
    pub parent_hash: B256,
    /// Timestamp of the L2 block, in Unix seconds.
    pub time: u64,
    /// The L1 block that the block's L1 attributes name.
    pub origin: BlockId,
    /// Distance of this L2 block from the first L2 block with the same L1 origin.
    pub sequence_number: u64,
}

impl L2BlockRef {
    /// The reference of `payload`. The genesis block has no L1 attributes: its origin is
    /// configured.
    pub fn of(payload: &Payload, genesis: &RollupGenesis) -> Result<Self, L1InfoError> {
        let (origin, sequence_number) = if payload.number() == genesis.l2.number {
            if payload.hash != genesis.l2.hash {
                return Err(L1InfoError::WrongGenesis {
                    got: payload.hash,
                    expected: genesis.l2.hash,
                });
            }
            (genesis.l1, 0)
        } else {
            let info = L1BlockInfo::of(payload)?;
            (info.origin(), info.sequence_number)
        };
        Ok(Self {
            id: payload.id(),
            parent_hash: payload.parent_hash(),
            time: payload.timestamp(),
            origin,
            sequence_number,
        })
    }
}

#[cfg(test)]
mod tests;
