//! The peerstore keeps data about peers over a restart. Scores, bans and operators' blocklists are
//! in a sled database at `--p2p.peerstore.path`, and records that discovery found in another one at
//! `--p2p.discovery.path`. Without a path nothing is stored.
//!
//! Keys and values are those of op-node's stores: a peer's binary id in base32, and JSON with times
//! in seconds; unknown fields are ignored. The swarm's task never touches the disk. It notes
//! changes, one value per key, so the number of keys bounds the changes. A blocking thread writes
//! all of them in one batch. A kill loses at most the changes since the last batch.

use crate::peers::score::Scores;
use data_encoding::BASE32_NOPAD;
use ipnet::IpNet;
use libp2p::PeerId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const SCORES: &str = "/peers/scores/";
const PEER_BANS: &str = "/peers/ban_expiration/";
const ADDRESS_BANS: &str = "/ips/ban_expiration/";
const BLOCKED_PEERS: &str = "/peers/blocked/";
const BLOCKED_ADDRESSES: &str = "/ips/blocked/";
const BLOCKED_SUBNETS: &str = "/subnets/blocked/";
/// Prefix of the keys of discovered nodes. It is our own: op-node's discovery database uses the
/// keys and values of its library.
const NODES: &str = "/nodes/";

/// Size of sled's cache in bytes. The whole store is a few megabytes at most.
const CACHE: u64 = 4 << 20;

/// Time for which [`Peerstore::open`] waits for the lock of a store that was just closed. sled's
/// writing threads may hold it for some milliseconds after the last handle is dropped, and a kill
/// lets it go only once the process has ended.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Time between two attempts to take the lock.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The reason why a store cannot be opened, as one sentence with the next step.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot open the p2p store {path}: {source}; stop the other process that uses it, or give another path, or 'memory', with {flag}"
)]
pub struct PeerstoreError {
    path: PathBuf,
    flag: &'static str,
    source: sled::Error,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreRecord {
    /// Time of the last change, in Unix seconds.
    pub last_update: u64,
    pub peer_scores: Scores,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BanRecord {
    /// End of the ban, in Unix seconds.
    pub expiry: u64,
    #[serde(default)]
    pub last_update: u64,
    /// Reason of the ban. An addition to op-node's format.
    #[serde(default)]
    pub reason: String,
    /// Address of the peer. An addition to op-node's format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// A node that discovery found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node's record (`enr:…`).
    pub enr: String,
    /// Time at which the node was last found, in Unix seconds.
    pub seen: u64,
}

/// One row of the store, or the removal of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreRecord {
    /// The score of a peer.
    Score(PeerId, Option<ScoreRecord>),
    /// The ban of a peer.
    PeerBan(PeerId, Option<BanRecord>),
    /// The ban of an address.
    AddressBan(IpAddr, Option<BanRecord>),
    /// Whether the peer is blocked.
    BlockedPeer(PeerId, bool),
    /// Whether the address is blocked.
    BlockedAddress(IpAddr, bool),
    /// Whether the subnet is blocked.
    BlockedSubnet(IpNet, bool),
    /// A discovered node, by its id in hexadecimal digits.
    Node(String, Option<NodeRecord>),
}

impl StoreRecord {
    /// Turns the record into the removal of its row.
    pub fn removed(self) -> Self {
        match self {
            StoreRecord::Score(peer, _) => StoreRecord::Score(peer, None),
            StoreRecord::PeerBan(peer, _) => StoreRecord::PeerBan(peer, None),
            StoreRecord::AddressBan(address, _) => StoreRecord::AddressBan(address, None),
            StoreRecord::BlockedPeer(peer, _) => StoreRecord::BlockedPeer(peer, false),
            StoreRecord::BlockedAddress(address, _) => StoreRecord::BlockedAddress(address, false),
            StoreRecord::BlockedSubnet(subnet, _) => StoreRecord::BlockedSubnet(subnet, false),
            StoreRecord::Node(id, _) => StoreRecord::Node(id, None),
        }
    }

    /// The key of the row.
    pub fn key(&self) -> String {
        let peer = |prefix: &str, peer: &PeerId| {
            format!("{prefix}{}", BASE32_NOPAD.encode(&peer.to_bytes()))
        };
        match self {
            StoreRecord::Score(id, _) => peer(SCORES, id),
            StoreRecord::PeerBan(id, _) => peer(PEER_BANS, id),
            StoreRecord::AddressBan(address, _) => format!("{ADDRESS_BANS}{address}"),
            StoreRecord::BlockedPeer(id, _) => peer(BLOCKED_PEERS, id),
            StoreRecord::BlockedAddress(address, _) => format!("{BLOCKED_ADDRESSES}{address}"),
            StoreRecord::BlockedSubnet(subnet, _) => format!("{BLOCKED_SUBNETS}{subnet}"),
            StoreRecord::Node(id, _) => format!("{NODES}{id}"),
        }
    }

    /// The value of the row; `None` removes the row.
    pub fn value(&self) -> Option<Vec<u8>> {
        match self {
            StoreRecord::Score(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
            StoreRecord::PeerBan(_, record) | StoreRecord::AddressBan(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
            StoreRecord::BlockedPeer(_, blocked)
            | StoreRecord::BlockedAddress(_, blocked)
            | StoreRecord::BlockedSubnet(_, blocked) => blocked.then(Vec::new),
            StoreRecord::Node(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
        }
    }

    /// Decodes a row. `None` for an unknown key or an unreadable value: the node starts without
    /// that row.
    pub fn read(key: &str, value: &[u8]) -> Option<Self> {
        let peer =
            |text: &str| PeerId::from_bytes(&BASE32_NOPAD.decode(text.as_bytes()).ok()?).ok();
        let (prefix, name) = key.split_at(key.rfind('/')? + 1);
        match prefix {
            SCORES => Some(StoreRecord::Score(peer(name)?, Some(json(value)?))),
            PEER_BANS => Some(StoreRecord::PeerBan(peer(name)?, Some(json(value)?))),
            ADDRESS_BANS => Some(StoreRecord::AddressBan(
                name.parse().ok()?,
                Some(json(value)?),
            )),
            BLOCKED_PEERS => Some(StoreRecord::BlockedPeer(peer(name)?, true)),
            NODES => Some(StoreRecord::Node(name.to_owned(), Some(json(value)?))),
            BLOCKED_ADDRESSES => Some(StoreRecord::BlockedAddress(name.parse().ok()?, true)),
            // The key of a subnet contains a slash of its own.
            _ => Some(StoreRecord::BlockedSubnet(
                key.strip_prefix(BLOCKED_SUBNETS)?.parse().ok()?,
                true,
            )),
        }
    }
}

fn json<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

/// Changes to write: the keys and their new values. The value `None` removes the row.
pub type StoreChanges = BTreeMap<String, Option<Vec<u8>>>;

/// The store, and the changes that are not yet written.
#[derive(Default)]
pub struct Peerstore {
    database: Option<sled::Db>,
    changes: StoreChanges,
}

impl Peerstore {
    /// Opens the store at `path`, or creates it, and reads all rows. `flag` is the option that gave
    /// the path. A damaged store is renamed and replaced by an empty one, so that the node can
    /// start. Waits for the disk, and up to 2 s for a lock that is held.
    pub fn open(
        path: Option<&Path>,
        flag: &'static str,
    ) -> Result<(Self, Vec<StoreRecord>), PeerstoreError> {
        let Some(path) = path else {
            return Ok((Self::default(), Vec::new()));
        };
        let deadline = Instant::now() + LOCK_WAIT;
        let opened = loop {
            match Self::open_at(path) {
                Err(error) if is_locked(&error) && Instant::now() < deadline => {
                    std::thread::sleep(LOCK_POLL)
                }
                opened => break opened,
            }
        };
        match opened {
            Err(error @ (sled::Error::Corruption { .. } | sled::Error::Unsupported(_))) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(format!(".damaged-{:08x}", rand::random::<u32>()));
                tracing::warn!(%error, path = %path.display(), ?aside, "the p2p store is damaged: renamed, a new one is created");
                std::fs::rename(path, aside).map_err(sled::Error::Io).and_then(|()| Self::open_at(path))
            }
            opened => opened,
        }
        .map_err(|source| PeerstoreError { path: path.to_owned(), flag, source })
    }

    fn open_at(path: &Path) -> sled::Result<(Self, Vec<StoreRecord>)> {
        let database = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE)
            .mode(sled::Mode::LowSpace)
            .open()?;
        let mut records = Vec::new();
        for row in database.iter() {
            let (key, value) = row?;
            match std::str::from_utf8(&key)
                .ok()
                .and_then(|key| StoreRecord::read(key, &value))
            {
                Some(record) => records.push(record),
                None => {
                    tracing::warn!(key = %String::from_utf8_lossy(&key), "row of the peerstore not understood, left alone")
                }
            }
        }
        Ok((
            Self {
                database: Some(database),
                changes: StoreChanges::new(),
            },
            records,
        ))
    }

    /// Notes a change for the next [`Peerstore::take_changes`].
    pub fn note(&mut self, record: &StoreRecord) {
        if self.database.is_some() {
            self.changes.insert(record.key(), record.value());
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Takes all noted changes and returns the closure that writes them, to be run on a blocking
    /// thread.
    pub fn take_changes(&mut self) -> Option<impl FnOnce() + Send + 'static> {
        let database = self.database.clone()?;
        let changes = std::mem::take(&mut self.changes);
        Some(move || {
            if let Err(error) = write(&database, changes) {
                tracing::warn!(%error, "a p2p store cannot be written; scores, bans and records since are lost with a restart");
            }
        })
    }
}

/// Whether the error may mean that the store is open elsewhere. sled gives a held lock this kind,
/// and few other errors, for which waiting does no harm.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.kind() == std::io::ErrorKind::Other)
}

fn write(database: &sled::Db, changes: StoreChanges) -> sled::Result<()> {
    let mut batch = sled::Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.insert(key.as_bytes(), value),
            None => batch.remove(key.as_bytes()),
        }
    }
    database.apply_batch(batch)?;
    database.flush().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(peer: PeerId) -> Vec<StoreRecord> {
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let ban = BanRecord {
            expiry: 7,
            last_update: 5,
            reason: "score".into(),
            address: Some(address),
        };
        let score = ScoreRecord {
            last_update: 9,
            peer_scores: Scores::default(),
        };
        vec![
            StoreRecord::Score(peer, Some(score)),
            StoreRecord::PeerBan(peer, Some(ban.clone())),
            StoreRecord::AddressBan(address, Some(ban)),
            StoreRecord::BlockedPeer(peer, true),
            StoreRecord::BlockedAddress(address, true),
            StoreRecord::BlockedSubnet("10.0.0.0/8".parse().unwrap(), true),
            StoreRecord::BlockedSubnet("2001:db8::/32".parse().unwrap(), true),
            StoreRecord::Node(
                "00ff".into(),
                Some(NodeRecord {
                    enr: "enr:-x".into(),
                    seen: 8,
                }),
            ),
        ]
    }

    #[test]
    fn rows_come_back_and_go_and_one_process_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peerstore");
        let records = all(PeerId::random());
        let (mut store, read) = Peerstore::open(Some(&path), "--p2p.peerstore.path").unwrap();
        assert!(read.is_empty());
        records.iter().for_each(|record| store.note(record));
        store.take_changes().unwrap()();
        assert!(!store.has_changes());
        let Err(error) = Peerstore::open(Some(&path), "--p2p.peerstore.path") else {
            panic!("two processes on one store")
        };
        assert!(
            error.to_string().contains("--p2p.peerstore.path") && !error.to_string().contains('\n'),
            "{error}"
        );
        drop(store);

        let (mut store, mut read) = Peerstore::open(Some(&path), "--p2p.peerstore.path").unwrap();
        read.sort_by_key(|record| records.iter().position(|other| other == record));
        assert_eq!(read, records);
        records
            .iter()
            .for_each(|record| store.note(&record.clone().removed()));
        store.take_changes().unwrap()();
        drop(store);
        assert!(
            Peerstore::open(Some(&path), "--p2p.peerstore.path")
                .unwrap()
                .1
                .is_empty()
        );
    }

    #[test]
    fn a_store_that_is_being_closed_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peerstore");
        let (store, _) = Peerstore::open(Some(&path), "--p2p.peerstore.path").unwrap();
        let closing = std::thread::spawn(move || {
            std::thread::sleep(LOCK_WAIT / 10);
            drop(store);
        });
        let reopened = Peerstore::open(Some(&path), "--p2p.peerstore.path");
        closing.join().unwrap();
        assert!(reopened.is_ok(), "{:?}", reopened.err());
    }

    #[test]
    fn keys_and_values_are_those_of_the_networks_nodes() {
        let peer: PeerId = "16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa"
            .parse()
            .unwrap();
        let ban = StoreRecord::PeerBan(
            peer,
            Some(BanRecord {
                expiry: 5,
                last_update: 3,
                reason: String::new(),
                address: None,
            }),
        );
        let name = ban
            .key()
            .strip_prefix("/peers/ban_expiration/")
            .map(str::to_owned)
            .unwrap();
        assert_eq!(
            BASE32_NOPAD.decode(name.as_bytes()).unwrap(),
            peer.to_bytes()
        );
        let read = StoreRecord::read(&ban.key(), br#"{"expiry":5,"lastUpdate":3,"unknown":[1]}"#);
        assert_eq!(read, Some(ban));
        for (key, value) in [
            ("", "{}"),
            ("/peers/scores/", "{}"),
            ("/peers/scores/AA", "{}"),
            ("/ips/blocked/x", ""),
            ("x", ""),
        ] {
            assert_eq!(StoreRecord::read(key, value.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_damaged_store_does_not_stop_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peerstore");
        drop(Peerstore::open(Some(&path), "--p2p.peerstore.path").unwrap());
        for file in std::fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
        {
            std::fs::write(file, [0x5a; 4096]).unwrap();
        }
        let (mut store, records) = Peerstore::open(Some(&path), "--p2p.peerstore.path").unwrap();
        assert!(records.is_empty());
        store.note(&StoreRecord::BlockedPeer(PeerId::random(), true));
        store.take_changes().unwrap()();
        drop(store);
        assert_eq!(
            Peerstore::open(Some(&path), "--p2p.peerstore.path")
                .unwrap()
                .1
                .len(),
            1
        );
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            2,
            "the damaged one is kept"
        );
    }

    #[test]
    fn memory_keeps_nothing() {
        let (mut store, read) = Peerstore::open(None, "").unwrap();
        assert!(read.is_empty());
        store.note(&StoreRecord::BlockedPeer(PeerId::random(), true));
        assert!(!store.has_changes() && store.take_changes().is_none());
    }
}
