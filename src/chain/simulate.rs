//! Simulated blocks (`eth_simulateV1`): calls that are run as the transactions of blocks, with all
//! roots and a hash for each block. The blocks never join the chain.
//!
//! JSON-RPC is the only caller. The work is bounded by the gas that all calls share, by the numbers
//! of blocks and calls, and by the deadline. The codes and texts of errors are geth's where geth
//! has such an error.

mod plan;

pub use plan::{PlannedBlock, SimulateError};

use crate::chain::{
    evm::{
        BlockOverrides, CallInput, CallStatus, CallWithLogs, Deadline, NumberedLog, ParentState,
        SimulatedCalls,
    },
    execute::{Execution, before_transactions},
    l1fee::{self, Footprint, L1AttributesError},
    receipt::Receipt,
    rules::ChainSpec,
    transaction::ChainTx,
    unsigned::{TxNumbers, UnsignedCallTx},
};
use alloy_consensus::{
    Header, Typed2718, constants::EMPTY_WITHDRAWALS, proofs::calculate_withdrawals_root,
};
use alloy_eips::{eip4895::Withdrawal, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_rpc_types_eth::state::StateOverride;
use alloy_trie::root::ordered_trie_root_encoded;
use plan::plan;
use starling_proto::{
    fork::Fork,
    payload::{EthereumBody, Payload},
};
use std::{collections::BTreeMap, sync::Arc};

/// Maximum number of blocks above the base block, including those that fill gaps.
pub const MAX_BLOCKS: usize = 256;
/// Maximum number of calls in one block.
pub const MAX_CALLS_OF_BLOCK: usize = 5_000;
/// Maximum number of calls in all blocks.
pub const MAX_CALLS: usize = 10_000;
/// The unit of withdrawals, in wei.
const GWEI: u64 = 1_000_000_000;

/// One block to simulate: header fields, changes of the state, and calls.
#[derive(Clone, Debug, Default)]
pub struct BlockRequest {
    pub header: BlockOverrides,
    pub state: StateOverride,
    pub calls: Vec<CallInput>,
}

/// The blocks to simulate, in order, and their base block.
pub struct SimulationRequest {
    pub spec: Arc<ChainSpec>,
    /// The state after the base block.
    pub base: ParentState,
    /// The first transaction of the base block, which contains the L1 attributes.
    pub attributes: Option<ChainTx>,
    pub blocks: Vec<BlockRequest>,
    /// Whether nonces and fees are checked as in a real block.
    pub validation: bool,
    /// Whether transfers of value are reported as logs too.
    pub transfers: bool,
    /// Maximum gas of all calls together.
    pub gas_cap: u64,
    pub deadline: Deadline,
}

/// A block that was simulated.
#[derive(Debug)]
pub struct SimulatedBlock {
    pub payload: Payload,
    pub calls: Vec<SimulatedCall>,
}

/// The result of one call in a simulated block.
#[derive(Debug)]
pub struct SimulatedCall {
    pub from: Address,
    pub transaction: UnsignedCallTx,
    pub output: Bytes,
    pub logs: Vec<NumberedLog>,
    pub gas_used: u64,
    /// Gas used before refunds.
    pub max_gas_used: u64,
    pub status: CallStatus,
}

/// Simulates the blocks of the request on its base block.
pub fn simulate(request: SimulationRequest) -> Result<Vec<SimulatedBlock>, SimulateError> {
    check_numbers(&request.blocks)?;
    let SimulationRequest {
        spec,
        base,
        attributes,
        blocks,
        validation,
        transfers,
        gas_cap,
        deadline,
    } = request;
    let planned = plan(&spec, base.header(), blocks)?;
    let sequence = SimulatedCalls::new(
        spec.clone(),
        base.header(),
        base.clone(),
        deadline.clone(),
        validation,
    );
    let mut simulation = Simulation {
        parent: base.header().clone(),
        extra_data: base.header().extra_data.clone(),
        footprint: footprint(&spec, base.header(), attributes.as_ref()),
        spec,
        base,
        validation,
        transfers,
        budget: gas_cap,
        deadline,
    };
    let mut results = Vec::with_capacity(planned.len());
    let mut sequence = Some(sequence);
    for block in planned {
        let Some(before) = sequence.take() else { break };
        let (simulated, after) = simulation.block(before, block)?;
        results.push(simulated);
        sequence = Some(after);
    }
    Ok(results)
}

fn check_numbers(blocks: &[BlockRequest]) -> Result<(), SimulateError> {
    if blocks.is_empty() {
        return Err(SimulateError::Empty);
    }
    if blocks.len() > MAX_BLOCKS {
        return Err(SimulateError::TooManyBlocks);
    }
    let mut total = 0;
    for block in blocks {
        let calls = block.calls.len();
        if calls > MAX_CALLS_OF_BLOCK {
            return Err(SimulateError::TooManyCallsOfBlock(calls));
        }
        total += calls;
        if total > MAX_CALLS {
            return Err(SimulateError::TooManyCalls(total));
        }
    }
    Ok(())
}

/// The data footprint scalar for blocks on `base`, from the L1 attributes in `base`. `None` before
/// Jovian.
fn footprint(
    spec: &ChainSpec,
    base: &Header,
    attributes: Option<&ChainTx>,
) -> Option<Result<Footprint, L1AttributesError>> {
    let attributes = attributes?;
    spec.at(base.timestamp)
        .is_op(Fork::Jovian)
        .then(|| Footprint::of(attributes, false))
}

/// The state of a simulation between two blocks.
struct Simulation {
    spec: Arc<ChainSpec>,
    base: ParentState,
    /// The header of the block before the next one.
    parent: Header,
    /// Extra data of the base block, for the parameters of the base fee. Simulated blocks have no
    /// extra data.
    extra_data: Bytes,
    footprint: Option<Result<Footprint, L1AttributesError>>,
    validation: bool,
    transfers: bool,
    /// Gas left for calls in all further blocks.
    budget: u64,
    deadline: Deadline,
}

impl Simulation {
    /// Simulates the next block.
    fn block(
        &mut self,
        sequence: SimulatedCalls,
        planned: PlannedBlock,
    ) -> Result<(SimulatedBlock, SimulatedCalls), SimulateError> {
        self.deadline.check()?;
        let header = self.header(&planned)?;
        let blob_base_fee = planned.blob_base_fee;
        let mut sequence = sequence.enter(&header, blob_base_fee, self.transfers);
        sequence.set_block_hashes(planned.block_hashes);
        sequence.override_state(&planned.state)?;
        before_transactions(&self.spec, &header, sequence.vm())?;
        let mut block = UnsealedBlock {
            gas_left: header.gas_limit,
            header,
            calls: Vec::with_capacity(planned.calls.len()),
            receipts: Vec::with_capacity(planned.calls.len()),
        };
        for call in planned.calls {
            self.deadline.check()?;
            self.call(&mut block, &mut sequence, call)?;
        }
        for withdrawal in &planned.withdrawals {
            let wei = U256::from(withdrawal.amount).saturating_mul(U256::from(GWEI));
            sequence.credit(withdrawal.address, wei)?;
        }
        let simulated = self.seal(block, planned.withdrawals, &mut sequence)?;
        self.parent = simulated.payload.header.clone();
        let id = simulated.payload.id();
        sequence.set_block_hashes(BTreeMap::from([(id.number, id.hash)]));
        Ok((simulated, sequence))
    }

    /// The planned header, completed with the fields that depend on its parent.
    fn header(&self, planned: &PlannedBlock) -> Result<Header, SimulateError> {
        let mut header = planned.header.clone();
        header.parent_hash = self.parent.hash_slow();
        if header.base_fee_per_gas.is_none() {
            let mut parent = self.parent.clone();
            parent.extra_data = self.extra_data.clone();
            header.base_fee_per_gas = if self.validation {
                self.spec.base_fee_of(&parent, header.timestamp)?
            } else {
                self.spec.has_base_fee(header.number).then_some(0)
            };
        }
        let active = self.spec.at(header.timestamp);
        header.excess_blob_gas = active
            .cancun
            .then(|| self.spec.excess_blob_gas(&self.parent, header.timestamp));
        header.requests_hash = active.prague.then_some(EMPTY_REQUESTS_HASH);
        Ok(header)
    }

    fn call(
        &mut self,
        block: &mut UnsealedBlock,
        sequence: &mut SimulatedCalls,
        mut input: CallInput,
    ) -> Result<(), SimulateError> {
        let nonce = match input.nonce {
            Some(nonce) => nonce,
            None => sequence.vm().nonce(input.from)?,
        };
        input.nonce = Some(nonce);
        let wanted = input.gas.unwrap_or(block.gas_left);
        if wanted > block.gas_left {
            return Err(SimulateError::BlockGas {
                remaining: block.gas_left,
                required: wanted,
            });
        }
        let gas = wanted.min(self.budget);
        let chain_id = self.spec.chain_id;
        let transaction = UnsignedCallTx::new(
            &input,
            TxNumbers {
                nonce,
                gas,
                chain_id,
            },
        )?;
        let CallWithLogs { outcome, logs } = sequence.run(&input, gas)?;
        block.gas_left -= outcome.gas_used.min(block.gas_left);
        self.budget -= outcome.gas_used.min(self.budget);
        let status = match outcome.status {
            CallStatus::Halt(text) if gas < wanted => CallStatus::Halt(format!(
                "{text} (gas limit was capped by the RPC server's global gas cap)"
            )),
            status => status,
        };
        block.receipts.push(Receipt {
            tx_type: transaction.tx.ty(),
            success: status == CallStatus::Success,
            cumulative_gas_used: block.header.gas_limit - block.gas_left,
            logs: outcome.logs,
            deposit_nonce: None,
            deposit_version: None,
            post_state: None,
        });
        block.calls.push(SimulatedCall {
            from: input.from,
            transaction,
            output: outcome.output,
            logs,
            gas_used: outcome.gas_used,
            max_gas_used: outcome.max_gas_used,
            status,
        });
        Ok(())
    }

    /// Computes the roots and the hash of a block.
    fn seal(
        &self,
        block: UnsealedBlock,
        withdrawals: Vec<Withdrawal>,
        sequence: &mut SimulatedCalls,
    ) -> Result<SimulatedBlock, SimulateError> {
        let UnsealedBlock {
            mut header,
            calls,
            receipts,
            gas_left,
        } = block;
        self.deadline.check()?;
        if self.spec.is_optimism() && !header.difficulty.is_zero() {
            header.gas_used = header.gas_limit - gas_left;
            return Err(self.legacy_header(header));
        }
        let transactions: Vec<Bytes> = calls
            .iter()
            .map(|call| call.transaction.raw.clone())
            .collect();
        let execution = Execution {
            receipts,
            gas_used: header.gas_limit - gas_left,
            da_footprint: self.da_footprint(&transactions)?,
            blob_gas_used: 0,
            ethereum: None,
            changes: sequence.changes(),
        };
        let active = self.spec.at(header.timestamp);
        let (outcome, _) = execution.outcome(&active, &self.base)?;
        header.gas_used = outcome.gas_used;
        header.blob_gas_used = outcome.blob_gas_used;
        header.receipts_root = outcome.receipts_root;
        header.logs_bloom = outcome.logs_bloom;
        header.state_root = outcome.state_root;
        header.withdrawals_root = if withdrawals.is_empty() {
            outcome.withdrawals_root
        } else {
            Some(calculate_withdrawals_root(&withdrawals))
        };
        header.transactions_root = ordered_trie_root_encoded(&transactions);
        Ok(SimulatedBlock {
            payload: Payload::sealed(header, transactions).with_ethereum(EthereumBody {
                uncles: Vec::new(),
                withdrawals,
            }),
            calls,
        })
    }

    /// The error for a block with a difficulty: op-geth takes it for a block before Bedrock, which
    /// it cannot assemble, and names the header as it is before that.
    fn legacy_header(&self, mut header: Header) -> SimulateError {
        let active = self.spec.at(header.timestamp);
        header.state_root = B256::ZERO;
        header.withdrawals_root = active.shanghai.then_some(EMPTY_WITHDRAWALS);
        header.blob_gas_used = active.cancun.then_some(0);
        SimulateError::LegacyHeader {
            hash: header.hash_slow(),
            number: header.number,
        }
    }

    /// The block's data footprint, computed with the scalar of the base block.
    fn da_footprint(&self, transactions: &[Bytes]) -> Result<u64, SimulateError> {
        let scalar = match &self.footprint {
            None => return Ok(0),
            _ if transactions.is_empty() => return Ok(0),
            Some(Ok(Footprint::Scalar(scalar))) => *scalar,
            Some(Ok(Footprint::DepositsOnly)) => return Err(SimulateError::JovianActivation),
            Some(Err(error)) => return Err(SimulateError::Attributes(error.clone())),
        };
        let each = transactions.iter();
        Ok(each.map(|raw| l1fee::da_footprint(raw, scalar)).sum())
    }
}

/// A block in progress, to which calls are added.
struct UnsealedBlock {
    header: Header,
    calls: Vec<SimulatedCall>,
    receipts: Vec<Receipt>,
    gas_left: u64,
}
