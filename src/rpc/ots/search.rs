//! Searches of the transactions in which an address takes part, by the store's address index.
//!
//! A response is a page of whole blocks, newest first. To fill a page, the search reads each block
//! in which the address takes part (some thirty at most), and the few blocks that are not stored
//! yet.

use super::blocks::json;
use crate::{
    chain::{
        evm::Deadline,
        participants::participants,
        view::{ReadError, View},
    },
    rpc::{
        context::RpcContext,
        decoded::DecodedBlock,
        error::{Reply, RpcError, reply},
        eth::{blocks::transaction_json, receipt::block_receipts, shape::TransactionJson},
        params::{Args, Count},
    },
};
use alloy_primitives::{Address, U64};
use serde::Serialize;
use serde_json::Value;

/// Maximum transactions that a request may ask for in one page, as in Erigon.
const MAX_PAGE: u64 = 25;

/// `ots_searchTransactionsBefore(address, block, size)`: the newest transactions below `block`. A
/// `block` of 0 means the newest transactions of all.
pub fn before(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let query = SearchQuery::parse(args)?;
    let view = context.view();
    let (lowest, head) = (view.lowest_block()?, view.head().number);
    let last = match query.block {
        0 => head,
        block => (block - 1).min(head),
    };
    let first = addresses_from(&view)?;
    let blocks = view.blocks_of(&query.address, lowest..=last).rev();
    let page = query.page(context, &view, deadline, blocks, |block| block.reverse())?;
    // Blocks that the index does not cover yet may have further transactions.
    if !page.more && lowest < first && lowest <= last {
        return Err(not_built(first));
    }
    reply(FoundTransactions {
        first_page: query.block == 0,
        last_page: !page.more,
        txs: page.txs,
        receipts: page.receipts,
    })
}

/// `ots_searchTransactionsAfter(address, block, size)`: the oldest transactions above `block`. A
/// `block` of 0 means the oldest transactions of all.
pub fn after(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let query = SearchQuery::parse(args)?;
    let view = context.view();
    let head = view.head().number;
    let from = match query.block {
        0 => view.lowest_block()?,
        block => block.saturating_add(1),
    };
    let first = addresses_from(&view)?;
    if from < first.min(head + 1) {
        return Err(not_built(first));
    }
    let blocks = view.blocks_of(&query.address, from..=head);
    let mut page = query.page(context, &view, deadline, blocks, |_| {})?;
    page.txs.reverse();
    page.receipts.reverse();
    reply(FoundTransactions {
        first_page: !page.more,
        last_page: query.block == 0,
        txs: page.txs,
        receipts: page.receipts,
    })
}

/// The first block that the address index covers.
fn addresses_from(view: &View) -> Result<u64, RpcError> {
    view.addresses_from().ok_or_else(|| {
        RpcError::server(
            "transactions are not indexed by address: start the node with --index.addresses",
        )
    })
}

fn not_built(first: u64) -> RpcError {
    RpcError::server(format!(
        "the index of addresses covers block #{first} and later ones: it is being built in the background, ask again later"
    ))
}

struct SearchQuery {
    address: Address,
    /// The block next to the page; the page does not contain it.
    block: u64,
    size: usize,
}

impl SearchQuery {
    fn parse(args: Args) -> Result<Self, RpcError> {
        let mut args = args.at_most(3)?;
        let address = args.required()?;
        let (Count(block), Count(size)): (Count, Count) = (args.required()?, args.required()?);
        if size == 0 {
            return Err(RpcError::invalid_params("page size must be at least 1"));
        }
        if size > MAX_PAGE {
            return Err(RpcError::server(format!(
                "max allowed page size: {MAX_PAGE}"
            )));
        }
        Ok(Self {
            address,
            block,
            size: size as usize,
        })
    }

    /// Collects whole blocks until the page is full. `order` gets the ascending transaction indexes
    /// of a block, and puts them in the page's order.
    fn page(
        &self,
        context: &RpcContext,
        view: &View,
        deadline: &Deadline,
        blocks: impl Iterator<Item = Result<u64, ReadError>>,
        order: impl Fn(&mut [usize]),
    ) -> Result<TransactionPage, RpcError> {
        deadline.check()?;
        let mut page = TransactionPage::default();
        for number in blocks {
            deadline.check()?;
            let number = number?;
            let unknown = || RpcError::server("header not found");
            let block = context.blocks.load(view, number)?.ok_or_else(unknown)?;
            let mut indexes = self.matching(view, &block)?;
            if indexes.is_empty() {
                continue;
            }
            if page.txs.len() >= self.size {
                page.more = true;
                break;
            }
            order(&mut indexes);
            page.add(context, view, number, &indexes)?;
        }
        Ok(page)
    }

    /// Indexes of the transactions of a block in which the address takes part.
    fn matching(&self, view: &View, block: &DecodedBlock) -> Result<Vec<usize>, RpcError> {
        let transactions = block.transactions.iter().zip(block.senders(view)?);
        let all = transactions.zip(block.receipts.iter()).enumerate();
        let takes_part = all.filter(|(_, ((tx, sender), receipt))| {
            participants(tx, **sender, receipt).any(|address| address == self.address)
        });
        Ok(takes_part.map(|(index, _)| index).collect())
    }
}

#[derive(Default)]
struct TransactionPage {
    txs: Vec<TransactionJson>,
    receipts: Vec<Value>,
    /// Whether further blocks have matching transactions.
    more: bool,
}

impl TransactionPage {
    fn add(
        &mut self,
        context: &RpcContext,
        view: &View,
        number: u64,
        indexes: &[usize],
    ) -> Result<(), RpcError> {
        let unknown = || RpcError::server("transaction not found");
        let timestamp = view.header_of(number)?.map(|header| header.timestamp);
        let receipts = block_receipts(context, view, number)?;
        for index in indexes {
            let tx = transaction_json(view, number, *index)?.ok_or_else(unknown)?;
            let mut receipt = json(receipts.get(*index).ok_or_else(unknown)?)?;
            receipt["timestamp"] = json(&timestamp.map(U64::from))?;
            self.txs.push(tx);
            self.receipts.push(receipt);
        }
        Ok(())
    }
}

/// The response of a search.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundTransactions {
    txs: Vec<TransactionJson>,
    receipts: Vec<Value>,
    /// Whether there are no newer transactions.
    first_page: bool,
    /// Whether there are no older transactions.
    last_page: bool,
}
