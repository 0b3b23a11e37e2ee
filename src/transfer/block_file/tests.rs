use super::*;
use alloy_consensus::Header;
use alloy_primitives::Bytes;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Vec<Result<FileBlock, BlockFileError>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    BlockReader::open(file.path()).unwrap().collect()
}

/// A chain exported by geth, from Homestead on: encoding the decoded blocks yields the same bytes.
#[test]
fn a_file_of_geth_is_read_and_written_the_same() {
    let Some(path) = starling_testkit::fixture("rpc-compat/tests/chain.rlp") else {
        return;
    };
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let (mut rest, mut count, mut legacy, mut typed) = (bytes.as_ref(), 0, 0, 0);
    let (mut uncles, mut withdrawals) = (0, 0);
    while !rest.is_empty() {
        let header = alloy_rlp::Header::decode(&mut &rest[..]).unwrap();
        let (block, more) = rest.split_at(header.length_with_payload());
        rest = more;
        let payload = decode(Bytes::copy_from_slice(block)).unwrap();
        assert_eq!(encode(&payload), block, "block {}", payload.number());
        count += 1;
        uncles += payload.uncles().len();
        withdrawals += payload.withdrawals().len();
        let is_legacy = |raw: &&Bytes| raw.first().is_some_and(|byte| *byte >= 0xc0);
        legacy += payload.transactions.iter().filter(is_legacy).count();
        typed += payload
            .transactions
            .iter()
            .filter(|raw| !is_legacy(raw))
            .count();
        assert_eq!(
            payload.header.transactions_root,
            alloy_trie::root::ordered_trie_root_encoded(&payload.transactions)
        );
    }
    println!("{count} blocks, {legacy} legacy and {typed} typed transactions");
    assert!(count > 50 && legacy > 0 && typed > 0 && uncles > 0 && withdrawals > 0);
}

#[test]
fn lengths_that_lie_cost_nothing() {
    for bytes in [
        &[0xff; 9][..],
        &[0xfa, 0xff, 0xff, 0xff, 1, 2],
        &[0xf8],
        &[0xbf],
        &[0x00],
        &[0xc1],
        &[0xf8, 0x00],
    ] {
        let all = read(bytes);
        assert_eq!(all.len(), 1);
        assert!(
            all[0].as_ref().is_err_and(|error| error.offset == 0),
            "{bytes:?}"
        );
    }
    assert!(read(&[]).is_empty());
}

fn block(transactions: Vec<Bytes>, shanghai: bool) -> Payload {
    let header = Header {
        number: 7,
        withdrawals_root: shanghai.then_some(alloy_trie::EMPTY_ROOT_HASH),
        base_fee_per_gas: Some(1),
        ..Default::default()
    };
    Payload::sealed(header, transactions)
}

#[test]
fn malformed_ends_of_a_block_are_named() {
    let good = encode(&block(vec![], true));
    let items = &good[3..];
    for (tail, words) in [
        (&[0xc1, 0xc0, 0xc0][..], "the uncles of block 7"),
        (&[0xc0, 0xc1, 0xc0], "the withdrawals of block 7"),
        (
            &[0xc0, 0xc0, 0xc0],
            "block 7 has a part after its withdrawals",
        ),
    ] {
        let items = [&items[..items.len() - 2], tail].concat();
        let mut bytes = vec![];
        alloy_rlp::Header {
            list: true,
            payload_length: items.len(),
        }
        .encode(&mut bytes);
        bytes.extend_from_slice(&items);
        let error = read(&bytes).remove(0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

proptest! {
    #[test]
    fn blocks_round_trip(
        transactions in prop::collection::vec((1u8..0x80, prop::collection::vec(any::<u8>(), 0..90)), 0..5), shanghai in any::<bool>()
    ) {
        // Typed transactions, and lists, which is the encoding of legacy transactions.
        let raw = |(tag, body): (u8, Vec<u8>)| match tag % 2 {
            0 => [&[tag][..], &body].concat(),
            _ => alloy_rlp::encode(vec![Bytes::from(body)]),
        };
        let payload = block(transactions.into_iter().map(|tx| raw(tx).into()).collect(), shanghai);
        let bytes = [encode(&payload), encode(&payload)].concat();
        let all = read(&bytes);
        prop_assert_eq!(all.len(), 2);
        for (block, offset) in all.into_iter().zip([0, bytes.len() as u64 / 2]) {
            let block = block.unwrap();
            prop_assert_eq!((&block.payload, block.offset), (&payload, offset));
        }
        let one = bytes.len() / 2;
        for cut in [1, 2, 3, one / 2, one - 1] {
            let all = read(&bytes[..cut]);
            prop_assert!(matches!(&all[..], [Err(BlockFileError { offset: 0, cause: Cause::Truncated, .. })]), "{:?}", all);
        }
    }

    #[test]
    fn hostile_files_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }
}
