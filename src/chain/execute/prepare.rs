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
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
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
        spawn(result, move || prepare(&given));
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

/// A panic here would abort the process. Whoever waits tries again, on a thread whose end is noticed and told.
fn spawn(result: SyncSender<Prepared>, prepare: impl FnOnce() -> Prepared + Send + 'static) {
    rayon::spawn(move || {
        if let Ok(prepared) = catch_unwind(AssertUnwindSafe(prepare)) {
            // Nobody may wait any more.
            let _ = result.send(prepared);
        }
    });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_a_preparation_and_not_the_process() {
        let (result, running) = sync_channel(1);
        spawn(result, || panic!("expected by this test"));
        assert!(running.recv().is_err());
    }
}
