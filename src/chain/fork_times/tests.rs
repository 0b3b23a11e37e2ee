use super::*;
use crate::chain::{
    Chain, Inserted, Options, Threads, init, payload_log_dir,
    pool::PoolConfig,
    tests::{GENESIS_TIME, attributes, build, datadir},
};
use alloy_primitives::Address;
use serde_json::json;
use starling_proto::{
    network::overrides::{ForkOverrides, NetworkForks, RuleChangeError},
    payload::Payload,
    provenance::Provenance,
};
use std::{path::Path, sync::Arc, time::Duration};

fn options(dir: &Path) -> Options {
    Options {
        datadir: dir.to_owned(),
        cache: 4 << 20,
        commit_interval: Duration::from_millis(20),
    }
}

/// A change of the schedule that sets these fork times, in seconds after the genesis block.
fn overriding(times: &[(Fork, u64)]) -> ScheduleChange {
    let forks = times
        .iter()
        .map(|(fork, time)| (*fork, GENESIS_TIME + time));
    let overrides = ForkOverrides {
        forks: forks.collect(),
        ..Default::default()
    };
    ScheduleChange {
        network: None,
        overrides,
    }
}

fn open(dir: &Path, change: &ScheduleChange) -> Result<(Chain, Threads), ChainError> {
    Chain::open_by(&options(dir), PoolConfig::default(), change)
}

/// Opens the chain, adds blocks with a block time of two seconds, and stops.
async fn grow(dir: &Path, change: &ScheduleChange, blocks: usize) {
    let (chain, threads) = open(dir, change).unwrap();
    for _ in 0..blocks {
        let block = build(&chain, chain.view().head().hash, 0, []).await;
        let head = block.payload.hash;
        chain.forkchoice(head, None, None).await.unwrap();
    }
    drop(chain);
    threads.stop().unwrap();
}

fn refused(dir: &Path, change: &ScheduleChange) -> String {
    match open(dir, change) {
        Err(error) => error.to_string(),
        Ok((chain, threads)) => {
            drop(chain);
            threads.stop().unwrap();
            panic!("opened by {change:?}")
        }
    }
}

/// A network with the identity of the chain in a data directory, and with these fork times.
fn network_of(dir: &Path, forks: ForkSchedule) -> NetworkForks {
    let store = Store::open(dir, 4 << 20, None).unwrap();
    let spec = spec_of(&store).unwrap();
    NetworkForks {
        chain_id: spec.chain_id,
        genesis_hash: spec.genesis_hash,
        forks,
    }
}

fn karst_of(dir: &Path) -> Option<u64> {
    let store = Store::open(dir, 4 << 20, None).unwrap();
    match spec_of(&store).unwrap().rules {
        Rules::Optimism { forks, .. } => forks.time(Fork::Karst),
        Rules::Ethereum { .. } => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_counts_until_the_next_start_and_stays_once_the_chain_has_passed_it() {
    let dir = datadir();
    let dir = dir.path();
    let [at_4, at_8, none] = [&[(Fork::Karst, 4)][..], &[(Fork::Karst, 8)], &[]].map(overriding);
    grow(dir, &at_8, 1).await;
    assert_eq!(karst_of(dir), Some(GENESIS_TIME + 8), "tools see it too");
    grow(dir, &none, 0).await;
    assert_eq!(karst_of(dir), None, "not given changes nothing");
    grow(dir, &at_4, 1).await;
    // The head is the block that activates Karst.
    for other in [&none, &at_8, &overriding(&[(Fork::Karst, 2)])] {
        let said = refused(dir, other);
        assert!(
            said.starts_with("karst would activate ") && said.contains("--override.karst"),
            "{said}"
        );
    }
    assert_eq!(karst_of(dir), Some(GENESIS_TIME + 4));
    grow(dir, &at_4, 1).await;
}

/// Builds the first two blocks of a chain without overrides.
async fn two_blocks() -> Vec<Arc<Payload>> {
    let dir = datadir();
    let (chain, threads) = open(dir.path(), &ScheduleChange::default()).unwrap();
    let mut payloads = vec![];
    for _ in 0..2 {
        let block = build(&chain, chain.view().head().hash, 0, []).await;
        let hash = block.payload.hash;
        chain.forkchoice(hash, None, None).await.unwrap();
        payloads.push(block.payload.clone());
    }
    drop(chain);
    threads.stop().unwrap();
    payloads
}

/// No block from Lagoon on is built, executed or imported, since the rules of that fork are not
/// known.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_ends_before_lagoon_with_a_sentence() {
    let dir = datadir();
    let payloads = two_blocks().await;
    let overrides = ForkOverrides {
        lagoon: Some(GENESIS_TIME + 4),
        ..Default::default()
    };
    let change = ScheduleChange {
        network: None,
        overrides,
    };
    let (chain, threads) = open(dir.path(), &change).unwrap();
    let answer = chain
        .insert(payloads[0].clone(), Provenance::Engine)
        .await
        .unwrap();
    assert_eq!(answer, Inserted::Valid);
    chain
        .forkchoice(payloads[0].hash, None, None)
        .await
        .unwrap();
    let sentence = "is in Lagoon (interop), which begins at 1700000004";
    let error = chain
        .insert(payloads[1].clone(), Provenance::Engine)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");
    assert!(!error.is_fatal());
    let answer = chain
        .follow(payloads[1].clone(), Provenance::Signed(Address::ZERO))
        .await
        .unwrap();
    assert_eq!(answer, Inserted::NotExecutable, "no peer is to blame");
    let attributes = attributes(chain.view().header(), 0, []);
    let error = chain.start(payloads[0].hash, attributes).await.unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");
    assert_eq!(chain.view().head(), payloads[0].id());
    drop(chain);
    threads.stop().unwrap();
    // The change is recorded until the next start without it.
    let store = Store::open(dir.path(), 4 << 20, None).unwrap();
    let spec = spec_of(&store).unwrap();
    assert!(spec.check_before_lagoon(GENESIS_TIME + 3).is_ok());
    assert!(spec.check_before_lagoon(GENESIS_TIME + 4).is_err());
    drop(store);
    grow(dir.path(), &ScheduleChange::default(), 1).await;
    let said = refused(dir.path(), &change);
    assert!(
        said.starts_with("lagoon would activate at 1700000004"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_only_in_the_payload_log_has_passed_its_forks() {
    let (made, dir) = (datadir(), datadir());
    let (chain, threads) = open(made.path(), &overriding(&[])).unwrap();
    let block = build(&chain, chain.view().head().hash, 0, []).await;
    drop(chain);
    threads.stop().unwrap();
    {
        let log = PayloadLog::open(&payload_log_dir(dir.path())).unwrap();
        log.append(&block.payload, 0).unwrap();
        log.sync().unwrap();
    }
    let said = refused(dir.path(), &overriding(&[(Fork::Karst, 2)]));
    assert!(said.contains("head has time 1700000002"), "{said}");
    grow(dir.path(), &overriding(&[(Fork::Karst, 3)]), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_gives_times_that_the_genesis_config_does_not_have() {
    let dir = datadir();
    let forks = ForkSchedule::from_genesis(Fork::Jovian).with(Fork::Karst, Some(GENESIS_TIME + 2));
    let mut network = network_of(dir.path(), forks);
    let mut change = ScheduleChange {
        network: Some(network.clone()),
        ..Default::default()
    };
    grow(dir.path(), &change, 1).await;
    change.overrides.forks.insert(Fork::Karst, GENESIS_TIME + 9);
    network.genesis_hash = Default::default();
    let other = ScheduleChange {
        network: Some(network),
        ..Default::default()
    };
    assert!(matches!(
        open(dir.path(), &other).err(),
        Some(ChainError::OtherNetwork { .. })
    ));
    assert!(matches!(
        open(dir.path(), &change).err(),
        Some(ChainError::RuleChange(RuleChangeError::Passed {
            rule: "karst",
            ..
        }))
    ));
}

fn genesis_of(config: serde_json::Value) -> Genesis {
    let file = json!({
        "config": config, "timestamp": GENESIS_TIME, "gasLimit": 30_000_000, "difficulty": "0",
        "alloc": { "4200000000000000000000000000000000000016": { "balance": "0x0" } },
    });
    genesis::parse(&file.to_string()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_genesis_block_cannot_become_one_of_a_later_fork() {
    let dir = tempfile::tempdir().unwrap();
    let regolith = genesis_of(json!({
        "chainId": 901, "bedrockBlock": 0, "regolithTime": 0,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    }));
    init(dir.path(), &regolith).unwrap();
    let at_genesis = ScheduleChange {
        network: Some(network_of(
            dir.path(),
            ForkSchedule::from_genesis(Fork::Canyon),
        )),
        ..Default::default()
    };
    let said = refused(dir.path(), &at_genesis);
    assert!(
        said.contains("canyon is to be active in the genesis block"),
        "{said}"
    );
    grow(dir.path(), &overriding(&[(Fork::Canyon, 2)]), 0).await;
    let said = refused(dir.path(), &overriding(&[(Fork::Ecotone, 2)]));
    assert!(said.contains("prior fork canyon missing"), "{said}");
    // A repeated init puts the times of its genesis file in force again.
    assert!(!init(dir.path(), &regolith).unwrap());
    let store = Store::open(dir.path(), 4 << 20, None).unwrap();
    assert_eq!(spec_of(&store).unwrap(), regolith.spec);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ethereum_chain_takes_no_forks_of_the_op_stack() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = [
        "homestead",
        "eip150",
        "eip155",
        "eip158",
        "byzantium",
        "constantinople",
        "istanbul",
        "berlin",
        "london",
    ];
    let mut config = json!({ "chainId": 900, "terminalTotalDifficulty": 0, "shanghaiTime": 0 });
    for name in blocks {
        config[format!("{name}Block")] = 0.into();
    }
    init(dir.path(), &genesis_of(config)).unwrap();
    let said = refused(dir.path(), &overriding(&[(Fork::Karst, 2)]));
    assert!(said.contains("holds an Ethereum chain"), "{said}");
    grow(dir.path(), &overriding(&[]), 0).await;
}
