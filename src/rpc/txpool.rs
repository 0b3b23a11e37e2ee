//! The `txpool` namespace: the contents of the pool.

use super::{
    api::{Method, Namespace},
    context::RpcContext,
    error::{RESPONSE_TOO_LARGE, Reply, RpcError, reply},
    eth::shape::TransactionJson,
    params::Args,
};
use crate::chain::pool::{Content, PoolTx};
use alloy_consensus::Transaction;
use alloy_primitives::{Address, U64};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};

pub const NAMESPACE: Namespace = Namespace {
    name: "txpool",
    methods: &[
        ("txpool_status", Method::Quick(status)),
        ("txpool_content", Method::Read(content)),
        ("txpool_contentFrom", Method::Read(content_from)),
        ("txpool_inspect", Method::Read(inspect)),
    ],
    subscriptions: &[],
};

/// Two groups of the pool: executable transactions, and those behind a nonce gap.
#[derive(Debug, Serialize)]
struct Split<T> {
    pending: T,
    queued: T,
}

/// The transactions of one sender by nonce, in decimal.
type ByNonce<T> = BTreeMap<String, T>;
/// Transactions by sender, a checksummed address.
type BySender<T> = BTreeMap<String, ByNonce<T>>;

fn status(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let stats = context.chain.pool.stats();
    reply(Split {
        pending: U64::from(stats.pending),
        queued: U64::from(stats.queued),
    })
}

fn content(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let all = context.chain.pool.content();
    check_size(context, all.values())?;
    reply(by_sender(all, TransactionJson::pooled))
}

fn content_from(context: &RpcContext, args: Args) -> Reply {
    let sender: Address = args.at_most(1)?.required()?;
    let content = context.chain.pool.content_of(&sender);
    check_size(context, [&content])?;
    let (pending, queued) = content;
    reply(Split {
        pending: by_nonce(&pending, TransactionJson::pooled),
        queued: by_nonce(&queued, TransactionJson::pooled),
    })
}

/// `txpool_inspect()`: a line of text for each transaction of the pool.
fn inspect(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(by_sender(
        context.chain.pool.content(),
        |PoolTx { tx, .. }| {
            let to = tx
                .to()
                .map_or("contract creation".to_owned(), |to| to.to_checksum(None));
            format!(
                "{to}: {} wei + {} gas × {} wei",
                tx.value(),
                tx.gas_limit(),
                tx.max_fee_per_gas()
            )
        },
    ))
}

fn check_size<'a>(
    context: &RpcContext,
    content: impl IntoIterator<Item = &'a Content>,
) -> Result<(), RpcError> {
    let bytes: usize = content
        .into_iter()
        .flat_map(|(pending, queued)| pending.iter().chain(queued))
        .map(|tx| tx.raw.len())
        .sum();
    if bytes > context.bounds.transactions {
        return Err(RpcError::new(
            RESPONSE_TOO_LARGE,
            format!("response too large: {bytes} bytes of transactions"),
        ));
    }
    Ok(())
}

fn by_nonce<T>(transactions: &[Arc<PoolTx>], show: impl Fn(&PoolTx) -> T) -> ByNonce<T> {
    transactions
        .iter()
        .map(|tx| (tx.tx.nonce().to_string(), show(tx)))
        .collect()
}

fn by_sender<T>(
    all: BTreeMap<Address, Content>,
    show: impl Fn(&PoolTx) -> T,
) -> Split<BySender<T>> {
    let mut split = Split {
        pending: BTreeMap::new(),
        queued: BTreeMap::new(),
    };
    for (sender, (pending, queued)) in all {
        let sender = sender.to_checksum(None);
        for (part, transactions) in [(&mut split.pending, pending), (&mut split.queued, queued)] {
            if !transactions.is_empty() {
                part.insert(sender.clone(), by_nonce(&transactions, &show));
            }
        }
    }
    split
}
