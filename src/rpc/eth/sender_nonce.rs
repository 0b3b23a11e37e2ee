//! `eth_getTransactionBySenderAndNonce`: searches the kept states for the block that used the
//! sender's nonce.
//!
//! The search is binary: it reads the account once for each halving of the kept states, and then
//! reads one block.

use super::{blocks::transaction_json, shape::TransactionJson};
use crate::{
    chain::view::View,
    rpc::{
        context::RpcContext,
        decoded::DecodedBlock,
        error::{Reply, RpcError, reply},
        params::{Args, Quantity},
    },
};
use alloy_consensus::Transaction;
use alloy_primitives::Address;
use std::sync::Arc;

/// `eth_getTransactionBySenderAndNonce`: a transaction of the chain, or else of the pool; null if
/// there is none.
pub fn get_transaction_by_sender_and_nonce(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (sender, Quantity(nonce)): (Address, Quantity) = (args.required()?, args.required()?);
    let view = context.view();
    if let Some(MinedPlace { number, index }) = transaction_of(context, &view, sender, nonce)? {
        return reply(transaction_json(&view, number, index)?);
    }
    let (pending, queued) = context.chain.pool.content_of(&sender);
    let mut pooled = pending.iter().chain(&queued);
    let pooled = pooled.find(|pooled| pooled.tx.nonce() == nonce);
    reply(pooled.map(|pooled| TransactionJson::pooled(pooled)))
}

/// The position of a transaction in the chain.
pub struct MinedPlace {
    pub number: u64,
    pub index: usize,
}

/// The mined transaction of `sender` with `nonce`. `None` if the nonce is unused, or if an
/// authorization (EIP-7702) or a contract's `CREATE` used it instead of a transaction.
pub fn transaction_of(
    context: &RpcContext,
    view: &Arc<View>,
    sender: Address,
    nonce: u64,
) -> Result<Option<MinedPlace>, RpcError> {
    if nonce_after(view, view.head().number, sender)? <= nonce {
        return Ok(None);
    }
    let number = block_of(view, sender, nonce)?;
    let Some(block) = context.blocks.load(view, number)? else {
        return Ok(None);
    };
    let index = index_of(view, &block, sender, nonce)?;
    Ok(index.map(|index| MinedPlace { number, index }))
}

/// The first block after which the sender's nonce is above `nonce`. The nonce at the head must be
/// above it.
fn block_of(view: &Arc<View>, sender: Address, nonce: u64) -> Result<u64, RpcError> {
    let oldest = view.oldest_state();
    if nonce_after(view, oldest, sender)? > nonce {
        return Err(RpcError::server(format!(
            "the transaction is in block #{oldest}, whose state is the oldest that is kept, or below: keep all states with --gcmode=archive to find it by its nonce"
        )));
    }
    let (mut below, mut above) = (oldest, view.head().number);
    while below + 1 < above {
        let middle = below.midpoint(above);
        if nonce_after(view, middle, sender)? > nonce {
            above = middle;
        } else {
            below = middle;
        }
    }
    Ok(above)
}

/// The sender's nonce after a block.
fn nonce_after(view: &Arc<View>, number: u64, sender: Address) -> Result<u64, RpcError> {
    let state = view
        .state_at(number)?
        .ok_or_else(|| RpcError::server(format!("state at block #{number} is pruned")))?;
    Ok(state.account(sender)?.map_or(0, |account| account.nonce))
}

fn index_of(
    view: &View,
    block: &DecodedBlock,
    sender: Address,
    nonce: u64,
) -> Result<Option<usize>, RpcError> {
    let transactions = block.transactions.iter().zip(block.senders(view)?);
    let mut numbered = transactions.zip(block.receipts.iter());
    Ok(numbered.position(|((tx, from), receipt)| {
        let used = if tx.is_deposit() {
            receipt.deposit_nonce
        } else {
            Some(tx.nonce())
        };
        *from == sender && used == Some(nonce)
    }))
}
