//! The driver and its start on a real chain in a temporary directory, with a test L1 endpoint. L1
//! has no batches: when the sequencing window of a block has passed, a block with deposits only is
//! derived.

use super::{
    start::{StartHeads, StartSearch},
    *,
};
use crate::{
    chain::{
        Chain, Heads,
        executor::ExecutorLimits,
        tests::{build, until},
    },
    rollup::{
        finality,
        l1::{
            L1Blocks, L1Client, L1Config, Watched,
            fake::{State, block, block_json, header},
        },
        sequencer::tests::{World, submit, transfer},
    },
};
use alloy_consensus::Header;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

mod errors;
mod posts;
mod remote;
mod start;

/// Longest time that a test waits for the driver.
const PATIENCE: Duration = Duration::from_secs(60);

/// The world's rollup configuration with a sequencing window of `window` L1 blocks.
fn rollup(world: &World, window: u64) -> Arc<RollupConfig> {
    Arc::new(RollupConfig {
        seq_window_size: window,
        channel_timeout: 50,
        ..(*world.rollup).clone()
    })
}

fn client(world: &World) -> L1Client {
    L1Client::new(&L1Config::new(world.l1.url())).unwrap()
}

fn records(world: &World) -> SafeDb {
    SafeDb::open(&world.datadir.path().join("safe-heads")).unwrap()
}

fn driver(
    world: &World,
    chain: &Chain,
    window: u64,
    l1_confs: u64,
) -> (RollupDriver, DriverHandle) {
    driver_over(world, Engine::Local(chain.clone()), window, l1_confs)
}

fn driver_over(
    world: &World,
    engine: Engine,
    window: u64,
    l1_confs: u64,
) -> (RollupDriver, DriverHandle) {
    let rollup = rollup(world, window);
    let blocks = L1Blocks::new(client(world), Watched::from(&*rollup), 100);
    let parts = DriverParts {
        schedule: BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]),
        engine,
        l1: L1Reader::new(blocks, 10, 20, None, rollup.clone()),
        l1_heads: world.l1_heads.subscribe(),
        safe_db: records(world),
        rollup,
    };
    let config = DriverConfig {
        l1_confs,
        finality_lookback: finality::LOOKBACK,
        finality_delay: finality::DELAY,
    };
    RollupDriver::new(config, parts)
}

/// A running driver, until [`RunningDriver::stop`] is called or a failed assertion drops this
/// value. A driver that went on would keep the runtime from ending.
struct RunningDriver {
    handle: DriverHandle,
    token: DropGuard,
    task: JoinHandle<Result<(), DriverError>>,
}

impl RunningDriver {
    fn start((driver, handle): (RollupDriver, DriverHandle)) -> Self {
        let token = CancellationToken::new();
        let task = tokio::spawn(driver.run(token.clone()));
        Self {
            handle,
            token: token.drop_guard(),
            task,
        }
    }

    /// Waits until derivation has finished this L1 block.
    async fn derives(&self, l1: &Header) -> RollupStatus {
        let wanted = block(l1);
        let derived = async {
            loop {
                let status = self.handle.status();
                if status.current_l1 == Some(wanted) && status.safe_l2.is_some() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, derived).await;
        waited.unwrap_or_else(|_| panic!("not at {}: {:?}", wanted.id(), self.handle.status()))
    }

    async fn stop(self) {
        drop(self.token);
        self.task.await.unwrap().unwrap();
    }
}

/// Derives up to the seventh L1 block, stops the driver, and returns its status at that time.
async fn derive_and_stop(world: &World, chain: &Chain) -> RollupStatus {
    let running = RunningDriver::start(driver(world, chain, 2, 0));
    let status = running.derives(&world.l1_headers[6]).await;
    running.stop().await;
    status
}

/// Runs the search for the start and returns the heads that it finds.
async fn search(world: &World, chain: &Chain, window: u64) -> Result<StartHeads, StartSearchError> {
    let (rollup, engine) = (rollup(world, window), Engine::Local(chain.clone()));
    let search = StartSearch {
        rollup: &rollup,
        engine: &engine,
        l1: &client(world),
        safe_db: &records(world),
        derived_l1: &DerivedL1::default(),
    };
    search.run().await
}

/// A fork of an L1 chain: its first `kept` blocks, then `new` other blocks.
fn forked(headers: &[Header], kept: usize, new: usize) -> Vec<Header> {
    let mut fork = headers[..kept].to_vec();
    for _ in 0..new {
        let last = fork.last().unwrap();
        let (number, time) = (last.number + 1, last.timestamp + 12);
        fork.push(header(number, last.hash_slow(), time, 2));
    }
    fork
}

fn transactions(chain: &Chain, number: u64) -> usize {
    let block = chain.view().payload(number).unwrap();
    block.unwrap().transactions.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_chain_whose_fork_point_is_out_of_reach_is_lowered_and_overridden() {
    let world = World::new(80, 7).await;
    // With these limits no side branch below the stored head can be read.
    let limits = ExecutorLimits {
        unwind_data: 1,
        ..Default::default()
    };
    let (chain, _threads) = world.open_within(limits);
    submit(&chain, transfer(0));
    world.sequence(&chain).await;
    let old = chain.view().head();
    assert!(old.number >= 39 && transactions(&chain, 1) == 2, "{old}");
    until("all blocks are stored", || chain.view().stored() == old).await;

    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let status = running.derives(&world.l1_headers[6]).await;
    let safe = status.safe_l2.unwrap();
    assert!(safe.id.number >= 20, "{safe:?}");
    assert_eq!(
        chain.view().head(),
        safe.id,
        "the rest of the chain is gone"
    );
    assert_eq!(transactions(&chain, 1), 1, "no batch has the transfer");
    assert_eq!(records(&world).last().map(|last| last.l2), Some(safe.id));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequenced_chain_without_transactions_is_consolidated_and_stays() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let status = running.derives(&world.l1_headers[6]).await;
    assert!(status.safe_l2.unwrap().id.number >= 20);
    assert_eq!(status.pending_safe_l2, status.safe_l2);
    assert_eq!(chain.view().head(), head);
    let Heads { safe, .. } = *chain.heads().borrow();
    assert_eq!(safe, status.safe_l2.map(|safe| safe.id));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_followed_during_the_search_stays_the_head() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let (driver, _handle) = driver(&world, &chain, 2, 0);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(found.head.id, chain.view().head());
    let newer = build(&chain, found.head.id.hash, 1, []).await.payload.id();
    chain.forkchoice(newer.hash, None, None).await.unwrap();
    driver.move_heads(&found).await.unwrap();
    assert_eq!(chain.view().head(), newer);
}

/// During the search the sequencer builds further blocks on a head with an orphaned L1 origin.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_moved_during_the_search_is_lowered_with_its_branch_alone() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let searched = chain.view().head();
    let (driver, _handle) = driver(&world, &chain, 2, 0);
    world.l1.set(&forked(&world.l1_headers, 3, 4));
    let found = search(&world, &chain, 2).await.unwrap();
    assert!(found.head.id.number < searched.number, "{found:?}");
    let newer = build(&chain, searched.hash, 1, []).await.payload.id();
    chain.forkchoice(newer.hash, None, None).await.unwrap();
    driver.move_heads(&found).await.unwrap();
    assert_eq!(chain.view().head(), found.head.id);
    // The head has moved to another branch, whose origins the search has not checked.
    let other = build(&chain, found.head.id.hash, 2, []).await.payload.id();
    chain.forkchoice(other.hash, None, None).await.unwrap();
    driver.move_heads(&found).await.unwrap();
    assert_eq!(chain.view().head(), other);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_lags_is_no_reorg() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    // Nothing is derived yet, and the L1 origins of the newest blocks are above L1's head.
    world.l1.set(&world.l1_headers[..3]);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!((found.head.id, found.safe.id.number), (head, 0));

    world.l1.set(&world.l1_headers);
    let status = derive_and_stop(&world, &chain).await;
    world.l1.set(&world.l1_headers[..3]);
    let behind = search(&world, &chain, 2).await;
    assert!(
        matches!(behind, Err(StartSearchError::Behind { .. })),
        "{behind:?}"
    );
    let sentence = behind.unwrap_err().to_string();
    assert!(sentence.contains(&world.l1.url()), "{sentence}");
    // When the endpoint is back, derivation continues from the record.
    world.l1.set(&world.l1_headers);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(Some(found.safe), status.safe_l2);
    assert_eq!((found.head.id, found.first_l1), (head, 17));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_needs_no_l1_block_older_than_the_newest_record() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let status = derive_and_stop(&world, &chain).await;
    // The endpoint has pruned all headers but the newest.
    world.l1.set(&world.l1_headers[6..]);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(Some(found.safe), status.safe_l2);
    assert_eq!(found.first_l1, 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_to_a_branch_that_is_shorter_for_now_is_recognised_by_a_lower_record() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    derive_and_stop(&world, &chain).await;
    let recorded: Vec<_> = (0..records(&world).len())
        .map(|at| records(&world).record_at(at).unwrap().derived_from.number)
        .collect();
    assert!(recorded.ends_with(&[13, 14, 15, 16]), "{recorded:?}");
    let kept = records(&world).at_l1(12).unwrap().unwrap();

    // L1 ends at 13: the L1 block of that record is orphaned, and those of the next records are
    // above L1's head.
    let fork = forked(&world.l1_headers, 3, 1);
    world.l1.set(&fork);
    let found = search(&world, &chain, 2).await.unwrap();
    let first = kept.derived_from.number + 1;
    assert_eq!((found.safe.id, found.first_l1), (kept.l2, first));
    assert_eq!(found.head.origin, block(&fork[2]).id());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_l1_reorg_the_newest_canonical_record_is_the_start() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    derive_and_stop(&world, &chain).await;
    let record = records(&world).at_l1(14).unwrap().unwrap();

    let fork = forked(&world.l1_headers, 5, 3);
    world.l1.set(&fork);
    let found = search(&world, &chain, 2).await.unwrap();
    assert_eq!(found.safe.id, record.l2);
    assert_eq!((record.derived_from.number, found.first_l1), (14, 15));
    assert!(found.head.id.number < head.number, "{found:?}");
    assert_eq!(found.head.origin, block(&fork[4]).id());
    assert_eq!(chain.view().head(), head, "the search moves nothing");

    // A reorg of the finalized block and a reorg of more than five windows are each reported in one
    // sentence.
    let safe = chain.heads().borrow().safe.unwrap();
    chain.promote(None, Some(safe.hash)).await.unwrap();
    world.l1.set(&forked(&world.l1_headers, 1, 7));
    let finalized = search(&world, &chain, 2).await.unwrap_err();
    assert!(
        matches!(finalized, StartSearchError::FinalizedReorg { .. }),
        "{finalized}"
    );
    assert!(finalized.to_string().contains("--l1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reorg_of_more_than_five_windows_is_refused() {
    let world = World::new(100, 9).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    world.l1.set(&forked(&world.l1_headers, 1, 8));
    let deep = search(&world, &chain, 1).await.unwrap_err();
    assert!(matches!(deep, StartSearchError::TooDeep { .. }), "{deep}");
    assert!(search(&world, &chain, 2).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_was_never_derived_begins_at_its_head_after_fourteen_windows() {
    let world = World::new(200, 17).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let head = chain.view().head();
    let old = search(&world, &chain, 1).await.unwrap();
    assert_eq!((old.head.id, old.safe.id), (head, head));
    let young = search(&world, &chain, 2).await.unwrap();
    assert_eq!((young.head.id, young.safe.id.number), (head, 0));
    // A record of genesis: the driver has run before, and derived nothing.
    let genesis = &world.rollup.genesis;
    let (l2, derived_from) = (genesis.l2, genesis.l1);
    let record = SafeRecord { l2, derived_from };
    records(&world).record(record).unwrap();
    let old = search(&world, &chain, 1).await.unwrap();
    assert_eq!((old.head.id, old.safe.id), (head, head));
    records(&world).truncate(0).unwrap();
    let five = chain.view().hash_of(5).unwrap().unwrap();
    chain.promote(Some(five), None).await.unwrap();
    let checked = search(&world, &chain, 1).await.unwrap();
    assert_eq!(checked.safe.id.number, 4, "the end of the epoch below");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_was_taken_as_safe_is_where_the_next_reset_begins() {
    let world = World::new(200, 17).await;
    let (chain, _threads) = world.open();
    let (mut young, _handle) = driver(&world, &chain, 1, 0);
    young.reset().await.unwrap();
    assert_eq!(young.safe_db.last().map(|last| last.l2.number), Some(0));
    world.sequence(&chain).await;
    let head = chain.view().head();
    let (mut old, _handle) = driver(&world, &chain, 1, 0);
    old.reset().await.unwrap();
    assert_eq!(old.local_safe.map(|safe| safe.id), Some(head));
    assert_eq!(old.safe_db.last(), None, "it was derived from no L1 block");
    old.reset().await.unwrap();
    let safe = old.local_safe.unwrap().id;
    assert!(safe.number + 20 > head.number, "{safe} is far below {head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heads_of_the_core_are_published_while_the_start_is_searched() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let five = chain.view().hash_of(5).unwrap().unwrap();
    chain.promote(Some(five), Some(five)).await.unwrap();
    let fail = || {
        let down = Err((-32000, "down".to_owned()));
        let answers = &mut world.l1.state.lock().answers;
        answers.insert("eth_getBlockByNumber", down);
    };
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let number = |block: Option<L2BlockRef>| block.map(|block| block.id.number);
    let heads = || {
        let status = running.handle.status();
        [status.safe_l2, status.finalized_l2, status.pending_safe_l2].map(number)
    };
    let status = running.derives(&world.l1_headers[6]).await;
    fail();
    running.handle.reset().unwrap();
    until("a reset", || running.handle.status().current_l1.is_none()).await;
    let safe = number(status.safe_l2);
    assert_eq!(heads(), [safe, Some(5), safe]);
    running.stop().await;
}

/// A block that is fetched before it has enough confirmations may be orphaned later.
#[tokio::test(flavor = "multi_thread")]
async fn no_l1_block_is_fetched_before_it_has_its_confirmations() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let running = RunningDriver::start(driver(&world, &chain, 2, 3));
    running.derives(&world.l1_headers[3]).await;
    // Enough time to fetch one block too many.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let parameters = world.l1.state.lock().parameters.clone();
    assert!(parameters.contains(&"0xd".to_owned()), "{parameters:?}");
    for number in ["0xe", "0xf", "0x10"] {
        assert!(!parameters.contains(&number.to_owned()), "{parameters:?}");
    }
    // L1 replaces the blocks that lack confirmations.
    let fork = forked(&world.l1_headers, 4, 4);
    world.show_l1(&fork);
    let status = running.derives(&fork[4]).await;
    assert_eq!(status.head_l1, Some(block(&fork[7])));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_accepted_while_l1_is_silent() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let (driver, handle) = driver(&world, &chain, 2, 0);
    handle.reset().expect("before it runs");
    world.l1.state.lock().delay = Duration::from_secs(3);
    let running = RunningDriver::start((driver, handle));
    running.handle.reset().expect("during its first request");
    world.l1.state.lock().delay = Duration::ZERO;
    running.derives(&world.l1_headers[6]).await;
    running.handle.reset().expect("while it waits for L1");
    running.derives(&world.l1_headers[6]).await;
    let handle = running.handle.clone();
    running.stop().await;
    assert_eq!(handle.reset(), Err(DriverEnded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_false_block_of_l1_is_asked_for_again_and_never_derived_from() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let mut lie = block_json(&world.l1_headers[0]);
    lie["timestamp"] = "0x1".into();
    let lies = |state: &mut State| state.answers.insert("eth_getBlockByNumber", Ok(lie));
    lies(&mut world.l1.state.lock());
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let retried = || world.l1.calls("eth_getBlockByNumber") >= 2;
    until("the request is retried", retried).await;
    assert_eq!(running.handle.status().safe_l2, None);
    assert_eq!(chain.view().head().number, 0);
    world.l1.state.lock().answers.clear();
    running.derives(&world.l1_headers[6]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_l1_head_may_go_back_and_a_replaced_one_is_derived_again() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let before = running.derives(&world.l1_headers[6]).await;
    // The lagging endpoint's head is below the last block that derivation has read.
    world.show_l1(&world.l1_headers[..5]);
    let gone_back = || running.handle.status().head_l1 == Some(block(&world.l1_headers[4]));
    until("the head has gone back", gone_back).await;
    let status = running.handle.status();
    assert_eq!(
        (status.safe_l2, status.current_l1),
        (before.safe_l2, before.current_l1)
    );
    let fork = forked(&world.l1_headers, 5, 2);
    world.show_l1(&fork);
    let after = running.derives(&fork[6]).await;
    assert_eq!(
        after.safe_l2, before.safe_l2,
        "its epochs are below the fork"
    );
    running.stop().await;
}

/// A block that is not in the chain does not become canonical by lowering the head.
#[tokio::test(flavor = "multi_thread")]
async fn attributes_on_a_block_that_is_not_in_the_chain_reset_derivation() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    let genesis = chain.view().payload(0).unwrap().unwrap();
    let mut parent = L2BlockRef::of(&genesis, &world.rollup.genesis).unwrap();
    parent.id.hash = alloy_primitives::B256::repeat_byte(7);
    let derived = DerivedAttributes {
        parent,
        attributes: Default::default(),
        concluding: true,
        derived_from: block(&world.l1_headers[1]),
        deposits_only: true,
        ignored: vec![],
    };
    driver.attributes = Some(derived.into());
    let error = driver.apply_attributes().await.unwrap_err();
    assert!(matches!(error, DriverStepError::Reset(_)), "{error}");
}

/// L1's new branch is shorter: it has no block yet at the height of the last block that derivation
/// has read.
#[tokio::test(flavor = "multi_thread")]
async fn an_l1_that_switches_to_a_shorter_branch_is_followed_at_once() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    let before = running.derives(&world.l1_headers[6]).await;
    let record = records(&world).at_l1(12).unwrap().unwrap();

    // The L1 block of the lowest obsolete record is below L1's head.
    let shorter = forked(&world.l1_headers, 3, 2);
    world.show_l1(&shorter);
    let status = running.derives(&shorter[4]).await;
    let safe = status.safe_l2.unwrap().id;
    assert!(record.l2.number <= safe.number && safe.number < before.safe_l2.unwrap().id.number);
    let head = chain.view().payload(chain.view().head().number);
    let head = L2BlockRef::of(&head.unwrap().unwrap(), &world.rollup.genesis).unwrap();
    assert!(
        shorter
            .iter()
            .any(|header| block(header).id() == head.origin)
    );

    // The L1 blocks of all obsolete records are above L1's head, so no record shows which branch L1
    // has.
    let shortest = forked(&shorter, 1, 1);
    world.show_l1(&shortest);
    let status = running.derives(&shortest[1]).await;
    assert_eq!(status.safe_l2.unwrap().id.number, 0);
    let grown = forked(&shortest, 2, 6);
    world.show_l1(&grown);
    let status = running.derives(&grown[7]).await;
    assert!(status.safe_l2.unwrap().id.number >= 20, "{status:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_displaced_head_is_reported_until_it_is_forgotten() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let (mut driver, _handle) =
        metrics::with_local_recorder(&recorder, || self::driver(&world, &chain, 2, 0));
    let reported = || {
        let text = recorder.handle().render();
        let labels = "{layer=\"l2\",type=\"l2_backup_unsafe\"}";
        let name = format!("op_node_default_refs_number{labels} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap().to_owned()
    };
    let block = driver.block_ref_at(7).await.unwrap();
    driver.set_backup_unsafe(block);
    assert_eq!(reported(), "7");
    driver.reset().await.unwrap();
    assert_eq!(reported(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalized_l1_block_above_l1s_head_does_not_hold_up_derivation() {
    let world = World::new(100, 8).await;
    let (chain, _threads) = world.open();
    world.show_l1(&world.l1_headers[..7]);
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    running.derives(&world.l1_headers[6]).await;
    let finalize = |header: &Header| {
        let finalized = Some(block(header));
        world
            .l1_heads
            .send_modify(|heads| heads.finalized = finalized);
    };
    finalize(&header(1_000, world.l1_headers[6].hash_slow(), 1, 1));
    world.show_l1(&world.l1_headers);
    running.derives(&world.l1_headers[7]).await;
    assert_eq!(chain.heads().borrow().finalized, None);
    let asked = world.l1.state.lock().parameters.contains(&"0x3e8".into());
    assert!(!asked, "L1 cannot have that block");
    // The true finalized block is lower.
    finalize(&world.l1_headers[6]);
    let finalized = || running.handle.status().finalized_l2.map(|block| block.id);
    let recorded = records(&world).at_l1(16).unwrap().unwrap().l2;
    until("a block is final", || finalized() == Some(recorded)).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_check_of_finality_is_no_failed_step() {
    let world = World::new(80, 7).await;
    let (chain, _threads) = world.open();
    world.sequence(&chain).await;
    let (mut driver, _handle) = driver(&world, &chain, 2, 0);
    driver.reset().await.unwrap();
    let l1 = |at: usize| block(&world.l1_headers[at]);
    let five = chain.view().hash_of(5).unwrap().unwrap();
    chain.promote(Some(five), None).await.unwrap();
    driver.finality.on_safe(SafeRecord {
        l2: BlockId {
            number: 5,
            hash: five,
        },
        derived_from: l1(4).id(),
    });
    world
        .l1_heads
        .send_modify(|heads| heads.finalized = Some(l1(5)));
    let answers = |answer| {
        let answers = &mut world.l1.state.lock().answers;
        answers.insert("eth_getBlockByNumber", answer);
    };
    answers(Err((-32000, "down".to_owned())));
    driver.finalize(l1(6).id()).await.unwrap();
    // The check is repeated when everything is derived. L1 does not have the reported finalized
    // block, so the report is refused.
    answers(Ok(serde_json::Value::Null));
    driver.finality.on_idle();
    driver.finalize(l1(6).id()).await.unwrap();
    assert_eq!(driver.finality.finalized_l1(), None);
    world.l1.state.lock().answers.clear();
    driver.finalize(l1(6).id()).await.unwrap();
    assert_eq!(chain.heads().borrow().finalized, None);
    world
        .l1_heads
        .send_modify(|heads| heads.finalized = Some(l1(4)));
    driver.finalize(l1(6).id()).await.unwrap();
    assert_eq!(
        chain.heads().borrow().finalized.map(|id| id.number),
        Some(5)
    );
    // Derivation is reset if an L1 block that a safe block was derived from is orphaned.
    driver.finality.on_safe(SafeRecord {
        l2: chain.view().head(),
        derived_from: BlockId {
            hash: five,
            ..l1(5).id()
        },
    });
    world
        .l1_heads
        .send_modify(|heads| heads.finalized = Some(l1(6)));
    let reorged = driver.finalize(l1(6).id()).await;
    assert!(
        matches!(reorged, Err(DriverStepError::Reset(_))),
        "{reorged:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalized_l1_block_that_is_not_canonical_finalizes_nothing() {
    let world = World::new(100, 8).await;
    let (chain, _threads) = world.open();
    world.show_l1(&world.l1_headers[..7]);
    let running = RunningDriver::start(driver(&world, &chain, 2, 0));
    running.derives(&world.l1_headers[6]).await;
    let finalize = |header: &Header| {
        let finalized = Some(block(header));
        world
            .l1_heads
            .send_modify(|heads| heads.finalized = finalized);
    };
    let other = forked(&world.l1_headers, 3, 4);
    world.l1.state.lock().parameters.clear();
    finalize(&other[5]);
    let checked = || world.l1.state.lock().parameters.contains(&"0xf".to_owned());
    until("the finalized L1 block is compared", checked).await;
    // Finality continues with the next L1 block.
    world.show_l1(&world.l1_headers);
    running.derives(&world.l1_headers[7]).await;
    assert_eq!(chain.heads().borrow().finalized, None);
    finalize(&world.l1_headers[7]);
    let finalized = || running.handle.status().finalized_l2.map(|block| block.id);
    let recorded = || records(&world).at_l1(17).unwrap().unwrap().l2;
    until("a block is final", || finalized() == Some(recorded())).await;
    assert_eq!(chain.heads().borrow().finalized, finalized());
    running.stop().await;
}
