//! The task's reactions to results from L2 and L1.

use super::*;
use crate::{
    batcher::{
        task::testing::{DERIVED, fetched, load, polled, running, started, take_tx},
        testing::L2,
    },
    l2_source::L2SourceError,
};

#[tokio::test]
async fn nothing_is_loaded_before_the_rollup_node_has_caught_up() {
    let l2 = L2::new(5);
    let mut task = started().await;
    task.phase = BatcherPhase::Syncing(SyncWait::Until(DERIVED + 1));
    task.on_polled(polled(&l2, 30));
    let head = |task: &BatcherTask| task.state.as_ref().unwrap().unsafe_head();
    assert_eq!((head(&task), task.l1_head), (None, 30));
    task.load_blocks();
    assert!(task.fetches.is_empty());
    task.phase = BatcherPhase::Syncing(SyncWait::Until(DERIVED));
    task.on_polled(polled(&l2, 31));
    assert_eq!((head(&task), task.l1_head), (Some(5), 31));
    task.load_blocks();
    assert_eq!(task.fetches.len(), 5);
}

/// The L2 head may have moved back, or the execution client may lag: the next poll shows which.
#[tokio::test]
async fn after_a_block_that_is_not_there_nothing_is_loaded_before_the_next_poll() {
    let l2 = L2::new(5);
    for block in [Ok(None), Err(L2SourceError::Stopped)] {
        let mut task = running(&l2).await;
        task.load_blocks();
        assert_eq!(task.fetches.len(), 5);
        task.on_fetched(FetchedBlock { number: 1, block });
        assert!(task.fetches.is_empty(), "the others are dropped");
        task.load_blocks();
        assert!(task.fetches.is_empty(), "no more are requested");
        task.on_polled(polled(&l2, 30));
        task.load_blocks();
        assert_eq!(task.fetches.len(), 5);
    }
}

/// The execution client may follow another chain, or be far behind the rollup node.
#[tokio::test]
async fn a_block_that_is_missing_at_two_polls_is_a_warning() {
    let l2 = L2::new(5);
    let mut task = running(&l2).await;
    let is_noted = |task: &mut BatcherTask| {
        let later = Instant::now() + Duration::from_secs(3_600);
        task.causes.note_success(NO_BLOCK, later)
    };
    let missing = |number| FetchedBlock {
        number,
        block: Ok(None),
    };
    task.on_fetched(missing(1));
    assert!(!is_noted(&mut task), "it may be a reorg");
    task.on_fetched(missing(1));
    assert!(is_noted(&mut task));
    task.on_polled(polled(&l2, 30));
    task.load_blocks();
    task.on_fetched(fetched(&l2, 1));
    task.on_fetched(missing(2));
    assert!(!is_noted(&mut task), "one was there");
}

#[tokio::test]
async fn a_block_of_another_branch_drops_everything_until_the_rollup_node_has_caught_up() {
    let l2 = L2::new(5);
    let other = L2::fork(&l2, 1, 5);
    let mut task = running(&l2).await;
    for number in 1..=3 {
        task.on_fetched(fetched(&l2, number));
    }
    let state = |task: &BatcherTask| {
        let state = task.state.as_ref().unwrap();
        (state.newest(), state.unsafe_head())
    };
    assert_eq!(state(&task), (3, Some(5)));
    task.on_fetched(fetched(&other, 4));
    assert_eq!(state(&task), (0, None));
    // Transactions with blocks of the old branch must finish first, and the node must derive past
    // them.
    task.in_flight = 1;
    task.on_polled(polled(&other, 30));
    assert_eq!(task.phase, BatcherPhase::Syncing(SyncWait::Wanted));
    task.in_flight = 0;
    task.on_polled(polled(&other, 30));
    assert_eq!(task.phase, BatcherPhase::Syncing(SyncWait::Requested));
    task.on_sync_target(Ok(DERIVED));
    assert_eq!(state(&task), (0, None));
    task.on_polled(polled(&other, 30));
    task.on_fetched(fetched(&other, 1));
    assert_eq!(state(&task), (1, Some(5)));
    let loaded = task.state.as_ref().unwrap().loaded_through();
    assert_eq!(loaded, 3, "a stop waits for these");
}

#[tokio::test]
async fn without_an_answer_of_l1_its_head_stays() {
    let l2 = L2::new(5);
    let mut task = running(&l2).await;
    let away = task.l1.head_number().await.unwrap_err();
    let answer = PollResult {
        l1_head: Err(away),
        ..polled(&l2, 40)
    };
    task.on_polled(answer);
    assert_eq!(task.l1_head, 30);
}

/// Before the next status, it is unknown whether these blocks still exist.
#[tokio::test]
async fn a_stop_waits_for_the_blocks_that_a_reorg_has_dropped() {
    let l2 = L2::new(5);
    let other = L2::fork(&l2, 1, 5);
    let mut task = running(&l2).await;
    for number in 1..=3 {
        task.on_fetched(fetched(&l2, number));
    }
    task.on_fetched(fetched(&other, 4));
    task.begin_stop(None);
    assert_eq!(task.load_limit(), 3);
    for phase in [SyncWait::Wanted, SyncWait::Until(DERIVED)] {
        task.phase = BatcherPhase::Syncing(phase);
        task.finish_stop();
        assert_eq!(task.phase, BatcherPhase::Syncing(phase));
    }
    task.on_polled(polled(&other, 30));
    task.finish_stop();
    assert_eq!(task.phase, BatcherPhase::Running);
    task.load_blocks();
    assert_eq!(task.fetches.len(), 3);
}

/// Blocks of the last transaction are unsafe until the rollup node has derived its L1 block, so they
/// would be posted twice.
#[tokio::test]
async fn each_start_waits_for_the_last_transaction_of_this_process() {
    let mut task = started().await;
    assert_eq!(task.phase, BatcherPhase::Syncing(SyncWait::Until(0)));
    task.last_posted_l1 = DERIVED + 1;
    for _ in 0..2 {
        task.start();
        let wait = SyncWait::Until(DERIVED + 1);
        assert_eq!(task.phase, BatcherPhase::Syncing(wait));
        task.begin_stop(None);
        task.finish_stop();
        assert_eq!(task.phase, BatcherPhase::Stopped);
    }
}

#[tokio::test]
async fn a_stop_before_anything_is_loaded_is_done_at_once() {
    let mut task = started().await;
    task.begin_stop(None);
    task.finish_stop();
    assert_eq!(task.phase, BatcherPhase::Stopped);
}

/// All blocks are dropped, so the size of the backlog is unknown until some are loaded again.
#[tokio::test]
async fn the_load_stays_while_no_block_is_loaded() {
    let l2 = L2::new(5);
    let mut task = running(&l2).await;
    load(&mut task, &l2);
    task.report_load();
    let bytes = |task: &BatcherTask| task.load.borrow().unsafe_da_bytes;
    let before = bytes(&task);
    assert!(before > 0);
    task.on_polled(polled(&L2::fork(&l2, 1, 5), 31));
    assert_eq!(task.state.as_ref().unwrap().newest(), 0);
    assert_eq!(bytes(&task), before);
}

/// Has the blocks up to 5 confirmed on L1, and derivation pass them without a new safe head.
fn lose(task: &mut BatcherTask, l2: &L2) {
    load(task, l2);
    let tx = take_tx(task, l2);
    let state = task.state.as_mut().unwrap();
    state.on_confirmed(tx.number, DERIVED - 1);
    task.on_polled(polled(l2, 30));
}

/// Derivation ignores the blocks for a reason that the batcher cannot see.
#[tokio::test]
async fn blocks_of_a_channel_that_was_lost_twice_are_loaded_after_some_l1_blocks() {
    let l2 = L2::new(5);
    let mut task = running(&l2).await;
    lose(&mut task, &l2);
    assert_eq!(task.phase, BatcherPhase::Running, "the first time at once");
    lose(&mut task, &l2);
    let wait = SyncWait::Until(DERIVED + 4);
    assert_eq!(task.phase, BatcherPhase::Syncing(wait));
}
