//! What can be known of a payload without a state: that its transactions are those of its header, what they say and who sent them.
//!
//! This is the larger part of the work on a block of transfers, so it begins when a payload joins the executor's queue, on all
//! cores, while the blocks before it run.

use crate::chain::execute::InvalidBlock;
use alloy_consensus::transaction::{Recovered, SignerRecoverable};
use alloy_primitives::Bytes;
use alloy_trie::root::ordered_trie_root_encoded;
use op_alloy_consensus::OpTxEnvelope;
use rayon::prelude::*;
use starling_proto::payload::{Payload, decode_transaction};
use std::sync::{
    Arc,
    mpsc::{Receiver, sync_channel},
};

type Prepared = Result<Vec<Recovered<OpTxEnvelope>>, InvalidBlock>;

/// A payload and the preparation of its transactions.
pub struct Preparation {
    payload: Arc<Payload>,
    running: Option<Receiver<Prepared>>,
}

impl Preparation {
    /// Begins at once, elsewhere.
    pub fn begin(payload: Arc<Payload>) -> Self {
        let (result, running) = sync_channel(1);
        let given = payload.clone();
        rayon::spawn(move || {
            // Nobody may wait any more.
            let _ = result.send(prepare(&given));
        });
        Self { payload, running: Some(running) }
    }

    /// Begins when it is needed.
    pub fn later(payload: Arc<Payload>) -> Self {
        Self { payload, running: None }
    }

    pub fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    /// Waits for the transactions with their senders, in block order.
    pub fn finish(self) -> Prepared {
        match self.running.and_then(|running| running.recv().ok()) {
            Some(prepared) => prepared,
            None => prepare(&self.payload),
        }
    }
}

fn prepare(payload: &Payload) -> Prepared {
    let (root, recovered) = rayon::join(
        || ordered_trie_root_encoded(&payload.transactions),
        || payload.transactions.par_iter().enumerate().map(|(index, raw)| recover(index, raw)).collect(),
    );
    if payload.header.transactions_root != root {
        return Err(InvalidBlock::TransactionsRoot { have: payload.header.transactions_root, want: root });
    }
    recovered
}

/// Decodes a transaction and recovers its sender. `index` is for the error only.
pub fn recover(index: usize, raw: &Bytes) -> Result<Recovered<OpTxEnvelope>, InvalidBlock> {
    let tx = decode_transaction(raw).map_err(|error| InvalidBlock::Undecodable { index, reason: error.to_string() })?;
    let sender = tx.recover_signer().map_err(|_| InvalidBlock::Signature { index })?;
    Ok(Recovered::new_unchecked(tx, sender))
}
