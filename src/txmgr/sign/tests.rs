//! Signatures by a local key and by a fake op-signer, which fails in various ways.

use super::*;
use crate::{
    chain::{kzg, tests::blobs::blob},
    rollup::signer::{Behaviour, StandIn},
};
use alloy_consensus::Transaction;
use alloy_primitives::{address, hex};
use alloy_rpc_types_eth::TransactionRequest;
use std::io::Write;

/// The first well-known key of test networks, and its address.
const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
const ADDRESS: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
const TO: Address = Address::repeat_byte(0xab);

fn calldata() -> TxEip1559 {
    TxEip1559 {
        chain_id: 900,
        nonce: 7,
        gas_limit: 21_016,
        max_fee_per_gas: 30_000_000_000,
        max_priority_fee_per_gas: 2_000_000_000,
        to: TxKind::Call(TO),
        value: U256::from(5),
        input: vec![0, 1, 2].into(),
        ..TxEip1559::default()
    }
}

fn blob_tx() -> (TxEip4844, Arc<TxSidecar>) {
    let sidecar = kzg::sidecar(vec![blob(1)]).unwrap();
    let tx = TxEip4844 {
        chain_id: 900,
        nonce: 8,
        gas_limit: 21_000,
        max_fee_per_gas: 30_000_000_000,
        max_priority_fee_per_gas: 2_000_000_000,
        to: TO,
        blob_versioned_hashes: sidecar.versioned_hashes().collect(),
        max_fee_per_blob_gas: 1_000_000_000,
        ..TxEip4844::default()
    };
    (tx, Arc::new(sidecar))
}

fn unsigned() -> [UnsignedTx; 2] {
    let (tx, sidecar) = blob_tx();
    [
        UnsignedTx::Calldata(calldata()),
        UnsignedTx::Blob(tx, sidecar),
    ]
}

/// The transaction that op-signer builds from the arguments.
fn requested(args: &Value) -> TxEnvelope {
    let request: TransactionRequest = serde_json::from_value(args.clone()).unwrap();
    assert_eq!(request.from, Some(ADDRESS));
    let key = sign::secret_from_hex(KEY).unwrap();
    let sign = |hash| signature_of(&sign::sign_hash(&key, hash));
    if request.blob_versioned_hashes.is_some() {
        let tx = request.build_4844_without_sidecar().unwrap();
        let hash = tx.signature_hash();
        TxEnvelope::Eip4844(tx.into_signed(sign(hash)).into())
    } else {
        let tx = request.build_1559().unwrap();
        let hash = tx.signature_hash();
        TxEnvelope::Eip1559(tx.into_signed(sign(hash)))
    }
}

/// Response of a signer that signs a modified transaction with `key`.
pub(crate) fn signed_otherwise(
    args: &Value,
    key: &str,
    change: impl Fn(&mut TxEip1559),
) -> Result<String, (i32, String)> {
    let request: TransactionRequest = serde_json::from_value(args.clone()).unwrap();
    let mut tx = request.build_1559().unwrap();
    change(&mut tx);
    let key = sign::secret_from_hex(key).unwrap();
    let signature = signature_of(&sign::sign_hash(&key, tx.signature_hash()));
    Ok(text(&TxEnvelope::Eip1559(tx.into_signed(signature))))
}

/// Response of a working signer.
pub(crate) fn signed_as_asked(args: &Value) -> Result<String, (i32, String)> {
    Ok(text(&requested(args)))
}

fn text(tx: &TxEnvelope) -> String {
    hex::encode_prefixed(tx.encoded_2718())
}

#[tokio::test]
async fn a_key_signs_both_kinds_in_the_form_that_l1_takes() {
    let signer = TxSigner::from_hex(&Secret::new(format!("0x{KEY}"))).unwrap();
    assert_eq!(signer.address(), ADDRESS);
    for tx in unsigned() {
        let signed = signer.sign(tx.clone()).await.unwrap();
        let decoded = alloy_consensus::EthereumTxEnvelope::<
            alloy_consensus::TxEip4844Variant<TxSidecar>,
        >::decode_2718_exact(&signed.raw)
        .unwrap();
        assert_eq!(*decoded.tx_hash(), signed.hash);
        assert_eq!(decoded.gas_limit(), signed.gas);
        assert_eq!(decoded.signature_hash(), tx.signing_hash());
        let by = sign::recover_hash(&bytes_of(decoded.signature()), tx.signing_hash());
        assert_eq!(by.unwrap(), ADDRESS);
        assert_eq!(
            signed.raw.len() > 100_000,
            matches!(tx, UnsignedTx::Blob(..))
        );
    }
}

#[tokio::test]
async fn a_remote_signer_signs_as_the_key_does() {
    let stand_in = StandIn::start().await;
    stand_in.behaviour.lock().transaction =
        Some(Arc::new(|args: &Value| Ok(text(&requested(args)))));
    let config = TxSignerConfig::Remote(stand_in.config.clone());
    let remote = TxSigner::open(&config).await.unwrap();
    let local = TxSigner::from_hex(&Secret::new(KEY)).unwrap();
    for tx in unsigned() {
        assert_eq!(
            remote.sign(tx.clone()).await.unwrap(),
            local.sign(tx).await.unwrap()
        );
    }
    assert_eq!(
        *stand_in.calls.lock(),
        [
            "health_status",
            "eth_signTransaction",
            "eth_signTransaction"
        ]
    );
}

#[tokio::test]
async fn a_wrong_answer_of_a_remote_signer_is_refused_with_its_reason() {
    let stand_in = StandIn::start().await;
    let config = TxSignerConfig::Remote(stand_in.config.clone());
    let remote = TxSigner::open(&config).await.unwrap();
    let fails = async |answer: Result<String, (i32, String)>, part: &str| {
        stand_in.behaviour.lock().transaction = Some(Arc::new(move |_: &Value| answer.clone()));
        let tx = UnsignedTx::Calldata(calldata());
        let error = remote.sign(tx).await.unwrap_err().to_string();
        assert!(
            error.starts_with("the signer at https://localhost:") && error.contains(part),
            "{error}"
        );
    };
    let args = UnsignedTx::Calldata(calldata()).arguments(ADDRESS);
    let other_key = "11".repeat(32);
    let by_another = signed_otherwise(&args, &other_key, |_| ());
    fails(by_another, "it signs as 0x").await;
    let changes: [fn(&mut TxEip1559); 6] = [
        |tx| tx.nonce += 1,
        |tx| tx.max_fee_per_gas += 1,
        |tx| tx.max_priority_fee_per_gas -= 1,
        |tx| tx.chain_id = 1,
        |tx| tx.to = TxKind::Call(Address::ZERO),
        |tx| tx.input = vec![0, 1, 3].into(),
    ];
    for change in changes {
        let changed = signed_otherwise(&args, KEY, change);
        fails(changed, "it signs another transaction").await;
    }
    fails(Ok("0x02c0".into()), "its answer is no signature").await;
    fails(Ok("0x".into()), "its answer is no signature").await;
    fails(Ok("what?".into()), "").await;
    fails(
        Err((-32010, "unauthorized transaction".into())),
        "error -32010: unauthorized",
    )
    .await;
    // The signature with the higher value of s is valid too, but L1 refuses it.
    let ours = sign::secret_from_hex(KEY).unwrap();
    let hash = calldata().signature_hash();
    let low = signature_of(&sign::sign_hash(&ours, hash));
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let high = Signature::new(low.r(), order - low.s(), !low.v());
    let upper = TxEnvelope::Eip1559(calldata().into_signed(high));
    fails(Ok(text(&upper)), "upper half").await;
}

#[tokio::test]
async fn a_signer_that_is_slow_or_forbids_has_its_own_sentence() {
    let stand_in = StandIn::start().await;
    let mut config = stand_in.config.clone();
    config.timeout = std::time::Duration::from_secs(1);
    let remote = TxSigner::open(&TxSignerConfig::Remote(config))
        .await
        .unwrap();
    let moods = [
        (
            Behaviour {
                silent: true,
                ..Default::default()
            },
            "no answer within 1s",
        ),
        (
            Behaviour {
                status: Some(403),
                ..Default::default()
            },
            "403 Forbidden",
        ),
        (Behaviour::default(), "error -32601"),
        (
            Behaviour {
                body: Some("no JSON".into()),
                ..Default::default()
            },
            "its answer is no signature: it is no JSON",
        ),
        (
            Behaviour {
                body: Some(format!("\"{}\"", "f".repeat(2 << 20))),
                ..Default::default()
            },
            "its answer is no signature: it has more than 524288 bytes",
        ),
        (
            Behaviour {
                hangs_up: true,
                ..Default::default()
            },
            "cannot be reached",
        ),
        (
            Behaviour {
                untrusted: true,
                ..Default::default()
            },
            "cannot be reached",
        ),
    ];
    for (mood, part) in moods {
        *stand_in.behaviour.lock() = mood;
        let tx = UnsignedTx::Calldata(calldata());
        let error = remote.sign(tx).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn keys_come_from_files_too_and_no_error_shows_one() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "0x{KEY}").unwrap();
    let key = key_from_file(file.path()).unwrap();
    assert_eq!(TxSigner::from_hex(&key).unwrap().address(), ADDRESS);
    let error = key_from_file(Path::new("/nowhere/key"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the key file /nowhere/key cannot be read"),
        "{error}"
    );
    let bad = Secret::new(&KEY[..62]);
    let error = TxSigner::open(&TxSignerConfig::Key(bad))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("private key") && !error.contains(&KEY[..62]),
        "{error}"
    );
    let words = TxSignerConfig::Mnemonic {
        words: Secret::new("test test test test test test test test test test test junk"),
        path: "m/44'/60'/0'/0/0".into(),
    };
    let signer = TxSigner::open(&words).await.unwrap();
    assert_eq!(format!("{signer:?}"), format!("TxSigner({ADDRESS})"));
}
