//! Methods about the node itself, and geth's methods that have no meaning for this node: they
//! return an error that says so.

use crate::{
    chain::{block_rlp, evm::Deadline, replay::Replay, view::View},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::{
            block_arg::{BlockArg, BlockTag},
            shape::{BlockJson, TransactionsJson},
        },
        json::read,
        params::{Arg, Args, Quantity, kind, unfit},
    },
};
use alloy_primitives::{Address, B256, Bytes, U64, keccak256};
use alloy_rpc_types_engine::ForkchoiceState;
use futures::{FutureExt, future::BoxFuture};
use serde::Serialize;
use starling_proto::payload::BlockId;
use std::{collections::BTreeSet, sync::Arc};

/// The error of methods about Go's runtime.
pub fn no_go(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server(
        "this node is not a Go program: read its metrics (--metrics.enabled, or --metrics of `starling execution`), or use the system's profilers",
    ))
}

/// The error of methods about geth's store of old blocks.
pub fn no_ancients(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server(
        "this node has no ancient store: all of its blocks are in one database",
    ))
}

/// The error of methods about geth's database and the memory of its tries.
pub fn no_geth_database(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server(
        "this node does not have geth's database: it compacts and flushes by itself, and reports sizes as metrics (--metrics.enabled, or --metrics of `starling execution`)",
    ))
}

/// The error of methods that change the log level.
pub fn fixed_log(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server(
        "what is logged is set when the node starts: see --verbosity and --log.level",
    ))
}

/// `debug_preimage(hash)`: the address, slot or code that has this hash.
pub fn preimage(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    match context.view().state().names().preimage(&hash)? {
        Some(bytes) => reply(bytes),
        None => Err(RpcError::server(
            "unknown preimage: addresses and slots are kept of the blocks that the node executes with --cache.preimages",
        )),
    }
}

/// `debug_codeByHash(hash, block)`: the contract code that has this hash; null if there is none.
pub fn code_by_hash(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    args.optional::<BlockArg>()?;
    reply(context.view().state().code(hash)?)
}

/// `debug_dbGet(key)`: a row of the newest state by its key in this node's database.
pub fn db_get(context: &RpcContext, args: Args) -> Reply {
    let key: String = args.at_most(1)?.required()?;
    let bytes = hex::decode(key.trim_start_matches("0x"))
        .map_err(|error| RpcError::server(format!("the key is not hexadecimal: {error}")))?;
    let row = context.view().state().row(&bytes)?;
    reply(row.ok_or_else(|| RpcError::server("not found"))?)
}

/// `debug_printBlock(number)`: a block as text.
pub fn print_block(context: &RpcContext, args: Args) -> Reply {
    let Uint(number) = args.at_most(1)?.required()?;
    let view = context.view();
    let payload = view.payload(number)?;
    let payload = payload.ok_or_else(|| RpcError::server(format!("block #{number} not found")))?;
    reply(format!("{payload:#?}"))
}

/// `debug_getAccessibleState(from, to)`: walks the blocks from `from` to `to` and returns the first
/// one whose state can be read.
pub fn get_accessible_state(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (from, to): (BlockTag, BlockTag) = (args.required()?, args.required()?);
    let view = context.view();
    let (from, to) = (from.number(context, &view)?, to.number(context, &view)?);
    if from == to {
        return Err(RpcError::server("from and to needs to be different"));
    }
    let (oldest, head) = (view.oldest_state(), view.head().number);
    let readable = oldest..=head;
    let found = if readable.contains(&from) {
        Some(from)
    } else if from < to {
        Some(oldest).filter(|it| (from..to).contains(it))
    } else {
        Some(head).filter(|it| *it > to && *it <= from)
    };
    let text = "no state found";
    reply(U64::from(found.ok_or_else(|| RpcError::server(text))?))
}

/// A block that was found invalid.
#[derive(Serialize)]
struct BadBlockJson {
    hash: B256,
    block: BlockJson,
    rlp: Bytes,
    /// The reason why the block is invalid; geth has no such member.
    reason: String,
}

/// `debug_getBadBlocks`: the newest blocks that were executed and found invalid, newest first.
pub fn get_bad_blocks(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let optimism = context.chain.spec.is_optimism();
    let bad = (context.chain.rejected)().into_iter().map(|block| {
        let payload = &block.payload;
        let hashes = payload.transactions.iter().map(keccak256).collect();
        BadBlockJson {
            hash: payload.hash,
            block: BlockJson::new(payload, optimism, TransactionsJson::Hashes(hashes)),
            rlp: block_rlp::encode(payload).into(),
            reason: block.reason,
        }
    });
    reply(bad.collect::<Vec<_>>())
}

/// `debug_chainConfig`: the chain's configuration, with the fork times that are in force.
pub fn chain_config(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let config = (context.chain.config)();
    reply(config.map_err(|error| RpcError::server(error.to_string()))?)
}

/// `debug_setHead(number)`: makes an earlier block of the chain the head, also below the safe and
/// the finalized head, which are lowered. The displaced blocks are reinstated when the swarm or the
/// rollup node names them again.
pub fn set_head(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let Quantity(number) = args.at_most(1)?.required()?;
        let hash = context.view().hash_of(number)?;
        let hash = hash.ok_or_else(|| RpcError::server(format!("block #{number} not found")))?;
        let moved = (context.chain.set_head)(BlockId { number, hash }).await;
        moved.map_err(|error| RpcError::server(error.to_string()))?;
        tracing::warn!(number, %hash, "an operator set the head");
        reply(())
    }
    .boxed()
}

/// `debug_sync(hash)`: fetches the missing ancestors of this block from peers and executes them.
/// The block then becomes the head, as if a rollup node had named it.
pub fn sync(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let target: B256 = args.at_most(1)?.required()?;
        let view = context.view();
        let head = view.head();
        if head.hash == target {
            return reply(());
        }
        if let Some(number) = view.number_of(target)? {
            let current = head.number;
            return Err(RpcError::server(format!(
                "stale sync target, current: {current}, received: {number}"
            )));
        }
        let failed = |error: &dyn std::fmt::Display| RpcError::server(error.to_string());
        let Some(engine) = context.engine.as_ref().map(|context| &context.engine) else {
            return Err(RpcError::server(
                "no sync target can be set here, since this node follows the blocks that its sequencer signs: call a node of `starling execution`",
            ));
        };
        let known = engine.has_payload(target).await.map_err(|error| failed(&error))?;
        if !known {
            return Err(RpcError::server(format!(
                "sync target is not available, {target:x}: peers do not serve blocks by hash alone; send the block with engine_newPayload first"
            )));
        }
        let state = ForkchoiceState {
            head_block_hash: target,
            ..ForkchoiceState::default()
        };
        let moved = engine.forkchoice(state, None, 3).await;
        let (status, _) = moved.map_err(|error| failed(&error))?;
        if status.is_invalid() {
            return Err(RpcError::server(format!("the sync target is invalid: {}", status.status)));
        }
        tracing::warn!(%target, "an operator set a sync target");
        reply(())
    }
    .boxed()
}

/// `debug_proofsSyncStatus`: the range of blocks at which accounts can be proven (op-reth's
/// method).
pub fn proofs_sync_status(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let view = context.view();
    reply(serde_json::json!({
        "earliest": view.oldest_proof(Address::ZERO),
        "latest": view.head().number,
    }))
}

/// A plain JSON number instead of a hex quantity, with the errors of Go's `uint64`.
struct Uint(u64);

impl Arg for Uint {
    fn from_json(json: &str) -> Result<Self, String> {
        read(json).map(Uint).map_err(|_| match kind(json) {
            "number" => unfit(&format!("number {json}"), "uint64"),
            other => unfit(other, "uint64"),
        })
    }
}

/// `debug_getModifiedAccountsByNumber(start, end)`: the accounts that differ between the states
/// after two blocks. Without `end`, `start` is compared with its parent.
pub fn modified_by_number(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let Uint(start) = args.required()?;
    let end = args.optional::<Uint>()?.map(|Uint(end)| end);
    let view = context.view();
    if view.header_of(start)?.is_none() {
        return Err(RpcError::server(format!("start block {start:x} not found")));
    }
    if let Some(end) = end
        && view.header_of(end)?.is_none()
    {
        return Err(RpcError::server(format!("end block {end} not found")));
    }
    modified(context, &view, start, end, deadline)
}

/// `debug_getModifiedAccountsByHash(start, end)`: like `debug_getModifiedAccountsByNumber`, for
/// blocks named by hash.
pub fn modified_by_hash(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let (start, end): (B256, Option<B256>) = (args.required()?, args.optional()?);
    let view = context.view();
    let number = |hash: B256, which: &str| {
        let number = view.number_of(hash)?;
        number.ok_or_else(|| RpcError::server(format!("{which} block {hash:x} not found")))
    };
    let start = number(start, "start")?;
    let end = end.map(|end| number(end, "end")).transpose()?;
    modified(context, &view, start, end, deadline)
}

/// Executes the blocks of the range again: the state has only hashes of addresses, and execution
/// shows the addresses.
fn modified(
    context: &RpcContext,
    view: &Arc<View>,
    start: u64,
    end: Option<u64>,
    deadline: &Deadline,
) -> Reply {
    let (start, end) = match end {
        Some(end) => (start, end),
        None => (start.saturating_sub(1), start),
    };
    if start >= end {
        return Err(RpcError::server(format!(
            "start block height ({start}) must be less than end block height ({end})"
        )));
    }
    let mut touched: BTreeSet<Address> = BTreeSet::new();
    for number in start + 1..=end {
        let mut replay = Replay::of_block(&context.chain.spec, view, number, deadline)?;
        replay.skip_to(replay.count())?;
        touched.extend(replay.vm().changed_accounts());
    }
    let pruned = || RpcError::server("the state is pruned");
    let before = view.state_at(start)?.ok_or_else(pruned)?;
    let after = view.state_at(end)?.ok_or_else(pruned)?;
    let mut accounts = Vec::new();
    for address in touched {
        deadline.check()?;
        let now = after.account(address)?;
        if now.is_some() && before.account(address)? != now {
            accounts.push(address);
        }
    }
    reply(accounts)
}
