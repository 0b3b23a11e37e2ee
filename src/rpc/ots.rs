//! The `ots` namespace: the queries of the explorer Otterscan, at level 8 of its interface.
//!
//! [`blocks`] reads blocks by page, [`transactions`] executes transactions again in the queue of
//! tracing calls. A search by address would need an index of all addresses, which this node does not
//! have.

mod blocks;
mod transactions;

use super::{
    api::{
        Method::{Quick, Read, Trace},
        Namespace,
    },
    block_tag::BlockTag,
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::{Arg, Args, Count, kind},
};

/// The level of the interface that is served.
const API_LEVEL: u64 = 8;

pub const NAMESPACE: Namespace = Namespace {
    name: "ots",
    methods: &[
        ("ots_getApiLevel", Quick(api_level)),
        ("ots_getHeaderByNumber", Read(blocks::header_by_number)),
        // Otterscan uses one method of Erigon.
        ("erigon_getHeaderByNumber", Read(blocks::header_by_number)),
        ("ots_getBlockDetails", Read(blocks::details)),
        ("ots_getBlockDetailsByHash", Read(blocks::details_by_hash)),
        ("ots_getBlockTransactions", Read(blocks::transactions)),
        ("ots_hasCode", Read(blocks::has_code)),
        (
            "ots_getTransactionBySenderAndNonce",
            Read(blocks::transaction_by_sender_and_nonce),
        ),
        ("ots_searchTransactionsBefore", Quick(no_address_index)),
        ("ots_searchTransactionsAfter", Quick(no_address_index)),
        (
            "ots_getInternalOperations",
            Trace(transactions::internal_operations),
        ),
        ("ots_getTransactionError", Trace(transactions::error)),
        ("ots_traceTransaction", Trace(transactions::trace)),
        (
            "ots_getContractCreator",
            Trace(transactions::contract_creator),
        ),
    ],
    subscriptions: &[],
};

/// A block by tag or number, which Otterscan sends as a JSON number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlainBlock(BlockTag);

impl Arg for PlainBlock {
    fn from_json(json: &str) -> Result<Self, String> {
        if kind(json) == "number" {
            let Count(number) = Count::from_json(json)?;
            return Ok(Self(BlockTag::Number(number)));
        }
        BlockTag::from_json(json).map(Self)
    }
}

fn api_level(_: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(API_LEVEL)
}

/// The answer of the searches by address.
fn no_address_index(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server(
        "transactions are not indexed by address: this node does not have the option --index.addresses, ask another node",
    ))
}
