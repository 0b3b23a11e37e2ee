//! L1 reorgs with a running sequencer: it rewinds its head by itself, and replicas follow.

use super::{member::Member, *};
use crate::{chain::tests::killed, rollup::l1::fake::header};
use starling_p2p::Provenance;
use std::collections::HashMap;

/// These headers with the last `depth` replaced by `depth + 1` others.
fn reorganised(headers: &[Header], depth: usize, salt: u8) -> Vec<Header> {
    let mut branch = headers[..headers.len() - depth].to_vec();
    for _ in 0..=depth {
        let parent = branch.last().unwrap();
        branch.push(header(
            parent.number + 1,
            parent.hash_slow(),
            parent.timestamp + 12,
            salt,
        ));
    }
    branch
}

/// The last L2 block with an L1 origin at or below `fork`, the last L1 block of both L1 branches.
fn last_common(world: &World, chain: &Chain, fork: u64) -> BlockId {
    let view = chain.view();
    let on_common =
        |number: &u64| origin_of(world, &view.payload(*number).unwrap().unwrap()).number <= fork;
    let number = (0..=view.head().number).rev().find(on_common).unwrap();
    BlockId {
        number,
        hash: view.hash_of(number).unwrap().unwrap(),
    }
}

/// Whether every L2 block above `from` has an L1 origin on this branch.
fn is_on(world: &World, chain: &Chain, from: u64, branch: &[Header]) -> bool {
    let view = chain.view();
    (from + 1..=view.head().number).all(|number| {
        let origin = origin_of(world, &view.payload(number).unwrap().unwrap());
        branch
            .iter()
            .any(|header| header.number == origin.number && header.hash_slow() == origin.hash)
    })
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let reached = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(240), reached)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

/// State of the sequencer's process during a reorg of L1.
enum ProcessState {
    Running,
    /// The process is stopped before the reorg and started after it, when the L1 origin of its head
    /// is orphaned.
    Stopped,
    /// The process is killed as soon as the head has been rewound.
    Killed,
}

/// A reorg that replaces the last `depth` L1 blocks. `salt` makes the new blocks differ from all
/// earlier ones.
struct Reorg {
    depth: usize,
    salt: u8,
    process: ProcessState,
}

const REORGS: [Reorg; 3] = [
    Reorg {
        depth: 1,
        salt: 2,
        process: ProcessState::Running,
    },
    Reorg {
        depth: 3,
        salt: 3,
        process: ProcessState::Stopped,
    },
    Reorg {
        depth: 64,
        salt: 4,
        process: ProcessState::Killed,
    },
];

struct Net {
    world: World,
    l1: Vec<Header>,
    sequencing: Member,
    replicas: [Member; 2],
    token: CancellationToken,
    handle: SequencerHandle,
    task: tokio::task::JoinHandle<Result<(), SequencerError>>,
}

impl Net {
    async fn new(age: u64, l1_blocks: u64) -> Self {
        let world = World::new(age, l1_blocks).await;
        let (token, signer) = (CancellationToken::new(), key().address());
        let replicas = [
            Member::new(&world, Some(world.another()), signer, &token).await,
            Member::new(&world, Some(world.another()), signer, &token).await,
        ];
        let l1 = world.l1_headers.clone();
        let (sequencing, handle, task) = Self::sequence(&world, &replicas, None, &token).await;
        Self {
            world,
            l1,
            sequencing,
            replicas,
            token,
            handle,
            task,
        }
    }

    async fn sequence(
        world: &World,
        replicas: &[Member],
        datadir: Option<tempfile::TempDir>,
        token: &CancellationToken,
    ) -> (
        Member,
        SequencerHandle,
        tokio::task::JoinHandle<Result<(), SequencerError>>,
    ) {
        let sequencing = Member::new(world, datadir, key().address(), token).await;
        for replica in replicas {
            sequencing.network.connect(&replica.address).await.unwrap();
        }
        let (sequencer, handle) = world.sequencer_of(
            &sequencing.chain,
            config(),
            key(),
            Some(sequencing.network.clone()),
        );
        let task = tokio::spawn(sequencer.run(token.child_token()));
        (sequencing, handle, task)
    }

    /// Stops the sequencer, runs `meanwhile`, and starts the sequencer again, in `datadir` or in
    /// its old directory.
    async fn restart(
        self,
        datadir: Option<tempfile::TempDir>,
        meanwhile: impl FnOnce(&World),
    ) -> Self {
        let Self {
            world,
            l1,
            sequencing,
            replicas,
            token,
            task,
            ..
        } = self;
        task.abort();
        let _ = task.await;
        let before = sequencing.stop().await;
        meanwhile(&world);
        let (sequencing, handle, task) =
            Self::sequence(&world, &replicas, datadir.or(before), &token).await;
        Self {
            world,
            l1,
            sequencing,
            replicas,
            token,
            handle,
            task,
        }
    }

    async fn until_followed(&self, number: u64) {
        until("the replicas follow", || {
            let head = self.sequencing.chain.view().head();
            let follows = |replica: &Member| {
                replica.chain.view().hash_of(head.number).unwrap() == Some(head.hash)
            };
            head.number >= number && self.replicas.iter().all(follows)
        })
        .await;
    }

    /// Waits until the sequencer has abandoned this block. The sequencer may still build on the
    /// block until it notices the L1 reorg.
    async fn until_abandoned(&self, block: BlockId) {
        until("the block is abandoned", || {
            let view = self.sequencing.chain.view();
            view.hash_of(block.number).unwrap() != Some(block.hash)
        })
        .await;
    }

    /// Makes a block of the canonical chain safe and returns its hash.
    async fn make_safe(&self, number: u64) -> B256 {
        let chain = &self.sequencing.chain;
        let safe = chain.view().hash_of(number).unwrap().unwrap();
        let head = chain.view().head().hash;
        chain.forkchoice(head, Some(safe), None).await.unwrap();
        safe
    }

    /// Sends a transfer and waits until a block contains it.
    async fn mine_transfer(&self) -> B256 {
        let chain = &self.sequencing.chain;
        let account = chain.view().state().account(wallet()).unwrap().unwrap();
        let sent = submit(chain, transfer(account.nonce));
        self.until_mined(sent).await;
        sent
    }

    async fn until_mined(&self, sent: B256) {
        until("the transaction is mined", || {
            let view = self.sequencing.chain.view();
            view.transaction(sent).unwrap().is_some()
        })
        .await;
    }

    /// Shows another branch of L1 to the sequencer, whose process is in the given state.
    async fn reorganise(self, branch: Vec<Header>, process: ProcessState) -> Self {
        let mut net = match process {
            ProcessState::Running => {
                self.world.show_l1(&branch);
                self
            }
            ProcessState::Stopped => self.restart(None, |world| world.show_l1(&branch)).await,
            ProcessState::Killed => {
                let before = self.sequencing.chain.view().head();
                self.world.show_l1(&branch);
                let mut heads = self.sequencing.chain.heads();
                let back = heads.wait_for(|heads| heads.head.number < before.number);
                let back = tokio::time::timeout(Duration::from_secs(120), back).await;
                drop(back.unwrap().unwrap());
                self.task.abort();
                until("the sequencer is dead", || self.task.is_finished()).await;
                let copy = killed(self.world.datadir.path());
                self.restart(Some(copy), |_| ()).await
            }
        };
        net.l1 = branch;
        net
    }

    /// Checks that the head was rewound from `before` exactly to `common`, and that all blocks
    /// above `common` have origins on the new branch of L1.
    fn assert_rewound(&self, before: BlockId, common: BlockId) {
        let chain = &self.sequencing.chain;
        assert_eq!(
            chain.view().hash_of(common.number).unwrap(),
            Some(common.hash),
            "no further back than needed"
        );
        assert_ne!(
            chain.view().hash_of(before.number).unwrap(),
            Some(before.hash)
        );
        assert!(
            is_on(&self.world, chain, common.number, &self.l1),
            "the blocks above {} are on another branch",
            common.number
        );
    }
}

/// Checks that no two of these blocks have the same number, parent and L1 origin.
fn assert_one_block_per_place(world: &World, blocks: &[Arc<Payload>]) {
    let mut signed = HashMap::new();
    for block in blocks {
        let origin = origin_of(world, block).hash;
        let place = (block.number(), block.parent_hash(), origin);
        assert_eq!(
            *signed.entry(place).or_insert(block.hash),
            block.hash,
            "two blocks of {place:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_l1_reorgs_of_1_3_and_64_blocks_the_head_goes_back_and_the_replicas_follow_also_after_restarts()
 {
    // An L1 of 70 blocks, the newest some seconds old.
    let mut net = Net::new(70 * 12, 70).await;
    let gossip = net.replicas[0].collect(key().address()).await;
    net.until_followed(70 * 6 + 2).await;
    let safe = net.make_safe(3).await;
    for Reorg {
        depth,
        salt,
        process,
    } in REORGS
    {
        // A transaction in a block that will be abandoned.
        let sent = net.mine_transfer().await;
        net.until_followed(0).await;
        let before = net.sequencing.chain.view().head();
        let fork = net.l1[net.l1.len() - 1 - depth].number;
        let common = last_common(&net.world, &net.sequencing.chain, fork);
        assert!(common.number < before.number);
        let branch = reorganised(&net.l1, depth, salt);
        net = net.reorganise(branch, process).await;
        net.until_abandoned(before).await;
        net.until_followed(before.number + 1).await;
        net.assert_rewound(before, common);
        let chain = &net.sequencing.chain;
        assert_eq!(chain.view().safe().map(|safe| safe.hash), Some(safe));
        // Unless the process was killed and lost its pool, the transaction of the abandoned block
        // is mined again.
        if depth == 1 {
            net.until_mined(sent).await;
        }
        assert_eq!(net.handle.status(), ACTIVE);

        let head = chain.view().head().number;
        net = net.restart(None, |_| ()).await;
        net.until_followed(head + 2).await;
        let chain = &net.sequencing.chain;
        assert!(is_on(&net.world, chain, common.number, &net.l1));
    }
    assert_one_block_per_place(&net.world, &gossip.lock());
    net.token.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn when_l1_undoes_its_reorg_the_blocks_that_were_signed_before_are_used_again() {
    let world = World::new(30, 3).await;
    let (chain, _threads) = world.open();
    let recorder = PrometheusBuilder::new().build_recorder();
    let (sequencer, handle) =
        metrics::with_local_recorder(&recorder, || world.sequencer(&chain, config()));
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, since_epoch().as_secs() + 1).await;
    let first = chain.view();
    let branch = reorganised(&world.l1_headers, 2, 2);
    let common = last_common(&world, &chain, 10);
    world.show_l1(&branch);
    until("the other branch", || {
        chain.view().head().number > first.head().number
            && is_on(&world, &chain, common.number, &branch)
    })
    .await;
    assert_ne!(
        chain.view().hash_of(first.head().number).unwrap(),
        Some(first.head().hash)
    );
    let second = chain.view();

    world.show_l1(&world.l1_headers);
    until("the first branch again", || {
        chain.view().head().number > second.head().number
            && is_on(&world, &chain, common.number, &world.l1_headers)
    })
    .await;
    assert_eq!(
        chain.view().hash_of(first.head().number).unwrap(),
        Some(first.head().hash)
    );
    world.show_l1(&branch);
    until("the other branch again", || {
        chain.view().head().number > second.head().number
            && is_on(&world, &chain, common.number, &branch)
    })
    .await;
    assert_eq!(
        chain.view().hash_of(second.head().number).unwrap(),
        Some(second.head().hash)
    );
    assert!(handle.active());
    token.cancel();
    task.await.unwrap().unwrap();
    assert!(counted(&recorder, "sequencer_resets_total") >= 3);
    let checks = counted(&recorder, "sequencer_inconsistent_l1_origin_total");
    // Not an exact number: checks of the origins of blocks that were signed before count too.
    assert!(checks >= u64::from(CONFIRMATIONS), "{checks}");
    assert!(counted(&recorder, "sequencer_building_diff_total") >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_never_goes_back_below_the_safe_block() {
    let world = World::new(30, 3).await;
    let (chain, _threads) = world.open();
    let (sequencer, handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, since_epoch().as_secs() + 1).await;
    let stop = handle.stop().await.unwrap();
    let head = chain.view().head();
    chain.forkchoice(stop, Some(stop), None).await.unwrap();
    handle.start(stop).await.unwrap();
    let branch = reorganised(&world.l1_headers, 2, 2);
    world.show_l1(&branch);
    // More time than the origin checks before a rewind take.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let stalled = chain.view().head();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(
        chain.view().head(),
        stalled,
        "nothing is built on an origin that is gone"
    );
    assert_eq!(chain.view().hash_of(head.number).unwrap(), Some(head.hash));
    assert!(handle.active(), "it goes on trying");
    // L1 returns to the branch that contains the safe block's origin.
    world.show_l1(&world.l1_headers);
    let reached = chain.view().head().number + 2;
    until("blocks on the safe one", || {
        chain.view().head().number >= reached
    })
    .await;
    assert_eq!(chain.view().hash_of(head.number).unwrap(), Some(head.hash));
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_block_that_was_abandoned_is_used_again_while_its_origin_is_canonical() {
    let world = World::new(6, 1).await;
    let (chain, _threads) = world.open();
    let genesis = chain.view().head().hash;
    let followed = super::signing::rival_block(&world, &chain, 7).await;
    // The block arrives by gossip from the previous leader.
    chain
        .follow(followed.clone(), Provenance::Signed(key().address()))
        .await
        .unwrap();
    chain.forkchoice(followed.hash, None, None).await.unwrap();
    chain.forkchoice(genesis, None, None).await.unwrap();
    let (sequencer, _handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until("a block", || chain.view().head().number >= 2).await;
    assert_eq!(chain.view().hash_of(1).unwrap(), Some(followed.hash));
    token.cancel();
    task.await.unwrap().unwrap();
}
