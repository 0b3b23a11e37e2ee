use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PROTO: &str = include_str!("../sync.proto");

/// The messages declared in `sync.proto`: for each the fields (name, type, tag) in order.
fn declared() -> BTreeMap<String, Vec<(String, String, u64)>> {
    let mut messages: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut at = String::new();
    for line in PROTO
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
    {
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        match words[..] {
            ["message", name, "{"] => {
                at = name.into();
                messages.insert(at.clone(), vec![]);
            }
            [kind, name, "=", tag] if !at.is_empty() => {
                messages.entry(at.clone()).or_default().push((
                    name.into(),
                    kind.into(),
                    tag.parse().unwrap(),
                ));
            }
            _ => {}
        }
    }
    messages
}

/// Tags and wire types of an encoded message.
fn tags(message: &impl Message) -> Vec<(u64, u64)> {
    let bytes = message.encode_to_vec();
    let (mut rest, mut out) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let key = prost::encoding::decode_varint(&mut rest).unwrap();
        let value = prost::encoding::decode_varint(&mut rest).unwrap();
        if key & 7 == 2 {
            rest = &rest[value as usize..];
        }
        out.push((key >> 3, key & 7));
    }
    out
}

/// The field names in a message's debug output, top level only.
fn names(message: &impl std::fmt::Debug) -> Vec<String> {
    let text = format!("{message:#?}");
    let fields = text
        .lines()
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    fields
        .filter_map(|line| line.trim().split_once(':').map(|(name, _)| name.to_owned()))
        .collect()
}

#[test]
fn the_messages_are_those_of_the_file() {
    let ours = messages();
    let declared = declared();
    let listed: Vec<&str> = declared.keys().map(String::as_str).collect();
    assert_eq!(listed, ours.each_ref().map(|(name, ..)| *name));
    for (message, tags, names) in ours {
        let fields = &declared[message];
        let wire = |kind: &str| if kind.starts_with("uint") { 0 } else { 2 };
        assert_eq!(
            tags,
            fields
                .iter()
                .map(|(_, kind, tag)| (*tag, wire(kind)))
                .collect::<Vec<_>>(),
            "{message}"
        );
        if let Some(names) = names {
            assert_eq!(
                names,
                fields
                    .iter()
                    .map(|(name, ..)| name.clone())
                    .collect::<Vec<_>>(),
                "{message}"
            );
        }
    }
}

/// A message's name, its tags with wire types, and its field names; `None` for a `oneof` of
/// messages.
type MessageParts = (&'static str, Vec<(u64, u64)>, Option<Vec<String>>);

/// All messages of this crate, with every field set, sorted by name.
fn messages() -> [MessageParts; 8] {
    let block = Block {
        number: 1,
        hash: vec![1],
    };
    let chunk = Chunk {
        count: 1,
        data: vec![1].into(),
    };
    let status = Status {
        chain_id: 1,
        genesis_hash: vec![1],
        head: Some(block.clone()),
        oldest: 1,
        safe: Some(block.clone()),
        finalized: Some(block.clone()),
    };
    let headers = HeadersRequest {
        number: 1,
        hash: vec![1],
        count: 1,
    };
    let bodies = BodiesRequest {
        first: 1,
        last: 1,
        last_hash: vec![1],
        max_bytes: 1,
    };
    let asks = [
        RequestBody::Status(StatusRequest {}),
        RequestBody::Headers(headers.clone()),
        RequestBody::Bodies(bodies.clone()),
    ]
    .map(|body| tags(&Request { body: Some(body) }));
    let answers = [
        ResponseBody::Status(status.clone()),
        ResponseBody::Headers(chunk.clone()),
        ResponseBody::Bodies(chunk.clone()),
        ResponseBody::Refusal(1),
    ]
    .map(|body| tags(&Response { body: Some(body) }));
    [
        ("Block", tags(&block), Some(names(&block))),
        ("BodiesRequest", tags(&bodies), Some(names(&bodies))),
        ("Chunk", tags(&chunk), Some(names(&chunk))),
        ("HeadersRequest", tags(&headers), Some(names(&headers))),
        ("Request", asks.concat(), None),
        ("Response", answers.concat(), None),
        ("Status", tags(&status), Some(names(&status))),
        ("StatusRequest", vec![], None),
    ]
}

fn block(number: u64, transactions: Vec<Bytes>) -> Payload {
    let header = Header {
        number,
        base_fee_per_gas: Some(7),
        transactions_root: ordered_trie_root_encoded(&transactions),
        ..Default::default()
    };
    Payload::sealed(header, transactions)
}

fn item(payload: &Payload) -> Bytes {
    encode_block(payload).concat().into()
}

fn chunk(items: &[Bytes]) -> Chunk {
    let mut builder = ChunkBuilder::default();
    items.iter().for_each(|item| builder.push(&[&item[..]]));
    builder.finish().unwrap()
}

#[test]
fn transactions_of_another_block_are_named() {
    let (one, other) = (
        block(1, vec![vec![1; 40].into()]),
        block(1, vec![vec![2; 40].into()]),
    );
    let mixed: Bytes = [&encode_block(&one)[0][..], &encode_block(&other)[1]]
        .concat()
        .into();
    assert_eq!(
        decode_block(&mixed),
        Err(MessageError::TransactionsRoot {
            number: 1,
            hash: one.hash
        })
    );
    assert_eq!(
        decode_block(&[&item(&one)[..], &[0]].concat().into()),
        Err(MessageError::Trailing(1))
    );
}

#[test]
fn a_chunk_that_unpacks_to_too_much_is_not_unpacked() {
    let data = snap::raw::Encoder::new()
        .compress_vec(&vec![0; MAX_CHUNK + 1])
        .unwrap();
    assert!(data.len() < MAX_CHUNK / 10);
    assert_eq!(
        Chunk {
            count: 1,
            data: data.into()
        }
        .items(),
        Err(MessageError::ChunkSize(MAX_CHUNK + 1))
    );
    // Only a length, without its bytes: no memory is allocated for it.
    let lie = Chunk {
        count: 1,
        data: vec![0xff, 0xff, 0xff, 0x7f].into(),
    };
    assert!(lie.items().is_err());
    let crowd = Chunk {
        count: u32::MAX,
        ..chunk(&[vec![1].into()])
    };
    assert_eq!(crowd.items(), Err(MessageError::ChunkSize(5)));
    let more = Chunk {
        count: 2,
        ..chunk(&[vec![1; 8].into()])
    };
    assert_eq!(
        more.items(),
        Err(MessageError::Count {
            claimed: 2,
            have: 1
        })
    );
    let mut builder = ChunkBuilder::default();
    builder.push(&[&vec![0; MAX_CHUNK]]);
    assert!(matches!(builder.finish(), Err(MessageError::ChunkSize(_))));
}

#[test]
fn a_message_that_says_nothing_is_an_error() {
    assert_eq!(decode_request(&[]), Err(MessageError::Empty));
    assert_eq!(decode_response(vec![]), Err(MessageError::Empty));
    assert_eq!(hash(&[1; 31]), Err(MessageError::Hash(31)));
}

proptest! {
    #[test]
    fn blocks_survive_their_chunk(lists in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..5), 0..6)) {
        let blocks: Vec<Payload> = lists.into_iter().enumerate()
            .map(|(i, list)| block(i as u64, list.into_iter().map(Bytes::from).collect())).collect();
        let items: Vec<Bytes> = blocks.iter().map(item).collect();
        let framed = frame(&Response { body: Some(ResponseBody::Bodies(chunk(&items))) });
        let Ok(ResponseBody::Bodies(read)) = decode_response(framed[LENGTH..].to_vec()) else { panic!("it is a chunk of blocks") };
        let items = read.items().unwrap();
        for (item, block) in items.iter().zip(&blocks) {
            prop_assert_eq!(&decode_block(item).unwrap(), block);
            let header = alloy_rlp::encode(&block.header);
            prop_assert_eq!(decode_header(&header).unwrap(), (block.hash, block.header.clone()));
        }
        prop_assert_eq!(items.len(), blocks.len());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), count in any::<u32>()) {
        let _ = decode_request(&bytes);
        let _ = decode_response(bytes.clone());
        let _ = decode_header(&bytes);
        let _ = decode_block(&bytes.clone().into());
        let _ = Chunk { count, data: bytes.clone().into() }.items();
        let _ = chunk(&[bytes.into()]).items();
    }

    #[test]
    fn a_cut_or_changed_block_is_another_one_or_none(at in 0usize..600, bit in 0u8..8) {
        let block = block(5, vec![vec![3; 60].into()]);
        let mut bytes = item(&block).to_vec();
        let at = at % bytes.len();
        prop_assert!(decode_block(&bytes[..at].to_vec().into()).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode_block(&bytes.into()).map_or(true, |other| other.hash != block.hash));
    }
}
