//! Tests of singular batches.

use crate::{
    CONTEXT, block,
    draw::{bytes, singular},
};
use proptest::prelude::*;
use starling_proto::batch::{self, Batch, BatchError};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn singular_batches_survive_with_anything_after(batch in singular(), after in bytes(0..20)) {
        let mut encoded = batch.encode();
        for end in 0..encoded.len() {
            prop_assert!(batch::decode(&encoded[..end].to_vec().into(), &CONTEXT).is_err());
        }
        encoded.extend_from_slice(&after);
        prop_assert_eq!(batch::decode(&encoded.into(), &CONTEXT), Ok(Batch::Singular(batch)));
    }
}

#[test]
fn a_malformed_singular_batch_is_refused() {
    let decode = |data: Vec<u8>| batch::decode(&data.into(), &CONTEXT);
    assert_eq!(decode(vec![]), Err(BatchError::Empty));
    assert_eq!(decode(vec![2, 0xc0]), Err(BatchError::Type(2)));
    let good = block(1, vec![vec![5; 3].into()]).encode();
    assert!(decode(good.clone()).is_ok());
    // Cases: one field too many; a list in place of a transaction; a hash of the wrong length.
    let mut longer = good.clone();
    longer[2] += 1;
    longer.push(0x80);
    let at = good.len() - 4;
    assert_eq!(good[at], 0x83);
    let mut list = good.clone();
    list[at] = 0xc3;
    let mut hash = good;
    hash[3] = 0x9f;
    for data in [longer, list, hash] {
        let error = decode(data).unwrap_err();
        assert!(matches!(error, BatchError::Singular(_)) && !error.skips_only_this_batch());
    }
}
