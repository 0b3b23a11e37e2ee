//! Transactions that no block may contain. Wallets get the same errors from a sequencer and through
//! a replica, and no pool keeps such a transaction.

use super::{
    Server, Setup,
    chain::{CHAIN_ID, Chain, FUNDS},
};
use crate::{
    chain::l1fee,
    rpc::{NAMESPACES, TxRoute, api::Api},
};
use alloy_consensus::{
    SignableTransaction, Signed, TxEip1559, TxEip4844, TxEip7702, TxLegacy,
    transaction::SignerRecoverable,
};
use alloy_eips::{eip2718::Encodable2718, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use secp256k1::{Message, SECP256K1, SecretKey};
use serde_json::json;
use starling_proto::{fork::Fork, l1info::L1BlockInfo};

/// Keys of accounts with a balance of [`FUNDS`]: an unused account, one with nonce 5, and one with
/// code.
const KEY: u8 = 0x11;
pub const USED: u8 = 0x22;
pub const DELEGATED: u8 = 0x33;
/// Key of an account without a balance.
const POOR: u8 = 0x44;
const PRICE: u128 = 2_000_000;
/// Gas limit of the block at the head.
const GAS_LIMIT: u64 = 10_000_000;

pub fn address(key: u8) -> Address {
    sign(key, transfer()).recover_signer().unwrap()
}

fn signature(key: u8, hash: B256) -> Signature {
    let key = SecretKey::from_slice(&[key; 32]).unwrap();
    let (recovery, bytes) = SECP256K1
        .sign_ecdsa_recoverable(&Message::from_digest(hash.0), &key)
        .serialize_compact();
    Signature::from_bytes_and_parity(&bytes, i32::from(recovery) == 1)
}

fn sign<T: SignableTransaction<Signature>>(key: u8, tx: T) -> OpTxEnvelope
where
    OpTxEnvelope: From<Signed<T>>,
{
    let signature = signature(key, tx.signature_hash());
    OpTxEnvelope::from(tx.into_signed(signature))
}

fn raw<T: SignableTransaction<Signature>>(key: u8, tx: T) -> Bytes
where
    OpTxEnvelope: From<Signed<T>>,
{
    sign(key, tx).encoded_2718().into()
}

/// A valid transfer of zero wei.
fn transfer() -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN_ID,
        gas_limit: 21_000,
        max_fee_per_gas: PRICE,
        max_priority_fee_per_gas: PRICE,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..Default::default()
    }
}

fn legacy() -> TxLegacy {
    let to = TxKind::Call(Address::repeat_byte(1));
    TxLegacy {
        chain_id: Some(CHAIN_ID),
        gas_price: PRICE,
        gas_limit: 21_000,
        to,
        ..Default::default()
    }
}

fn set_code(authorization_list: Vec<alloy_eips::eip7702::SignedAuthorization>) -> TxEip7702 {
    TxEip7702 {
        chain_id: CHAIN_ID,
        gas_limit: 50_000,
        max_fee_per_gas: PRICE,
        max_priority_fee_per_gas: PRICE,
        authorization_list,
        ..Default::default()
    }
}

/// A sequencer whose head has the gas limit [`GAS_LIMIT`], and a replica that forwards transactions
/// to it.
async fn pair(fork: Fork) -> (Chain, Chain, Server) {
    let mut sequencer = Chain::new(fork);
    sequencer.gas_limit = GAS_LIMIT;
    sequencer.add(&[]);
    let api = Api::new(
        &["eth".to_owned()],
        &NAMESPACES,
        &sequencer.context,
        "--http.api",
    );
    let server = Server::of(api, Setup::default()).await;
    let mut replica = Chain::new(fork).with_route(
        TxRoute::sequencer(&format!("http://{}", server.addrs.http.unwrap()), false).unwrap(),
    );
    replica.add(&[]);
    (sequencer, replica, server)
}

impl Chain {
    /// Sends a transaction that must be refused. Returns the code and message of the error.
    async fn refused(&self, raw: &Bytes) -> (i64, String) {
        self.error("eth_sendRawTransaction", json!([raw])).await
    }

    async fn takes(&self, raw: &Bytes) {
        assert_eq!(
            self.result("eth_sendRawTransaction", json!([raw])).await,
            json!(keccak256(raw))
        );
    }
}

/// A transaction that is refused, and the text of the error.
type TransactionFault = (Bytes, &'static str);

/// A transfer with a changed field, signed with the key of an unused account.
fn transfer_with(change: impl FnOnce(&mut TxEip1559)) -> Bytes {
    let mut tx = transfer();
    change(&mut tx);
    raw(KEY, tx)
}

/// Transactions over a limit of size or gas.
fn oversized() -> Vec<TransactionFault> {
    let large = TxLegacy {
        input: vec![0; 128 * 1024].into(),
        ..legacy()
    };
    let creation = transfer_with(|tx| {
        tx.input = vec![0; 49_153].into();
        tx.gas_limit = 9_000_000;
        tx.to = TxKind::Create;
    });
    let floor = transfer_with(|tx| {
        tx.input = vec![1; 10].into();
        tx.gas_limit = 21_399;
    });
    vec![
        (
            raw(KEY, large),
            "oversized data: transaction size 131179, limit 131072",
        ),
        (
            creation,
            "max initcode size exceeded: code size 49153, limit 49152",
        ),
        (
            transfer_with(|tx| tx.gas_limit = (1 << 24) + 1),
            "transaction gas limit too high (cap: 16777216, tx: 16777217)",
        ),
        (
            transfer_with(|tx| tx.gas_limit = GAS_LIMIT - 70_000 + 1),
            "exceeds block gas limit",
        ),
        (
            transfer_with(|tx| tx.gas_limit = 20_999),
            "intrinsic gas too low: gas 20999, minimum needed 21000",
        ),
        (
            floor,
            "insufficient gas for floor data gas cost: gas 21399, minimum needed 21400",
        ),
    ]
}

/// Fees that are inconsistent, too low, or above the cap.
fn mispriced() -> Vec<TransactionFault> {
    vec![
        (
            transfer_with(|tx| tx.max_priority_fee_per_gas = PRICE + 1),
            "max priority fee per gas higher than max fee per gas",
        ),
        (
            transfer_with(|tx| tx.max_priority_fee_per_gas = 0),
            "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
        ),
        (
            transfer_with(|tx| tx.max_fee_per_gas = 50_000_000_000_000),
            "tx fee (1.05 ether) exceeds the configured cap (1.00 ether)",
        ),
    ]
}

/// Signatures for other chains or for none, and a signature whose `s` is in the upper half of the
/// curve's order.
fn missigned() -> Vec<TransactionFault> {
    let wrong_chain = "invalid sender: invalid chain id for signer: have 1 want 901";
    let legacy_on = |chain_id| {
        raw(
            KEY,
            TxLegacy {
                chain_id,
                ..legacy()
            },
        )
    };
    let OpTxEnvelope::Eip1559(signed) = sign(KEY, transfer()) else {
        unreachable!()
    };
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let mirrored = Signature::new(
        signed.signature().r(),
        order - signed.signature().s(),
        !signed.signature().v(),
    );
    let mirrored = Bytes::from(OpTxEnvelope::from(transfer().into_signed(mirrored)).encoded_2718());
    vec![
        (transfer_with(|tx| tx.chain_id = 1), wrong_chain),
        (legacy_on(Some(1)), wrong_chain),
        (
            legacy_on(None),
            "only replay-protected (EIP-155) transactions allowed over RPC",
        ),
        (
            mirrored,
            "invalid sender: invalid transaction v, r, s values",
        ),
    ]
}

/// Nonces that do not fit the account, and an empty list of authorizations.
fn misnumbered() -> Vec<TransactionFault> {
    let transfer_by = |key, nonce| {
        raw(
            key,
            TxEip1559 {
                nonce,
                ..transfer()
            },
        )
    };
    vec![
        (transfer_by(KEY, u64::MAX), "nonce has max value"),
        (
            transfer_by(USED, 4),
            "nonce too low: next nonce 5, tx nonce 4",
        ),
        (
            transfer_by(DELEGATED, 1),
            "gapped-nonce tx from delegated accounts",
        ),
        (
            raw(KEY, set_code(vec![])),
            "set code tx must have at least one authorization tuple",
        ),
    ]
}

/// Blob transactions, deposits, and types that do not exist.
fn unsupported() -> Vec<TransactionFault> {
    let blob = TxEip4844 {
        chain_id: CHAIN_ID,
        gas_limit: 21_000,
        max_fee_per_gas: PRICE,
        max_priority_fee_per_gas: PRICE,
        max_fee_per_blob_gas: PRICE,
        blob_versioned_hashes: vec![B256::with_last_byte(1)],
        ..Default::default()
    };
    let blob_hash = blob.signature_hash();
    let blob = Bytes::from(blob.into_signed(signature(KEY, blob_hash)).encoded_2718());
    let deposit = TxDeposit {
        from: address(KEY),
        mint: 1 << 80,
        gas_limit: 21_000,
        ..Default::default()
    };
    let deposit = Bytes::from(OpTxEnvelope::from(deposit).encoded_2718());
    [
        blob,
        deposit,
        Bytes::from_static(&hex!("7dc0")),
        Bytes::from_static(&hex!("05c0")),
    ]
    .map(|raw| (raw, "transaction type not supported"))
    .into()
}

/// Bytes that do not encode a transaction.
fn malformed() -> Vec<TransactionFault> {
    let good = raw(KEY, legacy());
    let mut trailing = good.to_vec();
    trailing.push(0);
    vec![
        (trailing.into(), "rlp: input contains more than one value"),
        (
            good.slice(..good.len() - 1),
            "rlp: value size exceeds available input length",
        ),
        (
            Bytes::from_static(&hex!("c0")),
            "rlp: too few elements for types.LegacyTx",
        ),
        (
            Bytes::from_static(&hex!("02")),
            "typed transaction too short",
        ),
        (Bytes::new(), "typed transaction too short"),
    ]
}

/// Transactions that both nodes must refuse, each with the text of geth's error.
fn faults() -> Vec<TransactionFault> {
    [
        oversized(),
        mispriced(),
        missigned(),
        misnumbered(),
        unsupported(),
        malformed(),
    ]
    .concat()
}

#[tokio::test]
async fn hostile_transactions_are_refused_in_geths_words_and_kept_nowhere() {
    let (sequencer, replica, _server) = pair(Fork::Karst).await;
    for (raw, message) in faults() {
        for node in [&sequencer, &replica] {
            assert_eq!(node.refused(&raw).await, (-32000, message.to_owned()));
            assert_eq!(
                node.result("eth_getTransactionByHash", json!([keccak256(&raw)]))
                    .await,
                json!(null),
                "{message}"
            );
        }
    }
    for node in [&sequencer, &replica] {
        assert_eq!(node.context.chain.pool.stats(), Default::default());
    }
}

/// The error for a transaction that costs `cost` wei and is sent by an account with `balance` wei.
fn insufficient_funds(balance: U256, cost: U256) -> (i64, String) {
    let overshot = cost - balance;
    let start = "insufficient funds for gas * price + value";
    (
        -32000,
        format!("{start}: balance {balance}, tx cost {cost}, overshot {overshot}"),
    )
}

#[tokio::test]
async fn who_cannot_pay_for_everything_is_refused() {
    for fork in [Fork::Canyon, Fork::Ecotone, Fork::Isthmus, Fork::Karst] {
        let (sequencer, replica, _server) = pair(fork).await;
        let info = L1BlockInfo::of(&sequencer.blocks[0].payload).unwrap();
        let operator_fee = l1fee::operator_fee(&info, fork, 21_000);
        assert_eq!(operator_fee.is_zero(), fork < Fork::Isthmus);
        // The whole balance pays for gas and value, and nothing is left for the L1 fee and the
        // operator fee.
        let value = FUNDS - U256::from(21_000 * PRICE);
        let broke = transfer_with(|tx| tx.value = value);
        let fees = l1fee::receipt_cost(&info, fork, &broke).fee + operator_fee;
        let poor = raw(POOR, transfer());
        let poor_fees = l1fee::receipt_cost(&info, fork, &poor).fee + operator_fee;
        for node in [&sequencer, &replica] {
            assert_eq!(
                node.refused(&broke).await,
                insufficient_funds(FUNDS, FUNDS + fees),
                "{fork:?}"
            );
            assert_eq!(
                node.refused(&poor).await,
                insufficient_funds(U256::ZERO, U256::from(21_000 * PRICE) + poor_fees),
                "{fork:?}"
            );
        }
        assert_eq!(sequencer.context.chain.pool.stats(), Default::default());
        // Another value changes the transaction's bytes, and thus its L1 fee a little. Before
        // Ecotone, the fee exceeds the account's balance.
        let Some(value) = value.checked_sub(fees * U256::from(2)) else {
            continue;
        };
        sequencer.takes(&transfer_with(|tx| tx.value = value)).await;
        // The cost of the sender's pooled transactions counts too.
        let (code, message) = replica.refused(&transfer_with(|tx| tx.nonce = 1)).await;
        assert!(
            code == -32000 && message.contains(", queued cost "),
            "{message}"
        );
    }
}

#[tokio::test]
async fn repetitions_cheap_replacements_and_second_transactions_of_delegated_accounts_are_refused()
{
    let (sequencer, replica, _server) = pair(Fork::Karst).await;
    let first = raw(KEY, transfer());
    replica.takes(&first).await;
    let cheap = transfer_with(|tx| {
        tx.max_fee_per_gas = 2 * PRICE;
        tx.max_priority_fee_per_gas = PRICE + PRICE / 10 - 1;
    });
    let delegated = |nonce| {
        raw(
            DELEGATED,
            TxEip1559 {
                nonce,
                ..transfer()
            },
        )
    };
    replica.takes(&delegated(0)).await;
    for (raw, message) in [
        (first, "already known"),
        (cheap, "replacement transaction underpriced"),
        (
            delegated(1),
            "in-flight transaction limit reached for delegated accounts",
        ),
    ] {
        for node in [&sequencer, &replica] {
            assert_eq!(node.refused(&raw).await, (-32000, message.into()));
        }
    }
    let enough = PRICE + PRICE / 10;
    let replacement = transfer_with(|tx| {
        tx.max_fee_per_gas = enough;
        tx.max_priority_fee_per_gas = enough;
    });
    replica.takes(&replacement).await;
}

#[tokio::test]
async fn the_code_of_an_account_with_two_pooled_transactions_is_not_set() {
    let (sequencer, replica, _server) = pair(Fork::Karst).await;
    for nonce in [0, 1] {
        replica.takes(&transfer_with(|tx| tx.nonce = nonce)).await;
    }
    let authorization = Authorization {
        chain_id: U256::ZERO,
        address: Address::ZERO,
        nonce: 0,
    };
    let hash = authorization.signature_hash();
    let reserved = TxEip7702 {
        nonce: 5,
        ..set_code(vec![authorization.into_signed(signature(KEY, hash))])
    };
    for node in [&sequencer, &replica] {
        assert_eq!(
            node.refused(&raw(USED, reserved.clone())).await,
            (-32000, "authority already reserved".into())
        );
    }
}

#[tokio::test]
async fn a_nonce_far_ahead_waits_and_is_offered_to_no_block() {
    let (sequencer, replica, _server) = pair(Fork::Karst).await;
    let ahead = |nonce| {
        raw(
            KEY,
            TxEip1559 {
                nonce,
                ..transfer()
            },
        )
    };
    replica.takes(&ahead(1_000_000)).await;
    let pool = &sequencer.context.chain.pool;
    assert_eq!((pool.stats().pending, pool.stats().queued), (0, 1));
    assert!(pool.best(0).is_empty());
    // The pool keeps up to 64 transactions of an account behind a nonce gap.
    for nonce in 1..64 {
        sequencer.takes(&ahead(nonce)).await;
    }
    assert_eq!(
        replica.refused(&ahead(64)).await,
        (
            -32000,
            "account limit exceeded: 64 queued transactions".into()
        )
    );
    assert_eq!(
        replica
            .result("eth_getTransactionCount", json!([address(KEY), "pending"]))
            .await,
        "0x0"
    );
}

#[tokio::test]
async fn set_code_transactions_wait_for_their_fork() {
    let (sequencer, replica, _server) = pair(Fork::Holocene).await;
    let message = "transaction type not supported: type 4 rejected, pool not yet in Prague";
    for node in [&sequencer, &replica] {
        assert_eq!(
            node.refused(&raw(KEY, set_code(vec![]))).await,
            (-32000, message.into())
        );
    }
}
