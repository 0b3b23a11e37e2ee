//! A gossip message: snappy, signature, SSZ payload of each version, and the sequence of checks.

use crate::{InputKind, fixtures};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::B256;
use starling_proto::{
    fork::{Fork, ForkSchedule},
    gossip::{self, CheckContext, MAX_MESSAGE_LEN, PayloadFlag, Reason, Seen, Signers},
    payload::{Payload, PayloadError, PayloadVersion, WirePayload},
    sign::{self, SIGNATURE_LEN, SecretKey},
};
use std::sync::LazyLock;

const CHAIN_ID: u64 = 10;
const NOW: u64 = 1_700_000_000;
/// Position of the claimed hash in an SSZ payload.
const BLOCK_HASH: usize = 472;
/// Bound of the bytes that snappy decompresses from one byte: a copy of three bytes yields up to
/// 64.
const EXPANSION: usize = 32;

static SECRET: LazyLock<SecretKey> =
    LazyLock::new(|| SecretKey::from_slice(&[7; 32]).expect("a key"));

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let message = gossip::decompress(data);
    match message.flag {
        PayloadFlag::Raw => assert_eq!(message.bytes, data),
        PayloadFlag::Decompressed => {
            assert!(message.bytes.len() <= MAX_MESSAGE_LEN.min(EXPANSION * data.len()))
        }
    }
    let tagged = message.clone().into_tagged();
    assert_eq!(
        gossip::Decompressed::untag(&tagged),
        (message.flag, &message.bytes[..])
    );

    // The message as received has no valid signature of the signer.
    let signers = Signers::new(sign::address(&SECRET));
    let forks = ForkSchedule::from_genesis(Fork::Jovian);
    let context = CheckContext {
        chain_id: CHAIN_ID,
        signers: &signers,
        threshold_secs: 60,
        forks: &forks,
    };
    let version = PayloadVersion::ALL[data.len() % 4];
    let refused = gossip::check_signed(version, message.flag, &message.bytes, NOW, &context)
        .expect_err("nobody has the key");
    outcome.add(&refused.label());

    // The same bytes with the signer's signature, to get past the signature check.
    let signed = message.bytes.get(SIGNATURE_LEN..).unwrap_or(data);
    for version in PayloadVersion::ALL {
        match WirePayload::decode(version, signed) {
            Err(error) => outcome.add(&error),
            Ok(wire) => payload(version, signed, wire, &context, &mut outcome),
        }
    }
    outcome
}

/// Checks a payload that decodes. With its real hash it is a block, which survives encoding and
/// decoding and passes every check except those of time and blob gas.
fn payload(
    version: PayloadVersion,
    signed: &[u8],
    wire: WirePayload,
    context: &CheckContext<'_>,
    outcome: &mut InputKind,
) {
    let mut signed = signed.to_vec();
    let payload = match wire.into_payload() {
        Ok(payload) => payload,
        Err(PayloadError::Withdrawals(count)) => return outcome.add(&count),
        Err(PayloadError::HashMismatch { computed, .. }) => {
            let at = BLOCK_HASH + if version.has_beacon_root() { 32 } else { 0 };
            signed[at..at + 32].copy_from_slice(computed.as_slice());
            match WirePayload::decode(version, &signed)
                .expect("a hash changes no form")
                .into_payload()
            {
                Ok(payload) => payload,
                Err(PayloadError::Withdrawals(count)) => return outcome.add(&count),
                Err(error) => panic!("{error}"),
            }
        }
    };
    assert_eq!(payload.version(), version);
    assert_eq!(
        payload.to_wire(version),
        signed,
        "one block has one encoding"
    );
    assert_eq!(payload.hash, payload.header.hash_slow());
    assert!(
        payload.transactions.len() * 4 <= signed.len(),
        "every transaction has an offset"
    );
    outcome.scale(payload.transactions.len());
    check_message(version, &signed, &payload, context, outcome);
    if let Ok(transactions) = payload.decode_transactions() {
        let encoded = transactions.iter().map(|tx| tx.encoded_2718());
        assert!(
            encoded.eq(payload.transactions.iter().map(|raw| raw.to_vec())),
            "a transaction has one encoding"
        );
        outcome.add(&"transactions");
    }
}

/// Signs the bytes of `payload` and checks the gossip message as a node does.
fn check_message(
    version: PayloadVersion,
    signed: &[u8],
    payload: &Payload,
    context: &CheckContext<'_>,
    outcome: &mut InputKind,
) {
    let message = gossip::encode_message(&sign::sign(&SECRET, CHAIN_ID, signed), signed)
        .expect("a message that fits");
    let unpacked = gossip::decompress(&message);
    let topic = gossip::topic(CHAIN_ID, version);
    let id = gossip::message_id(&topic, unpacked.flag, &unpacked.bytes);
    assert_eq!(
        id,
        gossip::message_id(&topic, PayloadFlag::Decompressed, &unpacked.bytes)
    );
    let mut seen = Seen::default();
    let timestamp = payload.timestamp();
    match gossip::check(
        version,
        unpacked.flag,
        &unpacked.bytes,
        timestamp,
        context,
        &mut seen,
    ) {
        gossip::Verdict::Accept(accepted, _) => {
            assert_eq!(accepted, *payload);
            assert_eq!(
                seen.record(payload.number(), payload.hash),
                Err(Reason::Seen(payload.hash))
            );
            outcome.add(&"accepted");
        }
        gossip::Verdict::Reject(reason @ (Reason::BlobGasUsed(_) | Reason::ExcessBlobGas(_))) => {
            outcome.add(&reason)
        }
        verdict => panic!("{verdict:?}"),
    }
}

/// A small block of each version, with transactions of several types.
pub fn blocks() -> Vec<Payload> {
    let transactions = super::transactions::seeds();
    let root = Some(B256::repeat_byte(3));
    let v1 = Header {
        number: 9,
        timestamp: NOW,
        base_fee_per_gas: Some(7),
        gas_limit: 30_000_000,
        ..Default::default()
    };
    let v2 = Header {
        withdrawals_root: Some(alloy_trie::EMPTY_ROOT_HASH),
        ..v1.clone()
    };
    let v3 = Header {
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: root,
        ..v2.clone()
    };
    let requests_hash = Some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH);
    let v4 = Header {
        withdrawals_root: root,
        requests_hash,
        extra_data: vec![0; 17].into(),
        ..v3.clone()
    };
    let mut out = Vec::new();
    for (index, mut header) in [v1, v2, v3, v4].into_iter().enumerate() {
        let chosen: Vec<_> = transactions
            .iter()
            .skip(index)
            .step_by(5)
            .take(index * 2)
            .map(|raw| raw.clone().into())
            .collect();
        header.transactions_root = alloy_trie::root::ordered_trie_root_encoded(&chosen);
        out.push(Payload::sealed(header, chosen));
    }
    out
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = fixtures::bytes(
        &[
            "p2p-wire/gossip-envelopes.json",
            "p2p-wire/gossip-v4-real-block.json",
            "p2p-wire/ssz-envelope-v4.json",
            "p2p-wire/ssz-malicious.json",
            "p2p-wire/message-id.json",
        ],
        5,
    );
    for block in blocks() {
        let wire = block.to_wire(block.version());
        let signature = sign::sign(&SECRET, CHAIN_ID, &wire);
        seeds.extend(gossip::encode_message(&signature, &wire).ok());
        seeds.push([&signature[..], &wire].concat());
    }
    // Declares four gigabytes in seven bytes.
    seeds.push(vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0xfc, 0x00]);
    seeds
}
