//! Transactions at a steady rate: transfers of one wei, sent to the sequencer's RPC. The lab is no
//! part of the network, so no link is in between.

use super::rpc;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Signature, TxKind, U256, hex, keccak256};
use parking_lot::Mutex;
use secp256k1::{Message, SECP256K1, SecretKey};
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
const FEE: u128 = 100_000_000_000;

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

struct LoadSender {
    key: SecretKey,
    address: Address,
}

impl LoadSender {
    fn new(key: &str) -> Option<Self> {
        let bytes = hex::decode(key).ok()?;
        let key = SecretKey::from_slice(&bytes).ok()?;
        let public = key.public_key(SECP256K1).serialize_uncompressed();
        let address = Address::from_slice(&keccak256(&public[1..])[12..]);
        Some(Self { key, address })
    }

    /// A signed transfer of one wei to the sender itself.
    fn transfer(&self, chain_id: u64, nonce: u64) -> String {
        let transfer = TxEip1559 {
            chain_id,
            nonce,
            gas_limit: TRANSFER,
            max_fee_per_gas: FEE,
            max_priority_fee_per_gas: 1_000_000,
            to: TxKind::Call(self.address),
            value: U256::ONE,
            ..Default::default()
        };
        let hash: B256 = transfer.signature_hash();
        let signed = SECP256K1.sign_ecdsa_recoverable(&Message::from_digest(hash.0), &self.key);
        let (id, bytes) = signed.serialize_compact();
        let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1);
        let envelope = TxEnvelope::Eip1559(transfer.into_signed(signature));
        hex::encode_prefixed(envelope.encoded_2718())
    }
}

/// Sends transactions until the task is aborted. A burst that the sequencer does not accept is not
/// repeated: the next one reads the nonce again.
pub async fn send(state: SharedLoad, sequencer: SocketAddr, chain: u64, keys: Vec<String>) {
    let senders: Vec<LoadSender> = keys
        .iter()
        .take(SENDERS)
        .filter_map(|key| LoadSender::new(key))
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
            let raw = json!([sender.transfer(chain, nonce)]);
            let accepted = rpc::call(sequencer, "eth_sendRawTransaction", raw)
                .await
                .is_some();
            let mut state = state.lock();
            state.sent += 1;
            state.accepted += u64::from(accepted);
        }
    }
}
