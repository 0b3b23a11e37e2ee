//! Admission: checks of a transaction on its own and against its sender's account. The checks are
//! pure, and the texts of refusals are geth's (`core/txpool/validation.go`, `internal/ethapi`).

use super::{Admission, PoolConfig, PoolError, PoolTx, TxRules, blobs};
use crate::chain::{
    rules::TRANSFER_GAS,
    transaction::{BLOB_TYPE, ChainTx},
};
use alloy_consensus::{Transaction, Typed2718, transaction::Recovered};
use alloy_primitives::{Address, Bytes, U256, keccak256, uint};

/// Maximum bytes of one encoded transaction.
pub const MAX_SIZE: usize = 128 * 1024;
/// Maximum bytes of init code (EIP-3860).
const MAX_INIT_CODE: usize = 49_152;

const TYPE_EIP2930: u8 = 1;
const TYPE_EIP1559: u8 = 2;
const TYPE_EIP7702: u8 = 4;

/// Half the order of secp256k1, the highest valid `s` of a signature (EIP-2).
const HALF_ORDER: U256 =
    uint!(0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0_U256);
const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);

/// Decodes EIP-2718 bytes and recovers the sender. Only types that a wallet may send are accepted:
/// blob transactions, deposits and type 0x7D are refused.
pub fn decode(raw: Bytes) -> Result<PoolTx, PoolError> {
    // Check the type before the size: a blob transaction with its sidecar is refused for its type,
    // not as oversized.
    match raw.first() {
        // A first byte below 0x80 is a type (EIP-2718).
        Some(&t)
            if t >= 0x80
                || raw.len() > 1 && [TYPE_EIP2930, TYPE_EIP1559, TYPE_EIP7702].contains(&t) => {}
        Some(_) if raw.len() > 1 => return Err(PoolError::TypeNotSupported),
        _ => return Err(PoolError::Decode("typed transaction too short".into())),
    }
    // Check the size before any parsing, which takes time in proportion to it.
    check_size(&raw)?;
    let tx = ChainTx::decode(&raw)
        .map_err(|error| PoolError::Decode(malformed(&raw, &error.to_string())))?;
    let signer = tx.signer().map_err(|_| unsigned(&tx))?;
    Ok(PoolTx {
        tx: Recovered::new_unchecked(tx, signer),
        hash: keccak256(&raw),
        raw,
        sidecar: None,
        conditional: None,
    })
}

/// geth's error text for bytes that are not a transaction, if the shape of the RLP list determines
/// it; otherwise `ours`.
pub(super) fn malformed(raw: &[u8], ours: &str) -> String {
    let (kind, fields, list) = match raw {
        [TYPE_EIP2930, list @ ..] => ("AccessListTx", 11, list),
        [TYPE_EIP1559, list @ ..] => ("DynamicFeeTx", 12, list),
        [BLOB_TYPE, list @ ..] => ("BlobTx", 14, list),
        [TYPE_EIP7702, list @ ..] => ("SetCodeTx", 13, list),
        _ => ("LegacyTx", 9, raw),
    };
    let mut rest = list;
    match alloy_rlp::Header::decode(&mut rest) {
        Err(alloy_rlp::Error::InputTooShort) => {
            "rlp: value size exceeds available input length".to_owned()
        }
        Ok(header) if !header.list => format!("rlp: expected List for types.{kind}"),
        Ok(header) if header.payload_length < rest.len() => {
            "rlp: input contains more than one value".to_owned()
        }
        Ok(_) => match items(rest) {
            Some(count) if count < fields => format!("rlp: too few elements for types.{kind}"),
            Some(count) if count > fields => {
                format!("rlp: input list has too many elements for types.{kind}")
            }
            _ => format!("rlp: {ours}"),
        },
        Err(_) => format!("rlp: {ours}"),
    }
}

/// The number of items in the payload of an RLP list; `None` if the payload is damaged.
fn items(mut payload: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !payload.is_empty() {
        let header = alloy_rlp::Header::decode(&mut payload).ok()?;
        payload = payload.get(header.payload_length..)?;
        count += 1;
    }
    Some(count)
}

/// The error for a transaction from which no sender could be recovered.
pub(super) fn unsigned(tx: &ChainTx) -> PoolError {
    let valid = tx.signature().is_some_and(|signature| {
        let (r, s) = (signature.r(), signature.s());
        !r.is_zero() && r < ORDER && !s.is_zero() && s <= HALF_ORDER
    });
    PoolError::InvalidSender(if valid {
        "recovery failed"
    } else {
        "invalid transaction v, r, s values"
    })
}

/// Checks all rules for which no other transaction of the pool is needed. Checks in geth's order,
/// and returns the first violation.
pub(super) fn check(
    tx: &PoolTx,
    at: &Admission,
    rules: &TxRules,
    config: &PoolConfig,
    min_tip: u128,
) -> Result<(), PoolError> {
    let t = &tx.tx;
    let fee = U256::from(t.gas_limit()).saturating_mul(U256::from(t.max_fee_per_gas()));
    if !config.tx_fee_cap.is_zero() && fee > config.tx_fee_cap {
        return Err(PoolError::FeeCap {
            fee: ether(fee),
            cap: ether(config.tx_fee_cap),
        });
    }
    check_type(tx, rules, config)?;
    check_size(&tx.raw)?;
    check_gas_limit(tx, at, rules, config)?;
    let tip = tip_cap(tx);
    if tip > t.max_fee_per_gas() {
        return Err(PoolError::TipAboveFeeCap);
    }
    if let Some(have) = t.chain_id().filter(|have| *have != rules.chain_id) {
        return Err(PoolError::ChainId {
            have,
            want: rules.chain_id,
        });
    }
    if t.nonce() == u64::MAX {
        return Err(PoolError::NonceMax); // EIP-2681
    }
    check_gas_needed(tx, rules)?;
    if tip < min_tip {
        return Err(PoolError::TipTooLow {
            tip,
            minimum: min_tip,
        });
    }
    if t.ty() == TYPE_EIP7702 && t.authorization_list().is_none_or(<[_]>::is_empty) {
        return Err(PoolError::NoAuthorizations);
    }
    if t.nonce() < at.nonce {
        return Err(PoolError::NonceTooLow {
            next: at.nonce,
            nonce: t.nonce(),
        });
    }
    let cost = tx.cost().saturating_add(at.l1_cost);
    if cost > at.balance {
        return Err(PoolError::InsufficientFunds {
            balance: at.balance,
            cost,
        });
    }
    blobs::check_proofs(tx)
}

fn check_size(raw: &[u8]) -> Result<(), PoolError> {
    if raw.len() > MAX_SIZE {
        return Err(PoolError::Oversized {
            size: raw.len(),
            limit: MAX_SIZE,
        });
    }
    Ok(())
}

fn check_type(tx: &PoolTx, rules: &TxRules, config: &PoolConfig) -> Result<(), PoolError> {
    match tx.tx.ty() {
        0 if tx.tx.chain_id().is_none() && !config.allow_unprotected => Err(PoolError::Unprotected),
        0 | TYPE_EIP2930 | TYPE_EIP1559 => Ok(()),
        TYPE_EIP7702 if rules.prague => Ok(()),
        TYPE_EIP7702 => Err(PoolError::SetCodeTooEarly),
        BLOB_TYPE if rules.ethereum => blobs::check(tx, rules.blobs.as_ref()),
        _ => Err(PoolError::TypeNotSupported),
    }
}

/// Accounts for which a transaction would set code (EIP-7702). Recovering them costs as much as
/// recovering senders, so call [`check`] first.
pub(super) fn authorities(tx: &PoolTx) -> Vec<Address> {
    let list = tx.tx.authorization_list().unwrap_or_default();
    list.iter()
        .filter_map(|authorization| authorization.recover_authority().ok())
        .collect()
}

/// Checks the upper bounds of the gas limit and of the init code.
fn check_gas_limit(
    tx: &PoolTx,
    at: &Admission,
    rules: &TxRules,
    config: &PoolConfig,
) -> Result<(), PoolError> {
    let (t, gas) = (&tx.tx, tx.tx.gas_limit());
    if rules.init_code_limit && t.is_create() && t.input().len() > MAX_INIT_CODE {
        return Err(PoolError::InitCode {
            size: t.input().len(),
            limit: MAX_INIT_CODE,
        });
    }
    if let Some(cap) = rules
        .gas_cap
        .into_iter()
        .chain(config.max_gas)
        .min()
        .filter(|cap| gas > *cap)
    {
        return Err(PoolError::GasCap { cap, gas });
    }
    if gas > at.block_gas_limit.saturating_sub(rules.reserved_gas) {
        return Err(PoolError::ExceedsBlockGas);
    }
    Ok(())
}

/// Checks the lower bounds of the gas limit.
fn check_gas_needed(tx: &PoolTx, rules: &TxRules) -> Result<(), PoolError> {
    let (t, gas) = (&tx.tx, tx.tx.gas_limit());
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

/// Intrinsic gas of a transaction. The size is bounded by [`MAX_SIZE`], so nothing here overflows.
fn intrinsic_gas(tx: &PoolTx, shanghai: bool) -> u64 {
    let t = &tx.tx;
    let (zeros, others) = count_zeros(t.input());
    let mut gas = TRANSFER_GAS + 4 * zeros + 16 * others;
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

/// Minimum gas by calldata: ten gas per calldata token (EIP-7623).
fn floor_gas(input: &[u8]) -> u64 {
    let (zeros, others) = count_zeros(input);
    TRANSFER_GAS + 10 * (zeros + 4 * others)
}

fn count_zeros(input: &[u8]) -> (u64, u64) {
    let zeros = input.iter().filter(|b| **b == 0).count() as u64;
    (zeros, input.len() as u64 - zeros)
}

/// The tip cap. For a legacy transaction this is its whole gas price.
pub(super) fn tip_cap(tx: &PoolTx) -> u128 {
    tx.tx
        .max_priority_fee_per_gas()
        .unwrap_or_else(|| tx.tx.max_fee_per_gas())
}

/// Formats wei as ether with two decimals, as geth prints it.
fn ether(wei: U256) -> String {
    let cents =
        (wei + U256::from(5_000_000_000_000_000u64)) / U256::from(10_000_000_000_000_000u64);
    format!(
        "{}.{:02}",
        cents / U256::from(100),
        (cents % U256::from(100)).to::<u64>()
    )
}
