//! The `trace` namespace: transactions executed again and described in Parity's form, as op-reth
//! serves it.
//!
//! The methods run in the queue of tracing calls, together with the methods of the `debug`
//! namespace, and within the same bounds. [`blocks`] describes transactions of the chain, [`calls`]
//! describes transactions that are in no block, and [`filter`] searches for call frames.

mod blocks;
mod calls;
mod filter;

use super::{
    api::{Method::Trace, Namespace},
    json,
    params::{Arg, kind, unfit},
};
use crate::chain::evm::ParityConfig;
use serde::Deserialize;

pub const NAMESPACE: Namespace = Namespace {
    name: "trace",
    methods: &[
        ("trace_call", Trace(calls::call)),
        ("trace_callMany", Trace(calls::call_many)),
        ("trace_rawTransaction", Trace(calls::raw_transaction)),
        ("trace_replayTransaction", Trace(blocks::replay_transaction)),
        (
            "trace_replayBlockTransactions",
            Trace(blocks::replay_block_transactions),
        ),
        ("trace_block", Trace(blocks::block)),
        ("trace_transaction", Trace(blocks::transaction)),
        ("trace_get", Trace(blocks::get)),
        ("trace_filter", Trace(filter::filter)),
        (
            "trace_transactionOpcodeGas",
            Trace(blocks::transaction_opcode_gas),
        ),
        ("trace_blockOpcodeGas", Trace(blocks::block_opcode_gas)),
    ],
    subscriptions: &[],
};

/// A part of the result of a method that replays transactions.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TraceType {
    Trace,
    VmTrace,
    StateDiff,
}

/// The parts of the result that a request selects.
#[derive(Clone, Copy, Default)]
struct TraceTypes(ParityConfig);

impl Arg for TraceTypes {
    fn from_json(json: &str) -> Result<Self, String> {
        if kind(json) != "array" {
            return Err(unfit(kind(json), "[]string"));
        }
        let types: Vec<TraceType> = json::read(json).map_err(|error| error.to_string())?;
        let mut parts = ParityConfig::default();
        for part in types {
            match part {
                TraceType::Trace => parts.trace = true,
                TraceType::VmTrace => parts.vm_trace = true,
                TraceType::StateDiff => parts.state_diff = true,
            }
        }
        Ok(Self(parts))
    }
}
