//! Chooses calldata or blobs for data on L1, whichever costs less per byte
//! (`--data-availability-type auto`). Pure.

use crate::txmgr::fees::{INTRINSIC_GAS, TxClass};
use alloy_primitives::U256;
use starling_proto::blob::{BLOB_BYTES, MAX_BLOB_DATA};

/// Gas per byte of calldata: a nonzero byte counts as four tokens at 10 gas each (EIP-7623).
const GAS_PER_BYTE: u64 = 4 * 10;
/// Blob gas of one blob: one unit per byte (EIP-4844).
const GAS_PER_BLOB: u64 = BLOB_BYTES as u64;

/// L1 gas prices, in wei per unit of gas or blob gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPrices {
    /// Priority fee of a transaction without blobs.
    pub tip: u128,
    pub base_fee: u128,
    pub blob_base_fee: u128,
}

/// Sizes of the calldata transaction and the blob transaction that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSizes {
    /// Bytes of calldata in the calldata transaction, version byte included.
    pub calldata: u64,
    /// Number of blobs in the blob transaction, all of them full.
    pub blobs: u64,
}

/// Returns the class that costs less per byte, or blobs if both classes cost the same.
pub fn cheaper(prices: DataPrices, sizes: DataSizes) -> TxClass {
    let gas_price = U256::from(prices.base_fee) + U256::from(prices.tip);
    let calldata_gas = INTRINSIC_GAS + GAS_PER_BYTE * sizes.calldata;
    let calldata_cost = U256::from(calldata_gas) * gas_price;
    let blob_gas = U256::from(sizes.blobs * GAS_PER_BLOB);
    let blob_cost =
        blob_gas * U256::from(prices.blob_base_fee) + U256::from(INTRINSIC_GAS) * gas_price;
    let blob_bytes = U256::from(sizes.blobs * MAX_BLOB_DATA as u64);
    // Compares the costs per byte by cross-multiplication, which avoids a division.
    if blob_cost * U256::from(sizes.calldata) > calldata_cost * blob_bytes {
        TxClass::Calldata
    } else {
        TxClass::Blob
    }
}

#[cfg(test)]
mod tests;
