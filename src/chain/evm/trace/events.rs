//! The events that tracers receive: beginnings and ends of a transaction, of its frames, and of its
//! instructions.
//!
//! [`Tracer`](super::Tracer) creates them from revm's callbacks. They borrow from the EVM, so a
//! tracer copies the data that it keeps.

use super::{arena::FrameKind, failure::Failure};
use alloy_primitives::{Address, B256, Bytes, U256};
use revm::state::EvmState;
use std::cell::Ref;

/// Longest range of memory, in bytes, that `memory_padded` copies.
const MAX_MEMORY: usize = 1 << 20;

/// The start of a traced transaction.
#[derive(Clone, Debug, Default)]
pub(in crate::chain::evm) struct TraceStart {
    pub from: Address,
    /// The callee; `None` creates a contract.
    pub to: Option<Address>,
    pub value: U256,
    pub input: Bytes,
    pub gas_limit: u64,
    /// Priority fee: wei per gas above the base fee.
    pub tip: u128,
    /// The number of the block.
    pub block: u64,
    pub coinbase: Address,
    /// The account that receives the base fee; `None` on Ethereum.
    pub base_fee_vault: Option<Address>,
    /// Accounts that signed the transaction's authorizations (EIP-7702).
    pub authorities: Vec<Address>,
    pub precompiles: Vec<Address>,
    pub cancun: bool,
    pub prague: bool,
}

/// The end of a traced transaction, which has been run but not committed.
#[derive(Clone, Copy, Debug)]
pub(in crate::chain::evm) struct TraceEnd<'a> {
    pub gas_limit: u64,
    pub gas_used: u64,
    /// The accounts that the transaction has loaded or changed.
    pub changed: &'a EvmState,
}

/// The position of a traced transaction in the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracePlace {
    /// Hash of the block; `None` for a simulated call.
    pub block_hash: Option<B256>,
    pub block_number: u64,
    pub tx_hash: Option<B256>,
    pub tx_index: usize,
}

/// The beginning of a frame.
#[derive(Clone, Debug)]
pub(super) struct Entered {
    pub kind: FrameKind,
    pub from: Address,
    pub to: Address,
    pub input: Bytes,
    pub gas: u64,
    pub value: Option<U256>,
    /// Whether `to` is a precompile.
    pub precompile: bool,
}

/// The end of a frame.
#[derive(Clone, Debug)]
pub(super) struct Left<'a> {
    pub output: &'a Bytes,
    pub gas_used: u64,
    pub failure: Option<Failure>,
}

/// The end of the outermost frame.
pub(super) struct FrameEnd {
    pub output: Bytes,
    pub failure: Option<Failure>,
}

/// An instruction that is about to run, and the EVM before it.
pub(super) struct TracedStep<'a> {
    pub pc: usize,
    pub op: u8,
    pub gas: u64,
    pub depth: usize,
    /// The transaction's gas refund so far.
    pub refund: u64,
    /// The account whose storage and balance the running code uses.
    pub address: Address,
    pub stack: &'a [U256],
    pub memory: Ref<'a, [u8]>,
    /// The code of the frame.
    pub code: &'a [u8],
    pub return_data: &'a [u8],
}

impl TracedStep<'_> {
    /// A copy of a range of memory, with zeros beyond the end of memory; `None` if the range is
    /// longer than a tracer copies.
    pub(super) fn memory_padded(&self, offset: U256, length: U256) -> Option<Vec<u8>> {
        let length = usize::try_from(length)
            .ok()
            .filter(|it| *it <= MAX_MEMORY)?;
        let mut copy = vec![0; length];
        if let Ok(offset) = usize::try_from(offset)
            && let Some(rest) = self.memory.get(offset..)
        {
            let there = rest.len().min(length);
            copy[..there].copy_from_slice(&rest[..there]);
        }
        Some(copy)
    }
}

/// The end of an instruction that has run or failed.
pub(super) struct StepEnd<'a> {
    pub cost: u64,
    /// Memory after the instruction.
    pub memory: Ref<'a, [u8]>,
    pub failure: Option<&'a Failure>,
}
