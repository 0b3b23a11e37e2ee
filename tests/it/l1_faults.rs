//! Faults of real L1 and beacon providers, one by one: an endpoint with the fault is read in spite of it,
//! or fails with an error that names it, and a second endpoint replaces it.
//!
//! All faults are read at the same time, over one recorded L1.

use crate::{
    derive::{RecordedL1, Recording},
    net::{Running, installed, wait},
};
use alloy_eips::eip4844::Blob;
use futures::future::join_all;
use starling::{
    rollup::{
        beacon::{BeaconAddress, BeaconClient, BeaconConfig},
        l1::{L1BlockAt, L1BlockData, L1Blocks, L1Client, L1Config, L1Tag, Prefetcher, Watched},
    },
    secret::Secret,
};
use starling_proto::{attributes::ReceiptLogs, config::RollupConfig, derive::BlobRef};
use starling_testkit::free_port;
use std::{fmt::Display, net::TcpStream, process::Command, sync::Arc, time::Duration};

/// Blocks that are read in batches. Some have transactions of two kinds.
const BLOCKS: std::ops::RangeInclusive<u64> = 21..=38;
/// Pause after a failed call, and the number of calls. A client observes cool-downs by itself.
const PAUSE: Duration = Duration::from_millis(50);
const TRIES: usize = 100;
/// Number of calls of an endpoint whose fault is not overcome.
const FAILING_TRIES: usize = 2;

/// The result of reading an endpoint with a fault.
#[derive(Clone, Copy, Debug)]
enum FaultResult {
    /// Everything is read, the same as without the fault.
    Read,
    /// Reading fails with an error that contains this text.
    Fails(&'static str),
}
use FaultResult::{Fails, Read};

/// Faults of L1: the rest of the URL behind its port, and the result.
const L1_FAULTS: [(&str, FaultResult); 30] = [
    ("/l/none", Read),
    ("/l/auth", Read),
    ("/l/key?apikey=S", Read),
    ("/l/key", Fails("HTTP status 401")),
    ("/l/r429", Read),
    ("/l/jr429", Read),
    ("/l/liminfura-4", Read),
    ("/l/liminfura200-4", Read),
    ("/l/limalchemy-4", Read),
    ("/l/limalchemy429-4", Read),
    ("/l/limquick-4", Read),
    ("/l/limquick7-4", Read),
    ("/l/limankr-4", Read),
    ("/l/nobatch", Read),
    ("/l/maxbatch", Read),
    ("/l/nullonce", Read),
    ("/l/nullalways", Fails("does not have block")),
    ("/l/emptyalways", Fails("untrue response")),
    ("/l/norcpts", Read),
    ("/l/norcpts33", Read),
    ("/l/erigon", Read),
    ("/l/forbid", Read),
    ("/l/nofinal", Read),
    ("/l/nullfinal", Read),
    ("/l/lag", Read),
    ("/l/extra", Read),
    ("/l/reorder", Read),
    ("/l/slow", Read),
    ("/l/gzip", Read),
    ("/l/textplain", Read),
];

/// Faults of the beacon API.
const BEACON_FAULTS: [(&str, FaultResult); 20] = [
    ("/b/none", Read),
    ("/b/auth", Read),
    ("/b/key?key=SECRET", Read),
    ("/b/key", Fails("HTTP status 401")),
    ("/b/hdr", Read),
    ("/b/empty", Fails("is not among the 0 it sent")),
    ("/b/nulldata", Fails("malformed response")),
    ("/b/das", Fails("HTTP status 400")),
    ("/b/e404", Fails("HTTP status 404")),
    ("/b/e500", Fails("HTTP status 500")),
    ("/b/html", Fails("a web page where JSON was expected")),
    ("/b/hang", Fails("no response within")),
    ("/b/gone", Fails("HTTP status 410")),
    ("/b/e429", Read),
    // The recorded beacon node has no sidecars.
    ("/b/no_blobs_ep", Fails("blob_sidecars")),
    ("/b/no_sidecars_ep", Read),
    ("/b/wrong", Fails("untrue response")),
    ("/b/short", Fails("is not among the 0 it sent")),
    ("/b/extra", Read),
    ("/b/gzip", Read),
];

/// The proxy, before a recorded L1.
struct FaultyL1 {
    _proxy: Running,
    _recorded: RecordedL1,
    port: u16,
    watched: Watched,
}

impl FaultyL1 {
    /// Starts the proxy. `None`, recorded as a skip, without its tool or its Python library.
    fn start() -> Option<Self> {
        let recording = Recording::of("jovian-blobs")?;
        let script = starling_testkit::shared("tools/l1_fault_proxy.py")?;
        let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
        let imports = Command::new(&python)
            .args(["-c", "import aiohttp"])
            .output();
        let what = "aiohttp (run pip install -r tests/clients/requirements.txt)";
        if !installed(imports.is_ok_and(|output| output.status.success()), what) {
            return None;
        }
        let (recorded, port) = (recording.serve(&[]), free_port());
        let proxy = Command::new(python)
            .arg(script)
            .args(["--l1", &recorded.url, "--beacon", &recorded.beacon])
            .args(["--port", &port.to_string()])
            .spawn()
            .map(|child| Running { child })
            .expect("the proxy starts");
        wait("the proxy", Duration::from_secs(60), || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        let text = std::fs::read_to_string(recording.folder.join("rollup.json"));
        let rollup = RollupConfig::from_json(&text.expect("rollup.json"));
        Some(Self {
            watched: Watched::from(&rollup.expect("a rollup config")),
            _proxy: proxy,
            _recorded: recorded,
            port,
        })
    }

    fn url(&self, rest: &str) -> String {
        let user = if rest.ends_with("/auth") {
            "me:pw@"
        } else {
            ""
        };
        format!("http://{user}127.0.0.1:{}{rest}", self.port)
    }

    fn l1(&self, rest: &str) -> L1Client {
        L1Client::new(&L1Config::new(self.url(rest))).expect("a client")
    }

    /// A client of these endpoints, of which only a faulty one hangs.
    fn beacon(&self, rests: &[&str]) -> BeaconClient {
        let address = |rest: &&str| BeaconAddress {
            header: Some(Secret::new("X-Api-Key: abc")),
            ..BeaconAddress::new(Secret::new(self.url(rest)))
        };
        let mut config = BeaconConfig::new(vec![]);
        config.addresses = rests.iter().map(address).collect();
        if rests.contains(&"/b/hang") {
            config.timeout = Duration::from_secs(3);
        }
        BeaconClient::new(&config).expect("a client")
    }
}

impl FaultResult {
    fn tries(self) -> usize {
        match self {
            Read => TRIES,
            Fails(_) => FAILING_TRIES,
        }
    }

    /// The difference between this result and what was read, as a sentence.
    fn difference<T: PartialEq>(
        self,
        fault: &str,
        read: Result<T, String>,
        right: &T,
    ) -> Option<String> {
        match (self, read) {
            (Read, Ok(read)) if read == *right => None,
            (Read, Ok(_)) => Some(format!("{fault}: something else was read")),
            (Fails(text), Err(error)) if error.contains(text) => None,
            (_, Err(error)) => Some(format!("{fault}: {error}")),
            (Fails(_), Ok(_)) => Some(format!("{fault}: it was read")),
        }
    }
}

/// Repeats a call until it succeeds. Returns the last error otherwise.
async fn repeated<T, E: Display>(
    tries: usize,
    mut call: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, String> {
    let mut failure = String::new();
    for _ in 0..tries {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) => failure = error.to_string(),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(failure)
}

/// Everything that a node reads of L1.
#[derive(Debug, PartialEq)]
struct L1Reading {
    chain_id: u64,
    blocks: Vec<Arc<L1BlockData>>,
    receipts: Vec<Vec<ReceiptLogs>>,
}

/// Reads the chain id, the heads, and blocks with all their receipts.
async fn read_l1(l1: L1Client, watched: Watched, tries: usize) -> Result<L1Reading, String> {
    let chain_id = repeated(tries, async || l1.chain_id().await).await?;
    let head = repeated(tries, async || l1.block(L1Tag::Latest).await).await?;
    let head = head.ok_or("no head")?.number;
    for tag in [L1Tag::Safe, L1Tag::Finalized] {
        let block = repeated(tries, async || l1.block(tag).await).await?;
        if block.is_some_and(|block| block.number > head) {
            return Err(format!("{block:?} is above the head {head}"));
        }
    }
    let reader = L1Blocks::new(l1.clone(), watched, 100);
    let mut prefetcher = Prefetcher::new(reader, 4, 20);
    let (mut blocks, mut receipts) = (vec![], vec![]);
    for number in BLOCKS {
        let next = repeated(tries, async || prefetcher.next(number, *BLOCKS.end()).await);
        blocks.push(next.await?.ok_or("no block")?);
    }
    for data in &blocks {
        receipts.push(repeated(tries, async || l1.receipts(&data.block).await).await?);
    }
    Ok(L1Reading {
        chain_id,
        blocks,
        receipts,
    })
}

/// The time of a block and its only blob.
async fn block_with_blob(l1: L1Client, watched: Watched) -> (u64, BlobRef) {
    let reader = L1Blocks::new(l1, watched, 100);
    for number in BLOCKS {
        let data = reader.get(L1BlockAt::Number(number)).await;
        let data = data.expect("the recorded L1").expect("a block");
        let blobs: Vec<_> = data.inbox.iter().flat_map(|it| it.blobs.clone()).collect();
        if let [blob] = blobs.as_slice() {
            return (data.block.time, *blob);
        }
    }
    panic!("no block has one blob")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_an_l1_provider_is_overcome_or_named() {
    let Some(faulty) = FaultyL1::start() else {
        return;
    };
    let right = repeated(TRIES, async || {
        read_l1(faulty.l1("/l/none"), faulty.watched, 1).await
    });
    let right = right.await.expect("the recorded L1");
    assert!(right.receipts.iter().any(|list| list.len() > 1));
    let reads = L1_FAULTS.map(async |(fault, expected)| {
        let read = read_l1(faulty.l1(fault), faulty.watched, expected.tries()).await;
        expected.difference(fault, read, &right)
    });
    let wrong: Vec<_> = join_all(reads).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_beacon_provider_is_overcome_or_named() {
    let Some(faulty) = FaultyL1::start() else {
        return;
    };
    let started = repeated(TRIES, async || faulty.l1("/l/none").chain_id().await);
    started.await.expect("the recorded L1");
    let (time, blob) = block_with_blob(faulty.l1("/l/none"), faulty.watched).await;
    let read = async |rests: &[&str], tries: usize| -> Result<Vec<Box<Blob>>, String> {
        let beacon = faulty.beacon(rests);
        repeated(tries, async || {
            beacon.blobs(time, std::slice::from_ref(&blob)).await
        })
        .await
    };
    let right = read(&["/b/none"], 1).await.expect("the recorded blob");
    let reads = BEACON_FAULTS.map(async |(fault, expected)| {
        let alone = read(&[fault], expected.tries()).await;
        let replaced = read(&[fault, "/b/none"], 1).await;
        let replaced = Read.difference(&format!("{fault} and another"), replaced, &right);
        expected.difference(fault, alone, &right).or(replaced)
    });
    let wrong: Vec<_> = join_all(reads).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
