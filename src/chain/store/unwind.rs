//! Unwind records: the values of rows of `state` before a block, so that the block can be unwound.
//!
//! A transfer changes the trie nodes on the paths to its accounts, and in most of these nodes one
//! of sixteen hashes. If the length of a node is unchanged, its record therefore contains only the
//! words that the block changed; the other words are read from the node after the block. All other
//! rows are recorded whole.

use crate::chain::rows::{Overlay, ReadError, RowChange, codec::take, keys};
use alloy_primitives::Bytes;

/// Size of a word in bytes, the size of a hash. Words are counted from the end of a row, where a
/// node has its hashes.
const WORD: usize = 32;
/// Largest number of words in a row that is recorded by words: `changed` has one bit for each word.
const MAX_WORDS: usize = u32::BITS as usize;

const ABSENT: u8 = 0;
const WHOLE: u8 = 1;
const WORDS: u8 = 2;

/// The rows that a block changes, with their values before the block.
pub type UnwindRecord = Vec<(Bytes, Before)>;

/// The value of a row before a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// The whole value before the block; `None` if the row did not exist.
    Whole(Option<Bytes>),
    /// The old values of the words (of `WORD` bytes) that the block changed. The other words are
    /// read from the row after the block. Only for trie nodes.
    Words {
        /// Length of the row in bytes, the same before and after the block.
        length: u16,
        /// Bit n is set if the n-th word from the end of the row differed.
        changed: u32,
        /// The old values of the changed words, from the end of the row to its start.
        words: Bytes,
    },
}

impl Before {
    /// Records the old value of a row. For a trie node of unchanged length, up to `MAX_WORDS` words,
    /// only the words that change are recorded.
    fn new(key: &[u8], row: &RowChange) -> Self {
        let by_words = |before: &Bytes, after: &Bytes| {
            (!keys::is_flat(key) && before.len() == after.len() && before.len() <= MAX_WORDS * WORD)
                .then(|| {
                    let (mut changed, mut words) = (0, Vec::new());
                    for (index, (before, after)) in
                        before.rchunks(WORD).zip(after.rchunks(WORD)).enumerate()
                    {
                        if before != after {
                            changed |= 1 << index;
                            words.extend_from_slice(before);
                        }
                    }
                    Self::Words {
                        length: before.len() as u16,
                        changed,
                        words: words.into(),
                    }
                })
        };
        let by_words = row
            .before
            .as_ref()
            .zip(row.after.as_ref())
            .and_then(|(before, after)| by_words(before, after));
        by_words.unwrap_or_else(|| Self::Whole(row.before.clone()))
    }

    /// The old value, given the value after the block. `None` if the record does not fit that
    /// value.
    pub fn row(&self, after: Option<&Bytes>) -> Option<Option<Bytes>> {
        let (length, changed, mut words) = match self {
            Self::Whole(before) => return Some(before.clone()),
            Self::Words {
                length,
                changed,
                words,
            } => (*length, *changed, words.as_ref()),
        };
        let mut row = after
            .filter(|after| after.len() == usize::from(length))?
            .to_vec();
        for (_, word) in row
            .rchunks_mut(WORD)
            .enumerate()
            .filter(|(index, _)| changed & (1 << index) != 0)
        {
            word.copy_from_slice(take(&mut words, word.len())?);
        }
        words.is_empty().then(|| Some(row.into()))
    }
}

/// Encodes the record of a block: for each row the length of its key as u16, the key, a tag, and
/// the data of the tag.
pub(super) fn encode(overlay: &Overlay) -> Vec<u8> {
    let mut record = Vec::new();
    for (key, row) in &overlay.rows {
        encode_row(key, &Before::new(key, row), &mut record);
    }
    record
}

pub(super) fn encode_row(key: &[u8], before: &Before, record: &mut Vec<u8>) {
    record.extend_from_slice(&(key.len() as u16).to_be_bytes());
    record.extend_from_slice(key);
    match before {
        Before::Whole(None) => record.push(ABSENT),
        Before::Whole(Some(row)) => {
            record.push(WHOLE);
            record.extend_from_slice(&(row.len() as u32).to_be_bytes());
            record.extend_from_slice(row);
        }
        Before::Words {
            length,
            changed,
            words,
        } => {
            record.push(WORDS);
            record.extend_from_slice(&length.to_be_bytes());
            record.extend_from_slice(&changed.to_be_bytes());
            record.extend_from_slice(words);
        }
    }
}

/// Decodes a record; `None` if it is damaged.
pub(super) fn decode(mut record: &[u8]) -> Option<UnwindRecord> {
    let record = &mut record;
    let mut rows = Vec::new();
    while !record.is_empty() {
        let length = u16::from_be_bytes(array(record)?);
        let key = Bytes::copy_from_slice(take(record, usize::from(length))?);
        let before = match array(record)? {
            [ABSENT] => Before::Whole(None),
            [WHOLE] => {
                let length = u32::from_be_bytes(array(record)?) as usize;
                Before::Whole(Some(Bytes::copy_from_slice(take(record, length)?)))
            }
            [WORDS] => {
                let (length, changed) = (
                    u16::from_be_bytes(array(record)?),
                    u32::from_be_bytes(array(record)?),
                );
                let words = take(record, words_length(length, changed)?)?;
                Before::Words {
                    length,
                    changed,
                    words: Bytes::copy_from_slice(words),
                }
            }
            _ => return None,
        };
        rows.push((key, before));
    }
    Some(rows)
}

/// The error for an unwind record that does not fit the value of the row after the block.
pub(crate) fn mismatch(number: u64, key: &[u8]) -> ReadError {
    ReadError::Damaged(format!(
        "the unwind record of block {number} at row {}",
        alloy_primitives::hex::encode(key)
    ))
}

/// Takes the next `N` bytes off a record.
fn array<const N: usize>(record: &mut &[u8]) -> Option<[u8; N]> {
    take(record, N)?.try_into().ok()
}

/// Total length in bytes of the changed words of a row; `None` if the row has fewer words or is too
/// long to be recorded by words.
fn words_length(length: u16, changed: u32) -> Option<usize> {
    if usize::from(length) > MAX_WORDS * WORD {
        return None;
    }
    (0..MAX_WORDS)
        .filter(|index| changed & (1 << index) != 0)
        .try_fold(0, |sum, index| {
            let left = usize::from(length)
                .checked_sub(index * WORD)
                .filter(|left| *left > 0)?;
            Some(sum + left.min(WORD))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys of trie nodes, of flat rows, and of unknown kinds.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        (
            prop::sample::select(vec![
                keys::ACCOUNT,
                keys::SLOT,
                keys::STATE_NODE,
                keys::STORAGE_NODE,
                b'?',
            ]),
            any::<[u8; 3]>(),
        )
            .prop_map(|(tag, rest)| [&[tag][..], &rest].concat())
    }

    fn row() -> impl Strategy<Value = Option<Vec<u8>>> {
        prop::option::of(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..80),
            prop::sample::select(vec![0, 1, 31, 32, 33, 519, 1024, 1025, 2000])
                .prop_map(|length| vec![7; length]),
        ])
    }

    /// A row before and after a block: two unrelated values, or values that differ in a few bytes.
    fn change() -> impl Strategy<Value = RowChange> {
        let near = (
            row(),
            prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        )
            .prop_map(|(before, bytes)| {
                let mut after = before.clone();
                for (at, byte) in bytes {
                    if let Some(row) = after.as_mut().filter(|row| !row.is_empty()) {
                        let at = at.index(row.len());
                        row[at] = byte;
                    }
                }
                (before, after)
            });
        prop_oneof![near, (row(), row())].prop_map(|(before, after)| RowChange {
            before: before.map(Bytes::from),
            after: after.map(Bytes::from),
        })
    }

    proptest! {
        #[test]
        fn rows_are_what_they_were(rows in prop::collection::btree_map(key(), change(), 0..12)) {
            let rows = rows.into_iter().map(|(key, row)| (Bytes::from(key), row));
            let overlay = Overlay { rows: rows.collect(), codes: vec![], names: vec![] };
            let record = decode(&encode(&overlay)).unwrap();
            prop_assert_eq!(record.len(), overlay.rows.len());
            for ((key, before), (wanted, row)) in record.iter().zip(&overlay.rows) {
                prop_assert_eq!(key, wanted);
                prop_assert_eq!(before.row(row.after.as_ref()), Some(row.before.clone()));
                // A value recorded whole needs no row after the block.
                prop_assert!(!keys::is_flat(key) || before == &Before::Whole(row.before.clone()));
            }
        }

        #[test]
        fn hostile_records_never_panic(record in prop::collection::vec(any::<u8>(), 0..200), after in row()) {
            for (_, before) in decode(&record).into_iter().flatten() {
                let _ = before.row(after.clone().map(Bytes::from).as_ref());
            }
        }

        #[test]
        fn damaged_records_never_panic(
            rows in prop::collection::btree_map(key(), change(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()
        ) {
            let rows = rows.into_iter().map(|(key, row)| (Bytes::from(key), row));
            let overlay = Overlay { rows: rows.collect(), codes: vec![], names: vec![] };
            let mut record = encode(&overlay);
            let at = at.index(record.len());
            if cut {
                record.truncate(at);
            } else {
                record[at] = byte;
            }
            if let Some(rows) = decode(&record) {
                let mut again = Vec::new();
                rows.iter().for_each(|(key, before)| encode_row(key, before, &mut again));
                prop_assert_eq!(again, record);
            }
        }
    }

    #[test]
    fn a_node_with_one_new_child_is_short() {
        let before = Bytes::from([&[0, 0xff, 0xff, 0, 0, 0, 0][..], &[1; 16 * 32]].concat());
        let mut after = before.to_vec();
        after[7 + 32 * 3] = 2;
        let key = keys::state_node(&Default::default());
        let row = RowChange {
            before: Some(before.clone()),
            after: Some(after.clone().into()),
        };
        let overlay = Overlay {
            rows: [(key.clone(), row)].into(),
            codes: vec![],
            names: vec![],
        };
        assert_eq!(encode(&overlay).len(), 2 + key.len() + 1 + 2 + 4 + 32);
        let record = decode(&encode(&overlay)).unwrap();
        assert_eq!(record[0].1.row(Some(&after.into())), Some(Some(before)));
        // A record by words is rejected if the row after the block has another length.
        assert_eq!(record[0].1.row(None), None);
        assert_eq!(record[0].1.row(Some(&Bytes::from(vec![0; 518]))), None);
    }
}
