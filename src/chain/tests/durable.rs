//! Tests of durability: acknowledged heads survive a kill at any moment of a reorg, and survive a
//! full disk.

use super::*;

/// Builds a branch of blocks on another node.
async fn branch(salt: u64, count: usize) -> Vec<Arc<Payload>> {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let mut blocks: Vec<Arc<Payload>> = vec![];
    for _ in 0..count {
        let parent = blocks
            .last()
            .map_or(chain.view().head().hash, |block| block.hash);
        blocks.push(build(&chain, parent, salt, []).await.payload.clone());
    }
    blocks
}

/// Combines the store from one copy of a data directory with the payload log from a later copy.
fn with_log(store: TempDir, log: &TempDir) -> TempDir {
    std::fs::remove_dir_all(payload_log_dir(store.path())).unwrap();
    std::fs::rename(payload_log_dir(log.path()), payload_log_dir(store.path())).unwrap();
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_a_branch_that_overtakes_survives_a_kill() {
    let (ours, theirs) = (branch(1, 4).await, branch(2, 5).await);
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let follow = |block: &Arc<Payload>| {
        let (chain, block) = (chain.clone(), block.clone());
        async move { assert_eq!(chain.follow(block, GOSSIP).await.unwrap(), Inserted::Valid) }
    };
    for block in ours.iter().chain(&theirs[..4]) {
        follow(block).await;
    }
    until("it is stored", || chain.view().stored() == ours[3].id()).await;
    // Simulate a kill before the store has unwound: the store as it is now, with the log of one
    // block later.
    let before = killed(dir.path());
    follow(&theirs[4]).await;
    assert_eq!(chain.view().head(), theirs[4].id());
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let after = killed(dir.path());
    let dir = with_log(before, &after);
    let (chain, _threads) = open(dir.path());
    assert_eq!(chain.view().head(), theirs[4].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_chosen_among_siblings_survives_a_kill() {
    let mut siblings = vec![];
    for salt in 0..=tree::MAX_SIBLINGS as u64 {
        siblings.extend(branch(salt, 1).await);
    }
    let dir = datadir();
    // Simulate a kill before anything is stored: only the payload log has the blocks.
    let (chain, _threads) = open(dir.path());
    let stored = killed(dir.path());
    chain
        .insert(siblings[1].clone(), Provenance::Engine)
        .await
        .unwrap();
    chain
        .insert(siblings[0].clone(), Provenance::Engine)
        .await
        .unwrap();
    chain
        .forkchoice(siblings[0].hash, None, None)
        .await
        .unwrap();
    for block in &siblings[2..] {
        assert_eq!(
            chain
                .insert(block.clone(), Provenance::Engine)
                .await
                .unwrap(),
            Inserted::Valid
        );
    }
    let log = killed(dir.path());
    let dir = with_log(stored, &log);
    let (chain, _threads) = open(dir.path());
    assert_eq!(chain.view().head(), siblings[0].id());
    assert!(
        chain.knows(siblings[tree::MAX_SIBLINGS].hash),
        "the newest has found room"
    );
}

/// Adds `count` blocks and waits until the last one is stored. Returns all blocks from genesis on.
async fn store_blocks(chain: &Chain, count: u64) -> Vec<BlockId> {
    let mut blocks = vec![chain.view().head()];
    for salt in 0..count {
        let parent = blocks[salt as usize].hash;
        let block = build(chain, parent, salt, []).await.payload.id();
        chain.forkchoice(block.hash, None, None).await.unwrap();
        blocks.push(block);
    }
    let head = chain.view().head();
    until("all is stored", || chain.view().stored() == head).await;
    blocks
}

/// Reads the chain's views until `done` is set. Returns the greatest depth of unwind data and the
/// numbers of all heads seen.
fn watch_views(
    chain: Chain,
    done: Arc<AtomicBool>,
) -> std::thread::JoinHandle<(u64, BTreeSet<u64>)> {
    std::thread::spawn(move || {
        let (mut deepest, mut seen) = (0, BTreeSet::new());
        while !done.load(Ordering::Relaxed) {
            let view = chain.view();
            deepest = deepest.max(view.depth());
            seen.insert(view.head().number);
        }
        (deepest, seen)
    })
}

/// Whatever the depth of a rewind, no view with unwind data is published or kept while the store
/// unwinds block by block.
#[tokio::test(flavor = "multi_thread")]
async fn a_deep_rewind_holds_no_unwind_data() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let blocks = store_blocks(&chain, 300).await;
    let done = Arc::<AtomicBool>::default();
    let reader = watch_views(chain.clone(), done.clone());
    chain
        .forkchoice(blocks[10].hash, Some(blocks[8].hash), Some(blocks[3].hash))
        .await
        .unwrap();
    done.store(true, Ordering::Relaxed);
    let (deepest, seen) = reader.join().unwrap();
    assert_eq!(deepest, 0);
    assert!(
        seen.iter().all(|number| [10, 300].contains(number)),
        "{seen:?}"
    );
    let heads = *chain.heads().borrow();
    assert_eq!(
        (heads.head, heads.safe, heads.finalized),
        (blocks[10], Some(blocks[8]), Some(blocks[3]))
    );
    assert_eq!(
        (chain.view().head(), chain.view().stored()),
        (blocks[10], blocks[10])
    );
    // After a kill the head is still there, and the chain can continue.
    let killed = killed(dir.path());
    let (again, _threads) = open(killed.path());
    assert_eq!(again.view().head(), blocks[10]);
    let next = build(&chain, blocks[10].hash, 1000, []).await.payload.id();
    chain.forkchoice(next.hash, None, None).await.unwrap();
    assert_eq!(chain.view().head(), next);
    // A kept safe or finalized head that is not on the branch is an error, and no head has moved.
    let refused = chain.forkchoice(blocks[5].hash, None, None).await;
    assert!(
        matches!(refused, Err(ChainError::NotOnBranch { .. })),
        "{refused:?}"
    );
    assert_eq!(chain.view().head(), next);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_stop_there_is_nothing_to_replay() {
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let block = build(&chain, chain.view().head().hash, 0, []).await;
    chain
        .forkchoice(block.payload.hash, None, None)
        .await
        .unwrap();
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let store = Store::open(dir.path(), 4 << 20, None).unwrap();
    assert_eq!((store.head(), store.buffered()), (block.payload.id(), 0));
}

/// A small disk of its own for a test. It is unmounted on drop.
pub struct Disk(TempDir);

impl Disk {
    /// Mounts a disk with a data directory on it. Returns `None`, recorded as a skip, if this
    /// process may not mount.
    pub fn mount() -> Option<(Self, PathBuf)> {
        let disk = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=512m", "tmpfs"])
            .arg(disk.path())
            .stderr(std::process::Stdio::null());
        let mounted = mount.status().is_ok_and(|status| status.success());
        starling_testkit::require(
            mounted.then_some(()),
            "the right to mount a file system (run as root)",
        )?;
        let dir = disk.path().join("data");
        let disk = Self(disk);
        assert!(init(&dir, &test_genesis()).unwrap());
        Some((disk, dir))
    }

    /// Fills the disk so far that the free space is below the floor of the store, but above that of
    /// the payload log.
    pub fn fill_below_the_floor(&self, dir: &Path) -> PathBuf {
        self.fill(store::free_space_floor(dir).unwrap() * 3 / 4)
    }

    /// Fills the disk until only `left` bytes are free. Returns the path of the file that fills it.
    fn fill(&self, left: u64) -> PathBuf {
        let path = self.0.path().join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        while store::free_space(self.0.path()).unwrap() > left {
            std::io::Write::write_all(&mut file, &[1; 1 << 20]).unwrap();
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_the_chain_waits_and_goes_on_by_itself() {
    let Some((disk, dir)) = Disk::mount() else {
        return;
    };
    let blocks = branch(1, 12).await;
    let (chain, threads) = open(&dir);
    for (round, part) in blocks.chunks(4).enumerate() {
        let stored = chain.view().stored();
        let filler = disk.fill_below_the_floor(&dir);
        for block in part {
            assert_eq!(
                chain.follow(block.clone(), GOSSIP).await.unwrap(),
                Inserted::Valid
            );
        }
        assert_eq!(chain.view().head(), part[3].id(), "round {round}");
        assert_eq!(
            chain.view().stored(),
            stored,
            "round {round}: nothing is written"
        );
        std::fs::remove_file(filler).unwrap();
        until("it is stored", || chain.view().stored() == part[3].id()).await;
    }
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let (chain, _threads) = open(&dir);
    assert_eq!(chain.view().head(), blocks[11].id());
}

/// Whether the future is still pending after a second.
async fn waits<T>(answer: &mut (impl Future<Output = T> + Unpin)) -> bool {
    tokio::time::timeout(Duration::from_secs(1), answer)
        .await
        .is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn when_even_the_log_has_no_room_blocks_and_signatures_wait() {
    let Some((disk, dir)) = Disk::mount() else {
        return;
    };
    let blocks = branch(1, 4).await;
    let (chain, threads) = open(&dir);
    // Fill the disk below the floor of the payload log, which is half that of the store.
    let nearly_full = || disk.fill(store::free_space_floor(&dir).unwrap() / 4);
    let filler = nearly_full();
    let mut followed = Box::pin(chain.follow(blocks[0].clone(), GOSSIP));
    let mut signed = Box::pin(chain.log_before_sign(blocks[2].clone(), B256::ZERO));
    assert!(waits(&mut followed).await && waits(&mut signed).await);
    assert_eq!(chain.view().head().number, 0, "readers wait for nobody");
    std::fs::remove_file(filler).unwrap();
    assert_eq!(followed.await.unwrap(), Inserted::Valid);
    signed.await.unwrap();
    assert_eq!(
        chain.follow(blocks[1].clone(), GOSSIP).await.unwrap(),
        Inserted::Valid
    );

    // A payload that is already logged needs no space. A stop does not wait for space either.
    let filler = nearly_full();
    assert_eq!(
        chain.follow(blocks[2].clone(), GOSSIP).await.unwrap(),
        Inserted::Valid
    );
    let mut followed = Box::pin(chain.follow(blocks[3].clone(), GOSSIP));
    assert!(waits(&mut followed).await);
    let stopped = tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap();
    assert!(stopped.is_err_and(|error| error.to_string().contains("bytes are free")));
    drop(followed);
    drop(chain);
    std::fs::remove_file(filler).unwrap();
    let (chain, _threads) = open(&dir);
    assert_eq!(chain.view().head(), blocks[2].id());
}

/// A disk failure is found by the sync, even if nothing is written to the store any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_ends_the_chain_by_itself() {
    let dir = datadir();
    let block = branch(1, 1).await.remove(0);
    // This interval is longer than breaking the disk takes, and short enough for the test to wait
    // for the next sync.
    let commit_interval = Duration::from_secs(10);
    let (chain, threads) = Chain::open(&Options {
        datadir: dir.path().into(),
        cache: 4 << 20,
        commit_interval,
    })
    .unwrap();
    assert_eq!(
        chain.follow(block.clone(), GOSSIP).await.unwrap(),
        Inserted::Valid
    );
    until("it is stored", || chain.view().stored() == block.id()).await;
    // Without these folders no table can be written any more.
    for keyspace in std::fs::read_dir(dir.path().join("chain/keyspaces")).unwrap() {
        std::fs::remove_dir_all(keyspace.unwrap().path()).unwrap();
    }
    chain.settings.rotate().unwrap();
    tokio::time::timeout(Duration::from_secs(300), chain.ended())
        .await
        .expect("it ends");
    let error = tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a write to the database failed") && error.contains("start again"),
        "{error}"
    );
    // All acknowledged blocks are in the payload log.
    drop(chain);
    std::fs::remove_dir_all(dir.path().join("chain")).unwrap();
    assert!(init(dir.path(), &test_genesis()).unwrap());
    let (chain, _threads) = open(dir.path());
    assert_eq!(chain.view().head(), block.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_a_gap_are_logged_when_a_logged_block_builds_on_them() {
    let Some((disk, dir)) = Disk::mount() else {
        return;
    };
    let blocks = branch(1, 6).await;
    let (chain, _threads) = open(&dir);
    // The disk is too full for the store, so only the payload log gets the blocks.
    let _filler = disk.fill_below_the_floor(&dir);
    for block in &blocks[..4] {
        assert_eq!(
            chain
                .follow(block.clone(), Provenance::Linked { tip: 6 })
                .await
                .unwrap(),
            Inserted::Valid
        );
    }
    let gap = killed(&dir);
    assert_eq!(
        chain.follow(blocks[4].clone(), GOSSIP).await.unwrap(),
        Inserted::Valid
    );
    assert_eq!(
        chain
            .follow(blocks[5].clone(), Provenance::Linked { tip: 6 })
            .await
            .unwrap(),
        Inserted::Valid
    );
    let tip = killed(&dir);
    assert_eq!(
        (chain.view().head(), chain.view().stored().number),
        (blocks[5].id(), 0)
    );

    let (chain, _threads) = open(gap.path());
    assert_eq!(chain.view().head().number, 0, "peers fill the gap again");
    let (chain, _threads) = open(tip.path());
    assert_eq!(chain.view().head(), blocks[4].id(), "and all below it");
}
