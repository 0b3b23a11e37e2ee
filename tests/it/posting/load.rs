//! Senders of transactions with random bytes, which cannot be compressed.

use crate::net::{Account, Devnet, ask, call, number, wait};
use alloy_primitives::{Address, Bytes, TxKind, U256, keccak256};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(180);

/// A transaction with `bytes` pseudo-random bytes of calldata.
pub fn large(account: &Account, chain_id: u64, nonce: u64, bytes: usize) -> Bytes {
    let words = 0..(bytes / 32) as u64;
    let input: Vec<u8> = words
        .flat_map(|word| {
            keccak256([&account.key[..], &nonce.to_be_bytes(), &word.to_be_bytes()].concat()).0
        })
        .collect();
    let to = TxKind::Call(Address::repeat_byte(0x42));
    // Calldata costs at least 40 gas a byte (EIP-7623).
    let gas = 60_000 + 42 * bytes as u64;
    account.sign(chain_id, nonce, to, U256::ONE, input.into(), gas)
}

/// Sends `count` large transactions from an account, and waits until they are included in blocks.
pub fn load(net: &Devnet, account: usize, count: u64, bytes: usize) {
    let (sequencer, account) = (net.sequencer().http, &net.accounts[account]);
    let mined = || {
        let params = json!([account.address, "latest"]);
        number(&ask(&sequencer, "eth_getTransactionCount", params))
    };
    let first = mined();
    for nonce in first..first + count {
        let raw = large(account, net.l2_chain_id, nonce, bytes);
        ask(&sequencer, "eth_sendRawTransaction", json!([raw]));
    }
    wait("the load in blocks", PATIENCE, || {
        (mined() == first + count).then_some(())
    });
}

/// A thread that sends transactions until it is stopped; errors of the node are ignored.
pub struct LoadThread {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl LoadThread {
    pub fn start(net: &Devnet, account: usize, bytes: usize, pause: Duration) -> Self {
        let (url, chain_id) = (net.sequencer().http, net.l2_chain_id);
        let account = net.accounts[account].clone();
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let (stopped, counter) = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            let mut nonce = None;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(pause);
                let params = json!([account.address, "pending"]);
                // Read the nonce again after errors: a restarted sequencer has an empty pool.
                let known = nonce.or_else(|| {
                    let count = call(&url, "eth_getTransactionCount", params).ok()?;
                    Some(number(&count))
                });
                let Some(next) = known else { continue };
                let raw = large(&account, chain_id, next, bytes);
                let taken = call(&url, "eth_sendRawTransaction", json!([raw])).is_ok();
                counter.fetch_add(u64::from(taken), Ordering::Relaxed);
                nonce = taken.then_some(next + 1);
            }
        });
        Self {
            stop,
            sent,
            thread: Some(thread),
        }
    }

    /// Number of transactions that the node has accepted so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
