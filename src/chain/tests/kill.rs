//! Tests of kills: the head and the blocks that may be signed survive.

use super::*;

/// The steps of a sequencer at the end of a block, at which the test kills it.
const CRASH_POINTS: [&str; 6] = ["started", "sealed", "logged", "signed", "followed", "moved"];
/// L1 origin of the sequencer's blocks.
const ORIGIN: B256 = B256::repeat_byte(0x11);

/// A sequencer that was killed at one of the [`CRASH_POINTS`].
struct KilledSequencer {
    /// Copy of the data directory at the time of the kill.
    dir: tempfile::TempDir,
    parent: Arc<Payload>,
    /// The block in progress. The sequencer may have been killed before the block was finished.
    block: Arc<Payload>,
    logged: bool,
    signed: bool,
}

impl KilledSequencer {
    async fn at(point: &str) -> Self {
        let dir = datadir();
        let (chain, threads) = open(dir.path());
        let genesis = chain.view().head().hash;
        let parent = build(&chain, genesis, 0, []).await.payload.clone();
        chain.log_before_sign(parent.clone(), ORIGIN).await.unwrap();
        chain.forkchoice(parent.hash, None, None).await.unwrap();

        let mut killed_dir = None;
        let mut reach = |step| {
            if step == point {
                killed_dir = Some(killed(dir.path()));
            }
        };
        let id = chain
            .start(parent.hash, attributes(&parent.header, 1, []))
            .await
            .unwrap();
        reach("started");
        let block = chain.seal(id).await.unwrap().payload.clone();
        reach("sealed");
        chain.log_before_sign(block.clone(), ORIGIN).await.unwrap();
        reach("logged");
        reach("signed");
        // Either the swarm delivers the block like any other, or the sequencer moves the head.
        if point == "followed" {
            chain
                .follow(block.clone(), Provenance::Signed(Address::ZERO))
                .await
                .unwrap();
        }
        reach("followed");
        chain.forkchoice(block.hash, None, None).await.unwrap();
        reach("moved");
        drop(chain);
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
        Self {
            dir: killed_dir.expect(point),
            parent,
            block,
            logged: !["started", "sealed"].contains(&point),
            signed: ["signed", "followed", "moved"].contains(&point),
        }
    }

    /// Restarts and builds another block on the same parent, since other transactions have arrived.
    async fn check_restart(self, point: &str) {
        let (chain, _threads) = open(self.dir.path());
        let logged = chain.logged(self.block.hash).unwrap().is_some();
        assert_eq!(logged, self.logged, "{point}");
        // A block that may have been signed becomes the head again.
        let head = if logged {
            self.block.hash
        } else {
            self.parent.hash
        };
        assert_eq!(chain.view().head().hash, head, "{point}");
        let other = build(&chain, self.parent.hash, 2, []).await.payload.clone();
        match chain.log_before_sign(other.clone(), ORIGIN).await {
            Ok(()) => assert!(!logged && !self.signed, "{point}: two blocks for one place"),
            Err(ChainError::AlreadySigned { have }) => {
                assert!(logged && have == self.block.hash, "{point}")
            }
            Err(error) => panic!("{point}: {error}"),
        }
        // With another L1 origin, another block of the same height may be signed.
        chain
            .log_before_sign(other, B256::repeat_byte(0x22))
            .await
            .unwrap_or_else(|error| panic!("{point}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_step_a_sequencer_signs_one_block_for_one_place() {
    for point in CRASH_POINTS {
        KilledSequencer::at(point).await.check_restart(point).await;
    }
}

/// A block was not signed, and another one on the next L1 origin was signed and published. Then the
/// node is killed before either is the head.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_the_block_that_was_sent_to_the_signer_last_is_the_head() {
    let [origin, next] = [0x11, 0x22].map(B256::repeat_byte);
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let base = build(&chain, chain.view().head().hash, 0, [])
        .await
        .payload
        .clone();
    chain.log_before_sign(base.clone(), origin).await.unwrap();
    chain.forkchoice(base.hash, None, None).await.unwrap();
    let first = build(&chain, base.hash, 1, []).await.payload.clone();
    let second = build(&chain, base.hash, 2, []).await.payload.clone();
    chain.log_before_sign(first.clone(), origin).await.unwrap();
    chain.log_before_sign(second.clone(), next).await.unwrap();
    let killed_dir = killed(dir.path());
    assert_eq!(open(killed_dir.path()).0.view().head(), second.id());
    // L1 has returned to the first origin, and the first block is sent to the signer again.
    chain.log_before_sign(first.clone(), origin).await.unwrap();
    let killed_dir = killed(dir.path());
    let (reopened, _others) = open(killed_dir.path());
    assert_eq!(reopened.view().head(), first.id());
    assert!(reopened.knows(second.hash));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_nobody_logged_survives_a_kill() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    // A block is built and made the head, as a driver without a sequencer does. The next block is
    // built on it.
    let first = build(&chain, chain.view().head().hash, 0, []).await;
    let second = build(&chain, first.payload.hash, 0, []).await;
    chain
        .forkchoice(second.payload.hash, Some(first.payload.hash), None)
        .await
        .unwrap();
    let copied = killed(dir.path());
    let (reopened, _others) = open(copied.path());
    assert_eq!(reopened.view().head(), second.payload.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_went_down_stays_down() {
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let mut blocks = vec![];
    for _ in 0..5 {
        let parent = chain.view().head().hash;
        let block = build(&chain, parent, 0, []).await.payload.clone();
        chain.forkchoice(block.hash, None, None).await.unwrap();
        blocks.push(block);
    }
    chain.forkchoice(blocks[1].hash, None, None).await.unwrap();
    let copied = killed(dir.path());
    assert_eq!(open(copied.path()).0.view().head(), blocks[1].id());
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let (chain, _threads) = open(dir.path());
    assert_eq!(chain.view().head(), blocks[1].id());
    // A block that is known already can become the head again when it is followed.
    for block in &blocks[2..] {
        assert_eq!(
            chain.follow(block.clone(), GOSSIP).await.unwrap(),
            Inserted::Valid
        );
    }
    assert_eq!(chain.view().head(), blocks[4].id());
}
