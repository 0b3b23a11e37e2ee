//! The funded account of the sequencer's tests.

use crate::{
    chain::{
        Chain,
        pool::{Admission, PoolTx},
    },
    clock::since_epoch,
};
use alloy_consensus::{SignableTransaction, Signed, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, U256};
use op_alloy_consensus::OpTxEnvelope;
use starling_proto::sign;

/// Secret key of the account that owns all ether of the test chain and is the batcher on its L1.
const WALLET: &str = "0x2222222222222222222222222222222222222222222222222222222222222222";

pub(super) fn wallet() -> Address {
    sign::address(&sign::secret_from_hex(WALLET).unwrap())
}

/// A transaction with the wallet's signature.
pub(crate) fn signed<T: SignableTransaction<Signature>>(tx: T) -> Signed<T> {
    let signature = sign::sign_hash(&sign::secret_from_hex(WALLET).unwrap(), tx.signature_hash());
    tx.into_signed(Signature::from_bytes_and_parity(
        &signature[..64],
        signature[64] == 1,
    ))
}

/// A raw transfer transaction, as a wallet sends it.
pub(crate) fn transfer(nonce: u64) -> Bytes {
    let tx = TxEip1559 {
        chain_id: 901,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 2_000_000_000,
        max_priority_fee_per_gas: 1_000_000,
        to: Address::repeat_byte(7).into(),
        value: U256::from(1),
        ..Default::default()
    };
    OpTxEnvelope::from(signed(tx)).encoded_2718().into()
}

/// Adds a transaction to the pool, as JSON-RPC does. This chain has no L1 fee.
pub(crate) fn submit(chain: &Chain, raw: Bytes) -> B256 {
    let view = chain.view();
    let admission = |tx: &PoolTx| {
        let account = view.state().account(tx.sender()).unwrap().unwrap();
        Admission {
            nonce: account.nonce,
            balance: account.balance,
            delegated: false,
            base_fee: view.header().base_fee_per_gas.unwrap(),
            block_gas_limit: view.header().gas_limit,
            l1_cost: U256::ZERO,
            now: since_epoch().as_secs(),
        }
    };
    let tx = PoolTx::decode(raw).unwrap();
    let at = admission(&tx);
    chain.pool().add(tx, &at).unwrap()
}
