//! Power cuts. A block must be on the disk before its signature is requested, and a signed block
//! must still be there after a power cut.
//!
//! The system calls of a running process are recorded. From the record the tests compute the disk
//! contents at any moment if only synced data, and some of the rest, were kept.

mod disk;
mod trace;

use crate::{
    campaign::{
        Verdict, seed, size, verify,
        world::{self, World},
    },
    net::{Devnet, Node, starling, wait},
};
use alloy_primitives::{B256, hex};
use disk::{Disk, Loss};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use starling::chain::{
    payload_log::{PayloadLog, cut_mark},
    payload_log_dir,
};
use starling_proto::{payload::Payload, sign};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use trace::{Call, Moment, Trace, is_possible, recorder};

/// Environment variable of the child: the data directory, the seed, and the number of steps.
const CHILD: &str = "STARLING_POWER_CUT_CHILD";

/// Whether strace can record processes here. If the tests' tools are required, a failure panics.
fn can_record() -> bool {
    let found =
        is_possible().inspect_err(|reason| eprintln!("system calls cannot be recorded: {reason}"));
    starling_testkit::require(found.ok(), "strace").is_some()
}

/// No test by itself: the process whose system calls are recorded.
#[test]
fn child_that_is_recorded() {
    let Ok(given) = std::env::var(CHILD) else {
        return;
    };
    let [dir, seed, steps] = given.split('|').collect::<Vec<_>>()[..] else {
        panic!("{CHILD}={given}")
    };
    let world = World::open(Path::new(dir), Some(40));
    world.run(
        &mut StdRng::seed_from_u64(seed.parse().expect("a seed")),
        steps.parse().expect("a number"),
    );
}

/// A signed block, with the height, parent and L1 origin that it was signed for.
#[derive(Clone, Debug)]
struct Signed {
    hash: B256,
    number: u64,
    parent: B256,
    origin: B256,
}

impl Signed {
    /// The block that a child prints as logged to be signed, if the moment is the beginning of that
    /// write.
    fn at(trace: &Trace, moment: Moment) -> Option<Self> {
        let Moment::Begin(at) = moment else {
            return None;
        };
        let call = Some(&trace.calls[at])
            .filter(|call| call.name == "write" && call.number(0) == Some(1))?;
        let line = String::from_utf8(call.strings.concat()).ok()?;
        let words: Vec<_> = line.trim().strip_prefix("signed ")?.split(' ').collect();
        let [hash, number, parent, origin] = words[..] else {
            return None;
        };
        let hash_of = |word: &str| word.parse().expect("a hash");
        Some(Self {
            hash: hash_of(hash),
            number: number.parse().ok()?,
            parent: hash_of(parent),
            origin: hash_of(origin),
        })
    }
}

#[test]
fn a_power_cut_loses_no_signed_block() {
    if !can_record() {
        return;
    }
    let mut rng = StdRng::seed_from_u64(seed());
    let (cuts, steps) = (
        size("STARLING_POWER_CUTS", 24),
        size("STARLING_POWER_STEPS", 150),
    );
    let mut ends = BTreeMap::<_, u32>::new();
    let mut signatures = 0;
    let temp = tempfile::tempdir().expect("a folder");
    for life in 0..cuts.div_ceil(50) {
        let (dir, record) = (world::datadir(), temp.path().join("record"));
        let mut disk = Disk::of(dir.path());
        let trace = recorded(dir.path(), &record, rng.random(), steps);
        let mut signed: Vec<Signed> = vec![];
        let moments = moments(&trace, (cuts - 50 * life).min(50), &mut rng);
        for (at, moment) in trace.moments.iter().enumerate() {
            disk.advance(&trace, *moment);
            signed.extend(Signed::at(&trace, *moment));
            for loss in moments
                .iter()
                .filter(|(moment, _)| *moment == at)
                .map(|(_, loss)| *loss)
            {
                let cut = tempfile::tempdir().expect("a folder");
                disk.cut(loss, cut.path(), &mut rng);
                let end = after_cut(cut.path(), &signed).unwrap_or_else(|error| {
                    panic!(
                        "{loss:?} is lost at moment {at} of {}: {error}; it was {}",
                        trace.moments.len(),
                        cut.keep().display()
                    )
                });
                *ends.entry(format!("{loss:?} lost, {end}")).or_default() += 1;
            }
        }
        signatures += signed.len();
    }
    println!("{cuts} power cuts, {signatures} blocks signed: {ends:?}");
    assert!(signatures > 0, "nothing was signed");
}

/// Runs the child to its end, and returns its recorded system calls.
fn recorded(dir: &Path, record: &Path, seed: u64, steps: usize) -> Trace {
    let line = recorder(record);
    let mut child = Command::new(&line[0])
        .args(&line[1..])
        .arg(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "power_cut::child_that_is_recorded",
            "--nocapture",
        ])
        .env(CHILD, format!("{}|{seed}|{steps}", dir.display()))
        .stdout(Stdio::null())
        .spawn()
        .expect("the child");
    assert!(child.wait().expect("its end").success(), "the child fails");
    Trace::read(record, child.id())
}

/// Random moments of power cuts, with the kind of loss. Half of them are soon after a signature.
fn moments(trace: &Trace, count: usize, rng: &mut StdRng) -> Vec<(usize, Loss)> {
    let signed: Vec<_> = (0..trace.moments.len())
        .filter(|at| Signed::at(trace, trace.moments[*at]).is_some())
        .collect();
    let all = [Loss::All, Loss::Last, Loss::Sectors, Loss::None];
    let weights = [4, 3, 3, 1];
    (0..count)
        .map(|i| {
            let at = match (i % 2, signed.choose(rng)) {
                (0, Some(at)) => at + rng.random_range(0..20),
                _ => rng.random_range(0..trace.moments.len()),
            };
            let loss = *all
                .choose_weighted(rng, |loss| weights[*loss as usize])
                .expect("one");
            (at.min(trace.moments.len() - 1), loss)
        })
        .collect()
}

/// Opens the data directory after a power cut, with a repair if necessary, and checks that it has
/// all blocks signed before. Returns a description of the steps.
fn after_cut(dir: &Path, signed: &[Signed]) -> Result<&'static str, String> {
    let mut end = "it opens";
    match verify(dir) {
        Verdict::Sound { .. } => {}
        Verdict::Wrong(what) => return Err(what),
        Verdict::Refused(why) => {
            end = "it opens after db repair";
            let repair = starling()
                .args(["db", "repair", "--datadir"])
                .arg(dir)
                .output()
                .expect("it runs");
            if !matches!(verify(dir), Verdict::Sound { .. }) {
                return Err(format!(
                    "{why}\ndb repair: {}",
                    String::from_utf8_lossy(&repair.stderr)
                ));
            }
        }
    }
    let world = World::open(dir, None);
    signed
        .iter()
        .try_for_each(|block| world.keeps(block.hash, block.number, block.parent, block.origin))?;
    // After this kind of cut the node signs only once an operator has confirmed it.
    Ok(if cut_mark(&payload_log_dir(dir)).exists() {
        "it opens after db repair, and signs when the operator says so"
    } else {
        end
    })
}

/// Starts a remote signer without TLS. Returns its URL.
fn signer(key: &str) -> String {
    let secret = sign::secret_from_hex(key).expect("a key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.ok()?, &secret));
        }
    });
    address
}

/// Responds to the signer's requests on a connection until it ends.
fn answer(stream: TcpStream, secret: &sign::SecretKey) -> Option<()> {
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            requests
                .read_line(&mut line)
                .ok()
                .filter(|read| *read > 0)?;
            let given = line
                .to_ascii_lowercase()
                .strip_prefix("content-length:")
                .and_then(|rest| rest.trim().parse().ok());
            length = given.unwrap_or(length);
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body).ok()?;
        let call: Value = serde_json::from_slice(&body).ok()?;
        let result = match call["method"].as_str()? {
            "health_status" => "stand-in".to_owned(),
            _ => {
                let (chain, hash) = (
                    &call["params"][0]["chainId"],
                    &call["params"][0]["payloadHash"],
                );
                let hash =
                    sign::signing_hash(chain.as_str()?.parse().ok()?, hash.as_str()?.parse().ok()?);
                hex::encode_prefixed(sign::sign_hash(secret, hash))
            }
        };
        let body = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result }).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        (&stream).write_all((head + &body).as_bytes()).ok()?;
    }
}

/// A sequencer whose blocks a remote signer signs. Its system calls are recorded from its start
/// until it is killed.
struct Recorded {
    _net: Devnet,
    datadir: PathBuf,
    /// Blocks that were logged before the record begins.
    earlier: BTreeSet<B256>,
    /// The sequencer's disk at the beginning of the record.
    disk: Disk,
    trace: Trace,
}

fn recorded_sequencer(blocks: u64) -> Recorded {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (sequencer, replica) = (net.sequencer(), net.replicas().remove(0));
    wait("some blocks", Duration::from_secs(60), || {
        crate::net::head(&replica.http).filter(|number| *number >= 2)
    });
    sequencer.kill9();
    let named = |option: &str| {
        sequencer
            .command
            .iter()
            .find_map(|given| given.strip_prefix(option))
            .expect("an option")
    };
    let datadir = PathBuf::from(named("--datadir="));
    let earlier = logged(&payload_log_dir(&datadir))
        .into_values()
        .map(|payload| payload.hash)
        .collect();
    let disk = Disk::of(&datadir);

    let key = std::fs::read_to_string(net.dir.join("sequencer.key")).expect("the key");
    let address = sign::address(&sign::secret_from_hex(key.trim()).expect("a key"));
    let options = [
        format!("--signer.endpoint={}", signer(key.trim())),
        format!("--signer.address={address}"),
        "--signer.tls.enabled=false".into(),
        "--p2p.sequencer.key.path=".into(),
    ];
    let record = net.dir.join("record");
    let command = [recorder(&record), sequencer.command.clone()].concat();
    let before = crate::net::head(&replica.http).expect("the replica answers");
    let mut running = Node {
        command,
        ..sequencer
    }
    .restart_with(&net.dir.join("recorded.log"), &options);
    let enough = before + blocks;
    wait("signed blocks", Duration::from_secs(120), || {
        crate::net::head(&replica.http).filter(|number| *number >= enough)
    });
    running.kill9();
    let trace = Trace::read(&record, running.child.id());
    Recorded {
        _net: net,
        datadir,
        earlier,
        disk,
        trace,
    }
}

/// The payloads in a log, by their signing hash.
fn logged(log: &Path) -> BTreeMap<B256, Payload> {
    let payloads = PayloadLog::open(log)
        .expect("the log")
        .after(0)
        .map(|logged| logged.expect("a payload").payload);
    payloads
        .map(|payload| {
            (
                sign::payload_hash(&payload.to_wire(payload.version())),
                payload,
            )
        })
        .collect()
}

/// The payload hash in a request to sign, if `request` is one.
fn asked_for(request: &[u8]) -> Option<B256> {
    let text = String::from_utf8_lossy(request);
    let hash = text
        .split_once("opsigner_signBlockPayload")?
        .1
        .split_once("\"payloadHash\":\"")?
        .1
        .get(..66)?;
    hash.parse().ok()
}

#[test]
fn a_sequencer_writes_and_syncs_a_block_before_it_asks_for_its_signature() {
    if !can_record() {
        return;
    }
    let Recorded {
        _net,
        datadir,
        earlier,
        mut disk,
        trace,
    } = recorded_sequencer(6);
    let log = payload_log_dir(&datadir);
    let mut rng = StdRng::seed_from_u64(seed());
    let payloads = logged(&log);
    let mut journals = JournalCalls::default();
    let mut signed = BTreeSet::new();
    for (now, moment) in trace.moments.iter().enumerate() {
        disk.advance(&trace, *moment);
        let (Moment::Begin(at) | Moment::End(at)) = *moment;
        let call = &trace.calls[at];
        let journal = disk.path(call).filter(|path| {
            path.starts_with(&log) && path.extension().is_some_and(|end| end == "jnl")
        });
        if let Some(path) = journal {
            journals.note(now, *moment, call, path);
            continue;
        }
        let sends = ["write", "writev", "sendto", "sendmsg"].contains(&&*call.name);
        let begins = matches!(moment, Moment::Begin(_));
        if sends
            && begins
            && let Some(hash) = asked_for(&call.strings.concat())
        {
            let payload = &payloads[&hash];
            let logged_now = journals.holds_synced(&trace, payload);
            // The newest block from before the record is published again, and so signed again.
            assert!(
                logged_now || earlier.contains(&payload.hash),
                "block {} is not logged when its signature is asked for",
                payload.number()
            );
            signed.insert(payload.hash);
            survive_a_cut(&disk, &signed, &mut rng);
        }
    }
    println!(
        "{} signatures asked for, {} writes and {} syncs of the log",
        signed.len(),
        journals.writes.len(),
        journals.syncs.len()
    );
    assert!(signed.len() >= 6, "{}", signed.len());
}

/// Writes and syncs of the payload log's journals. A moment is an index into the record.
#[derive(Default)]
struct JournalCalls {
    writes: Vec<JournalWrite>,
    syncs: Vec<JournalSync>,
    /// For each running sync, by its call number: the moment at which it began.
    begun: BTreeMap<usize, usize>,
}

struct JournalWrite {
    journal: PathBuf,
    call: usize,
    ended: usize,
}

struct JournalSync {
    journal: PathBuf,
    /// Moment at which the sync began. The sync has also ended.
    begun: usize,
}

impl JournalCalls {
    fn note(&mut self, now: usize, moment: Moment, call: &Call, journal: PathBuf) {
        match (moment, &*call.name) {
            (Moment::End(call), "write" | "writev" | "pwrite64") => {
                self.writes.push(JournalWrite {
                    journal,
                    call,
                    ended: now,
                })
            }
            (Moment::Begin(at), "fsync" | "fdatasync") => drop(self.begun.insert(at, now)),
            (Moment::End(at), "fsync" | "fdatasync") => self.syncs.push(JournalSync {
                journal,
                begun: self.begun[&at],
            }),
            _ => {}
        }
    }

    /// Whether a block was written to a journal. Panics if the journal was not synced after the
    /// write.
    fn holds_synced(&self, trace: &Trace, payload: &Payload) -> bool {
        let holds = |at: usize| {
            let bytes = trace.calls[at].bytes();
            bytes
                .windows(32)
                .any(|window| window == payload.hash.as_slice())
        };
        let Some(write) = self.writes.iter().find(|write| holds(write.call)) else {
            return false;
        };
        let synced = self
            .syncs
            .iter()
            .any(|sync| sync.journal == write.journal && sync.begun > write.ended);
        assert!(
            synced,
            "block {} is not synced when its signature is asked for",
            payload.number()
        );
        true
    }
}

/// Checks that the payload log still has these blocks after a power cut.
fn survive_a_cut(disk: &Disk, signed: &BTreeSet<B256>, rng: &mut StdRng) {
    let cut = tempfile::tempdir().expect("a folder");
    disk.cut(Loss::All, cut.path(), rng);
    let kept = PayloadLog::open(&payload_log_dir(cut.path())).expect("the log after a power cut");
    for hash in signed {
        assert!(
            kept.by_hash(*hash).expect("a read").is_some(),
            "a power cut after {} signatures loses {hash}",
            signed.len()
        );
    }
}
