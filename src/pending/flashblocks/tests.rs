//! Tests of frames and their order. The resulting `pending` block is tested in
//! `src/rpc/tests/pending.rs`.

use super::{
    frame::{Flashblock, FlashblockBase, FlashblockDiff, FlashblockFrameError},
    sequence::{Assembler, FlashblockArrival, SequenceError},
};
use alloy_consensus::Header;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_primitives::{B64, B256, Bytes};
use alloy_trie::root::ordered_trie_root_encoded;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::Write;

fn packed(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = brotli::CompressorWriter::new(&mut out, 4096, 5, 22);
    writer.write_all(text).unwrap();
    drop(writer);
    out
}

fn fixture(name: &str) -> Option<Value> {
    let text = starling_testkit::fixture_text(&format!("p2p/flashblocks/{name}.json"))?;
    Some(serde_json::from_str(&text).expect("JSON"))
}

fn member<T: DeserializeOwned>(value: &Value, name: &str) -> T {
    serde_json::from_value(value[name].clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The header of a block made of these parts, with the roots in the last part.
fn header(base: &FlashblockBase, diff: &Value, transactions: &[Bytes]) -> Header {
    let quantity = |name: &str| member::<alloy_primitives::U64>(diff, name).to::<u64>();
    Header {
        parent_hash: base.parent_hash,
        beneficiary: base.fee_recipient,
        state_root: member(diff, "state_root"),
        receipts_root: member(diff, "receipts_root"),
        logs_bloom: member(diff, "logs_bloom"),
        transactions_root: ordered_trie_root_encoded(transactions),
        number: base.block_number.to(),
        gas_limit: base.gas_limit.to(),
        gas_used: quantity("gas_used"),
        timestamp: base.timestamp.to(),
        extra_data: base.extra_data.clone(),
        mix_hash: base.prev_randao,
        base_fee_per_gas: Some(base.base_fee_per_gas.to()),
        withdrawals_root: Some(member(diff, "withdrawals_root")),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: base.parent_beacon_block_root,
        requests_hash: Some(EMPTY_REQUESTS_HASH),
        ..Default::default()
    }
}

#[test]
fn the_parts_of_a_real_block_make_up_its_header() {
    let Some(fixture) = fixture("unichain-sepolia-35535698") else {
        return;
    };
    let parts = fixture["flashblocks"].as_array().unwrap();
    let (mut assembler, mut transactions) = (Assembler::default(), Vec::new());
    for (index, part) in parts.iter().enumerate() {
        let plain = part.to_string().into_bytes();
        let read = Flashblock::read(&packed(&plain)).expect("it is read");
        transactions.extend(read.diff.transactions.clone());
        assert_eq!(Flashblock::read(&plain).unwrap().index, index as u64);
        let arrival = assembler.accept(read).expect("it continues the block");
        let expected = [FlashblockArrival::Begins, FlashblockArrival::Continues];
        assert_eq!(arrival, expected[index.min(1)], "part {index}");
        let base = &assembler.current.as_ref().unwrap().base;
        let header = header(base, &part["diff"], &transactions);
        let hash: B256 = member(&part["diff"], "block_hash");
        assert_eq!(header.hash_slow(), hash);
    }
    assert_eq!(transactions.len(), 6);
    let last = &parts.last().unwrap()["diff"]["block_hash"];
    assert_eq!(*last, fixture["expected"]["block_hash"]);
}

#[test]
fn a_part_without_its_beginning_is_read_and_ignored() {
    let Some(fixture) = fixture("base-mainnet-37646058-index10") else {
        return;
    };
    let read = Flashblock::read(fixture["flashblock"].to_string().as_bytes()).unwrap();
    assert_eq!((read.index, read.diff.transactions.len()), (10, 11));
    assert_eq!(
        Assembler::default().accept(read),
        Ok(FlashblockArrival::Ignored)
    );
}

#[test]
fn hostile_messages_are_refused_in_bounded_memory() {
    let bomb = packed(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 100_000, "{} bytes", bomb.len());
    assert!(matches!(
        Flashblock::read(&bomb),
        Err(FlashblockFrameError::TooLarge)
    ));
    for message in [
        &b""[..],
        b"   ",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{\"index\":-1}",
    ] {
        assert!(Flashblock::read(message).is_err(), "{message:?}");
    }
    let deep = [b"{\"a\":".repeat(100_000)].concat();
    assert!(Flashblock::read(&deep).is_err());
    let cut = packed(&json!({ "index": 0 }).to_string().into_bytes());
    assert!(Flashblock::read(&cut[..cut.len() - 2]).is_err());
}

fn part(id: u8, index: u64, number: u64) -> Flashblock {
    let base = (index == 0).then(|| {
        let text = json!({
            "parent_hash": alloy_primitives::B256::repeat_byte(id),
            "fee_recipient": alloy_primitives::Address::ZERO,
            "prev_randao": alloy_primitives::B256::ZERO,
            "block_number": format!("{number:#x}"),
            "gas_limit": "0x1",
            "timestamp": "0x1",
            "extra_data": "0x",
            "base_fee_per_gas": "0x1",
        });
        serde_json::from_value(text).unwrap()
    });
    Flashblock {
        payload_id: B64::repeat_byte(id),
        index,
        base,
        diff: FlashblockDiff {
            gas_used: Default::default(),
            transactions: vec![],
            withdrawals: vec![],
        },
    }
}

#[test]
fn parts_out_of_order_or_of_another_block_end_the_block() {
    let mut assembler = Assembler::default();
    let begun = |assembler: &Assembler| assembler.current.as_ref().map(|it| it.parts.len());
    assert_eq!(
        assembler.accept(part(1, 1, 7)),
        Ok(FlashblockArrival::Ignored)
    );
    assert_eq!(
        assembler.accept(part(1, 0, 7)),
        Ok(FlashblockArrival::Begins)
    );
    assert_eq!(
        assembler.accept(part(1, 0, 7)),
        Ok(FlashblockArrival::Ignored)
    );
    assert_eq!(
        assembler.accept(part(1, 1, 7)),
        Ok(FlashblockArrival::Continues)
    );
    assert_eq!(
        assembler.accept(part(1, 1, 7)),
        Ok(FlashblockArrival::Ignored)
    );
    assert_eq!(begun(&assembler), Some(2));
    let gap = SequenceError::Gap { have: 3, last: 1 };
    assert_eq!(assembler.accept(part(1, 3, 7)), Err(gap));
    assert_eq!(begun(&assembler), None);
    assert_eq!(
        assembler.accept(part(1, 2, 7)),
        Ok(FlashblockArrival::Ignored)
    );
    // A part of a lower block is late, another block of the same height replaces the one in
    // progress, and a later part of the replaced block is an error.
    assert_eq!(
        assembler.accept(part(2, 0, 8)),
        Ok(FlashblockArrival::Begins)
    );
    assert_eq!(
        assembler.accept(part(3, 0, 7)),
        Ok(FlashblockArrival::Ignored)
    );
    assert_eq!(
        assembler.accept(part(4, 0, 8)),
        Ok(FlashblockArrival::Begins)
    );
    assert_eq!(
        assembler.accept(part(2, 1, 8)),
        Err(SequenceError::OtherBlock(8))
    );
    let without = Flashblock {
        base: None,
        ..part(5, 0, 9)
    };
    assert_eq!(assembler.accept(without), Err(SequenceError::NoBase));
}

#[test]
fn a_block_has_bounded_parts() {
    let mut assembler = Assembler::default();
    let accept_all = |assembler: &mut Assembler, size: usize, most: u64| {
        assert_eq!(
            assembler.accept(part(1, 0, 7)),
            Ok(FlashblockArrival::Begins)
        );
        (1..most).find_map(|index| {
            let mut part = part(1, index, 7);
            part.diff.transactions = vec![vec![0; size].into()];
            assembler.accept(part).err().map(|error| (index, error))
        })
    };
    let (index, error) = accept_all(&mut assembler, 1, 1000).expect("many parts");
    assert_eq!((index, error), (256, SequenceError::TooLarge(7)));
    let (index, error) = accept_all(&mut assembler, 5 << 20, 1000).expect("large parts");
    assert_eq!((index, error), (7, SequenceError::TooLarge(7)));
    // Empty transactions are short in JSON but large in memory.
    let mut many = part(2, 0, 7);
    many.diff.transactions = vec![Bytes::new(); 2 << 20];
    assert_eq!(assembler.accept(many), Err(SequenceError::TooLarge(7)));
}
