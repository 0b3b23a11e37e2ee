//! Data is posted only if L1 does not contradict it.

use super::*;
use crate::batcher::{
    task::{
        BatcherPhase,
        testing::{load, running},
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
