//! Witnesses: the state and the headers with which a block can be executed without a database. The
//! methods are of kind `Heavy`, so their deadline and the permits of heavy calls bound them.

use crate::{
    chain::{evm::Deadline, replay::Replay},
    rpc::{
        context::RpcContext,
        engine::types::AttributesJson,
        error::{Reply, RpcError, reply},
        eth::{block_arg::BlockArg, shape::HeaderJson},
        params::{Args, Json},
        trace_session::known_number,
    },
};
use alloy_primitives::{B256, Bytes};
use serde::Serialize;

/// A witness in op-geth's form.
#[derive(Serialize)]
struct WitnessJson {
    headers: Vec<HeaderJson>,
    codes: Vec<Bytes>,
    state: Vec<Bytes>,
    /// Preimages of hashed keys; never included, because re-execution does not need them.
    keys: Option<Vec<Bytes>>,
}

/// `debug_executionWitness(block)`: the witness of a block, in op-geth's form.
pub fn execution_witness(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let block: BlockArg = args.at_most(1)?.required()?;
    witness(context, block, deadline)
}

/// `debug_executionWitnessByHash(hash)`, also named `debug_executionWitnessByBlockHash`: the
/// witness of a block, in op-geth's form.
pub fn execution_witness_by_hash(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    witness(context, BlockArg::Hash(hash), deadline)
}

/// A witness in op-reth's form.
#[derive(Serialize)]
struct ExecutionWitnessJson {
    state: Vec<Bytes>,
    codes: Vec<Bytes>,
    /// Preimages of hashed keys; always empty, because re-execution does not need them.
    keys: Vec<Bytes>,
    /// Headers in RLP, newest first.
    headers: Vec<Bytes>,
}

/// `debug_executePayload(parentHash, attributes)`: the witness of a block that does not exist yet,
/// which has only the transactions of its attributes.
pub fn execute_payload(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let (parent, Json(attributes)): (B256, Json<AttributesJson>) =
        (args.required()?, args.required()?);
    let attributes = attributes.into_attributes();
    let attributes = attributes.map_err(RpcError::invalid_params)?;
    let view = context.view();
    let spec = &context.chain.spec;
    let replay = Replay::of_attributes(spec, &view, parent, attributes, deadline)?;
    let witness = replay.witness(spec, &view)?;
    deadline.check()?;
    let headers = witness.headers.iter();
    reply(ExecutionWitnessJson {
        state: witness.nodes,
        codes: witness.codes,
        keys: Vec::new(),
        headers: headers
            .map(|header| alloy_rlp::encode(header).into())
            .collect(),
    })
}

fn witness(context: &RpcContext, block: BlockArg, deadline: &Deadline) -> Reply {
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let replay = Replay::recorded(&context.chain.spec, &view, number, deadline)?;
    let witness = replay
        .witness(&context.chain.spec, &view)
        .map_err(RpcError::from)?;
    deadline.check()?;
    let headers = witness.headers.iter();
    reply(WitnessJson {
        headers: headers
            .map(|header| HeaderJson::new(header.hash_slow(), header))
            .collect(),
        codes: witness.codes,
        state: witness.nodes,
        keys: None,
    })
}
