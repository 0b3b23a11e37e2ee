//! Tests of the blob store: files are durable, complete or absent, and removed after their time.

use super::*;
use alloy_eips::eip4844::{Blob, BlobTransactionSidecar, Bytes48};
use proptest::prelude::*;

fn sidecar(fill: u8, blobs: usize) -> Arc<TxSidecar> {
    Arc::new(TxSidecar::Eip4844(BlobTransactionSidecar {
        blobs: vec![Blob::repeat_byte(fill); blobs],
        commitments: vec![Bytes48::repeat_byte(fill); blobs],
        proofs: vec![Bytes48::repeat_byte(fill); blobs],
    }))
}

fn of(fill: u8, blobs: usize) -> BlockSidecar {
    BlockSidecar {
        transaction: B256::repeat_byte(fill),
        sidecar: sidecar(fill, blobs),
    }
}

fn hash(byte: u8) -> B256 {
    B256::repeat_byte(byte)
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn blobs_are_read_back_in_order_also_by_a_later_process() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("blobs");
    let store = BlobStore::open(&folder).unwrap();
    assert!(!folder.exists(), "a chain without blobs has no folder");
    assert_eq!(store.get(7, hash(1)).unwrap(), None);
    let all = vec![of(3, 2), of(1, 1)];
    store.put(7, hash(1), &all).unwrap();
    store.put(7, hash(2), &all[1..]).unwrap();
    for store in [store, BlobStore::open(&folder).unwrap()] {
        assert_eq!(store.get(7, hash(1)).unwrap().as_ref(), Some(&all));
        assert_eq!(store.get(7, hash(2)).unwrap().unwrap(), all[1..]);
        assert_eq!(store.get(8, hash(1)).unwrap(), None);
    }
}

#[test]
fn blobs_older_than_the_retention_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = BlobStore::open(dir.path()).unwrap();
    let all = [of(1, 1)];
    for (time, block) in [(100, 1), (200, 2), (200, 3)] {
        store.put(time, hash(block), &all).unwrap();
    }
    store.put(100 + RETENTION, hash(4), &all).unwrap();
    assert_eq!(files(dir.path()), 4, "exactly the retention is kept");
    store.put(101 + RETENTION, hash(5), &all).unwrap();
    assert_eq!(files(dir.path()), 4);
    assert_eq!(store.get(100, hash(1)).unwrap(), None);
    assert!(store.get(200, hash(3)).unwrap().is_some());
    // A file that an earlier process did not remove is removed by a later process.
    fs::write(dir.path().join(format!("5-{:x}{ENDING}", hash(9))), []).unwrap();
    let store = BlobStore::open(dir.path()).unwrap();
    store.put(201 + RETENTION, hash(6), &all).unwrap();
    assert_eq!(files(dir.path()), 3);
}

#[test]
fn what_a_killed_process_left_unfinished_is_no_block() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(UNFINISHED), [1; 100]).unwrap();
    fs::write(dir.path().join("7-zz.blobs"), []).unwrap();
    let store = BlobStore::open(dir.path()).unwrap();
    assert!(store.blocks.lock().is_empty());
    store.put(7, hash(1), &[of(1, 1)]).unwrap();
    assert!(store.get(7, hash(1)).unwrap().is_some());
    assert!(!dir.path().join(UNFINISHED).exists());
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = BlobStore::open(dir.path()).unwrap();
    store.put(7, hash(1), &[of(1, 1)]).unwrap();
    let path = store.path(7, hash(1));
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[5_000] ^= 1;
    for bad in [
        flipped,
        good[..good.len() - 1].to_vec(),
        vec![0; 31],
        vec![],
    ] {
        fs::write(&path, bad).unwrap();
        let error = store.get(7, hash(1)).unwrap_err();
        assert!(
            matches!(&error, BlobStoreError::Damaged(at) if *at == path),
            "{error}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(store.get(7, hash(1)).unwrap(), None);
}

proptest! {
    #[test]
    fn bytes_that_are_no_file_of_blobs_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let with_checksum = [&bytes[..], &keccak256(&bytes)[..]].concat();
        prop_assert_eq!(decode(&bytes), None);
        // If the checksum is right, the bytes are accepted only if they are an RLP list of
        // sidecars.
        if let Some(sidecars) = decode(&with_checksum) {
            let mut again = Vec::new();
            alloy_rlp::encode_list(&sidecars, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
