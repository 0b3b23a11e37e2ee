//! Deposits: transactions that L1 forces into L2 (specs: deposits).
//!
//! The deposit contract emits one log per user deposit. A malformed log is an error that stops
//! derivation; it is never skipped. The logs come from an L1 node, so their bytes are checked
//! before anything is sliced.

use crate::abi::{AbiError, Words};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, TxKind, U256, b256};
use op_alloy_consensus::{L1InfoDepositSource, TxDeposit, UpgradeDepositSource, UserDepositSource};
use thiserror::Error;

/// `keccak("TransactionDeposited(address,address,uint256,bytes)")`.
pub const DEPOSIT_EVENT: B256 =
    b256!("b3813568d9991fc951961fcb4c784893574240a28925604d09fc577c55bb7c32");

/// Transaction type byte of a deposit (specs: deposits, deposited transaction type).
pub const DEPOSIT_TX_TYPE: u8 = 0x7e;

/// Bytes of the fixed part of a deposit's opaque data: mint, value, gas and the creation byte.
const MIN_OPAQUE_LEN: usize = 32 + 32 + 8 + 1;

/// The reason why a log of the deposit contract is not a valid deposit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum DepositError {
    #[error("deposit log has {0} topics, not 4")]
    Topics(usize),
    #[error("deposit log has an unknown event signature")]
    Event,
    #[error("deposit log has an unknown version {0}")]
    Version(B256),
    #[error("deposit log data: {0}")]
    Abi(#[from] AbiError),
    #[error("deposit log data of {0} bytes are not whole words")]
    Unaligned(usize),
    #[error("deposit log data begin at {0}, not at 32")]
    Offset(U256),
    #[error("deposit log claims {claimed} bytes in a field of {field}")]
    Length { claimed: U256, field: usize },
    #[error("deposit of {0} bytes is too short")]
    Short(usize),
    #[error("deposit mints more than 128 bits of wei")]
    Mint,
}

/// A malformed deposit log and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("log {log_index} of L1 block {l1_block_hash}: {cause}")]
pub struct BlockDepositError {
    /// L1 block of the log.
    pub l1_block_hash: B256,
    /// Index of the log in its block.
    pub log_index: u64,
    /// Fault of the log.
    pub cause: DepositError,
}

/// The source hash of a user's deposit (source domain 0). `log_index` counts all logs of the L1
/// block.
pub fn user_source_hash(l1_block_hash: B256, log_index: u64) -> B256 {
    UserDepositSource::new(l1_block_hash, log_index).source_hash()
}

/// The source hash of a block's L1 attributes (source domain 1).
pub fn l1_info_source_hash(l1_block_hash: B256, sequence_number: u64) -> B256 {
    L1InfoDepositSource::new(l1_block_hash, sequence_number).source_hash()
}

/// The source hash of a network upgrade's transaction (source domain 2).
pub fn upgrade_source_hash(intent: &str) -> B256 {
    UpgradeDepositSource::new(intent.to_owned()).source_hash()
}

/// Whether this log is a deposit of the deposit contract.
fn is_deposit(log: &Log, contract: Address) -> bool {
    log.address == contract && log.topics().first() == Some(&DEPOSIT_EVENT)
}

/// The deposits of an L1 block, in the order of their logs. Each item of `receipts` is whether the
/// receipt succeeded, and its logs. Logs of failed receipts only count for the log index.
pub fn deposits_of_block<'a>(
    receipts: impl IntoIterator<Item = (bool, &'a [Log])>,
    contract: Address,
    l1_block_hash: B256,
) -> Result<Vec<TxDeposit>, BlockDepositError> {
    receipts
        .into_iter()
        .flat_map(|(success, logs)| logs.iter().map(move |log| (success, log)))
        .zip(0..)
        .filter(|((success, log), _)| *success && is_deposit(log, contract))
        .map(|((_, log), log_index)| {
            deposit_from_log(log, l1_block_hash, log_index).map_err(|cause| BlockDepositError {
                l1_block_hash,
                log_index,
                cause,
            })
        })
        .collect()
}

/// Decodes a deposit log to its transaction. The log's address is not checked.
pub fn deposit_from_log(
    log: &Log,
    l1_block_hash: B256,
    log_index: u64,
) -> Result<TxDeposit, DepositError> {
    let &[event, from, to, version] = log.topics() else {
        return Err(DepositError::Topics(log.topics().len()));
    };
    if event != DEPOSIT_EVENT {
        return Err(DepositError::Event);
    }
    if !version.is_zero() {
        return Err(DepositError::Version(version));
    }
    let opaque = opaque_data(&log.data.data)?;
    if opaque.len() < MIN_OPAQUE_LEN {
        return Err(DepositError::Short(opaque.len()));
    }
    let (mint, value) = (
        U256::from_be_slice(&opaque[..32]),
        U256::from_be_slice(&opaque[32..64]),
    );
    let (gas, is_creation) = (&opaque[64..72], opaque[72] != 0);
    Ok(TxDeposit {
        source_hash: user_source_hash(l1_block_hash, log_index),
        from: Address::from_word(from),
        to: if is_creation {
            TxKind::Create
        } else {
            TxKind::Call(Address::from_word(to))
        },
        mint: mint.try_into().map_err(|_| DepositError::Mint)?,
        value,
        gas_limit: gas.iter().fold(0, |gas, byte| gas << 8 | u64::from(*byte)),
        is_system_transaction: false,
        input: Bytes::copy_from_slice(&opaque[MIN_OPAQUE_LEN..]),
    })
}

/// Extracts the single `bytes` value of a deposit log. The data must be exactly offset, length,
/// content and padding to a whole word.
fn opaque_data(data: &[u8]) -> Result<&[u8], DepositError> {
    let words = Words(data);
    let (offset, claimed) = (words.u256(0)?, words.u256(1)?);
    if !data.len().is_multiple_of(32) {
        return Err(DepositError::Unaligned(data.len()));
    }
    if offset != U256::from(32) {
        return Err(DepositError::Offset(offset));
    }
    let content = &data[64..];
    let length = usize::try_from(claimed)
        .ok()
        .filter(|len| *len <= content.len() && content.len() - len < 32);
    let length = length.ok_or(DepositError::Length {
        claimed,
        field: content.len(),
    })?;
    Ok(&content[..length])
}

/// The log that the deposit contract would emit for this deposit: the reverse of
/// [`deposit_from_log`]. A log does not contain the source hash.
pub fn deposit_to_log(contract: Address, deposit: &TxDeposit) -> Log {
    let (to, is_creation) = match deposit.to {
        TxKind::Call(to) => (to, 0),
        TxKind::Create => (Address::ZERO, 1),
    };
    let opaque = [
        B256::from(U256::from(deposit.mint)).as_slice(),
        B256::from(deposit.value).as_slice(),
        &deposit.gas_limit.to_be_bytes(),
        &[is_creation],
        &deposit.input,
    ]
    .concat();
    let mut data = [
        B256::from(U256::from(32)),
        B256::from(U256::from(opaque.len())),
    ]
    .concat();
    data.extend_from_slice(&opaque);
    data.resize(data.len().next_multiple_of(32), 0);
    let topics = vec![
        DEPOSIT_EVENT,
        deposit.from.into_word(),
        to.into_word(),
        B256::ZERO,
    ];
    Log {
        address: contract,
        data: LogData::new_unchecked(topics, data.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;
    use proptest::prelude::*;

    const CONTRACT: Address = Address::repeat_byte(0xcc);
    const L1_HASH: B256 = B256::repeat_byte(0x11);

    fn deposit() -> TxDeposit {
        TxDeposit {
            source_hash: user_source_hash(L1_HASH, 0),
            from: Address::repeat_byte(1),
            to: TxKind::Call(Address::repeat_byte(2)),
            mint: 5,
            value: U256::from(6),
            gas_limit: 21_000,
            is_system_transaction: false,
            input: Bytes::from_static(b"hello"),
        }
    }

    fn with_data(edit: impl FnOnce(&mut Vec<u8>)) -> Result<TxDeposit, DepositError> {
        let mut log = deposit_to_log(CONTRACT, &deposit());
        let mut data = log.data.data.to_vec();
        edit(&mut data);
        log.data.data = data.into();
        deposit_from_log(&log, L1_HASH, 0)
    }

    fn with_topics(topics: Vec<B256>) -> Result<TxDeposit, DepositError> {
        let log = deposit_to_log(CONTRACT, &deposit());
        let log = Log {
            address: CONTRACT,
            data: LogData::new_unchecked(topics, log.data.data),
        };
        deposit_from_log(&log, L1_HASH, 0)
    }

    #[test]
    fn the_event_is_what_solidity_hashes() {
        assert_eq!(
            DEPOSIT_EVENT,
            keccak256("TransactionDeposited(address,address,uint256,bytes)")
        );
    }

    #[test]
    fn every_rule_about_topics_holds() {
        let [from, to] = [
            Address::repeat_byte(1).into_word(),
            Address::repeat_byte(2).into_word(),
        ];
        assert_eq!(
            with_topics(vec![DEPOSIT_EVENT, from, to, B256::ZERO]),
            Ok(deposit())
        );
        assert_eq!(
            with_topics(vec![DEPOSIT_EVENT, from, to]),
            Err(DepositError::Topics(3))
        );
        assert_eq!(
            with_topics(vec![DEPOSIT_EVENT, from, to, B256::ZERO, B256::ZERO]),
            Err(DepositError::Topics(5))
        );
        assert_eq!(
            with_topics(vec![L1_HASH, from, to, B256::ZERO]),
            Err(DepositError::Event)
        );
        let one = B256::with_last_byte(1);
        assert_eq!(
            with_topics(vec![DEPOSIT_EVENT, from, to, one]),
            Err(DepositError::Version(one))
        );
    }

    #[test]
    fn every_rule_about_data_holds() {
        assert_eq!(with_data(|_| {}), Ok(deposit()));
        assert_eq!(
            with_data(|data| data.clear()),
            Err(AbiError::Short { len: 0, index: 0 }.into())
        );
        assert_eq!(
            with_data(|data| data.truncate(63)),
            Err(AbiError::Short { len: 63, index: 1 }.into())
        );
        assert_eq!(
            with_data(|data| data.push(0)),
            Err(DepositError::Unaligned(161))
        );
        assert_eq!(
            with_data(|data| data[31] = 64),
            Err(DepositError::Offset(U256::from(64)))
        );
        // The field of 96 bytes has 78 bytes of content. A length above 96 is an error, and so is a
        // length that leaves a whole word of padding.
        let length = |claimed: u64| DepositError::Length {
            claimed: U256::from(claimed),
            field: 96,
        };
        assert_eq!(with_data(|data| data[63] = 97), Err(length(97)));
        assert_eq!(with_data(|data| data[63] = 64), Err(length(64)));
        assert!(with_data(|data| data[63] = 96).is_ok());
        let huge = with_data(|data| data[32..64].fill(0xff));
        assert_eq!(
            huge,
            Err(DepositError::Length {
                claimed: U256::MAX,
                field: 96
            })
        );
        let short = with_data(|data| {
            data[63] = 72;
        });
        assert_eq!(short, Err(DepositError::Short(72)));
        assert_eq!(with_data(|data| data[64 + 15] = 1), Err(DepositError::Mint));
        let create = with_data(|data| data[64 + 72] = 2).unwrap();
        assert_eq!(create.to, TxKind::Create);
    }

    #[test]
    fn a_block_counts_all_logs_and_takes_the_deposits_of_successful_receipts() {
        let log = deposit_to_log(CONTRACT, &deposit());
        let other_contract = Log {
            address: Address::ZERO,
            ..log.clone()
        };
        let other_event = Log {
            address: CONTRACT,
            data: LogData::new_unchecked(vec![L1_HASH], Bytes::new()),
        };
        let no_topics = Log {
            address: CONTRACT,
            data: LogData::default(),
        };
        let receipts: [(bool, &[Log]); 4] = [
            (true, &[other_contract, other_event]),
            (false, std::slice::from_ref(&log)),
            (true, &[]),
            (true, &[no_topics, log.clone(), log.clone()]),
        ];
        let deposits = deposits_of_block(receipts, CONTRACT, L1_HASH).unwrap();
        let sources: Vec<_> = deposits.iter().map(|deposit| deposit.source_hash).collect();
        assert_eq!(
            sources,
            [user_source_hash(L1_HASH, 4), user_source_hash(L1_HASH, 5)]
        );
    }

    #[test]
    fn one_malformed_deposit_fails_the_block_and_is_named() {
        let good = deposit_to_log(CONTRACT, &deposit());
        let bad = Log {
            address: CONTRACT,
            data: LogData::new_unchecked(vec![DEPOSIT_EVENT], Bytes::new()),
        };
        let error = deposits_of_block([(true, &[good, bad][..])], CONTRACT, L1_HASH).unwrap_err();
        assert_eq!((error.log_index, error.cause), (1, DepositError::Topics(1)));
    }

    proptest! {
        #[test]
        fn a_deposit_survives_its_log(
            from: [u8; 20], to in any::<Option<[u8; 20]>>(), mint: u128, value: [u8; 32], gas_limit: u64,
            input in prop::collection::vec(any::<u8>(), 0..200), log_index: u64,
        ) {
            let deposit = TxDeposit {
                source_hash: user_source_hash(L1_HASH, log_index),
                from: from.into(),
                to: to.map_or(TxKind::Create, |to| TxKind::Call(to.into())),
                mint,
                value: U256::from_be_bytes(value),
                gas_limit,
                is_system_transaction: false,
                input: input.into(),
            };
            let log = deposit_to_log(CONTRACT, &deposit);
            prop_assert_eq!(deposit_from_log(&log, L1_HASH, log_index), Ok(deposit));
        }

        #[test]
        fn any_data_is_read_without_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = with_data(|d| *d = data);
        }
    }
}
