//! Node records: the `opstack` entry, records signed by others, and whether a record is a contact.

use crate::{InputKind, fixtures};
use data_encoding::BASE64URL_NOPAD;
use discv5::Enr;
use enr::CombinedKey;
use starling_p2p::{
    Bootnode,
    discovery::{Contact, Scope},
};
use starling_proto::enr::{KEY, OpStack, VERSION};
use std::sync::LazyLock;

const CHAIN_ID: u64 = 10;
static SECRET: LazyLock<CombinedKey> =
    LazyLock::new(|| CombinedKey::secp256k1_from_bytes(&mut [7; 32]).expect("a key"));

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let entry = OpStack::from_rlp(data);
    if let Some(entry) = entry {
        assert_eq!(OpStack::from_rlp(&entry.to_rlp()), Some(entry));
        outcome.add(&"entry");
    }
    // Put the input as the entry in a signed record with an address. The record is a contact if and
    // only if the entry names our chain and version.
    let mut builder = Enr::builder();
    builder
        .ip4([203, 0, 113, 5].into())
        .tcp4(9222)
        .add_value_rlp(KEY, data.to_vec().into());
    match builder.build(&SECRET) {
        Err(error) => outcome.add(&error),
        Ok(record) => {
            let ours =
                entry.is_some_and(|entry| entry.chain_id == CHAIN_ID && entry.version == VERSION);
            let contact = Contact::of(&record, CHAIN_ID, Scope::None);
            assert_eq!(contact.is_ok(), ours, "{contact:?}");
            text(&record.to_base64(), &mut outcome);
        }
    }
    // Use the input as the bytes of a whole record, and as its text.
    text(
        &format!("enr:{}", BASE64URL_NOPAD.encode(data)),
        &mut outcome,
    );
    text(&String::from_utf8_lossy(data), &mut outcome);
    outcome
}

fn text(text: &str, outcome: &mut InputKind) {
    let node: Bootnode = match text.parse() {
        Ok(node) => node,
        Err(error) => return outcome.add(&error),
    };
    assert_eq!(node.to_string().parse(), Ok(node.clone()), "{text}");
    if let Bootnode::Enr(record) = node {
        outcome.add(
            &Contact::of(&record, CHAIN_ID, Scope::None).map(|contact| contact.addresses().len()),
        );
        outcome.add(
            &Contact::of(&record, CHAIN_ID, Scope::World)
                .map(|contact| contact.peer().to_bytes().len()),
        );
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let files = [
        "p2p-wire/enr.json",
        "p2p/enr-vectors.json",
        "p2p-wire/bootnodes.json",
        "p2p-wire/opstack-enr-value.json",
    ];
    let mut seeds = fixtures::bytes(&files, 2);
    let texts = fixtures::strings(&files);
    seeds.extend(texts.iter().filter_map(|text| {
        BASE64URL_NOPAD
            .decode(text.strip_prefix("enr:")?.as_bytes())
            .ok()
    }));
    seeds.extend(
        texts
            .into_iter()
            .filter(|text| text.starts_with("en"))
            .map(String::into_bytes),
    );
    seeds.extend([1, 10, 8453, u64::MAX].map(|chain_id| OpStack::new(chain_id).to_rlp()));
    seeds
}
