//! Responses with a very long value where a short one is expected.

use super::{
    super::{fake, fuzzing},
    *,
};
use serde_json::json;

/// Largest number of characters of an error about a response.
const LONG: usize = 400;
/// Size of the hostile value in bytes.
const SIZE: usize = 1 << 20;

const WATCHED: Watched = Watched {
    inbox: Address::ZERO,
    portal: Address::ZERO,
    system_config: Address::ZERO,
};

fn check(what: &str, result: Result<impl std::fmt::Debug, RpcCause>) {
    let error = result.expect_err(what).to_string();
    let length = error.chars().count();
    assert!(length <= LONG, "{what}: {length} characters");
    assert!(error.starts_with("malformed response: "), "{what}: {error}");
}

/// The receipts match the header's root, so their bytes are canonical.
#[test]
fn an_encoded_receipt_of_an_unknown_type_has_no_logs_and_a_broken_one_is_malformed() {
    let read = |receipt: &'static [u8]| {
        let receipts = [Bytes::from_static(receipt)];
        let root = ordered_trie_root_with_encoder(&receipts, |bytes, out| {
            out.extend_from_slice(bytes);
        });
        let block = L1Block {
            receipts_root: root,
            ..L1Block::default()
        };
        raw_receipts(&receipts, &block)
    };
    assert_eq!(read(&[0x3f, 1, 2, 3]).unwrap(), [(false, vec![])]);
    for broken in [&[0x02, 1, 2, 3][..], &[0xc1, 1]] {
        let read = read(broken);
        assert!(matches!(read, Err(RpcCause::Malformed(_))), "{read:?}");
    }
}

#[test]
fn errors_about_long_answers_are_short() {
    let long = "ä".repeat(SIZE / 2);
    let block = L1Block::default();
    let whole = |transaction: serde_json::Value| {
        let mut block = fake::block_json(&fake::header(1, B256::ZERO, 5, 1));
        block["transactions"] = json!([transaction]);
        fuzzing::block(&block.to_string(), &WATCHED, false)
    };
    let receipt = |field: &str| {
        let mut receipt = json!({ "status": "0x1", "cumulativeGasUsed": "0x1", "logs": [] });
        receipt[field] = long.clone().into();
        fuzzing::receipts(&json!([receipt]).to_string(), &block)
    };
    check(
        "a header",
        fuzzing::header(&json!({ "number": long }).to_string(), false),
    );
    check(
        "a header that is text",
        fuzzing::header(&json!(long).to_string(), true),
    );
    check("a transaction", whole(json!(long)));
    check("the type of a transaction", whole(json!({ "type": long })));
    check("the name of a member", whole(json!({ (long.clone()): 1 })));
    check("a status", receipt("status"));
    check("logs", receipt("logs"));
    check(
        "unknown transactions",
        fuzzing::unknown_transactions(&json!({ "transactions": long }).to_string()),
    );
    let at = Address::ZERO;
    check(
        "a proof",
        fuzzing::storage(
            &json!({ "nonce": long }).to_string(),
            at,
            B256::ZERO,
            &block,
        ),
    );
}
