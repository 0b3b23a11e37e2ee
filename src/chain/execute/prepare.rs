//! Preparation of a payload without a state: checks that its transactions match the header, decodes
//! them and recovers their senders.
//!
//! This is the larger part of the work on a block of transfers. It therefore begins when a payload
//! enters the executor's queue, on all cores, while earlier blocks run.

use crate::chain::{execute::InvalidBlock, transaction::ChainTx};
use alloy_consensus::transaction::Recovered;
use alloy_primitives::Bytes;
use alloy_trie::root::ordered_trie_root_encoded;
use rayon::prelude::*;
use starling_proto::payload::Payload;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// Number of transactions below which preparation stays on one thread, since distributing it would
/// take as long.
pub(super) const PARALLEL: usize = 32;

type PreparedTransactions = Result<Vec<Recovered<ChainTx>>, InvalidBlock>;

/// A payload and the preparation of its transactions.
pub struct Preparation {
    payload: Arc<Payload>,
    /// Receives the result, if the preparation has begun.
    running: Option<Receiver<PreparedTransactions>>,
}

impl Preparation {
    /// Starts the preparation at once, on other threads.
    pub fn begin(payload: Arc<Payload>) -> Self {
        let (result, running) = sync_channel(1);
        spawn(vec![(payload.clone(), result)]);
        Self {
            payload,
            running: Some(running),
        }
    }

    /// Starts the preparation of payloads at once, on other threads. Payloads with few transactions
    /// share a task. The preparation of a payload for which `defer` returns true is deferred.
    pub fn begin_all(payloads: Vec<Arc<Payload>>, defer: impl Fn(&Payload) -> bool) -> Vec<Self> {
        let mut all = Vec::with_capacity(payloads.len());
        let (mut task, mut transactions) = (Vec::new(), 0);
        for payload in payloads {
            if defer(&payload) {
                all.push(Self::later(payload));
                continue;
            }
            let (result, running) = sync_channel(1);
            transactions += payload.transactions.len();
            task.push((payload.clone(), result));
            all.push(Self {
                payload,
                running: Some(running),
            });
            if transactions >= PARALLEL {
                spawn(std::mem::take(&mut task));
                transactions = 0;
            }
        }
        spawn(task);
        all
    }

    /// Defers the preparation until it is needed.
    pub fn later(payload: Arc<Payload>) -> Self {
        Self {
            payload,
            running: None,
        }
    }

    pub fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    /// Waits for the preparation, or runs a deferred one. Returns the transactions with their
    /// senders, in block order.
    pub fn finish(self) -> PreparedTransactions {
        match self.running.and_then(|running| running.recv().ok()) {
            Some(prepared) => prepared,
            None => prepare(&self.payload),
        }
    }
}

/// Prepares payloads one after the other, as one task on another thread.
fn spawn(payloads: Vec<(Arc<Payload>, SyncSender<PreparedTransactions>)>) {
    rayon::spawn(move || {
        for (payload, result) in payloads {
            send_unless_panicked(result, || prepare(&payload));
        }
    });
}

/// Sends the result of `prepare`. A panic on a rayon thread would abort the process, so it is
/// caught. The thread that waits for the result then prepares the payload again and panics itself.
fn send_unless_panicked<T>(result: SyncSender<T>, prepare: impl FnOnce() -> T) {
    if let Ok(prepared) = catch_unwind(AssertUnwindSafe(prepare)) {
        // An error means that the receiver is gone: the result is not needed.
        let _ = result.send(prepared);
    }
}

/// Checks the transactions root and recovers all senders. Of several invalid transactions the error
/// names the first.
fn prepare(payload: &Payload) -> PreparedTransactions {
    let transactions = &payload.transactions;
    let root = || ordered_trie_root_encoded(transactions);
    let (root, recovered) = if transactions.len() < PARALLEL {
        (root(), recover_all(transactions))
    } else {
        rayon::join(root, || recover_all(transactions))
    };
    if payload.header.transactions_root != root {
        return Err(InvalidBlock::TransactionsRoot {
            have: payload.header.transactions_root,
            want: root,
        });
    }
    // Collected here: rayon's own collection of results returns the error that came first in time.
    recovered.into_iter().collect()
}

/// Transactions that attributes are expected to end with. They are decoded and their senders
/// recovered on other threads before the attributes arrive.
pub struct ExpectedTransactions {
    transactions: Vec<Bytes>,
    running: Receiver<RecoveredTransactions>,
}

/// Decoded transactions with their senders, in order. Each transaction may be invalid.
pub type RecoveredTransactions = Vec<Result<Recovered<ChainTx>, InvalidBlock>>;

impl ExpectedTransactions {
    /// Starts decoding and recovering the senders at once, on another thread.
    pub fn begin(transactions: Vec<Bytes>) -> Self {
        let (result, running) = sync_channel(1);
        let prepared = transactions.clone();
        rayon::spawn(move || send_unless_panicked(result, || recover_all(&prepared)));
        Self {
            transactions,
            running,
        }
    }

    /// Waits for the result. `None` if `transactions` are not the expected ones.
    fn finish(self, transactions: &[Bytes]) -> Option<RecoveredTransactions> {
        if transactions != self.transactions {
            return None;
        }
        self.running.recv().ok()
    }
}

/// Decodes the transactions of attributes and recovers their senders, in order. `expected` may have
/// done so for the last transactions already.
pub fn recover_forced(
    transactions: &[Bytes],
    expected: Option<ExpectedTransactions>,
) -> RecoveredTransactions {
    let count = expected.as_ref().map_or(0, |it| it.transactions.len());
    let (first, last) = transactions.split_at(transactions.len().saturating_sub(count));
    let mut recovered = recover_all(first);
    let last = expected
        .and_then(|expected| expected.finish(last))
        .unwrap_or_else(|| recover_all(last));
    recovered.extend(last);
    recovered
}

fn recover_all(transactions: &[Bytes]) -> RecoveredTransactions {
    let recover = |(index, raw)| recover(index, raw);
    if transactions.len() < PARALLEL {
        transactions.iter().enumerate().map(recover).collect()
    } else {
        transactions.par_iter().enumerate().map(recover).collect()
    }
}

/// Decodes a transaction and recovers its sender. `index` is used only in errors.
pub fn recover(index: usize, raw: &Bytes) -> Result<Recovered<ChainTx>, InvalidBlock> {
    let tx = ChainTx::decode(raw).map_err(|error| InvalidBlock::Undecodable {
        index,
        reason: error.to_string(),
    })?;
    let sender = tx.signer().map_err(|_| InvalidBlock::Signature { index })?;
    Ok(Recovered::new_unchecked(tx, sender))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    #[test]
    fn a_panic_ends_a_preparation_and_not_the_process() {
        let (result, running) = sync_channel(1);
        rayon::spawn(|| send_unless_panicked::<()>(result, || panic!("expected by this test")));
        assert!(running.recv().is_err());
    }

    #[test]
    fn expected_transactions_are_used_only_where_they_are_the_last_ones() {
        let raw = |byte| Bytes::from(vec![byte]);
        let expected = || Some(ExpectedTransactions::begin(vec![raw(2), raw(3)]));
        for (transactions, expected) in [
            (vec![raw(1), raw(2), raw(3)], expected()),
            (vec![raw(2), raw(3)], expected()),
            (vec![raw(1), raw(3), raw(2)], expected()),
            (vec![raw(3)], expected()),
            (vec![], expected()),
            (vec![raw(1)], None),
        ] {
            let recovered = recover_forced(&transactions, expected);
            assert_eq!(recovered.len(), transactions.len(), "{transactions:?}");
        }
        let (result, running) = sync_channel(1);
        let marked = ExpectedTransactions {
            transactions: vec![raw(2)],
            running,
        };
        result
            .send(vec![Err(InvalidBlock::Signature { index: 7 })])
            .unwrap();
        let recovered = recover_forced(&[raw(1), raw(2)], Some(marked));
        let from_before = |one: &Result<_, _>| matches!(one, Err(InvalidBlock::Signature { .. }));
        let used: Vec<_> = recovered.iter().map(from_before).collect();
        assert_eq!(used, [false, true]);
    }

    #[test]
    fn payloads_that_are_prepared_together_are_prepared_each() {
        let payload = |number: u64, transactions: usize| {
            let transactions: Vec<Bytes> = (0..transactions)
                .map(|_| Bytes::from_static(&[0xff]))
                .collect();
            let transactions_root = ordered_trie_root_encoded(&transactions);
            Arc::new(Payload::sealed(
                Header {
                    number,
                    transactions_root,
                    ..Default::default()
                },
                transactions,
            ))
        };
        let payloads: Vec<_> = [0, 3, 40, 0, PARALLEL - 1, 1, 0]
            .iter()
            .zip(0..)
            .map(|(count, number)| payload(number, *count))
            .collect();
        let prepared = Preparation::begin_all(payloads.clone(), |payload| payload.number() == 3);
        assert_eq!(
            prepared
                .iter()
                .map(|one| one.running.is_some())
                .collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6].map(|n| n != 3)
        );
        for (one, payload) in prepared.into_iter().zip(&payloads) {
            assert_eq!(one.payload(), payload);
            match payload.transactions.len() {
                0 => assert!(one.finish().unwrap().is_empty()),
                _ => assert!(matches!(
                    one.finish(),
                    Err(InvalidBlock::Undecodable { index: 0, .. })
                )),
            }
        }
    }
}
