//! The parts of a block of an Ethereum chain that no block of an OP chain has: uncles and rewards
//! before the merge, withdrawals, and the requests to the beacon chain (EIP-7685).
//!
//! Before execution, validation checks uncles and the merge, and refuses withdrawals in a block
//! without a withdrawals root. After the transactions, [`BlockExecution`](super::BlockExecution)
//! collects requests and pays withdrawals and rewards. Validation then compares the roots.

use super::{InvalidBlock, ValidateError};
use crate::chain::{
    evm::{ParentState, StateError, Vm},
    receipt::Receipt,
    rows::{RowChange, keys},
    rules::{BlockPayment, ChainSpec, Relatives, Rules, UNCLE_GENERATIONS},
    view::State,
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header,
    proofs::{calculate_ommers_root, calculate_withdrawals_root},
};
use alloy_eips::{
    eip6110::DEPOSIT_REQUEST_TYPE,
    eip7002::{WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, WITHDRAWAL_REQUEST_TYPE},
    eip7251::{CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_TYPE},
    eip7685::Requests,
};
use alloy_primitives::{Address, B256, Bytes, Log, U256, b256};
use starling_proto::payload::Payload;
use std::sync::Arc;

const GWEI: u128 = 1_000_000_000;
/// The first topic of the deposit contract's event.
const DEPOSIT_EVENT: B256 =
    b256!("649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5");
/// Length of a deposit event in bytes: five offsets, then five byte strings, each padded and with
/// its length in front.
const DEPOSIT_DATA: usize = 576;
/// The position of each part's length word in a deposit event, and the part's length in bytes.
const DEPOSIT_PARTS: [(usize, usize); 5] = [(160, 48), (256, 32), (320, 8), (384, 96), (512, 8)];

/// The outcome of the steps after a block's transactions.
#[derive(Clone, Debug, Default)]
pub struct EthereumOutcome {
    /// Root of the list of withdrawals.
    pub withdrawals_root: B256,
    /// Requests to the beacon chain; none before Prague.
    pub requests: Requests,
    /// The changed row of the total difficulty; `None` after the merge.
    pub total_difficulty: Option<RowChange>,
}

/// Checks uncles and withdrawals, and that the merge happens at the right block.
pub(super) fn check_body(
    spec: &ChainSpec,
    payload: &Payload,
    parent: &ParentState,
) -> Result<(), ValidateError> {
    let header = &payload.header;
    let invalid = |error: InvalidBlock| ValidateError::from(error);
    if spec.needs_total_difficulty(header, parent.header()) {
        let total = parent.total_difficulty()?;
        spec.check_merge(header, parent.header(), total)?;
    }
    let root = calculate_ommers_root(payload.uncles());
    if header.ommers_hash != root {
        let (have, want) = (header.ommers_hash, root);
        return Err(invalid(InvalidBlock::Uncles { have, want }));
    }
    if root != EMPTY_OMMER_ROOT_HASH {
        check_uncles(spec, payload, parent)?;
    }
    if header.withdrawals_root.is_none() && !payload.withdrawals().is_empty() {
        return Err(invalid(InvalidBlock::EarlyWithdrawals));
    }
    Ok(())
}

/// Checks the uncles of a block against its ancestors.
fn check_uncles(
    spec: &ChainSpec,
    payload: &Payload,
    parent: &ParentState,
) -> Result<(), ValidateError> {
    let number = payload.number();
    let (mut ancestors, mut rewarded) = (Vec::new(), Vec::new());
    for number in (number.saturating_sub(UNCLE_GENERATIONS)..number).rev() {
        let ancestor = parent.ancestor(number)?;
        rewarded.extend(ancestor.uncles().iter().map(Header::hash_slow));
        ancestors.push((ancestor.hash, ancestor.header.clone()));
    }
    let relatives = Relatives {
        ancestors: &ancestors,
        rewarded: &rewarded,
    };
    let checked = relatives.check(spec, payload.uncles());
    Ok(checked.map_err(InvalidBlock::from)?)
}

/// Runs the steps after the transactions: requests, then withdrawals and rewards, then total
/// difficulty.
pub(super) fn end(
    spec: &ChainSpec,
    payload: &Payload,
    parent: &ParentState,
    receipts: &[Receipt],
    vm: &mut Vm,
) -> Result<EthereumOutcome, ValidateError> {
    let header = &payload.header;
    let Rules::Ethereum {
        deposit_contract, ..
    } = &spec.rules
    else {
        return Ok(EthereumOutcome::default());
    };
    let requests = if spec.at(header.timestamp).prague {
        requests(receipts, *deposit_contract, vm)?
    } else {
        Requests::default()
    };
    let withdrawal = |withdrawal: &alloy_eips::eip4895::Withdrawal| BlockPayment {
        to: withdrawal.address,
        wei: u128::from(withdrawal.amount) * GWEI,
    };
    let mut payments: Vec<BlockPayment> = payload.withdrawals().iter().map(withdrawal).collect();
    let mut total_difficulty = None;
    if let Some(rules) = spec.mined(header) {
        payments.extend(rules.rewards(header, payload.uncles()));
        let bytes = |total: U256| Some(Bytes::from(total.to_be_bytes_trimmed_vec()));
        let before = parent.total_difficulty()?;
        total_difficulty = Some(RowChange {
            before: bytes(before),
            after: bytes(before.saturating_add(header.difficulty)),
        });
    }
    for BlockPayment { to, wei } in payments {
        vm.credit(to, U256::from(wei))?;
    }
    Ok(EthereumOutcome {
        withdrawals_root: calculate_withdrawals_root(payload.withdrawals()),
        requests,
        total_difficulty,
    })
}

/// The requests of a block, by type. Types without requests are left out.
pub(crate) fn requests(
    receipts: &[Receipt],
    deposit_contract: Address,
    vm: &mut Vm,
) -> Result<Requests, ValidateError> {
    let mut all = Requests::default();
    let mut deposits = Vec::new();
    let logs = receipts.iter().flat_map(|receipt| &receipt.logs);
    let is_deposit = |log: &&Log| {
        log.address == deposit_contract && log.topics().first() == Some(&DEPOSIT_EVENT)
    };
    for log in logs.filter(is_deposit) {
        deposits.extend(deposit(&log.data.data).ok_or(InvalidBlock::DepositEvent)?);
    }
    all.push_request_with_type(DEPOSIT_REQUEST_TYPE, deposits);
    for (kind, contract) in [
        (
            WITHDRAWAL_REQUEST_TYPE,
            WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
        ),
        (
            CONSOLIDATION_REQUEST_TYPE,
            CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
        ),
    ] {
        // On a development chain without the contract, the output is empty and no error.
        let output = vm.system_call_output(contract, Bytes::new())?;
        let output = output.ok_or(InvalidBlock::RequestContract(contract))?;
        all.push_request_with_type(kind, output);
    }
    Ok(all)
}

/// Encodes a deposit event as request data. `None` if the data does not have the deposit contract's
/// format.
fn deposit(data: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(U256::from_be_slice(data.get(at..at + 32)?));
    (data.len() == DEPOSIT_DATA).then_some(())?;
    let mut request = Vec::with_capacity(192);
    for (index, (at, length)) in DEPOSIT_PARTS.into_iter().enumerate() {
        let sound = word(index * 32)? == U256::from(at) && word(at)? == U256::from(length);
        sound.then_some(())?;
        request.extend_from_slice(data.get(at + 32..at + 32 + length)?);
    }
    Some(request)
}

impl ParentState {
    /// The state of the chain. `None` for a witness, which has no other blocks.
    fn of_chain(&self) -> Option<&State> {
        match self {
            Self::View(state) => Some(state),
            Self::Recorded(recorded) => Some(recorded.state()),
            Self::Witness(_) => None,
        }
    }

    /// The block of this state, or an ancestor of it.
    fn ancestor(&self, number: u64) -> Result<Arc<Payload>, StateError> {
        let block = self
            .of_chain()
            .map(|state| state.ancestor(number))
            .transpose()?;
        block.flatten().ok_or(StateError::BlockHash(number))
    }

    /// Total difficulty up to the block of this state, on a chain that began before the merge.
    pub fn total_difficulty(&self) -> Result<U256, StateError> {
        let row = self
            .of_chain()
            .map(|state| state.row(&keys::total_difficulty()));
        let row = row.transpose()?.flatten();
        let row = row.ok_or_else(|| StateError::Evm("the total difficulty is missing".into()))?;
        U256::try_from_be_slice(&row)
            .ok_or_else(|| StateError::Evm("the total difficulty is damaged".into()))
    }
}
