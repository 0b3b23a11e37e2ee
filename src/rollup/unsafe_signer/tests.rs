//! Reading the signer, with a chain in a temporary directory, a fake L1 and, for some tests, a real
//! swarm.

use super::{memory::SETTING, *};
use crate::{
    chain::{self, Chain, Options, Threads, genesis},
    rollup::l1::{
        L1Config, UNSAFE_BLOCK_SIGNER_SLOT,
        fake::{self, FakeL1},
    },
};
use serde_json::json;
use starling_p2p::{ChainGenesis, Keypair, LedgerChange, Service};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::{BlockId, Payload},
    sign,
};
use tokio::sync::mpsc;

const OLD: Address = Address::repeat_byte(7);
const NEW: Address = Address::repeat_byte(8);
/// Address of the SystemConfig contract.
const CONTRACT: Address = Address::repeat_byte(0x5c);

fn headers() -> Vec<alloy_consensus::Header> {
    fake::chain(100, 1_000, 5, 1)
}

struct World {
    chain: Chain,
    l1: FakeL1,
    _threads: Threads,
    _datadir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let genesis = json!({
            "config": {
                "chainId": 901, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
                "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
                "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0,
            },
            "timestamp": "0x1", "gasLimit": "0x1c9c380", "difficulty": "0x0", "alloc": {},
        });
        let genesis = genesis::parse(&genesis.to_string()).unwrap();
        let datadir = tempfile::tempdir().unwrap();
        chain::init(datadir.path(), &genesis).unwrap();
        let options = Options {
            datadir: datadir.path().to_owned(),
            cache: 16 << 20,
            commit_interval: Duration::from_millis(100),
        };
        let (chain, threads) = Chain::open(&options).unwrap();
        let l1 = FakeL1::start().await;
        l1.state
            .lock()
            .answers
            .insert("eth_chainId", Ok(json!("0x384")));
        l1.set(&headers());
        Self {
            chain,
            l1,
            _threads: threads,
            _datadir: datadir,
        }
    }

    fn source(&self) -> UnsafeSigner {
        let rollup = RollupConfig {
            l1_chain_id: 900,
            l1_system_config_address: CONTRACT,
            ..Default::default()
        };
        UnsafeSigner {
            l1: L1Client::new(&L1Config::new(self.l1.url())).unwrap(),
            rollup: Arc::new(rollup),
            memory: SignerMemory::Chain(self.chain.clone()),
            confs: 0,
            reload: Duration::from_secs(3600),
            poll: Duration::from_millis(10),
        }
    }

    fn name(&self, signer: Address) {
        self.l1.set_with_storage(
            headers(),
            CONTRACT,
            UNSAFE_BLOCK_SIGNER_SLOT,
            signer.into_word(),
        );
    }

    async fn until_remembered(&self, signer: Address) {
        let remembered = async {
            while self
                .chain
                .remembered(SETTING)
                .unwrap()
                .is_none_or(|bytes| bytes[..] != signer[..])
            {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), remembered)
            .await
            .unwrap();
    }
}

/// A swarm of a single node that accepts blocks by this signer.
fn swarm(
    token: &CancellationToken,
    signer: Address,
) -> (Network, mpsc::Receiver<starling_p2p::Event>) {
    struct Empty;
    impl starling_p2p::Blocks for Empty {
        fn knows(&self, _: alloy_primitives::B256) -> bool {
            false
        }
        fn block(&self, _: u64) -> Option<Payload> {
            None
        }
    }
    let genesis = ChainGenesis {
        id: BlockId::default(),
        time: 0,
        block_time: 2,
    };
    let mut config = starling_p2p::Config::new(
        Keypair::generate_secp256k1(),
        901,
        ForkSchedule::from_genesis(Fork::Jovian),
        genesis,
    );
    config.unsafe_block_signer = Some(signer);
    (config.listen_ip, config.listen_tcp) = ([127, 0, 0, 1].into(), 0);
    let (service, network, events) = Service::new(config, Arc::new(Empty)).unwrap();
    tokio::spawn(service.run(token.clone()));
    (network, events)
}

/// Another L1 chain is refused even if the node has stored a signer from the right L1.
#[tokio::test]
async fn another_l1_chain_is_refused_at_once() {
    let world = World::new().await;
    world.chain.remember(SETTING, OLD.to_vec()).await.unwrap();
    world
        .l1
        .state
        .lock()
        .answers
        .insert("eth_chainId", Ok(json!("0x5")));
    let error = world.source().at_start().await.unwrap_err().to_string();
    assert!(
        error.contains("serves chain 5") && error.contains("--l1"),
        "{error}"
    );
    // An L1 that does not respond does not stop the start: the stored signer is used.
    world
        .l1
        .state
        .lock()
        .answers
        .insert("eth_chainId", Err((-32000, "away".into())));
    assert_eq!(world.source().at_start().await.unwrap(), OLD);
}

/// A node waits for L1 as long as batcher and proposer do, whose starts have no limit either.
#[tokio::test]
async fn a_start_without_a_stored_signer_waits_for_l1() {
    let world = World::new().await;
    let set_chain_id = |answer| {
        let mut state = world.l1.state.lock();
        state.answers.insert("eth_chainId", answer);
    };
    set_chain_id(Err((-32000, "away".into())));
    let source = UnsafeSigner {
        poll: Duration::from_millis(1),
        ..world.source()
    };
    let start = tokio::spawn(async move { source.at_start().await });
    while world.l1.calls("eth_chainId") < 8 {
        assert!(!start.is_finished());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The next read finds the wrong chain, which alone ends the start.
    set_chain_id(Ok(json!("0x5")));
    let error = start.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("serves chain 5"), "{error}");
}

#[tokio::test]
async fn the_signer_is_read_behind_l1s_head() {
    let world = World::new().await;
    let at = async |confs| {
        UnsafeSigner {
            confs,
            ..world.source()
        }
        .confirmed()
        .await
        .unwrap()
        .number
    };
    assert_eq!((at(0).await, at(3).await), (104, 101));
    let too_far = UnsafeSigner {
        confs: 50,
        ..world.source()
    }
    .confirmed()
    .await;
    assert!(
        matches!(too_far, Err(UnsafeSignerError::NoHead(_))),
        "{too_far:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_found_by_reading_again() {
    let world = World::new().await;
    let token = CancellationToken::new();
    let (network, _events) = swarm(&token, OLD);
    world.name(OLD);
    let source = UnsafeSigner {
        reload: Duration::from_millis(20),
        ..world.source()
    };
    let task = tokio::spawn(source.follow(OLD, Some(OLD), network, token.clone()));
    while world.l1.calls("eth_getProof") < 3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(
        world.chain.remembered(SETTING).unwrap(),
        None,
        "nothing has changed"
    );
    // A failed read leaves the signer unchanged.
    world
        .l1
        .state
        .lock()
        .answers
        .insert("eth_getProof", Err((-32000, "away".into())));
    let asked = world.l1.calls("eth_getProof");
    while world.l1.calls("eth_getProof") < asked + 3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(world.chain.remembered(SETTING).unwrap(), None);
    world.name(NEW);
    world.until_remembered(NEW).await;
    token.cancel();
    task.await.unwrap().unwrap();
}

/// The endpoint returns another signer as the storage value, and forges the proven value without
/// matching its header's state root.
#[tokio::test(flavor = "multi_thread")]
async fn a_lie_about_the_signers_storage_changes_nothing() {
    let world = World::new().await;
    let token = CancellationToken::new();
    let (network, _events) = swarm(&token, OLD);
    world.name(OLD);
    {
        let answers = &mut world.l1.state.lock().answers;
        answers.insert("eth_getStorageAt", Ok(json!(NEW.into_word())));
        answers.insert(
            "eth_call",
            Ok(json!(alloy_primitives::B256::with_last_byte(1))),
        );
        if let Some(Ok(proof)) = answers.get_mut("eth_getProof") {
            proof["storageProof"][0]["value"] = json!(NEW.into_word());
        }
    }
    world.chain.remember(SETTING, OLD.to_vec()).await.unwrap();
    assert_eq!(world.source().at_start().await.unwrap(), OLD);
    let source = UnsafeSigner {
        reload: Duration::from_millis(20),
        ..world.source()
    };
    let task = tokio::spawn(source.follow(OLD, None, network, token.clone()));
    while world.l1.calls("eth_getProof") < 4 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(
        world.chain.remembered(SETTING).unwrap(),
        Some(OLD.to_vec().into())
    );
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_interval_of_zero_reads_never_again() {
    let world = World::new().await;
    let token = CancellationToken::new();
    let (network, _events) = swarm(&token, OLD);
    UnsafeSigner {
        reload: Duration::ZERO,
        ..world.source()
    }
    .follow(OLD, None, network, token.clone())
    .await
    .unwrap();
    assert_eq!(world.l1.calls("eth_getProof"), 0);
    token.cancel();
}

/// A validly formed block with an unknown parent.
fn block(number: u64) -> Arc<Payload> {
    let header = alloy_consensus::Header {
        number,
        parent_hash: alloy_primitives::B256::repeat_byte(9),
        timestamp: crate::clock::unix_now(),
        base_fee_per_gas: Some(7),
        withdrawals_root: Some(alloy_primitives::B256::repeat_byte(3)),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(alloy_primitives::B256::repeat_byte(4)),
        requests_hash: Some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
        ..Default::default()
    };
    Arc::new(Payload::sealed(header, vec![]))
}

async fn within_two_minutes(reached: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(120), reached)
        .await
        .unwrap();
}

/// A publisher of signed blocks, connected to a node that accepts another signer.
struct Neighbours {
    key: sign::SecretKey,
    publisher: Network,
    network: Network,
    _events: [mpsc::Receiver<starling_p2p::Event>; 2],
}

impl Neighbours {
    async fn connect(token: &CancellationToken) -> Self {
        let key = sign::secret_from_hex(&"22".repeat(32)).unwrap();
        let (publisher, published) = swarm(token, sign::address(&key));
        let (network, followed) = swarm(token, OLD);
        let mut addresses = publisher.listen_addrs();
        let listening = addresses.wait_for(|all| !all.is_empty()).await;
        let address = listening.unwrap()[0].clone();
        network.connect(&address).await.unwrap();
        Self {
            key,
            publisher,
            network,
            _events: [published, followed],
        }
    }

    async fn publish(&self, number: u64) {
        let block = block(number);
        let signature = sign::sign(&self.key, 901, &block.to_wire(block.version()));
        self.publisher.publish(block, signature).await;
    }

    /// The number of penalties that the node has given the publisher for blocks by another signer.
    async fn charges(&self) -> usize {
        let publisher = Some(self.publisher.local_peer_id());
        let ledger = self.network.ledger(publisher, 100).await.unwrap();
        let charged = ledger.iter().filter(|entry| {
            entry.reason == "wrong_signer" && matches!(entry.change, LedgerChange::Score(_))
        });
        charged.count()
    }
}

/// A block by an unknown signer makes the node read L1 long before the reload interval ends. If L1
/// names that signer, the peer gets no penalty; otherwise it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_by_a_stranger_makes_the_node_ask_l1() {
    let world = World::new().await;
    let token = CancellationToken::new();
    let neighbours = Neighbours::connect(&token).await;
    let stranger = sign::address(&neighbours.key);
    world.name(OLD);
    let network = neighbours.network.clone();
    let following = world.source().follow(OLD, None, network, token.clone());
    let task = tokio::spawn(following);

    neighbours.publish(10).await;
    within_two_minutes(async {
        while neighbours.charges().await == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(
        world.l1.calls("eth_getProof"),
        CONFIRMATIONS as usize,
        "it is not condemned by one answer"
    );

    world.name(stranger);
    neighbours.publish(11).await;
    world.until_remembered(stranger).await;
    // The next block is accepted, and the node requests the missing blocks below it.
    neighbours.publish(12).await;
    within_two_minutes(async {
        let network = &neighbours.network;
        while network.report().await.unwrap().sync.target.is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(
        neighbours.charges().await,
        1,
        "the second block is held against nobody"
    );
    token.cancel();
    task.await.unwrap().unwrap();
}
