//! Range sync: requests, responses, chunks, and the headers and blocks in chunks.

use super::gossip::blocks;
use crate::InputKind;
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Decodable;
use alloy_trie::root::ordered_trie_root_encoded;
use starling_proto::{
    payload::{BlockId, Payload},
    wire::{
        self, Chunk, ChunkBuilder, LENGTH, MAX_CHUNK, MAX_REQUEST, MessageError, Request,
        RequestBody, Response, ResponseBody,
    },
};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    match wire::decode_request(data) {
        Err(error) => outcome.add(&error),
        Ok(ask) => {
            outcome.add(&ask);
            let frame = wire::frame(&Request {
                body: Some(ask.clone()),
            });
            // Unknown fields are dropped, so the encoding may only get shorter.
            assert!(frame.len() - LENGTH <= data.len());
            assert_eq!(wire::decode_request(&frame[LENGTH..]), Ok(ask));
        }
    }
    match wire::decode_response(data.to_vec()) {
        Err(error) => outcome.add(&error),
        Ok(answer) => self::answer(answer, &mut outcome),
    }
    // Use the input as the decompressed content of a chunk with a correct count, and as one item.
    if let Ok(packed) = snap::raw::Encoder::new().compress_vec(data) {
        chunk(
            &Chunk {
                count: count(data),
                data: packed.into(),
            },
            &mut outcome,
        );
    }
    item(&Bytes::copy_from_slice(data), &mut outcome);
    outcome
}

fn answer(answer: ResponseBody, outcome: &mut InputKind) {
    let frame = wire::frame(&Response {
        body: Some(answer.clone()),
    });
    assert_eq!(
        wire::decode_response(frame[LENGTH..].to_vec()),
        Ok(answer.clone())
    );
    match answer {
        ResponseBody::Status(status) => {
            outcome.add(&wire::hash(&status.genesis_hash));
            for block in [status.head, status.safe, status.finalized]
                .iter()
                .flatten()
            {
                if let Ok(id) = block.id() {
                    assert_eq!(&wire::Block::from(id), block);
                }
            }
        }
        ResponseBody::Headers(chunk) | ResponseBody::Bodies(chunk) => self::chunk(&chunk, outcome),
        ResponseBody::Refusal(code) => outcome.scale(code as usize),
    }
}

/// Number of items in these bytes; an incomplete last item counts, too.
fn count(mut plain: &[u8]) -> u32 {
    let mut count = 0;
    while let Some((length, rest)) = plain.split_first_chunk() {
        count += 1;
        plain = rest
            .get(u32::from_le_bytes(*length) as usize..)
            .unwrap_or_default();
    }
    count
}

fn chunk(chunk: &Chunk, outcome: &mut InputKind) {
    let items = match chunk.items() {
        Ok(items) => items,
        Err(error) => return outcome.add(&error),
    };
    assert_eq!(items.len(), chunk.count as usize);
    assert!(items.iter().map(|item| item.len() + LENGTH).sum::<usize>() <= MAX_CHUNK);
    outcome.scale(items.len());
    let mut builder = ChunkBuilder::default();
    items.iter().for_each(|item| builder.push(&[item]));
    assert_eq!(
        builder
            .finish()
            .expect("what fits a chunk")
            .items()
            .as_ref(),
        Ok(&items)
    );
    items
        .iter()
        .take(8)
        .for_each(|item| self::item(item, outcome));
}

fn item(item: &Bytes, outcome: &mut InputKind) {
    match wire::decode_header(item) {
        Err(error) => outcome.add(&error),
        Ok((hash, header)) => assert_eq!(hash, header.hash_slow(), "a header has one encoding"),
    }
    let mut rest = &item[..];
    let block = match wire::decode_block(item) {
        Err(error @ MessageError::TransactionsRoot { .. }) => {
            outcome.add(&error);
            let Some(fixed) = with_root(&mut rest) else {
                panic!("{error} of what is no block")
            };
            fixed
        }
        Err(error) => return outcome.add(&error),
        Ok(block) => block,
    };
    assert_eq!(
        block.hash,
        block.header.hash_slow(),
        "a header has one encoding"
    );
    outcome.scale(block.transactions.len());
    let again = Bytes::from(wire::encode_block(&block).concat());
    assert_eq!(again.len(), item.len(), "a block has one encoding");
    assert_eq!(wire::decode_block(&again), Ok(block));
}

/// Decodes a block and corrects its transactions root.
fn with_root(rest: &mut &[u8]) -> Option<Payload> {
    let mut header = Header::decode(rest).ok()?;
    let transactions = Vec::<Bytes>::decode(rest).ok()?;
    header.transactions_root = ordered_trie_root_encoded(&transactions);
    Some(Payload::sealed(header, transactions))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let id = BlockId {
        number: 300,
        hash: B256::repeat_byte(9),
    };
    let hash = id.hash.to_vec();
    let asks = [
        RequestBody::Status(wire::StatusRequest {}),
        RequestBody::Headers(wire::HeadersRequest {
            number: 300,
            hash: hash.clone(),
            count: 64,
        }),
        RequestBody::Bodies(wire::BodiesRequest {
            first: 1,
            last: 300,
            last_hash: hash.clone(),
            max_bytes: 1 << 20,
        }),
    ];
    let status = wire::Status {
        chain_id: 10,
        genesis_hash: hash,
        head: Some(id.into()),
        oldest: 1,
        safe: Some(id.into()),
        finalized: None,
    };
    let mut bodies = ChunkBuilder::default();
    let mut headers = ChunkBuilder::default();
    let mut seeds = Vec::new();
    for [header, transactions] in blocks().iter().map(wire::encode_block) {
        headers.push(&[&header]);
        bodies.push(&[&header, &transactions]);
        seeds.push([&((header.len() as u32).to_le_bytes())[..], &header].concat());
        seeds.push([header, transactions].concat());
    }
    let mut answers = vec![ResponseBody::Status(status), ResponseBody::Refusal(1)];
    answers.extend(headers.finish().ok().map(ResponseBody::Headers));
    answers.extend(bodies.finish().ok().map(ResponseBody::Bodies));
    let bomb = snap::raw::Encoder::new()
        .compress_vec(&[0; 1 << 20])
        .unwrap_or_default();
    answers.push(ResponseBody::Bodies(Chunk {
        count: 1 << 18,
        data: bomb.into(),
    }));
    let mut frames: Vec<Vec<u8>> = asks
        .into_iter()
        .map(|ask| wire::frame(&Request { body: Some(ask) }))
        .collect();
    assert!(frames.iter().all(|frame| frame.len() <= MAX_REQUEST));
    frames.extend(
        answers
            .into_iter()
            .map(|answer| wire::frame(&Response { body: Some(answer) })),
    );
    seeds.extend(frames.into_iter().map(|frame| frame[LENGTH..].to_vec()));
    seeds
}
