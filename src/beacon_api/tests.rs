//! The served paths, read with the beacon client of rollup nodes.

use super::*;
use crate::{
    chain::{
        Threads, kzg,
        rows::ExecutedBlock,
        tests::blobs::{L1Forks, blob, mine, raw, submit, test_l1},
        transaction::ChainTx,
    },
    rollup::beacon::{BeaconCause, BeaconClient, BeaconConfig},
    secret::Secret,
};
use alloy_consensus::Transaction;
use alloy_primitives::B256;
use serde_json::Value;
use starling_proto::derive::BlobRef;
use tempfile::TempDir;

/// A chain with a Beacon API server that serves its blobs.
struct World {
    chain: Chain,
    threads: Threads,
    address: SocketAddr,
    token: CancellationToken,
    _datadir: TempDir,
}

impl World {
    async fn new(forks: L1Forks, seconds_per_slot: u64) -> Self {
        let (datadir, chain, threads) = test_l1(forks);
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = BeaconServer::bind(loopback, chain.clone(), seconds_per_slot)
            .await
            .unwrap();
        let (address, token) = (server.address(), CancellationToken::new());
        tokio::spawn(server.run(token.clone()));
        Self {
            chain,
            threads,
            address,
            token,
            _datadir: datadir,
        }
    }

    fn client(&self, fetch_all_sidecars: bool) -> BeaconClient {
        let url = Secret::new(format!("http://{}", self.address));
        let config = BeaconConfig {
            fetch_all_sidecars,
            ..BeaconConfig::new(vec![url])
        };
        BeaconClient::new(&config).unwrap()
    }

    /// Status and JSON of the response for a path.
    async fn get(&self, path: &str) -> (u16, Value) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    async fn stop(self) {
        self.token.cancel();
        drop(self.chain);
        self.threads.stop().unwrap();
    }
}

/// References to all blobs of a block's transactions.
fn refs(block: &ExecutedBlock) -> Vec<BlobRef> {
    let transactions = block.payload.transactions.iter();
    let hashes = transactions.flat_map(|raw| {
        let tx = ChainTx::decode(raw).unwrap();
        tx.blob_versioned_hashes().unwrap_or_default().to_vec()
    });
    let blob_ref = |(index, versioned_hash)| BlobRef {
        index,
        versioned_hash,
    };
    (0..).zip(hashes).map(blob_ref).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_beacon_client_reads_the_blobs_of_a_block_by_either_path() {
    for (seconds_per_slot, osaka) in [(1, None), (12, Some(0))] {
        let forks = L1Forks {
            prague: osaka,
            osaka,
            bpo1: None,
        };
        let world = World::new(forks, seconds_per_slot).await;
        let make = if osaka.is_some() {
            kzg::cell_sidecar
        } else {
            kzg::sidecar
        };
        let mut blocks = Vec::new();
        for key in 1..=2 {
            let blobs = vec![blob(2 * key), blob(2 * key + 1)];
            let other = vec![blob(16 * key)];
            submit(&world.chain, raw(key, 0, make(blobs.clone()).unwrap())).unwrap();
            submit(&world.chain, raw(key + 2, 0, make(other.clone()).unwrap())).unwrap();
            let block = mine(&world.chain, 12).await;
            blocks.push((block, [blobs, other].concat()));
        }
        for client in [world.client(false), world.client(true)] {
            client.check_health().await.unwrap();
            let clock = client.clock_of(0).await.unwrap();
            assert_eq!(clock.seconds_per_slot, seconds_per_slot);
            assert_eq!(clock.genesis_time, world.chain.spec().genesis_time);
            for (block, blobs) in &blocks {
                let (time, wanted) = (block.payload.timestamp(), refs(block));
                let found = client.blobs(time, &wanted).await.unwrap();
                let found: Vec<_> = found.into_iter().map(|blob| *blob).collect();
                assert_eq!(&found, blobs);
                let one = client.blobs(time, &wanted[1..2]).await.unwrap();
                assert_eq!(*one[0], blobs[1]);
            }
            let (other, wanted) = (&blocks[1].0, refs(&blocks[0].0));
            let wrong = client.blobs(other.payload.timestamp(), &wanted).await;
            let cause = wrong.unwrap_err().cause;
            assert!(matches!(cause, BeaconCause::Untrue(_)), "{cause}");
            let later = other.payload.timestamp() + 12;
            let none = client.blobs(later, &wanted).await.unwrap_err().cause;
            assert_eq!(none, BeaconCause::NotFound);
        }
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_holds_the_blobs_of_all_its_blocks() {
    let world = World::new(L1Forks::default(), 12).await;
    let mut wanted = Vec::new();
    for nonce in 0..3 {
        let sidecar = kzg::sidecar(vec![blob(nonce + 1)]).unwrap();
        submit(&world.chain, raw(1, nonce.into(), sidecar)).unwrap();
        wanted.extend(refs(&*mine(&world.chain, 4).await));
    }
    // The blocks are at 4, 8 and 12 seconds; the block at 12 seconds is in the next slot.
    let time = world.chain.spec().genesis_time;
    let client = world.client(false);
    assert_eq!(client.blobs(time, &wanted[..2]).await.unwrap().len(), 2);
    assert_eq!(
        client.blobs(time + 12, &wanted[2..]).await.unwrap().len(),
        1
    );
    assert!(client.blobs(time, &wanted).await.is_err());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_form_of_the_beacon_api() {
    let world = World::new(L1Forks::default(), 12).await;
    let sidecar = kzg::sidecar(vec![blob(1), blob(2)]).unwrap();
    submit(&world.chain, raw(1, 0, sidecar.clone())).unwrap();
    mine(&world.chain, 12).await;
    mine(&world.chain, 12).await;
    let (status, version) = world.get("/eth/v1/node/version").await;
    let name = version["data"]["version"].as_str().unwrap();
    assert!(status == 200 && name.starts_with("starling/v"));
    let (_, genesis) = world.get("/eth/v1/beacon/genesis").await;
    let time = world.chain.spec().genesis_time.to_string();
    assert_eq!(genesis["data"]["genesis_time"], time.as_str());
    let (_, spec) = world.get("/eth/v1/config/spec").await;
    assert_eq!(spec["data"]["SECONDS_PER_SLOT"], "12");
    assert_eq!(
        spec["data"]["MIN_EPOCHS_FOR_BLOB_SIDECARS_REQUESTS"],
        "4096"
    );

    let hashes: Vec<B256> = sidecar.versioned_hashes().collect();
    let (_, all) = world.get("/eth/v1/beacon/blobs/1").await;
    assert_eq!(all["data"].as_array().unwrap().len(), 2);
    let query = format!("versioned_hashes={},{}", hashes[1], B256::ZERO);
    let (_, one) = world.get(&format!("/eth/v1/beacon/blobs/1?{query}")).await;
    assert_eq!(one["data"], serde_json::json!([all["data"][1]]));
    let (_, sidecars) = world.get("/eth/v1/beacon/blob_sidecars/1?indices=1").await;
    assert_eq!(sidecars["data"][0]["index"], "1");
    assert_eq!(sidecars["data"][0]["blob"], all["data"][1]);
    let commitment = sidecar.commitments()[1].to_string();
    assert_eq!(sidecars["data"][0]["kzg_commitment"], commitment.as_str());
    assert_eq!(sidecars["data"].as_array().unwrap().len(), 1);
    // Slots without blobs or without a block, an unknown path and malformed queries.
    for (path, status) in [
        ("/eth/v1/beacon/blobs/2", 200),
        ("/eth/v1/beacon/blobs/0", 200),
        ("/eth/v1/beacon/blobs/3", 404),
        ("/eth/v1/beacon/blobs/18446744073709551615", 404),
        ("/eth/v1/beacon/blobs/18446744073709551616", 400),
        ("/eth/v1/beacon/blobs/head", 400),
        ("/eth/v1/beacon/blobs/1?versioned_hashes=0x12", 400),
        ("/eth/v1/beacon/blob_sidecars/1?indices=-1", 400),
        ("/eth/v1/beacon/headers/head", 404),
        ("/", 404),
    ] {
        let (have, answer) = world.get(path).await;
        assert_eq!(have, status, "{path}: {answer}");
        match status {
            200 => assert_eq!(answer["data"], serde_json::json!([]), "{path}"),
            _ => assert_eq!(answer["code"], status, "{path}"),
        }
    }
    let many = vec!["indices=1"; 257].join("&");
    let many = format!("/eth/v1/beacon/blob_sidecars/1?{many}");
    assert_eq!(world.get(&many).await.0, 400);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_that_are_gone_are_not_found() {
    let world = World::new(L1Forks::default(), 1).await;
    let sidecar = kzg::sidecar(vec![blob(1)]).unwrap();
    submit(&world.chain, raw(1, 0, sidecar)).unwrap();
    let block = mine(&world.chain, 12).await;
    let folder = world._datadir.path().join("blobs");
    std::fs::remove_dir_all(folder).unwrap();
    let time = block.payload.timestamp();
    let error = world.client(false).blobs(time, &refs(&block)).await;
    assert_eq!(error.unwrap_err().cause, BeaconCause::NotFound);
    world.stop().await;
}
