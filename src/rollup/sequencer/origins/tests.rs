//! The sequencer's reading of an L1 endpoint whose chain grows and is reorganised.

use super::*;
use crate::rollup::{
    l1::{
        L1Config,
        fake::{FakeL1, block, chain},
    },
    origin::OriginError,
};
use alloy_consensus::Header;
use starling_proto::fork::{Fork, ForkSchedule};

struct World {
    l1: FakeL1,
    heads: watch::Sender<L1Heads>,
    origins: Origins,
    rollup: RollupConfig,
}

impl World {
    /// An L1 with these blocks; the last block is the head.
    async fn new(headers: &[Header], confs: u64) -> Self {
        let l1 = FakeL1::start().await;
        let client = L1Client::new(&L1Config::new(l1.url())).unwrap();
        let (heads, receiver) = watch::channel(L1Heads::default());
        let rollup = RollupConfig {
            block_time: 2,
            forks: ForkSchedule::from_genesis(Fork::Jovian),
            ..Default::default()
        };
        let world = Self {
            l1,
            heads,
            origins: Origins::new(client, receiver, confs),
            rollup,
        };
        world.grow(headers);
        world
    }

    fn grow(&self, headers: &[Header]) {
        self.l1.set(headers);
        self.heads
            .send_modify(|heads| heads.head = headers.last().map(block));
    }

    async fn choose(&mut self, time: u64, parent: &Header) -> Result<L1Block, SequencerError> {
        self.origins
            .choose(&self.rollup, time, block(parent).id(), false)
            .await
    }
}

#[tokio::test]
async fn the_origin_advances_when_it_is_deep_enough_and_old_enough() {
    let headers = chain(10, 100, 6, 1);
    let mut world = World::new(&headers[..4], 2).await;
    // The head is 13, so with two confirmations block 11 may be used.
    assert_eq!(
        world.choose(110, &headers[0]).await.unwrap(),
        block(&headers[0]),
        "block 11 is younger"
    );
    assert_eq!(
        world.choose(112, &headers[0]).await.unwrap(),
        block(&headers[1])
    );
    assert_eq!(
        world.choose(124, &headers[1]).await.unwrap(),
        block(&headers[1]),
        "block 12 has one confirmation"
    );
    world.grow(&headers[..5]);
    assert_eq!(
        world.choose(124, &headers[1]).await.unwrap(),
        block(&headers[2])
    );
}

#[tokio::test]
async fn l1_is_asked_once_for_each_of_its_heads() {
    let headers = chain(10, 100, 6, 1);
    let mut world = World::new(&headers, 0).await;
    for time in [102, 104, 106] {
        world.choose(time, &headers[0]).await.unwrap();
    }
    assert_eq!(
        world.l1.calls("eth_getBlockByNumber"),
        2,
        "the origin and the next one"
    );
    for _ in 0..2 {
        world.origins.receipts(&block(&headers[1])).await.unwrap();
    }
}

#[tokio::test]
async fn a_reorganised_origin_ends_it() {
    let headers = chain(10, 100, 4, 1);
    let mut world = World::new(&headers, 0).await;
    world.choose(102, &headers[1]).await.unwrap();
    // L1 switches to another branch from block 10 on.
    let other = chain(10, 100, 5, 2);
    world.grow(&other);
    let error = world.choose(104, &headers[1]).await.unwrap_err();
    assert!(
        matches!(error, SequencerError::OriginGone { origin, canonical } if origin.number == 11 && canonical == other[1].hash_slow())
    );
    // The origin is canonical again, but the next block does not extend it.
    world.grow(&[headers[0].clone(), headers[1].clone(), other[2].clone()]);
    let error = world.choose(124, &headers[1]).await.unwrap_err();
    assert!(
        matches!(
            error,
            SequencerError::Origin(OriginError::Reorganised { .. })
        ),
        "{error}"
    );
}

#[tokio::test]
async fn at_the_drift_limit_the_sequencer_waits_for_l1() {
    let headers = chain(10, 100, 2, 1);
    let mut world = World::new(&headers[..1], 0).await;
    assert_eq!(
        world.choose(1900, &headers[0]).await.unwrap(),
        block(&headers[0])
    );
    let error = world.choose(1902, &headers[0]).await.unwrap_err();
    assert!(
        matches!(
            error,
            SequencerError::Origin(OriginError::DriftLimit { .. })
        ),
        "{error}"
    );
    world.grow(&headers);
    assert_eq!(
        world.choose(1902, &headers[0]).await.unwrap(),
        block(&headers[1])
    );
}

#[tokio::test]
async fn while_l1_is_away_blocks_stay_on_the_last_origin_up_to_the_drift_limit() {
    let headers = chain(10, 100, 4, 1);
    let mut world = World::new(&headers, 0).await;
    assert_eq!(
        world.choose(112, &headers[0]).await.unwrap(),
        block(&headers[1])
    );
    world
        .l1
        .state
        .lock()
        .answers
        .insert("eth_getBlockByNumber", Err((-32000, "away".into())));
    for time in [114, 500, 1912] {
        assert_eq!(
            world.choose(time, &headers[1]).await.unwrap(),
            block(&headers[1]),
            "{time}"
        );
    }
    let error = world.choose(1914, &headers[1]).await.unwrap_err();
    assert!(matches!(error, SequencerError::L1(_)), "{error}");
    world.l1.state.lock().answers.clear();
    assert_eq!(
        world.choose(1914, &headers[1]).await.unwrap(),
        block(&headers[2])
    );
}

#[tokio::test]
async fn an_endpoint_behind_its_own_head_is_a_passing_error() {
    let headers = chain(10, 100, 4, 1);
    let mut world = World::new(&headers, 0).await;
    world.l1.set(&headers[..1]);
    let error = world.choose(112, &headers[1]).await.unwrap_err();
    assert!(
        matches!(error, SequencerError::OriginAhead(origin) if origin == block(&headers[1]).id()),
        "{error}"
    );
    world
        .l1
        .state
        .lock()
        .answers
        .insert("eth_getBlockByNumber", Err((-32000, "busy".into())));
    assert!(matches!(
        world.choose(112, &headers[1]).await.unwrap_err(),
        SequencerError::L1(_)
    ));
}
