//! The `ots` namespace: the methods that the block explorer Otterscan calls, at level 8 of its API.
//!
//! [`blocks`] reads blocks by page. [`search`] finds transactions by address where they are indexed
//! (`--index.addresses`). [`transactions`] executes transactions again in the queue of tracing
//! calls.

mod blocks;
mod search;
mod transactions;

use super::{
    api::{
        Method::{Heavy, Quick, Read, Trace},
        Namespace,
    },
    block_tag::BlockTag,
    context::RpcContext,
    error::{Reply, reply},
    params::{Arg, Args, Count, kind},
};

/// The level of Otterscan's API that is served.
const API_LEVEL: u64 = 8;

pub const NAMESPACE: Namespace = Namespace {
    name: "ots",
    methods: &[
        ("ots_getApiLevel", Quick(api_level)),
        ("ots_getHeaderByNumber", Read(blocks::header_by_number)),
        // Otterscan also calls this method of Erigon.
        ("erigon_getHeaderByNumber", Read(blocks::header_by_number)),
        ("ots_getBlockDetails", Read(blocks::details)),
        ("ots_getBlockDetailsByHash", Read(blocks::details_by_hash)),
        ("ots_getBlockTransactions", Read(blocks::transactions)),
        ("ots_hasCode", Read(blocks::has_code)),
        (
            "ots_getTransactionBySenderAndNonce",
            Read(blocks::transaction_by_sender_and_nonce),
        ),
        ("ots_searchTransactionsBefore", Heavy(search::before)),
        ("ots_searchTransactionsAfter", Heavy(search::after)),
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

/// A block by tag or number. Otterscan sends numbers as JSON numbers.
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
