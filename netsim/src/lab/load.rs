//! Transactions at a steady rate: transfers of one wei, sent to the sequencer's RPC. The lab is no
//! part of the network, so no link is in between.

use super::{account::LabAccount, rpc};
use alloy_consensus::TxEip1559;
use alloy_primitives::{TxKind, U256};
use parking_lot::Mutex;
use serde_json::json;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// Time between two bursts. An account sends one burst, so that the next has another account.
const BURST: Duration = Duration::from_millis(250);
/// Accounts that send. The last ones are those of batcher and proposer.
const SENDERS: usize = 8;
/// Gas of a transfer.
const TRANSFER: u64 = 21_000;
/// Fee cap far above the base fee of an empty chain, in wei per gas.
pub const FEE: u128 = 100_000_000_000;

/// The rate, and the counts so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadState {
    /// Transactions per second.
    pub rate: u32,
    pub sent: u64,
    /// Transactions that the sequencer accepted.
    pub accepted: u64,
}

pub type SharedLoad = Arc<Mutex<LoadState>>;

/// A signed transfer of one wei from an account to itself.
fn transfer(sender: &LabAccount, chain_id: u64, nonce: u64) -> String {
    sender.sign(TxEip1559 {
        chain_id,
        nonce,
        gas_limit: TRANSFER,
        max_fee_per_gas: FEE,
        max_priority_fee_per_gas: 1_000_000,
        to: TxKind::Call(sender.address),
        value: U256::ONE,
        ..Default::default()
    })
}

/// Sends transactions until the task is aborted. A burst that the sequencer does not accept is not
/// repeated: the next one reads the nonce again.
pub async fn send(state: SharedLoad, sequencer: SocketAddr, chain_id: u64, keys: Vec<String>) {
    let senders: Vec<LabAccount> = keys
        .iter()
        .take(SENDERS)
        .filter_map(|key| LabAccount::new(key))
        .collect();
    let mut next = Instant::now();
    let mut due = 0.0;
    for sender in senders.iter().cycle() {
        sleep_until(next).await;
        next = Instant::now().max(next + BURST);
        due += f64::from(state.lock().rate) * BURST.as_secs_f64();
        let count = due as u64;
        due -= count as f64;
        if count == 0 {
            continue;
        }
        let nonce = json!([sender.address, "pending"]);
        let nonce = rpc::call(sequencer, "eth_getTransactionCount", nonce).await;
        let Some(nonce) = nonce.as_ref().and_then(rpc::quantity) else {
            continue;
        };
        for nonce in nonce..nonce + count {
            let raw = json!([transfer(sender, chain_id, nonce)]);
            let accepted = rpc::call(sequencer, "eth_sendRawTransaction", raw)
                .await
                .is_some();
            let mut state = state.lock();
            state.sent += 1;
            state.accepted += u64::from(accepted);
        }
    }
}
