//! Round trips of the batcher's formats, and hostile bytes for each decoder.

use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::{eip2930::AccessListItem, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, FixedBytes, Signature, TxKind, U256};
use proptest::{collection::vec, prelude::*};
use starling_proto::{
    batch::{self, Batch, BatchError, BatchTransactions, SingularBatch},
    blob::{self, BLOB_BYTES, BlobError, MAX_BLOB_DATA},
    channel::{
        BatchContext, BatchReader, ChannelCompression, ChannelData, ChannelError,
        ChannelWriteError, ChannelWriter,
    },
    frame::{self, FRAME_OVERHEAD, Frame, FrameError},
    span::{self, RebuildError, SpanBatch, SpanBlock, SpanBuildError, SpanBuilder, SpanError},
};
use std::io::Write;

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 13,
};
/// A chain whose ids in signatures need more than 64 bits.
const LARGE_CHAIN: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: u64::MAX,
};

fn bytes(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(Bytes::from)
}

fn word() -> impl Strategy<Value = U256> {
    (any::<[u8; 32]>(), 0..=256usize).prop_map(|(bytes, shift)| {
        U256::from_be_bytes(bytes)
            .checked_shr(shift)
            .unwrap_or_default()
    })
}

fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

prop_compose! {
    fn signature()(r in word(), s in word(), parity in any::<bool>()) -> Signature {
        Signature::new(r, s, parity)
    }
}

prop_compose! {
    fn access_list()(items in vec((any::<[u8; 20]>(), vec(any::<[u8; 32]>(), 0..3)), 0..3))
        -> Vec<AccessListItem>
    {
        items.into_iter().map(|(address, keys)| AccessListItem {
            address: address.into(),
            storage_keys: keys.into_iter().map(B256::from).collect(),
        }).collect()
    }
}

fn encoded<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(
    transaction: T,
    signature: &Signature,
) -> Bytes {
    let mut out = Vec::new();
    transaction.eip2718_encode(signature, &mut out);
    out.into()
}

prop_compose! {
    /// A transaction of any type that span batches hold, legacy ones protected or not.
    fn transaction(chain_id: u64)(
        kind in 0..5u8,
        nonce in number(),
        gas_limit in number(),
        fees in (any::<u128>(), any::<u128>()),
        to in any::<Option<[u8; 20]>>(),
        value in word(),
        input in bytes(0..80),
        list in access_list(),
        authorizations in vec((word(), any::<[u8; 20]>(), number(), signature()), 0..3),
        signature in signature(),
    ) -> Bytes {
        let target = to.unwrap_or_default().into();
        let to = to.map_or(TxKind::Create, |to| TxKind::Call(to.into()));
        let gas_price = fees.0;
        let access_list = list.into();
        let (max_fee_per_gas, max_priority_fee_per_gas) = fees;
        let authorization_list = authorizations
            .into_iter()
            .map(|(chain_id, address, nonce, signature)| {
                let address = Address::from(address);
                Authorization { chain_id, address, nonce }.into_signed(signature)
            })
            .collect();
        match kind {
            0 | 1 => {
                let chain_id = (kind == 1).then_some(chain_id);
                let tx = TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input };
                encoded(tx, &signature)
            }
            2 => {
                let tx = TxEip2930 {
                    chain_id, nonce, gas_price, gas_limit, to, value, access_list, input,
                };
                encoded(tx, &signature)
            }
            3 => {
                let tx = TxEip1559 {
                    chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas, to,
                    value, access_list, input,
                };
                encoded(tx, &signature)
            }
            _ => {
                let tx = TxEip7702 {
                    chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas,
                    to: target, value, access_list, authorization_list, input,
                };
                encoded(tx, &signature)
            }
        }
    }
}

prop_compose! {
    fn frames()(
        list in vec((any::<[u8; 16]>(), any::<u16>(), bytes(0..300), any::<bool>()), 1..6)
    ) -> Vec<Frame> {
        list.into_iter()
            .map(|(id, number, data, is_last)| Frame { id: id.into(), number, data, is_last })
            .collect()
    }
}

prop_compose! {
    fn singular()(
        parent_hash in any::<[u8; 32]>(),
        epoch_number in number(),
        epoch_hash in any::<[u8; 32]>(),
        timestamp in number(),
        transactions in vec(bytes(0..150), 0..6),
    ) -> SingularBatch {
        SingularBatch {
            parent_hash: parent_hash.into(),
            epoch_number,
            epoch_hash: epoch_hash.into(),
            timestamp,
            transactions: transactions.into(),
        }
    }
}

/// Consecutive blocks of a chain.
fn blocks(context: BatchContext) -> impl Strategy<Value = Vec<SingularBatch>> {
    let block = (any::<bool>(), vec(transaction(context.chain_id), 0..6));
    (vec(block, 1..12), 0..1_000u64, 100..u64::MAX / 2).prop_map(move |(list, time, epoch)| {
        let mut epoch_number = epoch;
        let mut out = Vec::new();
        for (index, (advance, transactions)) in list.into_iter().enumerate() {
            epoch_number += u64::from(advance);
            out.push(SingularBatch {
                parent_hash: B256::repeat_byte(index as u8 + 1),
                epoch_number,
                epoch_hash: B256::repeat_byte(index as u8 + 101),
                timestamp: context.genesis_time + time + context.block_time * index as u64,
                transactions: transactions.into(),
            });
        }
        out
    })
}

/// Appends a singular batch to a span.
fn push(
    builder: &mut SpanBuilder,
    batch: &SingularBatch,
    begins_epoch: bool,
) -> Result<(), SpanBuildError> {
    let block = SpanBlock {
        epoch_number: batch.epoch_number,
        timestamp: batch.timestamp,
        transactions: batch.transactions.clone(),
    };
    builder.push(&block, batch.parent_hash, batch.epoch_hash, begins_epoch)
}

fn span_of(blocks: &[SingularBatch], context: BatchContext) -> Vec<u8> {
    let mut builder = SpanBuilder::new(context);
    let mut encoded = vec![builder.encode()];
    for block in blocks {
        push(&mut builder, block, true).unwrap();
        encoded.push(builder.encode());
    }
    for (blocks, before) in encoded.iter().enumerate() {
        assert_eq!(builder.encode_first(blocks), *before);
    }
    assert_eq!(builder.encode_first(encoded.len()), None);
    let encoded = encoded.pop().flatten().unwrap();
    assert_eq!(encoded.len(), builder.encoded_len());
    encoded
}

fn assert_span(batch: Batch, blocks: &[SingularBatch]) {
    let Batch::Span(span) = batch else {
        panic!("no span batch");
    };
    let last = blocks.last().unwrap();
    assert_eq!(span.parent_check[..], blocks[0].parent_hash[..20]);
    assert_eq!(span.l1_origin_check[..], last.epoch_hash[..20]);
    assert_eq!(span.blocks.len(), blocks.len());
    for (found, block) in span.blocks.zip(blocks) {
        assert_eq!(found.epoch_number, block.epoch_number);
        assert_eq!(found.timestamp, block.timestamp);
        assert_eq!(found.transactions, block.transactions);
        let kinds = |list: &BatchTransactions| {
            let first_bytes = list.first_bytes().map(Option::unwrap);
            first_bytes.map(|byte| byte.min(0x80)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&found.transactions), kinds(&block.transactions));
        let encoded: usize = found.transactions.iter().map(|bytes| bytes.len()).sum();
        assert!(found.transactions.size() <= encoded);
        assert!(block.transactions.size() <= encoded + 9 * block.transactions.len());
    }
}

/// All frames of a channel of these batches, taken as soon as they are there.
fn channel(batches: &[Vec<u8>], compression: ChannelCompression, size: usize) -> Vec<Frame> {
    let id = FixedBytes::repeat_byte(7);
    let mut writer = ChannelWriter::new(id, compression, true).unwrap();
    let mut frames = Vec::new();
    for batch in batches {
        writer.add(batch).unwrap();
        while let Some(frame) = writer.next_frame(size).unwrap() {
            frames.push(frame);
        }
    }
    let input: u64 = batches
        .iter()
        .map(|batch| ChannelWriter::input_of(batch.len()))
        .sum();
    assert_eq!(writer.input_len(), input);
    writer.close().unwrap();
    assert_eq!(writer.add(&[0]), Err(ChannelWriteError::Closed));
    while let Some(frame) = writer.next_frame(size).unwrap() {
        frames.push(frame);
    }
    let output: usize = frames.iter().map(|frame| frame.data.len()).sum();
    assert_eq!(
        (writer.output_len(), writer.pending_len()),
        (output as u64, 0)
    );
    frames
}

fn joined(frames: &[Frame]) -> Bytes {
    frames.iter().flat_map(|frame| frame.data.clone()).collect()
}

/// Every result until the end, which an error that costs more than one batch is.
fn read(data: impl Into<ChannelData>, fjord: bool) -> Vec<Result<Batch, ChannelError>> {
    let mut reader = match BatchReader::new(data, CONTEXT, fjord) {
        Ok(reader) => reader,
        Err(error) => return vec![Err(error)],
    };
    let results: Vec<_> = std::iter::from_fn(|| reader.next_batch()).collect();
    assert!(reader.next_batch().is_none(), "the end is the end");
    results
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::fast();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = brotli::CompressorWriter::new(vec![1], 4096, 5, 22);
    encoder.write_all(bytes).unwrap();
    encoder.into_inner()
}

fn rlp(batch: &[u8]) -> Vec<u8> {
    alloy_rlp::encode(batch)
}

fn block(number: u64, transactions: Vec<Bytes>) -> SingularBatch {
    SingularBatch {
        parent_hash: B256::repeat_byte(1),
        epoch_number: 10,
        epoch_hash: B256::repeat_byte(2),
        timestamp: CONTEXT.genesis_time + CONTEXT.block_time * number,
        transactions: transactions.into(),
    }
}

const COMPRESSIONS: [ChannelCompression; 4] = [
    ChannelCompression::Zlib,
    ChannelCompression::Brotli9,
    ChannelCompression::Brotli10,
    ChannelCompression::Brotli11,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn frames_survive_and_no_part_of_an_item_is_one(frames in frames(), cut in any::<prop::sample::Index>()) {
        let item = Bytes::from(frame::encode(&frames));
        prop_assert_eq!(frame::decode(&item).unwrap(), frames.clone());
        let cut = cut.index(item.len());
        let sizes = frames.iter().scan(1, |end, frame| {
            *end += FRAME_OVERHEAD + frame.data.len();
            Some(*end)
        });
        let is_whole = sizes.into_iter().any(|end| end == cut);
        prop_assert_eq!(frame::decode(&item.slice(..cut)).is_ok(), is_whole);
    }

    #[test]
    fn blobs_survive(data in vec(any::<u8>(), 0..=3_000), long in 0..=MAX_BLOB_DATA) {
        prop_assert_eq!(&blob::decode(&blob::encode(&data).unwrap()).unwrap()[..], &data[..]);
        let long: Vec<u8> = data.iter().chain(&[0xa5]).cycle().take(long).copied().collect();
        prop_assert_eq!(&blob::decode(&blob::encode(&long).unwrap()).unwrap()[..], &long[..]);
    }

    #[test]
    fn singular_batches_survive_with_anything_after(batch in singular(), after in bytes(0..20)) {
        let mut encoded = batch.encode();
        for end in 0..encoded.len() {
            prop_assert!(batch::decode(&encoded[..end].to_vec().into(), &CONTEXT).is_err());
        }
        encoded.extend_from_slice(&after);
        prop_assert_eq!(batch::decode(&encoded.into(), &CONTEXT), Ok(Batch::Singular(batch)));
    }

    #[test]
    fn span_batches_survive_with_anything_after(blocks in blocks(CONTEXT), after in bytes(0..20)) {
        let mut encoded = span_of(&blocks, CONTEXT);
        for end in 0..encoded.len() {
            let error = batch::decode(&encoded[..end].to_vec().into(), &CONTEXT).unwrap_err();
            prop_assert!(!error.is_one_batch(), "{}", error);
        }
        encoded.extend_from_slice(&after);
        assert_span(batch::decode(&encoded.into(), &CONTEXT).unwrap(), &blocks);
    }

    #[test]
    fn signatures_of_the_largest_chain_id_survive(blocks in blocks(LARGE_CHAIN)) {
        let encoded = span_of(&blocks, LARGE_CHAIN);
        assert_span(batch::decode(&encoded.into(), &LARGE_CHAIN).unwrap(), &blocks);
    }

    #[test]
    fn arbitrary_columns_never_panic(body in vec(any::<u8>(), 0..400), blocks in 1..4u8) {
        let _ = span::decode(&body.clone().into(), &CONTEXT);
        let prefix = [&[5, 5][..], &[9; 40], &[blocks]].concat();
        let _ = span::decode(&[prefix, body].concat().into(), &CONTEXT);
    }

    #[test]
    fn channels_survive_in_frames_of_any_size(
        batches in vec(singular(), 1..20),
        kind in 0..4usize,
        size in FRAME_OVERHEAD + 1..400,
    ) {
        let encoded: Vec<_> = batches.iter().map(SingularBatch::encode).collect();
        let frames = channel(&encoded, COMPRESSIONS[kind], size);
        for (index, frame) in frames.iter().enumerate() {
            prop_assert_eq!(usize::from(frame.number), index);
            prop_assert_eq!(frame.is_last, index + 1 == frames.len());
            prop_assert!(frame.data.len() + FRAME_OVERHEAD <= size);
            prop_assert!(frame.is_last || frame.data.len() + FRAME_OVERHEAD == size);
        }
        let expected: Vec<_> = batches.into_iter().map(|batch| Ok(Batch::Singular(batch))).collect();
        prop_assert_eq!(&read(joined(&frames), true), &expected);
        let pieces: ChannelData = frames.into_iter().map(|frame| frame.data).collect();
        prop_assert_eq!(read(pieces, true), expected);
    }

    #[test]
    fn a_cut_or_damaged_channel_gives_a_prefix_of_its_batches(
        batches in vec(singular(), 1..12),
        kind in 0..4usize,
        cut in any::<prop::sample::Index>(),
        damage in any::<u8>(),
    ) {
        let encoded: Vec<_> = batches.iter().map(SingularBatch::encode).collect();
        let data = joined(&channel(&encoded, COMPRESSIONS[kind], 1_000)).to_vec();
        let cut = cut.index(data.len());
        let results = read(data[..cut].to_vec(), true);
        let (last, good) = results.split_last().unwrap();
        prop_assert!(last.is_err());
        for (result, batch) in good.iter().zip(&batches) {
            prop_assert_eq!(result, &Ok(Batch::Singular(batch.clone())));
        }
        let mut damaged = data;
        damaged[cut] ^= damage;
        let pieces = damaged.chunks(1 + usize::from(damage)).map(Bytes::copy_from_slice);
        let results = read(pieces.collect::<ChannelData>(), true);
        prop_assert_eq!(read(damaged, true), results, "the pieces change nothing");
    }
}

#[test]
fn a_malformed_frame_discards_its_item() {
    let frame = |length: u32, data: &[u8], last: u8| {
        let parts = [&[3; 16][..], &[0, 9], &length.to_be_bytes(), data, &[last]];
        parts.concat()
    };
    let item = |frames: &[Vec<u8>]| Bytes::from([&[0][..], &frames.concat()].concat());
    let good = frame(2, &[1, 2], 1);
    assert_eq!(
        frame::decode(&item(&[good.clone(), good.clone()]))
            .unwrap()
            .len(),
        2
    );
    for (item, error) in [
        (Bytes::new(), FrameError::Empty),
        (vec![0].into(), FrameError::NoFrame),
        (vec![1, 2, 3].into(), FrameError::AltDa),
        (vec![2].into(), FrameError::Version(2)),
        (item(&[good.clone(), vec![0]]), FrameError::Truncated),
        (
            item(&[good.clone(), frame(3, &[1, 2], 1)]),
            FrameError::Truncated,
        ),
        (
            item(&[good.clone(), frame(2, &[1, 2], 2)]),
            FrameError::IsLast(2),
        ),
        (
            item(&[frame(1_000_001, &[0; 1_000_001], 0)]),
            FrameError::TooLong(1_000_001),
        ),
        (
            item(&[frame(u32::MAX, &[], 0)]),
            FrameError::TooLong(u32::MAX),
        ),
    ] {
        assert_eq!(frame::decode(&item), Err(error));
    }
    assert!(frame::decode(&item(&[frame(1_000_000, &[0; 1_000_000], 0)])).is_ok());
}

#[test]
fn a_malformed_blob_is_refused() {
    let good = blob::encode(&[0xff; 200]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut blob = good.clone();
        blob[at] = byte;
        blob::decode(&blob)
    };
    assert_eq!(
        blob::decode(&good[1..]),
        Err(BlobError::Length(BLOB_BYTES - 1))
    );
    assert_eq!(with(1, 1), Err(BlobError::Version(1)));
    assert_eq!(with(2, 2), Err(BlobError::DataLength(2 << 16 | 200)));
    for element in 1..8 {
        assert_eq!(
            with(32 * element, 0x80),
            Err(BlobError::FieldElement(element))
        );
        assert_eq!(
            with(32 * element, 0x40),
            Err(BlobError::FieldElement(element))
        );
    }
    // op-node masks the high bits of the first element.
    assert_eq!(with(0, good[0] | 0x40).unwrap(), vec![0xff; 200]);
    assert!(matches!(with(4, 199), Err(BlobError::Extraneous(_))));
    assert_eq!(with(256, 1), Err(BlobError::Extraneous(256)));
    assert_eq!(
        with(BLOB_BYTES - 1, 1),
        Err(BlobError::Extraneous(BLOB_BYTES - 1))
    );
    for size in [0, 1, 27, 28, 122, 123, 124, 250, 251, MAX_BLOB_DATA] {
        let data = vec![0xc3; size];
        assert_eq!(blob::decode(&blob::encode(&data).unwrap()).unwrap(), data);
    }
    let long = vec![0; MAX_BLOB_DATA + 1];
    assert_eq!(blob::encode(&long), Err(BlobError::DataLength(long.len())));
}

#[test]
fn a_malformed_singular_batch_is_refused() {
    let decode = |data: Vec<u8>| batch::decode(&data.into(), &CONTEXT);
    assert_eq!(decode(vec![]), Err(BatchError::Empty));
    assert_eq!(decode(vec![2, 0xc0]), Err(BatchError::Type(2)));
    let good = block(1, vec![vec![5; 3].into()]).encode();
    assert!(decode(good.clone()).is_ok());
    // One field too many; a list for a transaction; an uneven hash.
    let mut longer = good.clone();
    longer[2] += 1;
    longer.push(0x80);
    let at = good.len() - 4;
    assert_eq!(good[at], 0x83);
    let mut list = good.clone();
    list[at] = 0xc3;
    let mut hash = good;
    hash[3] = 0x9f;
    for data in [longer, list, hash] {
        let error = decode(data).unwrap_err();
        assert!(matches!(error, BatchError::Singular(_)) && !error.is_one_batch());
    }
}

/// The prefix and the block count of a span batch.
fn span_prefix(blocks: &[u8]) -> Vec<u8> {
    [&[5, 5][..], &[9; 40], blocks].concat()
}

const TEN_MILLION: [u8; 4] = [0x80, 0xad, 0xe2, 0x04];
const TEN_MILLION_AND_ONE: [u8; 4] = [0x81, 0xad, 0xe2, 0x04];

#[test]
fn announced_elements_of_a_span_cost_nothing() {
    let decode = |parts: &[&[u8]]| span::decode(&parts.concat().into(), &CONTEXT).unwrap_err();
    let blocks = |count: &[u8]| span_prefix(count);
    assert_eq!(decode(&[&blocks(&[0])]), SpanError::NoBlock);
    assert_eq!(
        decode(&[&blocks(&TEN_MILLION)]),
        SpanError::Truncated("origin_bits")
    );
    let too_many = decode(&[&blocks(&TEN_MILLION_AND_ONE)]);
    assert_eq!(too_many, SpanError::TooLarge("block_count"));
    let bits = vec![0; 1_250_000];
    let no_counts = decode(&[&blocks(&TEN_MILLION), &bits]);
    assert_eq!(no_counts, SpanError::Truncated("block_tx_counts"));
    let one = blocks(&[1]);
    let no_bits = decode(&[&one, &[0], &TEN_MILLION]);
    assert_eq!(no_bits, SpanError::Truncated("contract_creation_bits"));
    let too_many = decode(&[&one, &[0], &TEN_MILLION_AND_ONE]);
    assert_eq!(too_many, SpanError::TooLarge("block_tx_counts"));
    let sum = decode(&[&blocks(&[2]), &[0], &TEN_MILLION, &[1]]);
    assert_eq!(sum, SpanError::TooLarge("block_tx_counts"));
    let signatures = decode(&[&one, &[0], &TEN_MILLION, &bits, &bits]);
    assert_eq!(signatures, SpanError::Truncated("tx_sigs"));
    let long = [0xff; 10];
    assert_eq!(decode(&[&long]), SpanError::Varint("rel_timestamp"));
    assert_eq!(decode(&[&long[..9]]), SpanError::Truncated("rel_timestamp"));
}

/// A span batch of one block with one transaction.
fn one_transaction(bits: [u8; 3], to: &[u8], data: &[u8], rest: &[u8]) -> Vec<u8> {
    let [origin, creation, parity] = bits;
    let head = [origin, 1, creation, parity];
    [&span_prefix(&[1]), &head[..], &[4; 64], to, data, rest].concat()
}

fn decode_one(bits: [u8; 3], to: &[u8], data: &[u8], rest: &[u8]) -> Result<SpanBatch, SpanError> {
    span::decode(&one_transaction(bits, to, data, rest).into(), &CONTEXT)
}

#[test]
fn faults_of_columns_end_a_channel() {
    let decode = decode_one;
    let (to, legacy, rest) = ([6; 20], [0xc3, 1, 2, 3], [7, 8, 1]);
    assert!(decode([0; 3], &to, &legacy, &rest).is_ok());
    assert!(decode([1, 1, 1], &[], &legacy, &rest).is_ok());
    let fault = |error| Err(error);
    assert_eq!(
        decode([2, 0, 0], &to, &legacy, &rest),
        fault(SpanError::Bits("origin_bits"))
    );
    let bits = SpanError::Bits("contract_creation_bits");
    assert_eq!(decode([0, 2, 0], &to, &legacy, &rest), fault(bits));
    assert_eq!(
        decode([0, 0, 2], &to, &legacy, &rest),
        fault(SpanError::Bits("y_parity_bits"))
    );
    let bits = SpanError::Bits("protected_bits");
    assert_eq!(decode([0; 3], &to, &legacy, &[7, 8, 2]), fault(bits));
    assert_eq!(
        decode([0; 3], &to, &[0x83, 1, 2, 3], &rest),
        fault(SpanError::Data)
    );
    let long = [&[0xfa, 0x98, 0x96, 0x7d][..], &vec![0; 9_999_997]].concat();
    assert_eq!(
        decode([0; 3], &to, &long, &rest),
        fault(SpanError::TooLarge("tx_datas"))
    );
    // A type byte of 0 counts as legacy: its protected bit is missing.
    let zero = [&[0][..], &legacy].concat();
    let missing = SpanError::Truncated("protected_bits");
    assert_eq!(decode([0; 3], &to, &zero, &[7, 8]), fault(missing));
}

#[test]
fn faults_of_transactions_cost_one_batch() {
    let decode = decode_one;
    let (to, rest) = ([6; 20], [7, 8, 1]);
    let zero = [0, 0xc3, 1, 2, 3];
    let transaction = |error| Err(SpanError::Transaction(error));
    let type_0 = transaction(RebuildError::Type(0));
    assert_eq!(decode([0; 3], &to, &zero, &rest), type_0);
    let blob = [3, 0xc3, 1, 2, 3];
    assert_eq!(
        decode([0; 3], &to, &blob, &rest),
        transaction(RebuildError::Type(3))
    );
    let set_code = [4, 0xc6, 1, 2, 3, 4, 0xc0, 0xc0];
    assert!(decode([0; 3], &to, &set_code, &rest).is_ok());
    let creation = transaction(RebuildError::Creation);
    assert_eq!(decode([0, 1, 0], &[], &set_code, &rest), creation);
    // A number with a leading zero; too few and too many fields; a list for the data; keys of 31
    // bytes; an access list in a legacy transaction.
    let short_key = [
        &[1, 0xf8, 59, 1, 2, 3, 0xf7, 0xf6, 0x94][..],
        &[0; 20],
        &[0xe0, 0x9f],
        &[5; 31],
    ]
    .concat();
    for data in [
        &[0xc3, 0, 2, 3][..],
        &[0xc2, 1, 2],
        &[0xc4, 1, 2, 3, 4],
        &[0xc3, 1, 2, 0xc0],
        &[0xc4, 1, 2, 3, 0xc0],
        &[0xc4, 0x81, 1, 2, 3],
        &[1, 0xc3, 1, 2, 3],
        &[4, 0xc7, 1, 2, 3, 4, 0xc0, 0xc1, 1],
        &short_key,
    ] {
        let error = decode([0; 3], &to, data, &rest);
        assert_eq!(error, transaction(RebuildError::Data), "{data:?}");
    }
    // Integers of any length, as in geth.
    let wide = [&[0xe8, 0xa5][..], &[1; 37], &[2, 3]].concat();
    assert!(decode([0; 3], &to, &wide, &rest).is_ok());
}

#[test]
fn times_and_origins_of_a_span_wrap_instead_of_panicking() {
    let maximum = [&[0xff; 9][..], &[1]].concat();
    let body = [&maximum, &[0][..], &[9; 40], &[2, 0b10, 0, 0]].concat();
    let span = span::decode(&body.into(), &CONTEXT).unwrap();
    assert_eq!(
        (span.first.epoch_number, span.last.epoch_number),
        (u64::MAX, 0)
    );
    assert_eq!(span.first.timestamp, CONTEXT.genesis_time - 1);
    let numbers: Vec<_> = span.blocks.map(|block| block.epoch_number).collect();
    assert_eq!(numbers, [u64::MAX, 0]);
}

#[test]
fn a_builder_refuses_blocks_that_a_span_cannot_hold() {
    let mut builder = SpanBuilder::new(CONTEXT);
    assert_eq!(builder.encode(), None);
    let early = SingularBatch {
        timestamp: 999,
        ..block(0, vec![])
    };
    assert_eq!(
        push(&mut builder, &early, true),
        Err(SpanBuildError::Timestamp(999))
    );
    push(&mut builder, &block(3, vec![]), true).unwrap();
    let before = builder.encode();
    let time = block(5, vec![]);
    assert_eq!(
        push(&mut builder, &time, false),
        Err(SpanBuildError::Timestamp(time.timestamp))
    );
    let epoch = SingularBatch {
        epoch_number: 12,
        ..block(4, vec![])
    };
    assert_eq!(
        push(&mut builder, &epoch, false),
        Err(SpanBuildError::Epoch(12))
    );
    let other_chain = TxLegacy {
        chain_id: Some(14),
        ..Default::default()
    };
    let other_chain = encoded(other_chain, &Signature::test_signature());
    let deposit = Bytes::from_static(&[0x7e, 0xc0]);
    for (bytes, error) in [
        (other_chain, RebuildError::ChainId),
        (deposit, RebuildError::Type(0x7e)),
        (Bytes::from_static(&[3, 0xc0]), RebuildError::Type(3)),
        (Bytes::new(), RebuildError::Data),
        (Bytes::from_static(&[0xc1, 1]), RebuildError::Data),
    ] {
        let index = 0;
        let refused = push(&mut builder, &block(4, vec![bytes]), false);
        assert_eq!(refused, Err(SpanBuildError::Transaction { index, error }));
    }
    assert_eq!(
        (builder.encode(), builder.blocks(), builder.transactions()),
        (before, 1, 0)
    );
}

#[test]
fn a_stream_that_is_no_channel_is_refused() {
    let batch = rlp(&block(1, vec![]).encode());
    let refused = |data: Vec<u8>, fjord| BatchReader::new(data, CONTEXT, fjord).unwrap_err();
    assert_eq!(refused(vec![], true), ChannelError::Empty);
    assert_eq!(refused(vec![2, 3], true), ChannelError::Compression(2));
    assert_eq!(
        refused(brotli(&batch), false),
        ChannelError::BrotliBeforeFjord
    );
    assert_eq!(read(brotli(&batch), true).len(), 1);
    // Method 15, a window of 64 KiB, a wrong check and a preset dictionary.
    for header in [[0x7f, 0x01], [0x88, 0x1c], [0x78, 0x9d], [0x78, 0xbb]] {
        assert_eq!(
            refused([&header[..], &[0; 9]].concat(), true),
            ChannelError::ZlibHeader
        );
    }
    assert_eq!(refused(vec![0x78], true), ChannelError::Truncated);
    // The large windows of brotli's extension, which would take up to a gigabyte.
    let large = vec![1, 0x11, 0x1e, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(large, true), [Err(ChannelError::Corrupt)]);
}

#[test]
fn batches_before_a_fault_are_read_and_one_unbuildable_span_costs_only_itself() {
    let good = block(1, vec![]);
    let (first, bad) = (rlp(&good.encode()), rlp(&[9, 1]));
    let is_good =
        |result: &Result<Batch, ChannelError>| *result == Ok(Batch::Singular(good.clone()));
    let span = [
        &[1][..],
        &one_transaction([0; 3], &[6; 20], &[3, 0xc0], &[7, 8]),
    ]
    .concat();
    for compress in [zlib as fn(&[u8]) -> Vec<u8>, brotli] {
        let results = read(compress(&[&first[..], &bad, &first].concat()), true);
        assert!(results.len() == 2 && is_good(&results[0]));
        assert_eq!(results[1], Err(BatchError::Type(9).into()));
        for junk in [
            &[0xc0][..],
            &[0x81, 0],
            &[0xb8, 55],
            &[0xb9, 0, 60],
            &[0],
            &[0x80],
            &[0xbf; 9],
        ] {
            let results = read(compress(&[&first[..], junk, &first].concat()), true);
            assert!(
                results.len() == 2 && is_good(&results[0]) && results[1].is_err(),
                "{junk:?}"
            );
        }
        let results = read(compress(&[&rlp(&span)[..], &first].concat()), true);
        assert!(results.len() == 2 && is_good(&results[1]));
        assert!(results[0].as_ref().is_err_and(ChannelError::is_one_batch));
        // Bytes after the compressed stream.
        let results = read([compress(&first), vec![1, 2, 3]].concat(), true);
        assert!(results.len() == 1 && is_good(&results[0]));
    }
    // A checksum that does not match costs no batch.
    let mut checksum = zlib(&first);
    *checksum.last_mut().unwrap() ^= 1;
    let results = read(checksum, true);
    assert!(is_good(&results[0]));
    assert_eq!(results[1..], [Err(ChannelError::Corrupt)]);
}

#[test]
fn the_limit_counts_all_decompressed_bytes() {
    let batch = block(1, vec![vec![0; 999_000].into()]).encode();
    let channel = rlp(&batch).repeat(11);
    let whole = 10_000_000 / rlp(&batch).len();
    let results = read(zlib(&channel), false);
    assert_eq!(results.len(), whole + 1);
    assert_eq!(results.last(), Some(&Err(ChannelError::TooLarge)));
    assert_eq!(read(zlib(&channel), true).len(), 11);
    // Exactly the limit is allowed: 10,000,000 bytes with a header of four.
    let exact = |len: usize| {
        let mut batch = block(1, vec![]).encode();
        batch.resize(len, 0);
        zlib(&rlp(&batch))
    };
    assert!(read(exact(9_999_996), false)[0].is_ok());
    assert_eq!(read(exact(9_999_997), false), [Err(ChannelError::TooLarge)]);
    let id = FixedBytes::ZERO;
    let mut writer = ChannelWriter::new(id, ChannelCompression::Zlib, false).unwrap();
    writer.add(&vec![0; 9_999_996]).unwrap();
    assert_eq!(writer.add(&[]), Err(ChannelWriteError::TooLarge));
    let brotli = ChannelWriter::new(id, ChannelCompression::Brotli10, false);
    assert!(matches!(brotli, Err(ChannelWriteError::BrotliBeforeFjord)));
}
