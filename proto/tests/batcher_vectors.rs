//! The batcher's formats against vectors from other implementations, and against the chains of
//! `derivation-live`. `../shared/fixtures/README.md` lists the source of each file.

use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable, Header};
use flate2::read::ZlibDecoder;
use serde_json::Value;
use starling_proto::{
    batch::{self, Batch, SingularBatch},
    blob::{self, BlobError},
    channel::{BatchContext, BatchReader, ChannelError},
    frame::{self, ChannelId, Frame},
    span::{SpanBatch, SpanBlock, SpanBuilder},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// The bytes of a fixture, decompressed if its name ends in `.zst`. `None`, recorded as a skip, if
/// the fixtures are absent.
fn fixture(path: &str) -> Option<Vec<u8>> {
    starling_testkit::fixture(path).map(|path| contents(&path))
}

fn contents(path: &Path) -> Vec<u8> {
    let file = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_some_and(|extension| extension == "zst") {
        zstd::decode_all(&file[..]).unwrap()
    } else {
        file
    }
}

macro_rules! fixture {
    ($path:expr) => {
        match fixture($path) {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

/// Decodes hex; a number may lack its leading zero.
fn unhex(text: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(text).unwrap().trim();
    let text = text.trim_start_matches("0x");
    if text.len().is_multiple_of(2) {
        hex::decode(text).unwrap()
    } else {
        hex::decode(format!("0{text}")).unwrap()
    }
}

/// Decodes hex with one value per line.
fn unhex_lines(text: &[u8]) -> Vec<Bytes> {
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(|line| unhex(line).into()).collect()
}

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn context(genesis_time: u64, block_time: u64, chain_id: u64) -> BatchContext {
    BatchContext {
        genesis_time,
        block_time,
        chain_id,
    }
}

fn batches(data: Bytes, context: BatchContext) -> Vec<Result<Batch, ChannelError>> {
    let mut reader = BatchReader::new(data, context, true).unwrap();
    std::iter::from_fn(|| reader.next_batch()).collect()
}

fn inflate(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // Some streams of the vectors end early, so the error is ignored.
    let _ = ZlibDecoder::new(data).read_to_end(&mut out);
    out
}

/// The content of each RLP string in a decompressed channel.
fn strings(mut data: &[u8]) -> Vec<Bytes> {
    let mut out = Vec::new();
    while let Ok(string) = Header::decode_bytes(&mut data, false) {
        out.push(Bytes::copy_from_slice(string));
    }
    out
}

/// The singular batches of a span, with as many bytes of the hashes as the span has.
fn singular(span: &SpanBatch) -> Vec<SingularBatch> {
    let padded = |check: &[u8]| B256::right_padding_from(check);
    let batch = |block: SpanBlock| SingularBatch {
        parent_hash: padded(span.parent_check.as_slice()),
        epoch_number: block.epoch_number,
        epoch_hash: padded(span.l1_origin_check.as_slice()),
        timestamp: block.timestamp,
        transactions: block.transactions,
    };
    span.blocks.clone().map(batch).collect()
}

fn encode(blocks: &[SingularBatch], context: BatchContext, begins_epoch: bool) -> Vec<u8> {
    let mut builder = SpanBuilder::new(context);
    for block in blocks {
        let span_block = SpanBlock {
            epoch_number: block.epoch_number,
            timestamp: block.timestamp,
            transactions: block.transactions.clone(),
        };
        builder
            .push(
                &span_block,
                block.parent_hash,
                block.epoch_hash,
                begins_epoch,
            )
            .unwrap();
    }
    builder.encode().unwrap()
}

/// Checks that a batch of an honest batcher is encoded to the same bytes again.
fn assert_encodes_to(batch: &Batch, bytes: &[u8], context: BatchContext) {
    match batch {
        Batch::Singular(singular) => assert_eq!(singular.encode(), bytes),
        Batch::Span(span) => {
            let blocks = singular(span);
            let both = [true, false].map(|begins| encode(&blocks, context, begins));
            assert!(both.iter().any(|encoded| encoded == bytes), "other bytes");
        }
    }
}

#[test]
fn blobs_of_other_nodes_decode_and_encode() {
    let expected = json(&fixture!("blobs/op-blob-codec/EXPECTED.json"));
    for (name, text) in expected.as_object().unwrap() {
        let blob = unhex(&fixture!(&format!("blobs/op-blob-codec/{name}.zst")));
        let data: Vec<u8> = match text.as_str().unwrap() {
            "(empty)" => vec![],
            "26 zero bytes" => vec![0; 26],
            // A blob that belongs to another rollup.
            "used with a beacon sidecar commitment" => {
                assert_eq!(blob::decode(&blob), Err(BlobError::Version(0x16)));
                continue;
            }
            text if text.starts_with("blob9_decode") => {
                unhex(&fixture!("blobs/op-blob-codec/blob9_decode.txt"))
            }
            text if text.starts_with("0x") => unhex(text.as_bytes()),
            text => text.as_bytes().to_vec(),
        };
        assert_eq!(blob::decode(&blob).unwrap(), data, "{name}");
        assert_eq!(blob::encode(&data).unwrap(), blob, "{name}");
    }
}

fn assert_span_facts(span: &SpanBatch, facts: &Value, context: BatchContext) {
    let checks = [&span.parent_check, &span.l1_origin_check];
    for (check, name) in checks.into_iter().zip(["parent_check", "l1_origin_check"]) {
        assert_eq!(
            check.as_slice(),
            unhex(facts[name].as_str().unwrap().as_bytes())
        );
    }
    assert_eq!(span.blocks.len() as u64, number(&facts["block_count"]));
    let (first, last) = (&span.first, &span.last);
    assert_eq!(
        first.timestamp,
        context.genesis_time + number(&facts["rel_timestamp"])
    );
    assert_eq!(last.epoch_number, number(&facts["l1_origin_num"]));
    let bits = unhex(facts["origin_bits_hex"].as_str().unwrap().as_bytes());
    let first_bit = u64::from(bits.last().unwrap() & 1);
    let changes = number(&facts["origin_bits_set"]) - first_bit;
    assert_eq!(last.epoch_number - first.epoch_number, changes);
    let counts: Vec<_> = span
        .blocks
        .clone()
        .map(|block| block.transactions.len() as u64)
        .collect();
    let expected = facts["block_tx_counts"].as_array().unwrap();
    assert_eq!(counts, expected.iter().map(number).collect::<Vec<_>>());
}

#[test]
fn a_large_span_batch_decodes_and_encodes() {
    let channel = unhex(&fixture!(
        "derivation/channels/zlib-channel-1.4MB-spanbatch.hex"
    ));
    let path = "derivation/channels/zlib-channel-1.4MB-spanbatch.expected.json";
    let expected = json(&fixture!(path));
    // OP Mainnet's constants. Protected signatures and encodings depend on the chain id.
    let context = context(1_686_789_347, 2, 10);
    let facts = &expected["expected"]["batches"][0]["span"];
    let decoded = batches(channel.clone().into(), context);
    let [Ok(Batch::Span(span))] = &decoded[..] else {
        panic!("{:?}", decoded.len());
    };
    assert_span_facts(span, facts, context);
    for block in span.blocks.clone() {
        for bytes in block.transactions.iter() {
            starling_proto::payload::decode_transaction(&bytes).unwrap();
        }
    }
    let bytes = &strings(&inflate(&channel))[0];
    assert_encodes_to(&decoded[0].clone().unwrap(), bytes, context);
    // The decoder must return the same batch from these bytes alone.
    let again = batch::decode(bytes, &context).unwrap();
    assert_eq!(again, Batch::Span(span.clone()));
}

#[test]
fn batcher_transactions_of_op_goerli_decode() {
    let file = json(&fixture!(
        "derivation/batcher-tx/magi-op-goerli-calldata.json"
    ));
    let context = context(1_673_550_516, 2, 420);
    for vector in file["vectors"].as_array().unwrap() {
        let item: Bytes = unhex(vector["calldata"].as_str().unwrap().as_bytes()).into();
        let frames = frame::decode(&item).unwrap();
        assert_eq!(frame::encode(&frames), item);
        let facts = &vector["frames"][0];
        assert_eq!(
            frames[0].id.to_string(),
            facts["channel_id"].as_str().unwrap()
        );
        assert_eq!(frames[0].data.len() as u64, number(&facts["data_len"]));
        let expected = vector["channel"]["batches"].as_array().unwrap();
        let is_whole = vector["channel"]["stream_finished"].as_bool().unwrap();
        let found = batches(frames[0].data.clone(), context);
        assert_eq!(found.len(), expected.len() + usize::from(!is_whole));
        let bytes = strings(&inflate(&frames[0].data));
        for ((result, facts), bytes) in found.iter().zip(expected).zip(&bytes) {
            let batch = result.as_ref().unwrap();
            assert_eq!(bytes.len() as u64, number(&facts["declared_len"]));
            assert_encodes_to(batch, bytes, context);
            if let Batch::Span(span) = batch {
                assert_span_facts(span, &facts["span"], context);
            }
        }
    }
}

/// Splits consecutive RLP items.
fn items(mut data: &[u8]) -> Vec<Bytes> {
    let mut out = Vec::new();
    while !data.is_empty() {
        let begin = data;
        let mut rest = data;
        let header = Header::decode(&mut rest).unwrap();
        data = &rest[header.payload_length..];
        out.push(Bytes::copy_from_slice(&begin[..begin.len() - data.len()]));
    }
    out
}

#[test]
fn legacy_transactions_of_hildr_are_rebuilt() {
    let context = context(0, 2, 697);
    for name in ["fulltxlegacy.txt", "fulltxunprotected.txt"] {
        let file = fixture!(&format!("derivation/span-batch/hildr/{name}"));
        let transactions = unhex_lines(&file);
        assert!(transactions.len() > 10);
        let block = SingularBatch {
            parent_hash: B256::ZERO,
            epoch_number: 0,
            epoch_hash: B256::ZERO,
            timestamp: 0,
            transactions: transactions.into(),
        };
        let encoded = encode(std::slice::from_ref(&block), context, true);
        let Ok(Batch::Span(mut span)) = batch::decode(&encoded.into(), &context) else {
            panic!("no span batch");
        };
        let found = span.blocks.next().unwrap();
        assert_eq!(found.transactions, block.transactions, "{name}");
    }
}

#[test]
fn singular_batches_of_hildr_make_a_span() {
    let file = fixture!("derivation/span-batch/hildr/spanbatchfromsingular.txt");
    let blocks: Vec<_> = unhex_lines(&file)
        .iter()
        .map(|body| SingularBatch::decode(body).unwrap())
        .collect();
    assert_eq!(blocks.len(), 27);
    let context = context(blocks[0].timestamp + 1 - 128, 2, 589);
    let encoded = encode(&blocks, context, true);
    let Ok(Batch::Span(span)) = batch::decode(&encoded.into(), &context) else {
        panic!("no span batch");
    };
    for (found, block) in span.blocks.zip(&blocks) {
        assert_eq!(found.timestamp, block.timestamp);
        assert_eq!(found.epoch_number, block.epoch_number);
        assert_eq!(found.transactions, block.transactions);
    }
    assert_eq!(span.l1_origin_check[..], blocks[26].epoch_hash[..20]);
}

#[test]
fn a_random_span_of_hildr_decodes_and_encodes() {
    let folder = "derivation/span-batch/hildr/spanbatchoriginbits";
    let body = unhex(&fixture!(&format!("{folder}.txt.zst")));
    let facts = json(&fixture!(&format!("{folder}.expected.json")));
    let context = context(5, 2, 28);
    let bytes = Bytes::from([&[1][..], &body].concat());
    let batch = batch::decode(&bytes, &context).unwrap();
    let Batch::Span(span) = &batch else {
        panic!("no span batch");
    };
    assert_span_facts(span, &facts, context);
    assert_encodes_to(&batch, &bytes, context);
}

/// A recorded chain: one folder of `derivation-live`.
struct LiveChain {
    folder: PathBuf,
    context: BatchContext,
    inbox: String,
    batcher: String,
}

impl LiveChain {
    fn open(name: &str) -> Option<Self> {
        let folder = starling_testkit::fixture(&format!("derivation-live/{name}"))?;
        let rollup = json(&contents(&folder.join("rollup.json")));
        let genesis = &rollup["genesis"];
        let text = |value: &Value| value.as_str().unwrap().to_lowercase();
        Some(Self {
            context: context(
                number(&genesis["l2_time"]),
                number(&rollup["block_time"]),
                number(&rollup["l2_chain_id"]),
            ),
            inbox: text(&rollup["batch_inbox_address"]),
            batcher: text(&genesis["system_config"]["batcherAddr"]),
            folder,
        })
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = contents(&self.folder.join(name));
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(json)
            .collect()
    }

    /// The batcher's data items, in order.
    fn items(&self) -> Vec<Bytes> {
        let mut out = Vec::new();
        for line in self.lines("l1.jsonl.zst") {
            for transaction in line["block"]["transactions"].as_array().unwrap() {
                let is = |field: &str, wanted: &str| {
                    let found = transaction[field].as_str();
                    found.is_some_and(|found| found.eq_ignore_ascii_case(wanted))
                };
                if !is("to", &self.inbox) || !is("from", &self.batcher) {
                    continue;
                }
                let Some(hashes) = transaction["blobVersionedHashes"].as_array() else {
                    let input = transaction["input"].as_str().unwrap();
                    out.push(unhex(input.as_bytes()).into());
                    continue;
                };
                for hash in hashes {
                    let hash = hash.as_str().unwrap().trim_start_matches("0x");
                    let blob = self.folder.join("blobs").join(format!("{hash}.zst"));
                    let blob = [&blob, &blob.with_file_name(format!("0x{hash}.zst"))]
                        .into_iter()
                        .find(|path| path.exists())
                        .map(|path| contents(path))
                        .unwrap();
                    let data = blob::decode(&blob).unwrap();
                    assert_eq!(blob::encode(&data).unwrap(), blob);
                    out.push(data);
                }
            }
        }
        assert!(!out.is_empty());
        out
    }

    /// The data of all complete channels, in the order in which they were completed.
    fn channels(&self) -> Vec<Bytes> {
        let mut open: BTreeMap<ChannelId, BTreeMap<u16, Frame>> = BTreeMap::new();
        let mut out = Vec::new();
        for frame in self
            .items()
            .iter()
            .flat_map(|item| frame::decode(item).unwrap_or_default())
        {
            let id = frame.id;
            let frames = open.entry(id).or_default();
            frames.entry(frame.number).or_insert(frame);
            let is_closed = frames
                .last_key_value()
                .is_some_and(|(_, last)| last.is_last);
            if is_closed && frames.keys().copied().eq(0..frames.len() as u16) {
                out.push(
                    frames
                        .values()
                        .flat_map(|frame| frame.data.clone())
                        .collect(),
                );
                open.remove(&id);
            }
        }
        out
    }

    /// Hash, and transactions without deposits, of each L2 block from number 1 on.
    fn blocks(&self) -> Vec<(B256, Vec<Bytes>)> {
        let block = |line: &Value| {
            let raw = unhex(line["raw"].as_str().unwrap().as_bytes());
            let mut fields = Header::decode_bytes(&mut &raw[..], true).unwrap();
            Header::decode_bytes(&mut fields, true).unwrap();
            let list = Header::decode_bytes(&mut fields, true).unwrap();
            let transactions = items(list)
                .into_iter()
                .map(|item| {
                    // A legacy transaction is an RLP list, all others are strings.
                    let is_list = item[0] >= 0xc0;
                    if is_list {
                        item
                    } else {
                        Bytes::decode(&mut &item[..]).unwrap()
                    }
                })
                .filter(|bytes| bytes[0] != 0x7e)
                .collect();
            (
                line["hash"].as_str().unwrap().parse().unwrap(),
                transactions,
            )
        };
        self.lines("l2.jsonl.zst").iter().map(block).collect()
    }
}

/// Checks that the batches of an honest batcher contain exactly the L2 blocks, and all of them.
fn assert_batches_hold_the_chain(name: &str, is_span: bool) {
    let Some(live) = LiveChain::open(name) else {
        return;
    };
    let blocks = live.blocks();
    let mut covered = vec![false; blocks.len()];
    for channel in live.channels() {
        let is_zlib = channel[0] & 0x0f == 8;
        let bytes = is_zlib.then(|| strings(&inflate(&channel)));
        for (index, batch) in batches(channel, live.context).into_iter().enumerate() {
            let batch = batch.unwrap();
            if let Some(bytes) = &bytes {
                assert_encodes_to(&batch, &bytes[index], live.context);
            }
            let (list, hash_len) = match &batch {
                Batch::Singular(batch) => (vec![batch.clone()], 32),
                Batch::Span(span) => (singular(span), 20),
            };
            assert_eq!(hash_len == 20, is_span);
            for (place, block) in list.iter().enumerate() {
                let time = block.timestamp - live.context.genesis_time;
                // The file begins with block 1, so subtract 1.
                let at = (time / live.context.block_time - 1) as usize;
                assert_eq!(block.transactions, blocks[at].1, "block {}", at + 1);
                if place == 0 && at > 0 {
                    assert_eq!(block.parent_hash[..hash_len], blocks[at - 1].0[..hash_len]);
                }
                covered[at] = true;
            }
        }
    }
    let missing = covered.iter().position(|covered| !covered);
    assert_eq!(missing, None, "of {} blocks", blocks.len());
}

#[test]
fn span_batches_in_calldata_hold_the_chain() {
    assert_batches_hold_the_chain("jovian-span", true);
}

#[test]
fn span_batches_in_blobs_hold_the_chain() {
    assert_batches_hold_the_chain("jovian-blobs", true);
}

#[test]
fn singular_batches_hold_the_chain() {
    assert_batches_hold_the_chain("ladder-singular", false);
}

#[test]
fn channels_of_a_hostile_batcher_decode_as_far_as_they_go() {
    let Some(live) = LiveChain::open("hostile-1") else {
        return;
    };
    let items = live.items();
    let refused = items
        .iter()
        .filter(|item| frame::decode(item).is_err())
        .count();
    assert!(
        refused > 0 && refused < items.len(),
        "{refused} of {}",
        items.len()
    );
    let channels = live.channels();
    let (mut good, mut bad) = (0, 0);
    for channel in channels {
        let Ok(mut reader) = BatchReader::new(channel, live.context, true) else {
            bad += 1;
            continue;
        };
        while let Some(result) = reader.next_batch() {
            good += usize::from(result.is_ok());
            bad += usize::from(result.is_err());
        }
    }
    assert!(good > 50, "{good} batches, {bad} faults");
}
