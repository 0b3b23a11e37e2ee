//! Transactions that cannot be sent.

use super::*;
use crate::batcher::{
    task::testing::{load, running, take_tx},
    testing::L2,
};

/// op-batcher loses such frames until its restart.
#[tokio::test]
async fn frames_that_fit_in_no_blob_are_taken_back() {
    let l2 = L2::new(5);
    let mut task = running(&l2).await;
    load(&mut task, &l2);
    let taken = take_tx(&mut task, &l2);
    let too_large = vec![0; blob::MAX_BLOB_DATA + 1];
    let tx = BatchTx {
        class: TxClass::Blob,
        items: vec![too_large.into()],
        ..taken.clone()
    };
    task.send(tx, &CancellationToken::new()).await;
    assert_eq!(task.in_flight, 0);
    let again = take_tx(&mut task, &l2);
    assert_eq!((again.channel, again.range), (taken.channel, taken.range));
}
