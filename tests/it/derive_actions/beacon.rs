//! A stand-in beacon node in front of an L1 that serves blobs by block number (its slot number). It
//! has the paths that anvil's beacon API lacks, serves several versioned hashes at once, and fails
//! on command.

use crate::{
    net::{ask, head, number},
    stand_in::{listen, read_request, response},
};
use alloy_primitives::{B256, Bytes, hex};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Faults in the responses to requests for blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeaconFault {
    None,
    /// The right blobs in another order, with one additional blob.
    Reordered,
    /// Status 404 for requests of blobs and of sidecars.
    NotFound,
    /// Status 500 for requests of blobs and of sidecars.
    Broken,
    /// One field element of one blob is changed.
    Wrong,
    /// One blob is left out.
    Missing,
    /// The response is a web page with status 200.
    Html,
    /// No response.
    Silence,
    /// Status 405 for requests of blobs; requests of sidecars succeed.
    OnlySidecars,
}

/// Numbering of the stand-in's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeaconSlots {
    /// Slot numbers are the L1's slot numbers, which equal its block numbers.
    Numbers,
    /// A slot number is a time in Unix seconds.
    Seconds,
}

/// The L1 whose blobs the stand-in serves.
#[derive(Clone)]
struct Upstream {
    rpc: String,
    beacon: String,
    slots: BeaconSlots,
}

impl Upstream {
    /// Numbers of the blocks in this slot. A busy anvil gives the same second to several blocks.
    fn blocks_in(&self, slot: u64) -> Vec<u64> {
        if self.slots == BeaconSlots::Numbers {
            return vec![slot];
        }
        let time = |at: u64| {
            let params = json!([format!("{at:#x}"), false]);
            number(&ask(&self.rpc, "eth_getBlockByNumber", params)["timestamp"])
        };
        let Some(newest) = head(&self.rpc) else {
            return vec![];
        };
        // Binary search: blocks below `low` are before the slot's time, blocks from `high` on are
        // not.
        let (mut low, mut high) = (0, newest + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if time(middle) < slot {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..=newest)
            .take_while(|number| time(*number) == slot)
            .collect()
    }
}

/// State shared by the server's threads.
struct BeaconState {
    upstream: Upstream,
    fault: BeaconFault,
    /// Requests for blobs and sidecars since the current fault was set.
    requests: usize,
}

impl BeaconState {
    fn count_request(&mut self) -> (Upstream, BeaconFault) {
        self.requests += 1;
        (self.upstream.clone(), self.fault)
    }
}

pub struct StandInBeacon {
    pub url: String,
    state: Arc<Mutex<BeaconState>>,
}

impl StandInBeacon {
    /// Serves the blobs of the L1 with this JSON-RPC and this beacon API, until the test process
    /// ends.
    pub fn start(rpc: &str, beacon: &str) -> Self {
        Self::with_slots(rpc, beacon, BeaconSlots::Numbers)
    }

    /// Serves blobs with a slot for every second, for an L1 whose blocks follow the clock.
    pub fn by_time(rpc: &str, beacon: &str) -> Self {
        Self::with_slots(rpc, beacon, BeaconSlots::Seconds)
    }

    fn with_slots(rpc: &str, beacon: &str, slots: BeaconSlots) -> Self {
        let state = Arc::new(Mutex::new(BeaconState {
            upstream: Upstream {
                rpc: rpc.into(),
                beacon: beacon.into(),
                slots,
            },
            fault: BeaconFault::None,
            requests: 0,
        }));
        let shared = state.clone();
        let url = listen(move |stream| serve(stream, &shared));
        Self { url, state }
    }

    pub fn set(&self, fault: BeaconFault) {
        let mut state = self.state.lock().expect("no panic");
        (state.fault, state.requests) = (fault, 0);
    }

    /// Number of requests for blobs and sidecars since the current fault was set.
    pub fn requests(&self) -> usize {
        self.state.lock().expect("no panic").requests
    }
}

/// Reads one request and responds.
fn serve(mut stream: TcpStream, state: &Mutex<BeaconState>) -> std::io::Result<()> {
    let path = read_request(&stream)?.path;
    let (path, query) = path.split_once('?').unwrap_or((&path, ""));
    let answer = match path {
        "/eth/v1/node/version" => Some(ok(json!({ "version": "stand-in" }))),
        "/eth/v1/config/spec" => {
            let seconds = match state.lock().expect("no panic").upstream.slots {
                BeaconSlots::Numbers => "12",
                BeaconSlots::Seconds => "1",
            };
            Some(ok(json!({ "SECONDS_PER_SLOT": seconds })))
        }
        "/eth/v1/beacon/genesis" => {
            let upstream = state.lock().expect("no panic").upstream.clone();
            Some(ok(match upstream.slots {
                BeaconSlots::Numbers => get(&upstream.beacon, path)?["data"].take(),
                BeaconSlots::Seconds => json!({ "genesis_time": "0" }),
            }))
        }
        path => blobs_or_fault(path, query, state)?,
    };
    let Some((status, body)) = answer else {
        std::thread::sleep(Duration::from_secs(60));
        return Ok(());
    };
    stream.write_all(response(status, &body).as_bytes())
}

fn ok(data: Value) -> (u16, String) {
    (200, json!({ "data": data }).to_string())
}

/// Status and body of the response; `None` if there is to be no response.
fn blobs_or_fault(
    path: &str,
    query: &str,
    state: &Mutex<BeaconState>,
) -> std::io::Result<Option<(u16, String)>> {
    let (upstream, fault) = state.lock().expect("no panic").count_request();
    let is_sidecars = path.contains("/blob_sidecars/");
    let slot = path.rsplit('/').next().unwrap_or_default();
    let slot: u64 = slot.parse().expect("a slot");
    let parameters = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let values = pairs.filter(|(key, _)| *key == name);
        values
            .map(|(_, value)| value.to_owned())
            .collect::<Vec<_>>()
    };
    let not_found = Some((404, json!({ "code": 404 }).to_string()));
    let numbers = upstream.blocks_in(slot);
    let Some(number) = numbers.first().copied() else {
        return Ok(not_found);
    };
    match fault {
        BeaconFault::NotFound => return Ok(not_found),
        BeaconFault::Broken => return Ok(Some((500, "{}".into()))),
        BeaconFault::Html => return Ok(Some((200, "<html>sign in</html>".into()))),
        BeaconFault::Silence => return Ok(None),
        BeaconFault::OnlySidecars if is_sidecars => {
            let indices = parameters("indices");
            return Ok(Some(ok(sidecars(&upstream, number, &indices)?)));
        }
        BeaconFault::OnlySidecars => return Ok(Some((405, "{}".into()))),
        _ if is_sidecars => return Ok(not_found),
        _ => {}
    }
    let mut blobs = vec![];
    for hash in parameters("versioned_hashes") {
        let mut found = numbers.iter().map(|it| blob(&upstream.beacon, *it, &hash));
        let Some(blob) = found.find_map(Result::transpose).transpose()? else {
            return Ok(not_found);
        };
        blobs.push(json!(blob));
    }
    match fault {
        BeaconFault::Reordered => {
            blobs.reverse();
            blobs.push(json!(Bytes::from(vec![0; 131_072])));
        }
        BeaconFault::Missing => _ = blobs.pop(),
        BeaconFault::Wrong => {
            let text = blobs[0].as_str().expect("hex").to_owned();
            // Change the last digit of the last field element, which is padding.
            let changed = text.strip_suffix('0').expect("padding");
            blobs[0] = json!(format!("{changed}1"));
        }
        _ => {}
    }
    Ok(Some(ok(json!(blobs))))
}

/// The blob of block `number` with this versioned hash, read from the L1; `None` if the block has
/// no such blob.
fn blob(upstream: &str, number: u64, hash: &str) -> std::io::Result<Option<Bytes>> {
    let path = format!("/eth/v1/beacon/blobs/{number}?versioned_hashes={hash}");
    let mut answer = get(upstream, &path)?;
    let blob = answer["data"].get_mut(0).map(Value::take);
    Ok(blob.map(|blob| serde_json::from_value(blob).expect("a blob")))
}

/// The sidecars of a block's blobs, limited to these indices.
fn sidecars(upstream: &Upstream, number: u64, indices: &[String]) -> std::io::Result<Value> {
    let number_hex = json!([format!("{number:#x}"), true]);
    let block = ask(&upstream.rpc, "eth_getBlockByNumber", number_hex);
    let transactions = block["transactions"].as_array().expect("a list").iter();
    let hashes = transactions
        .filter_map(|transaction| transaction["blobVersionedHashes"].as_array())
        .flatten();
    let hashes: Vec<B256> = hashes
        .map(|hash| serde_json::from_value(hash.clone()).expect("a hash"))
        .collect();
    let kzg = c_kzg::ethereum_kzg_settings(8);
    let mut found = vec![];
    for index in indices {
        let at: usize = index.parse().expect("an index");
        let bytes = blob(&upstream.beacon, number, &hashes[at].to_string())?.expect("a blob");
        let blob = c_kzg::Blob::from_bytes(&bytes).expect("a blob");
        let commitment = kzg.blob_to_kzg_commitment(&blob).expect("a commitment");
        let commitment = commitment.to_bytes();
        let proof = kzg.compute_blob_kzg_proof(&blob, &commitment);
        let proof = proof.expect("a proof").to_bytes();
        found.push(json!({
            "index": index,
            "blob": bytes,
            "kzg_commitment": hex::encode_prefixed(commitment.as_slice()),
            "kzg_proof": hex::encode_prefixed(proof.as_slice()),
        }));
    }
    Ok(json!(found))
}

/// Requests a path of the L1's own beacon API, and parses the JSON.
fn get(upstream: &str, path: &str) -> std::io::Result<Value> {
    let host = upstream.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    Ok(serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {answer}")))
}
