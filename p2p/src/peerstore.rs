//! What the swarm remembers of peers over a restart: scores, bans, an operator's blocks, in a sled database at `--p2p.peerstore.path`;
//! and records that discovery found, in another at `--p2p.discovery.path`. Or nothing but memory.
//!
//! Keys and values are those of op-node's books: a peer's binary id in base32, JSON with seconds, unknown fields ignored. The swarm's
//! task never touches the disk: it notes what changed (one value a key, so the notes are bounded by what exists) and a blocking thread
//! writes all of it at once. A kill loses at most what was noted since.

use crate::peers::score::Scores;
use data_encoding::BASE32_NOPAD;
use ipnet::IpNet;
use libp2p::PeerId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

const SCORES: &str = "/peers/scores/";
const PEER_BANS: &str = "/peers/ban_expiration/";
const ADDRESS_BANS: &str = "/ips/ban_expiration/";
const BLOCKED_PEERS: &str = "/peers/blocked/";
const BLOCKED_ADDRESSES: &str = "/ips/blocked/";
const BLOCKED_SUBNETS: &str = "/subnets/blocked/";
/// Ours: in op-node's database of discovery keys and values are those of its library.
const NODES: &str = "/nodes/";

/// Bytes of sled's cache. The whole store is a few megabytes at most.
const CACHE: u64 = 4 << 20;

/// Why there is no store. One sentence, with the next step.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot open the p2p store {path}: {source}; stop the other process that uses it, or give another path, or 'memory', with {flag}"
)]
pub struct StoreError {
    path: PathBuf,
    flag: &'static str,
    source: sled::Error,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreRecord {
    /// Unix seconds.
    pub last_update: u64,
    pub peer_scores: Scores,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BanRecord {
    /// Unix seconds.
    pub expiry: u64,
    #[serde(default)]
    pub last_update: u64,
    /// Ours: why.
    #[serde(default)]
    pub reason: String,
    /// Ours: where the peer was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

/// A node that discovery found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// `enr:…`
    pub enr: String,
    /// Unix seconds, of the last time it was heard of.
    pub seen: u64,
}

/// One row, or its removal.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Score(PeerId, Option<ScoreRecord>),
    PeerBan(PeerId, Option<BanRecord>),
    AddressBan(IpAddr, Option<BanRecord>),
    /// Whether it is blocked.
    BlockedPeer(PeerId, bool),
    BlockedAddress(IpAddr, bool),
    BlockedSubnet(IpNet, bool),
    /// By its id in hexadecimal digits.
    Node(String, Option<NodeRecord>),
}

impl Record {
    /// The removal of this row.
    pub fn removed(self) -> Self {
        match self {
            Record::Score(peer, _) => Record::Score(peer, None),
            Record::PeerBan(peer, _) => Record::PeerBan(peer, None),
            Record::AddressBan(address, _) => Record::AddressBan(address, None),
            Record::BlockedPeer(peer, _) => Record::BlockedPeer(peer, false),
            Record::BlockedAddress(address, _) => Record::BlockedAddress(address, false),
            Record::BlockedSubnet(subnet, _) => Record::BlockedSubnet(subnet, false),
            Record::Node(id, _) => Record::Node(id, None),
        }
    }

    pub fn key(&self) -> String {
        let peer =
            |book: &str, peer: &PeerId| format!("{book}{}", BASE32_NOPAD.encode(&peer.to_bytes()));
        match self {
            Record::Score(id, _) => peer(SCORES, id),
            Record::PeerBan(id, _) => peer(PEER_BANS, id),
            Record::AddressBan(address, _) => format!("{ADDRESS_BANS}{address}"),
            Record::BlockedPeer(id, _) => peer(BLOCKED_PEERS, id),
            Record::BlockedAddress(address, _) => format!("{BLOCKED_ADDRESSES}{address}"),
            Record::BlockedSubnet(subnet, _) => format!("{BLOCKED_SUBNETS}{subnet}"),
            Record::Node(id, _) => format!("{NODES}{id}"),
        }
    }

    /// `None` removes the row.
    pub fn value(&self) -> Option<Vec<u8>> {
        match self {
            Record::Score(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
            Record::PeerBan(_, record) | Record::AddressBan(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
            Record::BlockedPeer(_, blocked)
            | Record::BlockedAddress(_, blocked)
            | Record::BlockedSubnet(_, blocked) => blocked.then(Vec::new),
            Record::Node(_, record) => record
                .as_ref()
                .and_then(|record| serde_json::to_vec(record).ok()),
        }
    }

    /// `None` for what is not ours or cannot be read: the store holds nothing worth refusing to start for.
    pub fn read(key: &str, value: &[u8]) -> Option<Self> {
        let peer =
            |text: &str| PeerId::from_bytes(&BASE32_NOPAD.decode(text.as_bytes()).ok()?).ok();
        let (book, name) = key.split_at(key.rfind('/')? + 1);
        match book {
            SCORES => Some(Record::Score(peer(name)?, Some(json(value)?))),
            PEER_BANS => Some(Record::PeerBan(peer(name)?, Some(json(value)?))),
            ADDRESS_BANS => Some(Record::AddressBan(name.parse().ok()?, Some(json(value)?))),
            BLOCKED_PEERS => Some(Record::BlockedPeer(peer(name)?, true)),
            NODES => Some(Record::Node(name.to_owned(), Some(json(value)?))),
            BLOCKED_ADDRESSES => Some(Record::BlockedAddress(name.parse().ok()?, true)),
            // A subnet has a slash of its own.
            _ => Some(Record::BlockedSubnet(
                key.strip_prefix(BLOCKED_SUBNETS)?.parse().ok()?,
                true,
            )),
        }
    }
}

fn json<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

/// Changes to write: key and new value.
pub type Changes = BTreeMap<String, Option<Vec<u8>>>;

/// The store, and what is not written yet.
#[derive(Default)]
pub struct Peerstore {
    database: Option<sled::Db>,
    changes: Changes,
}

impl Peerstore {
    /// `flag` is the one that named the path. Opens the store, makes it if it is not there, and reads all of it. One that is damaged is put aside: nothing in it is worth
    /// not starting for. Blocks.
    pub fn open(
        path: Option<&Path>,
        flag: &'static str,
    ) -> Result<(Self, Vec<Record>), StoreError> {
        let Some(path) = path else {
            return Ok((Self::default(), Vec::new()));
        };
        match Self::open_at(path) {
            Err(error @ (sled::Error::Corruption { .. } | sled::Error::Unsupported(_))) => {
                let mut aside = path.as_os_str().to_owned();
                aside.push(format!(".damaged-{:08x}", rand::random::<u32>()));
                tracing::warn!(%error, path = %path.display(), ?aside, "the p2p store is damaged: put aside, begun anew");
                std::fs::rename(path, aside).map_err(sled::Error::Io).and_then(|()| Self::open_at(path))
            }
            opened => opened,
        }
        .map_err(|source| StoreError { path: path.to_owned(), flag, source })
    }

    fn open_at(path: &Path) -> sled::Result<(Self, Vec<Record>)> {
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
                .and_then(|key| Record::read(key, &value))
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
                changes: Changes::new(),
            },
            records,
        ))
    }

    /// To be written with the next [`Peerstore::take_changes`].
    pub fn note(&mut self, record: &Record) {
        if self.database.is_some() {
            self.changes.insert(record.key(), record.value());
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// What a blocking thread has to write now.
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

fn write(database: &sled::Db, changes: Changes) -> sled::Result<()> {
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

    fn all(peer: PeerId) -> Vec<Record> {
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
            Record::Score(peer, Some(score)),
            Record::PeerBan(peer, Some(ban.clone())),
            Record::AddressBan(address, Some(ban)),
            Record::BlockedPeer(peer, true),
            Record::BlockedAddress(address, true),
            Record::BlockedSubnet("10.0.0.0/8".parse().unwrap(), true),
            Record::BlockedSubnet("2001:db8::/32".parse().unwrap(), true),
            Record::Node(
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
    fn keys_and_values_are_those_of_the_networks_nodes() {
        let peer: PeerId = "16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa"
            .parse()
            .unwrap();
        let ban = Record::PeerBan(
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
        let read = Record::read(&ban.key(), br#"{"expiry":5,"lastUpdate":3,"unknown":[1]}"#);
        assert_eq!(read, Some(ban));
        for (key, value) in [
            ("", "{}"),
            ("/peers/scores/", "{}"),
            ("/peers/scores/AA", "{}"),
            ("/ips/blocked/x", ""),
            ("x", ""),
        ] {
            assert_eq!(Record::read(key, value.as_bytes()), None, "{key}");
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
        store.note(&Record::BlockedPeer(PeerId::random(), true));
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
        store.note(&Record::BlockedPeer(PeerId::random(), true));
        assert!(!store.has_changes() && store.take_changes().is_none());
    }
}
