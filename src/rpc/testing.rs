//! The `testing` namespace: blocks built on request from given transactions, for tests of clients.
//!
//! `testing_buildBlockV1` changes nothing; `testing_commitBlockV1` makes its block the head, on a
//! chain whose head nobody else decides. A caller decides the contents of the chain, so over TCP the
//! namespace is served only where an operator names it. The gas of a block bounds the work of a call; the deadline is checked between
//! transactions.

use super::{
    api::{Method, Namespace},
    bounds::blocking,
    context::RpcContext,
    engine::{payload_envelope, types::AttributesJson},
    error::{Reply, RpcError, reply},
    params::{Args, Json},
};
use crate::chain::{
    build::{Added, BlockBuilder, BuildError, BuiltBlock},
    evm::{Deadline, StateError},
    execute::recover,
    rules::MIN_GAS_LIMIT,
    view::View,
};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes};
use futures::{FutureExt, future::BoxFuture};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::sync::Arc;

pub const NAMESPACE: Namespace = Namespace {
    name: "testing",
    methods: &[
        ("testing_buildBlockV1", Method::Heavy(build_block)),
        ("testing_commitBlockV1", Method::Async(commit_block)),
    ],
    subscriptions: &[],
};

/// geth's default for the gas limit towards which its blocks move.
const DESIRED_GAS_LIMIT: u64 = 60_000_000;
/// Divisor that bounds the change of gas limits: a block's gas limit differs from its parent's by
/// less than the parent's divided by this number.
const GAS_LIMIT_DIVISOR: u64 = 1024;

impl From<BuildError> for RpcError {
    fn from(error: BuildError) -> Self {
        Self::server(error.to_string())
    }
}

/// A block to build on the head.
struct BuildRequest {
    attributes: OpPayloadAttributes,
    /// Transactions of the block; `None` takes them from the pool.
    transactions: Option<Vec<Bytes>>,
    extra_data: Bytes,
}

impl BuildRequest {
    fn read(args: &mut Args) -> Result<Self, RpcError> {
        let Json(attributes): Json<AttributesJson> = args.required()?;
        let attributes = attributes.into_attributes();
        let transactions = args.optional::<Json<Vec<Bytes>>>()?;
        Ok(Self {
            attributes: attributes.map_err(RpcError::invalid_params)?,
            transactions: transactions.map(|Json(transactions)| transactions),
            extra_data: args.optional()?.unwrap_or_default(),
        })
    }
}

/// `testing_buildBlockV1(parentHash, attributes, transactions, extraData)`: builds a block and
/// returns it.
fn build_block(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(4)?;
    let parent: B256 = args.required()?;
    let request = BuildRequest::read(&mut args)?;
    let view = context.view();
    if view.head().hash != parent {
        return Err(RpcError::server("parentHash is not current head"));
    }
    let BuiltBlock { block, requests } = build(context, &view, request, deadline)?;
    let optimism = context.chain.spec.is_optimism();
    reply(payload_envelope(&block, &requests, optimism))
}

/// `testing_commitBlockV1(attributes, transactions, extraData)`: builds a block, makes it the head,
/// and returns its hash.
fn commit_block(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        check_nobody_decides(&context)?;
        let commit = context.commit.clone();
        let commit =
            commit.ok_or_else(|| RpcError::server("this node cannot make a block the head"))?;
        let mut args = args.at_most(3)?;
        let request = BuildRequest::read(&mut args)?;
        let (own, reads) = (context.clone(), context.bounds.reads.clone());
        let built = blocking("testing_commitBlockV1", reads, move || {
            let deadline = Deadline::after(own.bounds.timeout);
            build(&own, &own.view(), request, &deadline)
        });
        let payload = built.await?.block.payload.clone();
        let hash = payload.hash;
        commit(payload).await.map_err(RpcError::server)?;
        reply(hash)
    }
    .boxed()
}

/// Refuses a block of a caller's making where the head follows from somebody else's blocks: a
/// sequencer would sign on top of it, and a replica would leave the chain of its network.
fn check_nobody_decides(context: &RpcContext) -> Result<(), RpcError> {
    let driven = || {
        context
            .engine
            .as_ref()
            .is_some_and(|api| api.engine.was_driven())
    };
    let party = if context.sequencer.is_some() {
        "this node's sequencer"
    } else if context.rollup.is_some() {
        "derivation from L1"
    } else if context.network.is_some() {
        "the swarm"
    } else if driven() {
        "a rollup node"
    } else {
        return Ok(());
    };
    Err(RpcError::server(format!(
        "{party} decides the head of this chain, so no block is committed"
    )))
}

fn build(
    context: &RpcContext,
    view: &Arc<View>,
    request: BuildRequest,
    deadline: &Deadline,
) -> Result<BuiltBlock, RpcError> {
    let spec = &context.chain.spec;
    let BuildRequest {
        mut attributes,
        transactions,
        extra_data,
    } = request;
    let miner = context.chain.pool.miner();
    if spec.is_optimism() && !extra_data.is_empty() {
        return Err(RpcError::invalid_params(
            "the attributes decide on the extra data of this chain's blocks: leave it out",
        ));
    }
    if !spec.is_optimism() && attributes.gas_limit.is_none() {
        let desired = miner.gas_limit.unwrap_or(DESIRED_GAS_LIMIT);
        attributes.gas_limit = Some(next_gas_limit(view.header(), desired));
    }
    let mut builder = BlockBuilder::start(spec.clone(), view.state(), attributes)?;
    builder.set_extra_data(extra_data);
    match transactions {
        Some(transactions) => add_all(&mut builder, transactions, deadline)?,
        None => {
            for tx in context.chain.pool.best(builder.base_fee()) {
                deadline.check()?;
                if builder.meets(tx.conditional.as_deref())?.is_none() {
                    builder.add(&tx.tx, &tx.raw)?;
                }
            }
        }
    }
    Ok(builder.finish_with_requests()?)
}

/// Adds transactions to the block. Fails if one of them is invalid.
fn add_all(
    builder: &mut BlockBuilder,
    transactions: Vec<Bytes>,
    deadline: &Deadline,
) -> Result<(), RpcError> {
    for (index, raw) in transactions.into_iter().enumerate() {
        deadline.check()?;
        let tx = recover(index, &raw).map_err(|error| RpcError::server(error.to_string()))?;
        let refused = |reason: String| {
            RpcError::server(format!(
                "transaction {index} cannot be in the block: {reason}"
            ))
        };
        let added = builder.add(&tx, &raw);
        match added.map_err(|error: StateError| RpcError::from(error))? {
            Added::Yes => {}
            Added::Full => return Err(refused("its gas limit is used up".to_owned())),
            Added::Skipped(reason) => return Err(refused(reason)),
        }
    }
    Ok(())
}

/// The gas limit of a block on `parent` that moves towards `desired`, as in geth's builder.
fn next_gas_limit(parent: &Header, desired: u64) -> u64 {
    let step = (parent.gas_limit / GAS_LIMIT_DIVISOR).saturating_sub(1);
    let desired = desired.max(MIN_GAS_LIMIT);
    if parent.gas_limit < desired {
        parent.gas_limit.saturating_add(step).min(desired)
    } else {
        parent.gas_limit.saturating_sub(step).max(desired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gas_limits_move_by_less_than_a_1024th() {
        let next = |gas_limit, desired| {
            let parent = Header {
                gas_limit,
                ..Header::default()
            };
            next_gas_limit(&parent, desired)
        };
        assert_eq!(next(200_000_000, 60_000_000), 199_804_689);
        assert_eq!(next(60_000_000, 60_000_000), 60_000_000);
        assert_eq!(next(59_999_999, 60_000_000), 60_000_000);
        assert_eq!(next(30_000_000, 60_000_000), 30_029_295);
        assert_eq!(next(5_000, 0), 5_000);
    }
}
