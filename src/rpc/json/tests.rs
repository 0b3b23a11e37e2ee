use super::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// A struct with members of every shape that requests have.
#[derive(Debug, Default, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Shape<'a> {
    gas_price: Option<String>,
    key: Option<u64>,
    /// A second name that differs from the first in case alone.
    #[serde(rename = "KEY")]
    upper: Option<u64>,
    #[serde(borrow)]
    raw: Option<&'a str>,
    list: Vec<Inner>,
    map: BTreeMap<String, Inner>,
    wrapped: Option<Wrapped>,
    any: Option<Value>,
}

#[derive(Debug, Default, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Inner {
    block_hash: Option<u64>,
}

#[derive(Debug, Default, PartialEq, serde::Deserialize)]
struct Wrapped(Vec<Inner>);

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Strict {
    a: u64,
}

fn inner(hash: u64) -> Inner {
    Inner {
        block_hash: Some(hash),
    }
}

#[test]
fn members_are_known_in_any_case_and_at_any_depth() {
    let json = r#"{"GASPRICE":"0x1","Key":1,"KEY":2,"LIST":[{"blockhash":3},{"BlockHash":4}],
        "map":{"A":{"BLOCKHASH":5},"a":{}},"Wrapped":[{"blockHash":6}],"any":{"Gas":7},"Raw":"r","other":[{}]}"#;
    let shape: Shape<'_> = read(json).unwrap();
    let map = [("A", inner(5)), ("a", Inner::default())];
    let expected = Shape {
        gas_price: Some("0x1".into()),
        raw: Some("r"),
        key: Some(1),
        upper: Some(2),
        list: vec![inner(3), inner(4)],
        map: map.map(|(name, inner)| (name.to_owned(), inner)).into(),
        wrapped: Some(Wrapped(vec![inner(6)])),
        // Keys of a map are not names of members.
        any: Some(json!({ "Gas": 7 })),
    };
    assert_eq!(shape, expected);
}

#[test]
fn the_last_of_several_members_with_one_name_counts() {
    let price = |json| read::<Shape<'_>>(json).unwrap().gas_price;
    assert_eq!(
        price(r#"{"gasPrice":"1","gasprice":"2"}"#).as_deref(),
        Some("2")
    );
    assert_eq!(
        price(r#"{"GasPrice":"1","gasPrice":"2"}"#).as_deref(),
        Some("2")
    );
    assert_eq!(price(r#"{"gasPrice":"1","gasprice":null}"#), None);
}

#[test]
fn letters_fold_as_in_go() {
    let key = |json| read::<Shape<'_>>(json).unwrap().key;
    assert_eq!(key("{\"\u{212a}ey\":1}"), Some(1));
    assert_eq!(key(r#"{"\u212aey":1}"#), Some(1));
    assert_eq!(key(r#"{"\u006bEY":1}"#), Some(1));
    assert_eq!(key(r#"{"kéy":1}"#), None);
    let list: Shape<'_> = read(r#"{"liſt":[{}]}"#).unwrap();
    assert_eq!(list.list.len(), 1);
}

#[test]
fn structs_are_objects_and_their_own_rules_hold() {
    assert!(read::<Shape<'_>>("[]").is_err());
    assert!(read::<Shape<'_>>(r#"{"list":[[1]]}"#).is_err());
    assert!(read::<Inner>(r#"{"blockHash":1} 2"#).is_err());
    assert!(read::<u64>("1 2").is_err());
    assert_eq!(read(r#"{"A":1}"#).ok(), Some(Strict { a: 1 }));
    let unknown = read::<Strict>(r#"{"a":1,"bee":2}"#).unwrap_err();
    assert!(unknown.to_string().contains("`bee`"), "{unknown}");
    let missing = read::<Strict>("{}").unwrap_err();
    assert!(missing.to_string().contains("`a`"), "{missing}");
}

#[test]
fn values_are_read_as_by_serde_json() {
    let json = r#"[1, -2, 1.5, "a\"b", true, null, {"b":[{}]}]"#;
    assert_eq!(
        read::<Value>(json).unwrap(),
        serde_json::from_str::<Value>(json).unwrap()
    );
    assert_eq!(
        read::<(u64, String)>(r#" [1,"x"] "#).unwrap(),
        (1, "x".into())
    );
    assert_eq!(
        read::<u128>("340282366920938463463374607431768211455").ok(),
        Some(u128::MAX)
    );
    let raw: HashMap<u64, &RawValue> = read(r#"{"1":{"a": 1}}"#).unwrap();
    assert_eq!(raw[&1].get(), r#"{"a": 1}"#);
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    assert!(read::<Value>(&deep).is_err());
}

#[test]
fn only_the_first_elements_are_kept() {
    let kept = firsts("[1, [2], {\"a\": 3}]", 2).unwrap();
    assert_eq!(
        kept.iter().map(|raw| raw.get()).collect::<Vec<_>>(),
        ["1", "[2]"]
    );
    for bad in ["[1, 2, 3", "{}", "[1] 2"] {
        assert!(firsts(bad, 2).is_err(), "{bad}");
    }
}

#[test]
fn of_a_repeated_member_the_last_counts() {
    let members: RequestMembers<'_> =
        read(r#"{"id":1,"other":[{}],"ID":2,"i\u0064":3,"Params":null,"METHOD":"x"}"#).unwrap();
    assert_eq!(members.id.unwrap().get(), "3");
    assert_eq!(members.params.unwrap().get(), "null");
    assert_eq!(members.method.unwrap().get(), "\"x\"");
    assert!(members.jsonrpc.is_none());
}
