//! One test for each row in the list of checks. Each test fails if its check is removed.

use super::*;
use crate::sign::SecretKey;
use alloy_consensus::{Header, constants::EMPTY_WITHDRAWALS};
use alloy_eips::{eip4895::Withdrawal, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::U256;
use op_alloy_rpc_types_engine::OpExecutionPayload;
use proptest::prelude::*;
use ssz::Encode;

const CHAIN: u64 = 901;
const NOW: u64 = 1_700_000_000;

fn key(byte: u8) -> SecretKey {
    SecretKey::from_slice(&[byte; 32]).unwrap()
}

/// A block of `version` at `NOW`, with one transaction.
fn block(version: PayloadVersion, edit: impl FnOnce(&mut Header)) -> Payload {
    let transactions = vec![alloy_primitives::Bytes::from_static(&[0x7e, 1, 2, 3])];
    let mut header = Header {
        number: 7,
        timestamp: NOW,
        base_fee_per_gas: Some(1),
        transactions_root: alloy_trie::root::ordered_trie_root_encoded(&transactions),
        withdrawals_root: (version >= PayloadVersion::V2).then_some(EMPTY_WITHDRAWALS),
        ..Default::default()
    };
    if version >= PayloadVersion::V3 {
        header.blob_gas_used = Some(0);
        header.excess_blob_gas = Some(0);
        header.parent_beacon_block_root = Some(B256::repeat_byte(0x12));
    }
    if version >= PayloadVersion::V4 {
        header.withdrawals_root = Some(B256::repeat_byte(0x98));
        header.requests_hash = Some(EMPTY_REQUESTS_HASH);
    }
    edit(&mut header);
    Payload::sealed(header, transactions)
}

/// A decompressed message: signature ‖ wire bytes.
fn message(signer: &SecretKey, wire: &[u8]) -> Vec<u8> {
    [sign::sign(signer, CHAIN, wire).as_slice(), wire].concat()
}

fn verdict_with(
    signers: &Signers,
    forks: &ForkSchedule,
    version: PayloadVersion,
    flag: PayloadFlag,
    bytes: &[u8],
) -> Verdict {
    let context = CheckContext {
        chain_id: CHAIN,
        signers,
        threshold_secs: 60,
        forks,
    };
    check(version, flag, bytes, NOW, &context, &mut Seen::default())
}

/// The verdict on decompressed bytes. Key 1 is the signer and no fork is active.
fn verdict(version: PayloadVersion, bytes: &[u8]) -> Verdict {
    let signers = Signers::new(sign::address(&key(1)));
    verdict_with(
        &signers,
        &ForkSchedule::default(),
        version,
        PayloadFlag::Decompressed,
        bytes,
    )
}

/// The verdict on wire bytes with a valid signature of the signer.
fn signed_verdict(version: PayloadVersion, wire: &[u8]) -> Verdict {
    verdict(version, &message(&key(1), wire))
}

fn raw_verdict(data: &[u8]) -> Verdict {
    let decompressed = decompress(data);
    let signers = Signers::new(sign::address(&key(1)));
    verdict_with(
        &signers,
        &ForkSchedule::default(),
        PayloadVersion::V1,
        decompressed.flag,
        &decompressed.bytes,
    )
}

#[test]
fn a_good_block_of_every_version_is_accepted() {
    for version in PayloadVersion::ALL {
        let payload = block(version, |_| {});
        let expected = Verdict::Accept(payload.clone(), sign::address(&key(1)));
        assert_eq!(
            signed_verdict(version, &payload.to_wire(version)),
            expected,
            "{version:?}"
        );
    }
}

#[test]
fn row_1_an_unreadable_length_is_rejected() {
    for data in [&[][..], &[0x80], &[0xff; 10]] {
        assert_eq!(
            raw_verdict(data),
            Verdict::Reject(Reason::SnappyHeader),
            "{data:?}"
        );
    }
}

#[test]
fn row_2_a_declared_length_over_the_limit_is_rejected_without_allocating() {
    let four_gigabytes = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00, 0x41];
    assert_eq!(
        raw_verdict(&four_gigabytes),
        Verdict::Reject(Reason::TooLarge(u32::MAX as usize))
    );

    // A well-formed message, one byte too long, so that only the size limit can refuse it.
    let bomb = snap::raw::Encoder::new()
        .compress_vec(&vec![0; MAX_MESSAGE_LEN + 1])
        .unwrap();
    assert_eq!(decompress(&bomb).flag, PayloadFlag::Raw);
    assert_eq!(
        raw_verdict(&bomb),
        Verdict::Reject(Reason::TooLarge(MAX_MESSAGE_LEN + 1))
    );
    let largest = snap::raw::Encoder::new()
        .compress_vec(&vec![0; MAX_MESSAGE_LEN])
        .unwrap();
    assert_eq!(decompress(&largest).flag, PayloadFlag::Decompressed);

    // The check refuses these bytes even if the caller has decompressed too much.
    assert_eq!(
        verdict(PayloadVersion::V1, &vec![0; MAX_MESSAGE_LEN + 1]),
        Verdict::Reject(Reason::TooLarge(MAX_MESSAGE_LEN + 1))
    );
}

#[test]
fn row_3_a_message_shorter_than_a_signature_and_a_byte_is_rejected() {
    let short = snap::raw::Encoder::new()
        .compress_vec(&[1; MIN_MESSAGE_LEN - 1])
        .unwrap();
    assert_eq!(raw_verdict(&short), Verdict::Reject(Reason::TooSmall(65)));
    assert_eq!(
        raw_verdict(&[5, 0, 9]),
        Verdict::Reject(Reason::TooSmall(5)),
        "small before broken"
    );
    let enough = snap::raw::Encoder::new()
        .compress_vec(&[1; MIN_MESSAGE_LEN])
        .unwrap();
    assert!(!matches!(
        raw_verdict(&enough),
        Verdict::Reject(Reason::TooSmall(_))
    ));
}

#[test]
fn row_4_a_broken_body_is_rejected() {
    let mut data = snap::raw::Encoder::new().compress_vec(&[7; 100]).unwrap();
    data.truncate(data.len() - 1);
    assert_eq!(raw_verdict(&data), Verdict::Reject(Reason::Snappy));
}

#[test]
fn row_5_without_a_signer_everything_is_ignored_even_a_broken_signature() {
    let forks = ForkSchedule::default();
    let wire = block(PayloadVersion::V1, |_| {}).to_wire(PayloadVersion::V1);
    for bytes in [message(&key(1), &wire), vec![0; 100]] {
        let verdict = verdict_with(
            &Signers::default(),
            &forks,
            PayloadVersion::V1,
            PayloadFlag::Decompressed,
            &bytes,
        );
        assert_eq!(verdict, Verdict::Ignore(Reason::NoSigner));
    }
    assert_eq!(Signers::new(Address::ZERO), Signers::default());
}

#[test]
fn row_6_an_unrecoverable_signature_is_rejected() {
    assert_eq!(
        verdict(PayloadVersion::V1, &[0; 100]),
        Verdict::Reject(Reason::Signature(SignError::Unrecoverable))
    );
    assert_eq!(
        verdict(PayloadVersion::V1, &[4; 100]),
        Verdict::Reject(Reason::Signature(SignError::RecoveryId(4)))
    );
}

#[test]
fn row_7_another_signer_is_rejected_before_anything_is_decoded() {
    let wire = block(PayloadVersion::V1, |_| {}).to_wire(PayloadVersion::V1);
    let stranger = sign::address(&key(2));
    for wire in [wire, vec![0xff; 10]] {
        let verdict = verdict(PayloadVersion::V1, &message(&key(2), &wire));
        assert_eq!(verdict, Verdict::Reject(Reason::WrongSigner(stranger)));
    }
}

#[test]
fn row_8_what_does_not_decode_is_rejected() {
    let rejects = |version, wire: &[u8]| {
        matches!(
            signed_verdict(version, wire),
            Verdict::Reject(Reason::Decode(_))
        )
    };
    let wire = |version| block(version, |_| {}).to_wire(version);
    for version in PayloadVersion::ALL {
        assert!(rejects(version, &[0; 31]));
        let fixed_len = version.ssz_fixed_len() + if version.has_beacon_root() { 32 } else { 0 };
        assert!(rejects(version, &wire(version)[..fixed_len - 1]));
        // Rows 12, 13, 15, 18 and 19: no field of a version may be missing, and none may be extra.
        for other in PayloadVersion::ALL
            .into_iter()
            .filter(|other| *other != version)
        {
            assert!(
                rejects(version, &wire(other)),
                "{other:?} on the topic of {version:?}"
            );
        }
    }
    assert!(
        rejects(PayloadVersion::V3, &wire(PayloadVersion::V3)[32..]),
        "without the beacon root"
    );
}

#[test]
fn row_9_an_old_block_is_rejected_and_blamed_on_nobody() {
    let at = |timestamp| {
        let payload = block(PayloadVersion::V1, |header| header.timestamp = timestamp);
        signed_verdict(PayloadVersion::V1, &payload.to_wire(PayloadVersion::V1))
    };
    assert!(matches!(at(NOW - 60), Verdict::Accept(..)));
    let reason = Reason::TooOld {
        timestamp: NOW - 61,
        now: NOW,
    };
    assert!(reason.is_clock());
    assert_eq!(at(NOW - 61), Verdict::Reject(reason));
}

#[test]
fn row_9_a_threshold_before_1970_lets_every_age_pass() {
    let (signers, forks) = (
        Signers::new(sign::address(&key(1))),
        ForkSchedule::default(),
    );
    let context = CheckContext {
        chain_id: CHAIN,
        signers: &signers,
        threshold_secs: u64::MAX,
        forks: &forks,
    };
    let payload = block(PayloadVersion::V1, |header| header.timestamp = 0);
    let bytes = message(&key(1), &payload.to_wire(PayloadVersion::V1));
    assert!(
        check_signed(
            PayloadVersion::V1,
            PayloadFlag::Decompressed,
            &bytes,
            NOW,
            &context
        )
        .is_ok()
    );
}

#[test]
fn row_10_a_future_block_is_rejected_and_blamed_on_nobody() {
    let at = |timestamp| {
        let payload = block(PayloadVersion::V1, |header| header.timestamp = timestamp);
        signed_verdict(PayloadVersion::V1, &payload.to_wire(PayloadVersion::V1))
    };
    assert!(matches!(at(NOW + 5), Verdict::Accept(..)));
    let reason = Reason::Future {
        timestamp: NOW + 6,
        now: NOW,
    };
    assert!(reason.is_clock());
    assert_eq!(at(NOW + 6), Verdict::Reject(reason));
}

#[test]
fn row_11_a_wrong_block_hash_is_rejected() {
    for version in PayloadVersion::ALL {
        let mut payload = block(version, |_| {});
        let computed = payload.hash;
        payload.hash = B256::repeat_byte(1);
        let reason = Reason::BlockHash {
            claimed: payload.hash,
            computed,
        };
        assert_eq!(
            signed_verdict(version, &payload.to_wire(version)),
            Verdict::Reject(reason)
        );
    }
}

#[test]
fn row_11_the_clock_is_looked_at_before_the_hash() {
    let mut payload = block(PayloadVersion::V1, |header| header.timestamp = 0);
    payload.hash = B256::ZERO;
    let verdict = signed_verdict(PayloadVersion::V1, &payload.to_wire(PayloadVersion::V1));
    assert!(matches!(verdict, Verdict::Reject(Reason::TooOld { .. })));
}

#[test]
fn row_14_withdrawals_are_rejected_even_when_the_hash_covers_them() {
    let withdrawal = Withdrawal {
        index: 1,
        validator_index: 1,
        ..Default::default()
    };
    let root = alloy_consensus::proofs::calculate_withdrawals_root(&[withdrawal]);
    let v2 = block(PayloadVersion::V2, |header| {
        header.withdrawals_root = Some(root)
    });
    let OpExecutionPayload::V2(mut wire) = v2.to_execution_payload(PayloadVersion::V2) else {
        unreachable!()
    };
    wire.withdrawals.push(withdrawal);
    assert_eq!(
        signed_verdict(PayloadVersion::V2, &wire.as_ssz_bytes()),
        Verdict::Reject(Reason::Withdrawals(1))
    );

    // V4's header has the message passer's storage root, which does not commit to the list.
    let v4 = block(PayloadVersion::V4, |_| {});
    let OpExecutionPayload::V4(mut wire) = v4.to_execution_payload(PayloadVersion::V4) else {
        unreachable!()
    };
    wire.payload_inner
        .payload_inner
        .withdrawals
        .push(withdrawal);
    let bytes = [B256::repeat_byte(0x12).as_slice(), &wire.as_ssz_bytes()].concat();
    assert_eq!(
        signed_verdict(PayloadVersion::V4, &bytes),
        Verdict::Reject(Reason::Withdrawals(1))
    );
}

#[test]
fn row_16_blob_gas_is_rejected_before_jovian_only() {
    for version in [PayloadVersion::V3, PayloadVersion::V4] {
        let wire = block(version, |header| header.blob_gas_used = Some(9)).to_wire(version);
        assert_eq!(
            signed_verdict(version, &wire),
            Verdict::Reject(Reason::BlobGasUsed(9))
        );
        let signers = Signers::new(sign::address(&key(1)));
        let bytes = message(&key(1), &wire);
        let verdict = |time| {
            let forks = ForkSchedule::from_genesis(Fork::Isthmus).with(Fork::Jovian, Some(time));
            verdict_with(&signers, &forks, version, PayloadFlag::Decompressed, &bytes)
        };
        assert!(
            matches!(verdict(NOW), Verdict::Accept(..)),
            "decided by the block's time"
        );
        assert_eq!(verdict(NOW + 1), Verdict::Reject(Reason::BlobGasUsed(9)));
    }
}

#[test]
fn row_17_excess_blob_gas_is_rejected_also_after_jovian() {
    for version in [PayloadVersion::V3, PayloadVersion::V4] {
        let wire = block(version, |header| header.excess_blob_gas = Some(9)).to_wire(version);
        let signers = Signers::new(sign::address(&key(1)));
        let forks = ForkSchedule::from_genesis(Fork::Jovian);
        let verdict = verdict_with(
            &signers,
            &forks,
            version,
            PayloadFlag::Decompressed,
            &message(&key(1), &wire),
        );
        assert_eq!(verdict, Verdict::Reject(Reason::ExcessBlobGas(9)));
    }
}

#[test]
fn rows_20_and_21_six_blocks_at_a_height_pass_and_the_seventh_is_rejected() {
    let mut seen = Seen::default();
    let hash = B256::repeat_byte;
    for byte in 1..=5 {
        assert_eq!(seen.record(7, hash(byte)), Ok(()));
        assert_eq!(seen.record(7, hash(byte)), Err(Reason::Seen(hash(byte))));
    }
    assert_eq!(seen.record(7, hash(6)), Ok(()));
    assert_eq!(seen.record(7, hash(7)), Err(Reason::TooManyBlocks(7)));
    assert_eq!(
        seen.record(7, hash(1)),
        Err(Reason::TooManyBlocks(7)),
        "a full height rejects known blocks too"
    );
    assert_eq!(seen.record(8, hash(1)), Ok(()), "heights are independent");
}

#[test]
fn row_21_a_block_seen_before_is_ignored_and_only_accepted_blocks_are_remembered() {
    let (signers, forks) = (
        Signers::new(sign::address(&key(1))),
        ForkSchedule::default(),
    );
    let context = CheckContext {
        chain_id: CHAIN,
        signers: &signers,
        threshold_secs: 60,
        forks: &forks,
    };
    let payload = block(PayloadVersion::V1, |_| {});
    let bytes = message(&key(1), &payload.to_wire(PayloadVersion::V1));
    let mut seen = Seen::default();
    let mut run = |now| {
        check(
            PayloadVersion::V1,
            PayloadFlag::Decompressed,
            &bytes,
            now,
            &context,
            &mut seen,
        )
    };
    assert!(matches!(
        run(NOW + 100),
        Verdict::Reject(Reason::TooOld { .. })
    ));
    assert!(matches!(run(NOW), Verdict::Accept(..)));
    assert_eq!(run(NOW), Verdict::Ignore(Reason::Seen(payload.hash)));
}

#[test]
fn the_heights_used_last_are_remembered() {
    let mut seen = Seen::default();
    for height in 0..1000 {
        assert_eq!(seen.record(height, B256::ZERO), Ok(()));
    }
    assert!(seen.record(0, B256::ZERO).is_err(), "and so used again");
    assert_eq!(seen.record(1000, B256::ZERO), Ok(()));
    assert!(seen.record(0, B256::ZERO).is_err());
    assert_eq!(
        seen.record(1, B256::ZERO),
        Ok(()),
        "the height used longest ago is forgotten"
    );
}

#[test]
fn the_previous_signer_is_accepted_until_its_grace_ends() {
    let [a, b, c] = [1, 2, 3].map(Address::repeat_byte);
    let mut signers = Signers::new(a);
    assert!(!signers.update(a, 100) && signers.update(b, 100));
    let end = 100 + ROTATION_GRACE_SECS;
    assert!(
        signers.accepts(b, 100)
            && signers.accepts(a, end - 1)
            && !signers.accepts(a, end)
            && !signers.accepts(c, 100)
    );

    assert!(
        signers.is_retired(a, end + RETIRED_SECS - 1) && !signers.is_retired(a, end + RETIRED_SECS)
    );

    signers.verified(a, 100);
    assert!(
        signers.accepts(a, 100),
        "a block by the previous signer ends nothing"
    );
    signers.verified(b, 100);
    assert!(
        !signers.accepts(a, 100),
        "the first block by the current one ends the grace"
    );
    signers.verified(b, 150);
    assert!(
        signers.is_retired(a, 100 + RETIRED_SECS - 1) && !signers.is_retired(a, 100 + RETIRED_SECS)
    );
    assert!(
        !signers.is_retired(c, 100),
        "who never was a signer is not retired"
    );

    signers.update(c, 200);
    signers.update(a, 300);
    assert!(
        !signers.accepts(b, 300) && signers.accepts(c, 300),
        "only the latest previous signer is kept"
    );
    assert!(!Signers::default().accepts(Address::ZERO, 0));
}

#[test]
fn reasons_have_distinct_labels_and_only_two_are_ignored() {
    let zero = B256::ZERO;
    let reasons = [
        Reason::SnappyHeader,
        Reason::TooLarge(0),
        Reason::TooSmall(0),
        Reason::Snappy,
        Reason::NoSigner,
        Reason::Signature(SignError::Unrecoverable),
        Reason::RetiredSigner(Address::ZERO),
        Reason::WrongSigner(Address::ZERO),
        Reason::Decode(WireError::BaseFee),
        Reason::TooOld {
            timestamp: 0,
            now: 0,
        },
        Reason::Future {
            timestamp: 0,
            now: 0,
        },
        Reason::BlockHash {
            claimed: zero,
            computed: zero,
        },
        Reason::Withdrawals(1),
        Reason::BlobGasUsed(1),
        Reason::ExcessBlobGas(1),
        Reason::TooManyBlocks(1),
        Reason::Seen(zero),
    ];
    let labels: std::collections::BTreeSet<_> = reasons.iter().map(Reason::label).collect();
    assert_eq!(labels.len(), reasons.len());
    let ignored: Vec<_> = reasons
        .iter()
        .filter(|reason| reason.is_ignore())
        .map(Reason::label)
        .collect();
    assert_eq!(ignored, ["no_signer", "seen"]);
    assert_eq!(reasons.iter().filter(|reason| reason.is_clock()).count(), 2);
}

#[test]
fn topics_name_chain_and_version() {
    assert_eq!(topic(10, PayloadVersion::V1), "/optimism/10/0/blocks");
    assert_eq!(
        topic(u64::MAX, PayloadVersion::V4),
        "/optimism/18446744073709551615/3/blocks"
    );
}

#[test]
fn an_empty_tag_is_raw() {
    assert_eq!(Decompressed::untag(&[]), (PayloadFlag::Raw, &[][..]));
    assert_eq!(Decompressed::untag(&[9, 1]), (PayloadFlag::Raw, &[1][..]));
}

proptest! {
    #[test]
    fn a_message_survives_its_coding(wire in prop::collection::vec(any::<u8>(), 0..2000), signature in prop::collection::vec(any::<u8>(), 65)) {
        let signature: [u8; 65] = signature.try_into().unwrap();
        let data = encode_message(&signature, &wire).unwrap();
        let decompressed = decompress(&data);
        prop_assert_eq!(decompressed.flag, PayloadFlag::Decompressed);
        prop_assert_eq!(&decompressed.bytes, &[&signature[..], &wire].concat());
        let tagged = decompressed.clone().into_tagged();
        prop_assert_eq!(Decompressed::untag(&tagged), (PayloadFlag::Decompressed, &decompressed.bytes[..]));
    }

    #[test]
    fn any_data_are_judged_without_panic(data in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(!matches!(raw_verdict(&data), Verdict::Accept(..)));
        for version in PayloadVersion::ALL {
            prop_assert!(!matches!(signed_verdict(version, &data), Verdict::Accept(..)));
        }
    }

    #[test]
    fn a_block_survives_the_wire(
        version in prop::sample::select(&PayloadVersion::ALL[..]),
        transactions in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        extra in prop::collection::vec(any::<u8>(), 0..=32), number: u64, base_fee: u64, gas: u64, root: [u8; 32],
    ) {
        let transactions: Vec<_> = transactions.into_iter().map(alloy_primitives::Bytes::from).collect();
        let mut header = block(version, |_| {}).header;
        header.transactions_root = alloy_trie::root::ordered_trie_root_encoded(&transactions);
        header.extra_data = extra.into();
        header.number = number;
        header.base_fee_per_gas = Some(base_fee);
        header.gas_limit = gas;
        header.state_root = root.into();
        let payload = Payload::sealed(header, transactions);
        prop_assert_eq!(payload.version(), version);
        let wire = WirePayload::decode(version, &payload.to_wire(version)).unwrap();
        prop_assert_eq!((wire.claimed_hash(), wire.number(), wire.timestamp()), (payload.hash, number, NOW));
        prop_assert_eq!(wire.into_payload(), Ok(payload));
    }

    #[test]
    fn a_damaged_block_is_never_another_block(
        version in prop::sample::select(&PayloadVersion::ALL[..]), at: prop::sample::Index, byte: u8,
    ) {
        let payload = block(version, |_| {});
        let mut wire = payload.to_wire(version);
        let at = at.index(wire.len());
        prop_assume!(wire[at] != byte);
        wire[at] = byte;
        if let Ok(wire) = WirePayload::decode(version, &wire) {
            prop_assert!(wire.into_payload().is_err());
        }
    }
}

#[test]
fn a_base_fee_beyond_64_bits_is_refused() {
    let payload = block(PayloadVersion::V1, |_| {});
    let OpExecutionPayload::V1(mut wire) = payload.to_execution_payload(PayloadVersion::V1) else {
        unreachable!()
    };
    wire.base_fee_per_gas = U256::from(u64::MAX) + U256::from(1);
    let verdict = signed_verdict(PayloadVersion::V1, &wire.as_ssz_bytes());
    assert_eq!(verdict, Verdict::Reject(Reason::Decode(WireError::BaseFee)));
}
