//! The events that tracers see: a transaction, its frames and its instructions, as they begin and
//! end.
//!
//! [`Tracer`](super::Tracer) makes them of revm's callbacks. They borrow from the EVM: a tracer
//! copies what it keeps.

use super::{arena::FrameKind, failure::Failure};
use alloy_primitives::{Address, B256, Bytes, U256};
use revm::state::EvmState;
use std::cell::Ref;

/// The longest piece of memory that a tracer copies.
const MAX_MEMORY: usize = 1 << 20;

/// A transaction about to be traced.
#[derive(Clone, Debug, Default)]
pub(in crate::chain::evm) struct TraceStart {
    pub from: Address,
    /// `None` creates a contract.
    pub to: Option<Address>,
    pub value: U256,
    pub input: Bytes,
    pub gas_limit: u64,
    /// Wei per gas above the base fee.
    pub tip: u128,
    /// The number of the block.
    pub block: u64,
    pub coinbase: Address,
    /// The account that gets the base fee, on OP.
    pub base_fee_vault: Option<Address>,
    /// Accounts that have signed authorizations (EIP-7702).
    pub authorities: Vec<Address>,
    pub precompiles: Vec<Address>,
    pub cancun: bool,
    pub prague: bool,
}

/// A transaction that has been run.
#[derive(Clone, Copy, Debug)]
pub(in crate::chain::evm) struct TraceEnd<'a> {
    pub gas_limit: u64,
    pub gas_used: u64,
    /// The accounts that it has loaded or changed.
    pub changed: &'a EvmState,
}

/// The place of a traced transaction in the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracePlace {
    /// `None` for a simulated call.
    pub block_hash: Option<B256>,
    pub block_number: u64,
    pub tx_hash: Option<B256>,
    pub tx_index: usize,
}

/// A frame that begins.
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

/// A frame that ends.
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

/// An instruction that is about to run.
pub(super) struct TracedStep<'a> {
    pub pc: usize,
    pub op: u8,
    pub gas: u64,
    pub depth: usize,
    /// Gas that the transaction would get back if it ended here.
    pub refund: u64,
    /// The account whose state the code works on.
    pub address: Address,
    pub stack: &'a [U256],
    pub memory: Ref<'a, [u8]>,
    /// The code that runs.
    pub code: &'a [u8],
    pub return_data: &'a [u8],
}

impl TracedStep<'_> {
    /// A copy of memory, with zeros beyond its end; `None` if it is longer than a tracer copies.
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

/// An instruction that has run.
pub(super) struct StepEnd<'a> {
    pub cost: u64,
    /// Memory after it.
    pub memory: Ref<'a, [u8]>,
    pub failure: Option<&'a Failure>,
}
