//! Tests of single columns against hildr's vectors, each a column in hex. Decoding and encoding
//! must reproduce the bytes.

use super::{
    columns::{ColumnReader, bit},
    encode::{BitList, put_uvarint},
    transaction::{LEGACY, TransactionData},
};

/// Reads a column; `None`, recorded as a skip, if the vectors are absent.
fn column(name: &str) -> Option<Vec<u8>> {
    let path = starling_testkit::fixture(&format!("derivation/span-batch/hildr/{name}"))?;
    let file = std::fs::read(&path).unwrap();
    let text = if name.ends_with(".zst") {
        zstd::decode_all(&file[..]).unwrap()
    } else {
        file
    };
    let text = String::from_utf8(text).unwrap();
    Some(hex::decode(text.trim().trim_start_matches("0x")).unwrap())
}

#[test]
fn numbers_survive() {
    for (name, count) in [("txnonces.txt", Some(1410)), ("txgases.txt", None)] {
        let Some(column) = column(name) else { return };
        let (mut cursor, mut again, mut found) = (ColumnReader(&column), Vec::new(), 0);
        while !cursor.0.is_empty() {
            put_uvarint(&mut again, cursor.uvarint("numbers").unwrap());
            found += 1;
        }
        assert_eq!(again, column, "{name}");
        assert_eq!(count.unwrap_or(found), found, "{name}");
    }
}

#[test]
fn bit_lists_survive() {
    for name in [
        "contractcreationbits.txt",
        "protectedbits.txt",
        "yparitybits.txt",
        "reclegcyprotectedbits.txt",
        "reclegcyyparity.txt",
    ] {
        let Some(column) = column(name) else { return };
        let (mut bits, mut again) = (BitList::default(), Vec::new());
        (0..8 * column.len()).for_each(|item| bits.push(bit(&column, item)));
        bits.write_first(8 * column.len(), &mut again);
        assert_eq!(again, column, "{name}");
    }
}

#[test]
fn data_of_transactions_survive() {
    let Some(column) = column("txdatas.txt.zst") else {
        return;
    };
    let (mut cursor, mut again) = (ColumnReader(&column), Vec::new());
    let mut kinds = std::collections::BTreeMap::<_, usize>::new();
    while !cursor.0.is_empty() {
        let (kind, payload) = cursor.transaction_data().unwrap();
        *kinds.entry(kind).or_default() += 1;
        let data = TransactionData::decode(kind, payload).unwrap();
        data.write(kind, &mut again);
    }
    assert!(again == column, "another encoding");
    assert!(
        kinds[&LEGACY] > 100 && kinds[&Some(1)] > 100 && kinds[&Some(2)] > 100,
        "{kinds:?}"
    );
}
