//! The engine client with a real core behind a real Engine API.

mod lost_states;

use super::{
    testing::{ServedCore, secret},
    *,
};
use crate::{
    chain::tests::{attributes, build, datadir, killed, open},
    chain::{Chain, Threads},
    rollup::{
        engine::{BlockAt, Engine},
        http::HttpTarget,
        http_fake::{Canned, CannedServer},
    },
};
use alloy_primitives::Bytes;
use http::{HeaderMap, HeaderValue, header};
use starling_p2p::Provenance;
use starling_proto::{config::RollupGenesis, fork::Fork, fork::ForkSchedule};
use tokio::runtime::Handle;

/// A core of the test chain, its rollup configuration, and an engine over the core.
struct RemoteCore {
    datadir: tempfile::TempDir,
    chain: Chain,
    threads: Threads,
    served: ServedCore,
    rollup: Arc<RollupConfig>,
    engine: Engine,
}

impl RemoteCore {
    async fn new() -> Self {
        let datadir = datadir();
        let (chain, threads) = open(datadir.path());
        let rollup = Arc::new(RollupConfig {
            genesis: RollupGenesis {
                l2: chain.view().head(),
                ..Default::default()
            },
            l2_chain_id: chain.spec().chain_id,
            forks: ForkSchedule::from_genesis(Fork::Jovian),
            ..Default::default()
        });
        let served = ServedCore::start(&chain).await;
        let engine = served.engine(&rollup).await;
        Self {
            datadir,
            chain,
            threads,
            served,
            rollup,
            engine,
        }
    }

    fn head(&self) -> BlockId {
        self.engine.heads().borrow().head
    }

    /// Blocks on `parents`, built by another core with the same data, so that this core does not
    /// know them.
    async fn stranger(&self, parents: &[u64]) -> Vec<Arc<Payload>> {
        let folder = datadir();
        let (other, _threads) = open(folder.path());
        let mut parent = other.view().head().hash;
        let mut blocks = Vec::new();
        for salt in parents {
            let block = build(&other, parent, *salt, []).await.payload.clone();
            parent = block.hash;
            blocks.push(block);
        }
        blocks
    }

    async fn follow(&self, block: &Arc<Payload>) -> Inserted {
        let gossip = Provenance::Signed(alloy_primitives::Address::ZERO);
        let followed = self
            .engine
            .queue_follow(block.clone(), gossip)
            .await
            .unwrap();
        followed.await.unwrap()
    }

    /// A core that has followed two blocks above genesis.
    async fn with_two_blocks() -> (Self, [Arc<Payload>; 2]) {
        let core = Self::new().await;
        let blocks = core.stranger(&[1, 1]).await;
        for block in &blocks {
            core.follow(block).await;
        }
        (core, blocks.try_into().unwrap())
    }

    /// Attributes of a block on genesis.
    fn first_attributes(
        &self,
        salt: u64,
        transactions: impl IntoIterator<Item = Bytes>,
    ) -> OpPayloadAttributes {
        let view = self.chain.view();
        let genesis = view.header_of(0).unwrap().unwrap();
        attributes(&genesis, salt, transactions)
    }

    /// Derives a block on genesis with `engine`.
    async fn derive_first(
        &self,
        engine: &Engine,
        attributes: OpPayloadAttributes,
    ) -> Result<Arc<Payload>, CoreError> {
        let genesis = self.rollup.genesis.l2.hash;
        engine.derive(genesis, attributes, None).await
    }

    /// Checks that the client's heads equal the core's.
    fn check_heads(&self) {
        let (known, has) = (*self.engine.heads().borrow(), *self.chain.heads().borrow());
        assert_eq!(known.head, has.head);
        assert_eq!((known.safe, known.finalized), (has.safe, has.finalized));
    }

    async fn promote(&self, safe: B256, finalized: Option<B256>) {
        self.engine.promote(Some(safe), finalized).await.unwrap();
    }
}

/// A server that forwards requests to a core and loses a response on demand.
struct LossyProxy {
    server: CannedServer,
    /// A part of the request whose next response is lost.
    lost: Arc<SyncMutex<Option<&'static str>>>,
}

impl LossyProxy {
    async fn start(served: &ServedCore) -> Self {
        let token = secret().authorization(crate::clock::unix_now());
        let token = HeaderValue::from_str(&token).unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, token)]);
        let target = HttpTarget::new(&format!("http://{}", served.addr), headers).unwrap();
        let lost = Arc::new(SyncMutex::new(None::<&'static str>));
        let next_lost = lost.clone();
        let server = CannedServer::start(move |request: &str| {
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            let sent = target.post(body.as_bytes().to_vec(), 1 << 20, Duration::from_secs(10));
            let reply = tokio::task::block_in_place(|| Handle::current().block_on(sent)).unwrap();
            let is_lost = next_lost
                .lock()
                .take_if(|part| body.contains(*part))
                .is_some();
            if is_lost {
                return Canned::Half(reply.body.to_vec());
            }
            Canned::status(reply.status.as_u16(), String::from_utf8_lossy(&reply.body))
        })
        .await;
        Self { server, lost }
    }

    /// A connected engine over the core behind this server.
    async fn engine(&self, rollup: &Arc<RollupConfig>) -> Engine {
        let endpoint = EngineEndpoint {
            url: self.server.url(),
            secret: secret(),
            timeout: Duration::from_secs(10),
        };
        let client = EngineClient::new(&endpoint, rollup.clone(), None).unwrap();
        client.connect("rollup.json").await.unwrap();
        Engine::Remote(client)
    }
}

/// A transaction that decodes, but cannot be in a block.
fn unbuildable() -> Bytes {
    crate::chain::evm::tests::sign(1, crate::chain::evm::tests::transfer(77)).1
}

fn is_not_built(derived: &Result<Arc<Payload>, CoreError>) -> bool {
    matches!(derived, Err(CoreError::Chain(ChainError::Build(_))))
}

fn is_not_on_branch(result: Result<(), CoreError>) -> bool {
    matches!(
        result,
        Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_followed_and_promoted_in_the_other_process() {
    let core = RemoteCore::new().await;
    let blocks = core.stranger(&[1, 1, 1]).await;
    assert_eq!(
        core.follow(&blocks[1]).await,
        Inserted::Syncing,
        "the parent is missing"
    );
    for block in &blocks {
        assert_eq!(core.follow(block).await, Inserted::Valid);
        assert_eq!(core.head(), block.id());
    }
    core.promote(blocks[1].hash, Some(blocks[0].hash)).await;
    core.check_heads();
    // Setting the same safe head again succeeds; a finalized head above it is refused.
    core.promote(blocks[1].hash, None).await;
    let refused = core.engine.promote(None, Some(blocks[2].hash)).await;
    assert!(
        matches!(
            refused,
            Err(CoreError::Chain(ChainError::FinalizedAboveSafe { .. }))
        ),
        "{refused:?}"
    );
    // A longer branch without the safe block is executed, but the head does not follow it.
    let branch = core.stranger(&[1, 2, 2, 2, 2]).await;
    for block in &branch[1..] {
        assert_eq!(core.follow(block).await, Inserted::Valid);
    }
    assert_eq!(core.head(), blocks[2].id());
    let refused = core.engine.forkchoice(branch[4].hash, None, None).await;
    assert!(is_not_on_branch(refused));
    // The head follows a branch with the safe block once the branch is higher.
    let longer = core.stranger(&[1, 1, 3, 3]).await;
    assert_eq!(core.follow(&longer[2]).await, Inserted::Valid);
    assert_eq!(core.head(), blocks[2].id());
    assert_eq!(core.follow(&longer[3]).await, Inserted::Valid);
    assert_eq!(core.head(), longer[3].id());
    core.check_heads();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_goes_down_and_up_by_fork_choice_and_never_below_the_derived_block() {
    let core = RemoteCore::new().await;
    let blocks = core.stranger(&[1, 1, 1, 1]).await;
    for block in &blocks {
        core.follow(block).await;
    }
    let protect = async |hash| core.engine.protect(hash).await;
    protect(Some(blocks[1].hash)).await.unwrap();
    for (to, works) in [(2, true), (1, true), (0, false), (3, true)] {
        let moved = core.engine.forkchoice(blocks[to].hash, None, None).await;
        assert_eq!(moved.is_ok(), works, "{to}: {moved:?}");
        assert!(works || is_not_on_branch(moved));
        core.check_heads();
    }
    let side = core.stranger(&[1, 2]).await;
    core.follow(&side[1]).await;
    assert!(is_not_on_branch(protect(Some(side[1].hash)).await));
    let unknown = core.engine.forkchoice(B256::repeat_byte(9), None, None);
    assert!(matches!(
        unknown.await,
        Err(CoreError::Chain(ChainError::UnknownBlock(_)))
    ));
    protect(None).await.unwrap();
    core.engine
        .forkchoice(side[1].hash, None, None)
        .await
        .unwrap();
    assert_eq!(core.head(), side[1].id());
    core.check_heads();
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_built_derived_and_refused_in_the_other_process() {
    let core = RemoteCore::new().await;
    let genesis = core.chain.view().header().clone();
    let parent = core.head().hash;
    let id = core
        .engine
        .start(parent, attributes(&genesis, 1, []))
        .await
        .unwrap();
    let sequenced = core.engine.seal(id).await.unwrap();
    let again = core.engine.seal(id).await;
    assert!(matches!(
        again,
        Err(CoreError::Chain(ChainError::UnknownPayload))
    ));
    assert_eq!(core.head().hash, parent, "a sealed block is not the head");
    core.engine
        .forkchoice(sequenced.hash, None, None)
        .await
        .unwrap();
    let next = core.engine.start(parent, attributes(&genesis, 1, [])).await;
    assert!(matches!(next, Err(CoreError::Chain(ChainError::Busy(_)))));
    // The same attributes lead to the same block, so the head above that block stays.
    let above = build(&core.chain, sequenced.hash, 1, []).await;
    let above = above.payload.clone();
    assert_eq!(core.follow(&above).await, Inserted::Valid);
    let above = above.id();
    core.engine
        .forkchoice(above.hash, None, None)
        .await
        .unwrap();
    let derived = core
        .engine
        .derive(parent, attributes(&genesis, 1, []), None)
        .await
        .unwrap();
    assert_eq!((derived.hash, core.head()), (sequenced.hash, above));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_attributes_leave_the_head_and_others_override_it() {
    let (core, blocks) = RemoteCore::with_two_blocks().await;
    let above = blocks[1].id();
    // Undecodable transactions, and types that cannot be in a block, make the attributes invalid.
    for bad in [Bytes::from_static(&[0x02, 0xc0]), unbuildable()] {
        let attributes = core.first_attributes(5, [bad]);
        let derived = core.derive_first(&core.engine, attributes).await;
        assert!(is_not_built(&derived), "{derived:?}");
        assert_eq!(core.head(), above, "no head has moved");
        core.check_heads();
    }
    // Other attributes override the chain, and the derived block is protected.
    let attributes = core.first_attributes(2, []);
    let derived = core.derive_first(&core.engine, attributes).await.unwrap();
    assert_eq!(core.head(), derived.id());
    let displaces = core.engine.forkchoice(blocks[0].hash, None, None).await;
    assert!(is_not_on_branch(displaces));
    core.check_heads();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_response_during_derivation_leaves_the_head() {
    let (core, blocks) = RemoteCore::with_two_blocks().await;
    let above = blocks[1].id();
    let proxy = LossyProxy::start(&core.served).await;
    let engine = proxy.engine(&core.rollup).await;
    // The first fork choice of the call makes the parent the head of the core.
    for method in [
        "engine_forkchoiceUpdated",
        "engine_getPayload",
        "engine_newPayload",
    ] {
        *proxy.lost.lock() = Some(method);
        let attributes = core.first_attributes(2, []);
        let error = core.derive_first(&engine, attributes).await.unwrap_err();
        assert!(error.is_outage(), "{method}: {error}");
        assert_eq!(engine.heads().borrow().head, above, "{method}");
        assert_eq!(core.chain.view().head(), above, "{method}");
    }
    let attributes = core.first_attributes(2, []);
    let derived = core.derive_first(&engine, attributes).await.unwrap();
    assert_eq!(engine.heads().borrow().head, derived.id());
    assert_eq!(core.chain.view().head(), derived.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_derivation_keeps_its_error_and_the_derived_block() {
    let (core, blocks) = RemoteCore::with_two_blocks().await;
    let genesis = core.rollup.genesis.l2.hash;
    let proxy = LossyProxy::start(&core.served).await;
    let engine = proxy.engine(&core.rollup).await;
    engine.protect(Some(blocks[0].hash)).await.unwrap();
    // The response to the call that restores the head is lost: a fork choice without attributes.
    *proxy.lost.lock() = Some("},null]");
    let attributes = core.first_attributes(5, [unbuildable()]);
    let derived = core.derive_first(&engine, attributes).await;
    assert!(is_not_built(&derived), "{derived:?}");
    assert!(proxy.lost.lock().is_none());
    // While the heads are read, genesis is the head.
    *proxy.lost.lock() = Some("engine_getPayload");
    let attributes = core.first_attributes(2, []);
    let derived = core.derive_first(&engine, attributes).await;
    assert!(derived.unwrap_err().is_outage());
    assert!(is_not_on_branch(
        engine.forkchoice(genesis, None, None).await
    ));
    assert_eq!(core.chain.view().head(), blocks[1].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_read_by_place_and_on_any_branch() {
    let (core, blocks) = RemoteCore::with_two_blocks().await;
    let genesis = core.rollup.genesis.l2;
    // A second client with an empty cache.
    let engine = core.served.engine(&core.rollup).await;
    let id = async |at| {
        let block = engine.block(at).await.unwrap();
        block.map(|block| block.id())
    };
    assert_eq!(id(BlockAt::Head).await, Some(blocks[1].id()));
    for _ in 0..2 {
        assert_eq!(id(BlockAt::Number(0)).await, Some(genesis));
        assert_eq!(id(BlockAt::Number(1)).await, Some(blocks[0].id()));
    }
    assert_eq!(id(BlockAt::Number(3)).await, None);
    assert_eq!(id(BlockAt::Hash(genesis.hash)).await, Some(genesis));
    assert_eq!(id(BlockAt::Hash(B256::ZERO)).await, None);
    let read = engine.block(BlockAt::Number(2)).await.unwrap().unwrap();
    assert_eq!(*read, *blocks[1]);
    let Engine::Remote(client) = &engine else {
        panic!("it is remote")
    };
    let root = client.message_passer_root(&read).await;
    assert!(root.is_err(), "this genesis has no message passer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_killed_and_has_lost_blocks_has_its_heads_read_again() {
    let core = RemoteCore::new().await;
    let blocks = core.stranger(&[1, 1, 1, 1, 1]).await;
    for block in &blocks[..2] {
        core.follow(block).await;
    }
    core.promote(blocks[1].hash, Some(blocks[0].hash)).await;
    let then = killed(core.datadir.path());
    for block in &blocks[2..] {
        core.follow(block).await;
    }
    core.promote(blocks[3].hash, None).await;
    let RemoteCore {
        served,
        engine,
        chain,
        threads,
        ..
    } = core;
    let addr = served.addr;
    served.stop().await;
    let down = engine
        .promote(Some(blocks[4].hash), None)
        .await
        .unwrap_err();
    assert!(down.is_outage() && !down.is_fatal(), "{down}");
    drop(chain);
    threads.stop().unwrap();

    let (chain, _threads) = open(then.path());
    assert_eq!(chain.view().head(), blocks[1].id());
    let _served = ServedCore::start_at(&chain, addr).await;
    // The core has lost its newest blocks, including the requested head.
    let heads = engine.heads();
    let lost = engine.forkchoice(blocks[4].hash, None, None).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(heads.borrow().head, blocks[1].id());
    assert_eq!(heads.borrow().safe, Some(blocks[1].id()));
    assert_eq!(heads.borrow().finalized, Some(blocks[0].id()));
    for block in &blocks[2..] {
        let gossip = Provenance::Signed(alloy_primitives::Address::ZERO);
        let followed = engine.queue_follow(block.clone(), gossip).await.unwrap();
        assert_eq!(followed.await.unwrap(), Inserted::Valid);
    }
    assert_eq!(heads.borrow().head, blocks[4].id());
    assert_eq!(chain.view().head(), blocks[4].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_something_else_moves_is_noticed() {
    let core = RemoteCore::new().await;
    let blocks = core.stranger(&[1, 1, 1]).await;
    for block in &blocks {
        core.follow(block).await;
    }
    let Engine::Remote(client) = &core.engine else {
        panic!("it is remote")
    };
    let token = tokio_util::sync::CancellationToken::new();
    let watching = tokio::spawn(client.clone().watch(token.clone()));
    core.chain
        .forkchoice(blocks[0].hash, None, None)
        .await
        .unwrap();
    let mut heads = core.engine.heads();
    let noticed = heads.wait_for(|heads| heads.head == blocks[0].id());
    tokio::time::timeout(Duration::from_secs(30), noticed)
        .await
        .unwrap()
        .unwrap();
    token.cancel();
    watching.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_chain_or_genesis_is_one_sentence() {
    let core = RemoteCore::new().await;
    let other = JwtSecret::from_hex(&"11".repeat(32)).unwrap();
    let client = core.served.client(&core.rollup, other);
    let said = client.connect("rollup.json").await.unwrap_err().to_string();
    assert!(
        said.contains("--l2.jwt-secret") && said.contains("signature is invalid"),
        "{said}"
    );
    let mut rollup = (*core.rollup).clone();
    rollup.l2_chain_id += 1;
    let client = core.served.client(&Arc::new(rollup), secret());
    let said = client.connect("rollup.json").await.unwrap_err().to_string();
    assert!(
        said.contains("rollup.json describes chain") && said.contains("--l2"),
        "{said}"
    );
    let mut rollup = (*core.rollup).clone();
    rollup.genesis.l2.hash = B256::repeat_byte(3);
    let client = core.served.client(&Arc::new(rollup), secret());
    let said = client.connect("rollup.json").await.unwrap_err().to_string();
    assert!(
        said.contains("begins with block") && said.contains("genesis file"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_there_yet_is_waited_for() {
    let core = RemoteCore::new().await;
    let (addr, rollup) = (core.served.addr, core.rollup.clone());
    let client = core.served.client(&rollup, secret());
    core.served.stop().await;
    let waiting = tokio::spawn(async move { client.connect("rollup.json").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    let _served = ServedCore::start_at(&core.chain, addr).await;
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}
