//! Senders of stored blocks.

use super::*;
use crate::chain::store::SCHEMA;

/// A block of one transaction, whose recorded sender is `sender` or, if `None`, the signer; and the
/// signer's address.
fn signed(parent: BlockId, sender: Option<Address>) -> (Arc<ExecutedBlock>, Address) {
    let secret = secp256k1::SecretKey::from_slice(&[0x42; 32]).unwrap();
    let public = secret
        .public_key(secp256k1::SECP256K1)
        .serialize_uncompressed();
    let signer = Address::from_slice(&keccak256(&public[1..])[12..]);
    let transaction = TxLegacy {
        chain_id: Some(901),
        nonce: parent.number,
        gas_limit: 21_000,
        ..Default::default()
    };
    let message = secp256k1::Message::from_digest(transaction.signature_hash().0);
    let (id, bytes) = secp256k1::SECP256K1
        .sign_ecdsa_recoverable(&message, &secret)
        .serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1);
    let raw = OpTxEnvelope::from(transaction.into_signed(signature)).encoded_2718();
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number + 1,
        ..Default::default()
    };
    let receipt = Receipt {
        tx_type: 0,
        success: true,
        cumulative_gas_used: 21_000,
        logs: vec![],
        deposit_nonce: None,
        deposit_version: None,
        post_state: None,
    };
    let payload = Arc::new(Payload::sealed(header, vec![raw.into()]));
    let senders = vec![sender.unwrap_or(signer)];
    (
        Arc::new(ExecutedBlock::new(
            payload,
            senders,
            Arc::new(vec![receipt]),
            Arc::default(),
        )),
        signer,
    )
}

#[test]
fn senders_are_stored_with_their_block_and_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(StdRng::seed_from_u64(5));
    let store = create(dir.path(), CACHES[2], &mut Plain::default(), &mut dice);
    let said = Address::repeat_byte(0x77);
    let (block, signer) = signed(store.head(), Some(said));
    assert_ne!(said, signer);
    store
        .commit(std::slice::from_ref(&block), None, None)
        .unwrap();
    let view = View::new(store.snapshot().unwrap(), vec![], None, None).unwrap();
    assert_eq!(view.senders(&block.payload).unwrap(), [said]);
    assert_eq!(view.mined(1, 0).unwrap().unwrap().sender, said);
    store.unwind_one().unwrap();
    assert_eq!(store.snapshot().unwrap().senders(1).unwrap(), None);
}

#[test]
fn a_store_of_the_version_before_senders_is_read_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(StdRng::seed_from_u64(5));
    let store = create(dir.path(), CACHES[2], &mut Plain::default(), &mut dice);
    let (old, signer) = signed(store.head(), None);
    store
        .commit(std::slice::from_ref(&old), None, None)
        .unwrap();
    let mut rewrite = store.rewrite();
    rewrite.senders(1, &[]).unwrap();
    rewrite.set(Space::Meta, b"senders", None).unwrap();
    rewrite
        .set(
            Space::Meta,
            b"schema",
            Some(&Bytes::from_static(&[0, 0, 0, 3])),
        )
        .unwrap();
    rewrite.finish().unwrap();
    drop(store);

    let store = Store::open(dir.path(), CACHES[2], None).unwrap();
    assert_eq!(
        (
            store.snapshot().unwrap().schema(),
            store.snapshot().unwrap().oldest_senders().unwrap()
        ),
        (3, u64::MAX)
    );
    let view = View::new(store.snapshot().unwrap(), vec![], None, None).unwrap();
    assert_eq!(view.senders(&old.payload).unwrap(), [signer]);
    assert_eq!(view.mined(1, 0).unwrap().unwrap().sender, signer);
    let (new, _) = signed(store.head(), None);
    store.commit(&[new], None, None).unwrap();
    drop((view, store));

    let store = Store::open(dir.path(), CACHES[2], None).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(
        (snapshot.schema(), snapshot.oldest_senders().unwrap()),
        (SCHEMA, 2)
    );
    assert_eq!(
        (snapshot.senders(1).unwrap(), snapshot.senders(2).unwrap()),
        (None, Some(vec![signer]))
    );
}
