//! Admission: what is wrong with a transaction by itself and against its sender's account. Pure; the texts of refusals are geth's
//! (`core/txpool/validation.go`, `internal/ethapi`).

use super::{Admission, PoolConfig, PoolError, PoolTx, TxRules};
use alloy_consensus::{
    Transaction, Typed2718,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Bytes, U256, keccak256};
use op_alloy_consensus::OpTxEnvelope;

/// Bytes of one encoded transaction.
pub const MAX_SIZE: usize = 128 * 1024;
/// EIP-3860, bytes.
const MAX_INIT_CODE: usize = 49_152;

const TYPE_EIP2930: u8 = 1;
const TYPE_EIP1559: u8 = 2;
const TYPE_EIP7702: u8 = 4;

/// Decodes EIP-2718 bytes and recovers the sender. Only types a wallet may send: blobs, deposits and 0x7D are refused.
pub fn decode(raw: Bytes) -> Result<PoolTx, PoolError> {
    // Before any parsing: the limit bounds the work below.
    if raw.len() > MAX_SIZE {
        return Err(PoolError::Oversized { size: raw.len(), limit: MAX_SIZE });
    }
    match raw.first() {
        None => return Err(PoolError::Decode("typed transaction too short".into())),
        // Below 0xc0 the first byte is a type (EIP-2718); 0x80 and up in that range cannot begin a list.
        Some(&t) if t < 0x80 && ![TYPE_EIP2930, TYPE_EIP1559, TYPE_EIP7702].contains(&t) => {
            return Err(PoolError::TypeNotSupported);
        }
        Some(_) => {}
    }
    let tx = OpTxEnvelope::decode_2718_exact(&raw).map_err(|e| PoolError::Decode(format!("rlp: {e}")))?;
    let signer = tx.recover_signer().map_err(|_| PoolError::InvalidSender)?;
    Ok(PoolTx { tx: Recovered::new_unchecked(tx, signer), hash: keccak256(&raw), raw })
}

/// Every rule that needs no other transaction of the pool.
pub(super) fn check(tx: &PoolTx, at: &Admission, rules: &TxRules, config: &PoolConfig) -> Result<(), PoolError> {
    let t = &tx.tx;
    if tx.raw.len() > MAX_SIZE {
        return Err(PoolError::Oversized { size: tx.raw.len(), limit: MAX_SIZE });
    }
    if !matches!(t.ty(), 0 | TYPE_EIP2930 | TYPE_EIP1559 | TYPE_EIP7702) || (t.ty() == TYPE_EIP7702 && !rules.prague) {
        return Err(PoolError::TypeNotSupported);
    }
    match t.chain_id() {
        None if !config.allow_unprotected => return Err(PoolError::Unprotected),
        Some(have) if have != rules.chain_id => return Err(PoolError::ChainId { have, want: rules.chain_id }),
        _ => {}
    }
    check_fees(tx, config)?;
    check_gas(tx, at, rules)?;
    if t.nonce() == u64::MAX {
        return Err(PoolError::NonceMax); // EIP-2681
    }
    if t.nonce() < at.nonce {
        return Err(PoolError::NonceTooLow { next: at.nonce, nonce: t.nonce() });
    }
    let cost = tx.cost().saturating_add(at.l1_cost);
    if cost > at.balance {
        return Err(PoolError::InsufficientFunds { balance: at.balance, cost });
    }
    Ok(())
}

fn check_fees(tx: &PoolTx, config: &PoolConfig) -> Result<(), PoolError> {
    let t = &tx.tx;
    let (cap, tip) = (t.max_fee_per_gas(), tip_cap(tx));
    if tip > cap {
        return Err(PoolError::TipAboveFeeCap);
    }
    let fee = U256::from(t.gas_limit()).saturating_mul(U256::from(cap));
    if !config.tx_fee_cap.is_zero() && fee > config.tx_fee_cap {
        return Err(PoolError::FeeCap { fee: ether(fee), cap: ether(config.tx_fee_cap) });
    }
    if tip < config.min_tip {
        return Err(PoolError::TipTooLow { tip, minimum: config.min_tip });
    }
    Ok(())
}

fn check_gas(tx: &PoolTx, at: &Admission, rules: &TxRules) -> Result<(), PoolError> {
    let t = &tx.tx;
    let gas = t.gas_limit();
    if rules.init_code_limit && t.is_create() && t.input().len() > MAX_INIT_CODE {
        return Err(PoolError::InitCode { size: t.input().len(), limit: MAX_INIT_CODE });
    }
    if gas > at.block_gas_limit.saturating_sub(rules.reserved_gas) {
        return Err(PoolError::ExceedsBlockGas);
    }
    if let Some(cap) = rules.gas_cap
        && gas > cap
    {
        return Err(PoolError::GasCap { cap, gas });
    }
    let authorizations = t.authorization_list().map_or(0, <[_]>::len);
    if t.ty() == TYPE_EIP7702 && authorizations == 0 {
        return Err(PoolError::NoAuthorizations);
    }
    let minimum = intrinsic_gas(tx, rules.init_code_limit);
    if gas < minimum {
        return Err(PoolError::IntrinsicGas { gas, minimum });
    }
    let minimum = floor_gas(t.input());
    if rules.prague && gas < minimum {
        return Err(PoolError::FloorGas { gas, minimum });
    }
    Ok(())
}

/// What a transaction costs before its first opcode. Sizes are bounded by [`MAX_SIZE`], so nothing here overflows.
fn intrinsic_gas(tx: &PoolTx, shanghai: bool) -> u64 {
    let t = &tx.tx;
    let (zeros, others) = count_zeros(t.input());
    let mut gas = 21_000 + 4 * zeros + 16 * others;
    if t.is_create() {
        gas += 32_000;
        if shanghai {
            gas += 2 * (t.input().len() as u64).div_ceil(32); // EIP-3860
        }
    }
    if let Some(list) = t.access_list() {
        gas += 2_400 * list.len() as u64 + 1_900 * list.storage_keys_count() as u64; // EIP-2930
    }
    gas + 25_000 * t.authorization_list().map_or(0, <[_]>::len) as u64 // EIP-7702
}

/// EIP-7623: ten gas per calldata token.
fn floor_gas(input: &[u8]) -> u64 {
    let (zeros, others) = count_zeros(input);
    21_000 + 10 * (zeros + 4 * others)
}

fn count_zeros(input: &[u8]) -> (u64, u64) {
    let zeros = input.iter().filter(|b| **b == 0).count() as u64;
    (zeros, input.len() as u64 - zeros)
}

/// The tip cap; a legacy transaction offers its whole gas price.
pub(super) fn tip_cap(tx: &PoolTx) -> u128 {
    tx.tx.max_priority_fee_per_gas().unwrap_or_else(|| tx.tx.max_fee_per_gas())
}

/// Wei as ether with two decimals, as geth prints it.
fn ether(wei: U256) -> String {
    let cents = (wei + U256::from(5_000_000_000_000_000u64)) / U256::from(10_000_000_000_000_000u64);
    format!("{}.{:02}", cents / U256::from(100), (cents % U256::from(100)).to::<u64>())
}
