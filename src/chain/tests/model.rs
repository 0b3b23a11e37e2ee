//! Random operations on a chain, compared with a simple model of the chain.

use super::*;

/// A block of the tree, built before the run.
struct Made {
    payload: Arc<Payload>,
    /// Index of the parent in the tree. The genesis block is its own parent.
    parent: usize,
}

struct World {
    /// All blocks, parents before children. The genesis block is first.
    tree: Vec<Made>,
}

/// The account to which this block of the tree pays.
fn recipient(block: usize) -> Address {
    Address::from_word(B256::from(U256::from(0x7000_0000 + block)))
}

impl World {
    /// Builds a random tree of `count` blocks with long and short branches. Block `i` pays `i` wei
    /// to its recipient.
    async fn new(count: usize, rng: &mut impl Rng) -> Self {
        let datadir = datadir();
        let (chain, _threads) = open(datadir.path());
        let genesis = chain.view().payload(0).unwrap().unwrap();
        let mut tree = vec![Made {
            payload: genesis,
            parent: 0,
        }];
        while tree.len() < count {
            let parent = match rng.random_range(0..10) {
                0..7 => tree.len() - 1,
                7 => rng.random_range(0..tree.len()),
                _ => rng.random_range(tree.len().saturating_sub(6)..tree.len()),
            };
            let on = &tree[parent].payload;
            let (value, to) = (U256::from(tree.len()), recipient(tree.len()).into());
            let pay = sign(
                1,
                TxEip1559 {
                    value,
                    to,
                    ..transfer(on.number())
                },
            )
            .1;
            let block = build(&chain, on.hash, tree.len() as u64, [pay]).await;
            tree.push(Made {
                payload: block.payload.clone(),
                parent,
            });
        }
        Self { tree }
    }

    fn number(&self, block: usize) -> u64 {
        self.tree[block].payload.number()
    }

    fn hash(&self, block: usize) -> B256 {
        self.tree[block].payload.hash
    }

    fn id(&self, block: usize) -> BlockId {
        self.tree[block].payload.id()
    }

    fn index(&self, hash: B256) -> usize {
        self.tree
            .iter()
            .position(|made| made.payload.hash == hash)
            .expect("a block of the tree")
    }

    /// The block and its ancestors, down to the genesis block.
    fn branch(&self, block: usize) -> Vec<usize> {
        std::iter::successors(Some(block), |at| (*at != 0).then(|| self.tree[*at].parent)).collect()
    }
}

/// The expected state of the chain.
struct Model {
    known: Vec<usize>,
    /// Hashes of blocks that were refused as invalid.
    invalid: Vec<B256>,
    head: usize,
    safe: Option<usize>,
    finalized: Option<usize>,
    /// Blocks that are in the store, but not in memory.
    stored: Vec<usize>,
}

impl Model {
    fn new() -> Self {
        Self {
            known: vec![0],
            invalid: vec![],
            head: 0,
            safe: None,
            finalized: None,
            stored: vec![],
        }
    }

    /// Whether the fork choice of unsafe blocks prefers this block to the head.
    fn prefers(&self, world: &World, block: usize) -> bool {
        let branch = world.branch(block);
        let contained = [self.safe, self.finalized]
            .into_iter()
            .flatten()
            .all(|block| branch.contains(&block));
        world.number(block) > world.number(self.head) && contained
    }

    fn learn(&mut self, block: usize) {
        if !self.known.contains(&block) {
            self.known.push(block);
        }
    }

    /// Forgets blocks that were only in the store and have been unwound, with their descendants.
    /// Returns the forgotten blocks, which the chain will forget too.
    fn forget(&mut self, world: &World) -> Vec<usize> {
        let branch = world.branch(self.head);
        let (kept, gone): (Vec<usize>, Vec<usize>) =
            self.stored.iter().partition(|block| branch.contains(block));
        self.stored = kept;
        let attached = |block: &usize| {
            world
                .branch(*block)
                .iter()
                .all(|ancestor| !gone.contains(ancestor))
        };
        let (known, forgotten) = self.known.iter().partition(|block| attached(block));
        self.known = known;
        forgotten
    }
}

/// Asserts that the chain has the heads and the state of the model.
fn compare(world: &World, model: &Model, chain: &Chain) {
    let heads = *chain.heads().borrow();
    let id = |block: Option<usize>| block.map(|block| world.id(block));
    assert_eq!(
        (heads.head, heads.safe, heads.finalized),
        (world.id(model.head), id(model.safe), id(model.finalized))
    );
    let view = chain.view();
    assert_eq!(
        (view.head(), view.safe(), view.finalized()),
        (heads.head, heads.safe, heads.finalized)
    );
    assert_eq!(view.header().timestamp, heads.timestamp);
    assert_eq!(view.header(), &world.tree[model.head].payload.header);
    let branch = world.branch(model.head);
    for block in 0..world.tree.len() {
        let paid = view
            .state()
            .account(recipient(block))
            .unwrap()
            .map_or(U256::ZERO, |account| account.balance);
        let canonical = branch.contains(&block);
        assert_eq!(
            paid,
            U256::from(if canonical { block } else { 0 }),
            "paid by block {block}"
        );
        assert_eq!(
            view.number_of(world.hash(block)).unwrap(),
            canonical.then(|| world.number(block))
        );
    }
    let nonce = view.state().account(address_of(1)).unwrap().unwrap().nonce;
    assert_eq!(nonce, world.number(model.head));
    for at in branch {
        assert_eq!(
            view.payload(world.number(at)).unwrap().unwrap(),
            world.tree[at].payload
        );
        assert_eq!(
            view.receipts(world.number(at)).unwrap().unwrap().len(),
            world.tree[at].payload.transactions.len()
        );
    }
}

/// An invalid block with the parent of a valid one.
fn spoil(good: &Payload, rng: &mut impl Rng) -> Payload {
    let mut header = good.header.clone();
    let mut transactions = good.transactions.clone();
    match rng.random_range(0..10) {
        0 => header.state_root = B256::repeat_byte(1),
        1 => header.receipts_root = B256::repeat_byte(1),
        2 => header.gas_used += 1,
        3 => header.timestamp -= 2,
        4 => header.number += 1,
        5 => header.base_fee_per_gas = header.base_fee_per_gas.map(|fee| fee + 1),
        6 => header.withdrawals_root = None,
        7 => header.gas_limit = 0,
        8 => {
            // Add a transaction that its sender cannot pay for.
            let broke = sign(77, transfer(0)).1;
            transactions.push(broke);
            header.transactions_root = alloy_trie::root::ordered_trie_root_encoded(&transactions);
        }
        _ => header.extra_data = Bytes::new(),
    }
    Payload::sealed(header, transactions)
}

/// Opens a chain after a stop or a kill. All of its canonical blocks are then in the store, and
/// none in memory.
async fn reopen(datadir: &Path) -> (Chain, Threads) {
    let (chain, threads) = open(datadir);
    let head = chain.view().head();
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let (chain, threads) = open(datadir);
    assert_eq!(chain.view().head(), head);
    (chain, threads)
}

/// A chain on disk and the model with which it is compared.
struct ModelRun<'a> {
    world: &'a World,
    model: Model,
    dir: tempfile::TempDir,
    /// `None` while the chain restarts.
    running: Option<(Chain, Threads)>,
    /// Number of the current operation, for messages.
    step: usize,
}

impl<'a> ModelRun<'a> {
    fn new(world: &'a World) -> Self {
        let dir = datadir();
        let running = Some(open(dir.path()));
        Self {
            world,
            model: Model::new(),
            dir,
            running,
            step: 0,
        }
    }

    fn chain(&self) -> &Chain {
        &self.running.as_ref().expect("a running chain").0
    }

    /// Blocks of the tree that the chain knows, in the order of the tree.
    fn known(&self) -> Vec<usize> {
        (0..self.world.tree.len())
            .filter(|block| self.chain().knows(self.world.hash(*block)))
            .collect()
    }

    /// Inserts or follows a block of the tree. Its parent is usually known; duplicates and blocks
    /// after a gap occur too.
    async fn insert(&mut self, rng: &mut StdRng) {
        let (world, model) = (self.world, &self.model);
        let fresh: Vec<usize> = (1..world.tree.len())
            .filter(|at| !model.known.contains(at) && model.known.contains(&world.tree[*at].parent))
            .collect();
        let block = match fresh.choose(rng) {
            Some(block) if rng.random_ratio(4, 5) => *block,
            _ => rng.random_range(0..world.tree.len()),
        };
        let payload = world.tree[block].payload.clone();
        let known = model.known.contains(&world.tree[block].parent);
        let want = if known || model.known.contains(&block) {
            Inserted::Valid
        } else {
            Inserted::Syncing
        };
        let follow = rng.random_ratio(3, 4);
        let got = if follow {
            self.chain().follow(payload, GOSSIP).await.unwrap()
        } else {
            self.chain().insert(payload, GOSSIP).await.unwrap()
        };
        assert_eq!(got, want, "step {}: block {block}", self.step);
        if want == Inserted::Valid {
            self.model.learn(block);
            if follow && self.model.prefers(world, block) {
                self.model.head = block;
            }
        }
    }

    /// Follows an invalid block, and then a child of it if the block was refused.
    async fn follow_invalid(&mut self, rng: &mut StdRng) {
        let of = rng.random_range(1..self.world.tree.len());
        let bad = spoil(&self.world.tree[of].payload, rng);
        let follow = |payload: Payload| self.chain().follow(Arc::new(payload), GOSSIP);
        let got = follow(bad.clone()).await.unwrap();
        if !self.model.known.contains(&self.world.tree[of].parent) {
            assert_eq!(got, Inserted::Syncing);
            return;
        }
        assert!(
            matches!(&got, Inserted::Invalid { reason, .. } if !reason.is_empty()),
            "{got:?}"
        );
        assert!(!self.chain().knows(bad.hash));
        let header = Header {
            parent_hash: bad.hash,
            number: bad.number() + 1,
            ..bad.header
        };
        let child = follow(Payload::sealed(header, vec![])).await.unwrap();
        assert!(
            matches!(
                child,
                Inserted::Invalid {
                    latest_valid: None,
                    ..
                }
            ),
            "{child:?}"
        );
        self.model.invalid.push(bad.hash);
    }

    /// Makes a fork choice of random heads. It is refused unless the heads are known, on one branch
    /// and in order.
    async fn choose(&mut self, rng: &mut StdRng) {
        let (world, model) = (self.world, &self.model);
        let (head, safe, finalized) = random_heads(world, model, rng);
        let hash = |block: Option<usize>| block.map(|block| world.hash(block));
        let got = self
            .chain()
            .forkchoice(world.hash(head), hash(safe), hash(finalized))
            .await;
        let (safe, finalized) = (safe.or(model.safe), finalized.or(model.finalized));
        let branch = world.branch(head);
        let on_branch = |block: Option<usize>| block.is_none_or(|block| branch.contains(&block));
        let ordered = safe
            .zip(finalized)
            .is_none_or(|(safe, finalized)| world.number(finalized) <= world.number(safe));
        let fine =
            model.known.contains(&head) && on_branch(safe) && on_branch(finalized) && ordered;
        assert_eq!(got.is_ok(), fine, "step {}: {got:?}", self.step);
        if fine {
            self.model.head = head;
            (self.model.safe, self.model.finalized) = (safe, finalized);
        }
    }

    /// Makes a fork choice in which the head and the safe block are unknown or invalid.
    async fn choose_unknown(&self, rng: &mut StdRng) {
        let unknown = if rng.random() {
            B256::ZERO
        } else {
            *self.model.invalid.last().unwrap_or(&B256::ZERO)
        };
        let known = self.world.hash(self.model.head);
        assert!(matches!(
            self.chain().forkchoice(unknown, None, None).await,
            Err(ChainError::UnknownBlock(_))
        ));
        let safe = self.chain().forkchoice(known, Some(unknown), None).await;
        assert!(matches!(safe, Err(ChainError::NotOnBranch { .. })));
    }

    async fn stop(&mut self) {
        let (chain, threads) = self.running.take().expect("a running chain");
        drop(chain);
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
    }

    /// Opens the chain again. The model keeps those of its known blocks that the chain still knows.
    /// These must include the canonical branch.
    async fn start(&mut self) {
        self.running = Some(reopen(self.dir.path()).await);
        self.model.stored = self.world.branch(self.model.head);
        self.model.known = self.known();
        let known = &self.model.known;
        assert!(self.model.stored.iter().all(|block| known.contains(block)));
    }

    /// Kills the process: continues on a copy of the directory from before the chain stopped.
    async fn kill(&mut self) {
        // Copy first: the old chain still writes to its directory until its handles are dropped.
        let copied = killed(self.dir.path());
        self.stop().await;
        self.dir = copied;
        self.start().await;
        let heads = *self.chain().heads().borrow();
        assert_eq!(
            heads.head,
            self.world.id(self.model.head),
            "step {}: a block that was not chosen is not the head",
            self.step
        );
        self.model.safe = heads.safe.map(|id| self.world.index(id.hash));
        self.model.finalized = heads.finalized.map(|id| self.world.index(id.hash));
        let branch = &self.model.stored;
        assert!(
            [self.model.safe, self.model.finalized]
                .into_iter()
                .flatten()
                .all(|block| branch.contains(&block))
        );
    }

    /// Asserts that the chain has the heads and the state of the model and knows the same blocks.
    /// Waits first until the store has unwound.
    async fn check(&mut self) {
        if !self.model.forget(self.world).is_empty() {
            let chain = self.chain();
            until("the store has unwound", || {
                chain.view().stored() == chain.view().head()
            })
            .await;
        }
        compare(self.world, &self.model, self.chain());
        let mut want = self.model.known.clone();
        want.sort_unstable();
        assert_eq!(self.known(), want, "step {}", self.step);
    }
}

/// A random head, and perhaps a safe and a finalized block. These are mostly moved onto the head's
/// branch, where random blocks rarely are.
fn random_heads(
    world: &World,
    model: &Model,
    rng: &mut StdRng,
) -> (usize, Option<usize>, Option<usize>) {
    let mut any = |odds| match rng.random_range(0..10) {
        0 => None,
        n if n < odds => Some(*model.known.choose(rng).unwrap()),
        _ => Some(rng.random_range(0..world.tree.len())),
    };
    let head = any(9).unwrap_or(model.head);
    let (safe, finalized) = (any(3), any(2));
    if head % 7 == 0 {
        return (head, safe, finalized);
    }
    let branch = world.branch(head);
    let tame = |block: Option<usize>, at: usize| {
        block
            .filter(|_| head % 3 != 0)
            .map(|_| branch[at.min(branch.len() - 1)])
    };
    (head, tame(safe, 2), tame(finalized, 4))
}

async fn scenario(world: &World, rng: &mut StdRng, steps: usize) {
    let mut run = ModelRun::new(world);
    for step in 0..steps {
        run.step = step;
        match rng.random_range(0..100) {
            0..60 => run.insert(rng).await,
            60..75 => run.follow_invalid(rng).await,
            75..92 => run.choose(rng).await,
            92..94 => run.choose_unknown(rng).await,
            94..97 => {
                run.stop().await;
                run.start().await;
            }
            _ => run.kill().await,
        }
        run.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chain_is_what_the_model_says() {
    let scenarios = std::env::var("STARLING_SCENARIOS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(4);
    for seed in 0..scenarios {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let world = World::new(60, &mut rng).await;
        scenario(&world, &mut rng, 150).await;
    }
}
