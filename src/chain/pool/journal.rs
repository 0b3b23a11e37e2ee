//! The journal of local transactions (geth: `transactions.rlp`): transactions that wallets sent to
//! this node, kept over a restart.
//!
//! JSON-RPC appends a transaction once the pool has it. The node reads the file at start, and
//! rewrites it at an interval without the transactions that have left the pool. The format is
//! geth's: one RLP item after another. A power cut may lose the newest transactions. The size of
//! the file is bounded by the pool and the interval of rewriting, and reading stops at
//! [`MAX_FILE`].

use super::{Pool, PoolTx};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read, Write},
    path::PathBuf,
    time::Duration,
};

/// Maximum bytes of a journal that are read.
const MAX_FILE: u64 = 256 << 20;

/// The options of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    pub path: PathBuf,
    /// Interval at which the file is rewritten.
    pub rewrite: Duration,
    /// Whether transactions of all accounts count as local.
    pub all: bool,
    /// Accounts whose transactions always count as local.
    pub locals: Vec<Address>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the journal of transactions {path} cannot be used: {source}; choose another file with --txpool.journal"
)]
pub struct JournalError {
    path: PathBuf,
    source: io::Error,
}

/// An open journal.
pub struct TxJournal {
    config: JournalConfig,
    state: Mutex<JournalState>,
}

struct JournalState {
    file: File,
    /// Hashes of the transactions in the file.
    hashes: HashSet<B256>,
}

impl TxJournal {
    /// Opens the file, or creates it, and reads its transactions. Reading stops at the first item
    /// that cannot be decoded, such as one that a crash cut off, and the file is truncated there.
    pub fn open(config: JournalConfig) -> Result<(Self, Vec<Bytes>), JournalError> {
        let failed = |source| JournalError {
            path: config.path.clone(),
            source,
        };
        if let Some(folder) = config.path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let options = File::options().read(true).append(true).create(true).clone();
        let file = options.open(&config.path).map_err(failed)?;
        let JournalContents { found, whole } = read(&file).map_err(failed)?;
        file.set_len(whole).map_err(failed)?;
        let hashes = found.iter().map(keccak256).collect();
        let state = JournalState { file, hashes };
        let journal = Self {
            state: Mutex::new(state),
            config,
        };
        Ok((journal, found))
    }

    pub fn interval(&self) -> Duration {
        self.config.rewrite
    }

    /// Appends a transaction that the pool has accepted, if it is local. Blob transactions are not
    /// journaled.
    pub fn record(&self, tx: &PoolTx) -> io::Result<()> {
        let local = self.config.all || self.config.locals.contains(&tx.sender());
        if !local || tx.sidecar.is_some() {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.hashes.insert(tx.hash) {
            state.file.write_all(&item(&tx.raw))?;
        }
        Ok(())
    }

    /// Rewrites the file with the recorded transactions that are still in the pool.
    pub fn rewrite(&self, pool: &Pool) -> io::Result<usize> {
        let mut state = self.state.lock();
        let hashes = state.hashes.iter();
        let kept: Vec<_> = hashes.filter_map(|hash| pool.get(hash)).collect();
        let new = self.config.path.with_extension("new");
        let mut file = File::create(&new)?;
        for tx in &kept {
            file.write_all(&item(&tx.raw))?;
        }
        file.sync_data()?;
        fs::rename(&new, &self.config.path)?;
        *state = JournalState {
            file,
            hashes: kept.iter().map(|tx| tx.hash).collect(),
        };
        Ok(kept.len())
    }
}

/// Encodes a transaction as an item of the file: a legacy transaction is a list, any other is
/// wrapped as a string.
fn item(raw: &Bytes) -> Vec<u8> {
    match raw.first() {
        Some(first) if *first >= 0xc0 => raw.to_vec(),
        _ => {
            let mut item = Vec::new();
            raw.encode(&mut item);
            item
        }
    }
}

/// The decoded items of a journal.
struct JournalContents {
    found: Vec<Bytes>,
    /// Length of the file in bytes up to the first item that cannot be decoded.
    whole: u64,
}

fn read(file: &File) -> io::Result<JournalContents> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let mut contents = JournalContents {
        found: Vec::new(),
        whole: 0,
    };
    while let Some(raw) = next(&mut rest) {
        contents.found.push(raw);
        contents.whole = (bytes.len() - rest.len()) as u64;
    }
    Ok(contents)
}

/// Decodes the next transaction and moves `rest` past it.
fn next(rest: &mut &[u8]) -> Option<Bytes> {
    let whole = *rest;
    if whole.first()? < &0xc0 {
        return Bytes::decode(rest).ok();
    }
    let header = Header::decode(rest).ok()?;
    let length = whole.len() - rest.len() + header.payload_length;
    *rest = whole.get(length..)?;
    Some(Bytes::copy_from_slice(&whole[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config(path: &Path) -> JournalConfig {
        JournalConfig {
            path: path.to_owned(),
            rewrite: Duration::from_secs(1),
            all: true,
            locals: vec![],
        }
    }

    #[test]
    fn items_are_those_of_geth_and_a_torn_end_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("geth/transactions.rlp");
        let (legacy, typed) = (vec![0xc2, 0x01, 0x02], vec![0x02, 0xc1, 0x05]);
        let (_, found) = TxJournal::open(config(&path)).unwrap();
        assert!(found.is_empty() && path.exists());
        let mut file = item(&legacy.clone().into());
        file.extend(item(&typed.clone().into()));
        assert_eq!(file, [&legacy[..], &[0x83], &typed[..]].concat());
        for torn in [&[][..], &[0x83, 0x02], &[0xc2, 0x01]] {
            fs::write(&path, [&file[..], torn].concat()).unwrap();
            let (_, found) = TxJournal::open(config(&path)).unwrap();
            assert_eq!(found, [Bytes::from(legacy.clone()), typed.clone().into()]);
            assert_eq!(fs::read(&path).unwrap(), file, "the torn item is cut off");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = TxJournal::open(config(&path)).err().unwrap().to_string();
        assert!(error.contains("--txpool.journal"), "{error}");
    }
}
