//! Data is posted only if L1 does not contradict it.

use super::*;
use crate::batcher::{
    task::{
        BatcherPhase, SyncWait,
        testing::{load, polled, running},
    },
    testing::L2,
};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

const OTHER: Address = Address::repeat_byte(0x0b);

/// A task with five loaded blocks, which a flush wants on L1.
async fn loaded(l2: &L2) -> BatcherTask {
    let mut task = running(l2).await;
    load(&mut task, l2);
    task.flush_through = Some(5);
    task
}

/// Delivers the account that SystemConfig names.
fn named(task: &mut BatcherTask, batcher: Address) {
    task.on_event(BatcherEvent::Sender(Ok(batcher)));
}

/// Whether the task hands a transaction to the manager. Requests to L1 before it get no response.
async fn posts(task: &mut BatcherTask) -> bool {
    loop {
        let published = task.publish(&CancellationToken::new()).await;
        published.expect("the encoder works");
        if task.in_flight > 0 || task.events.is_empty() {
            return task.in_flight > 0;
        }
        if let Some(event) = task.events.next().await {
            task.on_event(event);
        }
    }
}

#[tokio::test]
async fn a_key_that_system_config_does_not_name_posts_nothing_until_it_does() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    assert!(!posts(&mut task).await, "the account is not checked");
    named(&mut task, OTHER);
    assert!(!posts(&mut task).await);
    // The next poll does not change that.
    task.may_publish = true;
    assert!(!posts(&mut task).await);
    let own = task.txs.address();
    named(&mut task, own);
    assert!(posts(&mut task).await, "it resumes by itself");
}

#[tokio::test]
async fn a_batcher_that_system_config_stops_naming_stops_posting() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    let own = task.txs.address();
    named(&mut task, own);
    named(&mut task, OTHER);
    assert!(!posts(&mut task).await);
}

#[tokio::test]
async fn without_an_answer_of_l1_the_key_counts_as_the_batchers() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    let away = task.l1.batcher_of(Address::ZERO).await;
    task.on_event(BatcherEvent::Sender(away));
    assert!(posts(&mut task).await);
}

/// The blocks cannot be posted, so the stop would last for ever.
#[tokio::test]
async fn a_stop_of_a_batcher_with_a_foreign_key_waits_for_nothing() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    named(&mut task, OTHER);
    task.begin_stop(None);
    task.in_flight = 1;
    task.finish_stop();
    assert_eq!(task.phase, BatcherPhase::Running, "L1 may include this one");
    task.in_flight = 0;
    task.finish_stop();
    assert_eq!(task.phase, BatcherPhase::Stopped);
}

/// The hash of L1's block at the height of the channel's origin decides.
#[tokio::test]
async fn a_channel_whose_l1_origin_is_not_on_l1_is_dropped_until_the_rollup_node_has_seen_it() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    let own = task.txs.address();
    named(&mut task, own);
    let published = task.publish(&CancellationToken::new()).await;
    published.expect("the encoder works");
    assert!(task.is_reading_l1 && task.in_flight == 0);
    let origin = l2.reference(5).origin;
    task.events.clear();
    task.on_origin(origin, Ok(Some(B256::ZERO)));
    assert_eq!(task.phase, BatcherPhase::Syncing(SyncWait::Wanted));
    assert!(!posts(&mut task).await);
    assert!(task.state.as_ref().is_some_and(|state| state.newest() == 0));
}

#[tokio::test]
async fn a_channel_whose_l1_origin_is_on_l1_or_not_known_there_is_posted() {
    let l2 = L2::new(5);
    let origin = l2.reference(5).origin;
    for hash in [Some(origin.hash), None] {
        let mut task = loaded(&l2).await;
        let own = task.txs.address();
        named(&mut task, own);
        task.on_origin(origin, Ok(hash));
        let published = task.publish(&CancellationToken::new()).await;
        published.expect("the encoder works");
        assert_eq!(task.in_flight, 1, "{hash:?}");
    }
}

/// L1 may have reorganised since.
#[tokio::test]
async fn an_l1_origin_is_looked_up_again_when_l1_has_a_new_head() {
    let l2 = L2::new(5);
    let mut task = loaded(&l2).await;
    let origin = l2.reference(5).origin;
    task.on_origin(origin, Ok(Some(origin.hash)));
    task.on_polled(polled(&l2, 30));
    assert_eq!(task.canonical, Some(origin));
    task.on_polled(polled(&l2, 31));
    assert_eq!(task.canonical, None);
}
