//! Keys of the block indexes: a value's rows are in the order of blocks, and separate from other
//! rows.

use super::*;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = IndexedValue> {
    (0..5usize, any::<[u8; 32]>()).prop_map(|(at, word)| indexed_value(at, &B256::from(word)))
}

fn tag() -> impl Strategy<Value = u8> {
    prop_oneof![Just(LOG), Just(PARTICIPANT)]
}

proptest! {
    #[test]
    fn a_row_of_an_index_names_its_block(tag in tag(), value in value(), number: u64) {
        let row = value_row(&value_prefix(tag, &value), number);
        prop_assert_eq!(row.len(), 17);
        prop_assert_eq!(row[0], tag);
        prop_assert_eq!(value_row_number(&row), Some(number));
    }

    /// Seeks need the rows of one value to be adjacent, in the order of block numbers.
    #[test]
    fn rows_of_a_value_are_in_the_order_of_blocks(
        tag in tag(),
        values in proptest::collection::hash_set(value(), 2),
        numbers: [u64; 2],
    ) {
        let prefixes: Vec<_> = values.iter().map(|value| value_prefix(tag, value)).collect();
        let [one, other] = numbers.map(|number| value_row(&prefixes[0], number));
        prop_assert_eq!(one.cmp(&other), numbers[0].cmp(&numbers[1]));
        // No row of another value is between the rows of this value.
        let (low, high) = (value_row(&prefixes[0], 0), value_row(&prefixes[0], u64::MAX));
        let foreign = value_row(&prefixes[1], numbers[0]);
        prop_assert!(foreign < low || foreign > high);
    }

    /// The same word at another position, or in the other index, is a different value.
    #[test]
    fn a_position_and_an_index_have_their_own_rows(word: [u8; 32], at in 0..5usize, by in 1..5usize) {
        let word = B256::from(word);
        let [here, there] = [at, (at + by) % 5].map(|at| indexed_value(at, &word));
        prop_assert_ne!(value_prefix(LOG, &here), value_prefix(LOG, &there));
        prop_assert_ne!(value_prefix(LOG, &here), value_prefix(PARTICIPANT, &here));
    }

    #[test]
    fn other_rows_are_not_rows_of_an_index(row in proptest::collection::vec(any::<u8>(), 0..40)) {
        let valid = row.len() == 17 && [b'L', b'A'].contains(&row[0]);
        prop_assert_eq!(value_row_number(&row).is_some(), valid);
    }

    #[test]
    fn a_row_of_another_length_is_damaged(tag in tag(), value in value(), number: u64, cut in 0..17usize) {
        let row = value_row(&value_prefix(tag, &value), number);
        prop_assert_eq!(value_row_number(&row[..cut]), None);
        prop_assert_eq!(value_row_number(&[&row[..], &[0]].concat()), None);
    }
}
