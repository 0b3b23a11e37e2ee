//! Witnesses: what is needed to execute a block without a database.

use super::trace::known_number;
use crate::{
    chain::{evm::Deadline, replay::Replay},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::{block_arg::BlockArg, shape::HeaderJson},
        params::Args,
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
    /// Preimages of keys, which re-execution does not need.
    keys: Option<Vec<Bytes>>,
}

/// `debug_executionWitness(block)`.
pub fn execution_witness(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let block: BlockArg = args.at_most(1)?.required()?;
    witness(context, block, deadline)
}

/// `debug_executionWitnessByHash(hash)`, also named `debug_executionWitnessByBlockHash`.
pub fn execution_witness_by_hash(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    witness(context, BlockArg::Hash(hash), deadline)
}

fn witness(context: &RpcContext, block: BlockArg, deadline: &Deadline) -> Reply {
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let replay = Replay::recorded(&context.chain.spec, &view, number, deadline)?;
    let witness = replay.witness(&view).map_err(RpcError::from)?;
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
