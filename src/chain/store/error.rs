//! Errors of the store, each with its cause and, where there is one, the next step.

use crate::chain::{
    rows::ReadError,
    store::{DATABASE, DamagedJournal},
};
use alloy_primitives::B256;
use lsm_tree::Error as LsmError;
use starling_proto::payload::BlockId;
use std::path::{Path, PathBuf};

/// Identity of the chain that a store contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub chain_id: u64,
    pub genesis_hash: B256,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no database in {}: run `starling init` first", .0.display())]
    Missing(PathBuf),
    #[error("the database in {} was never completely initialised: run `starling init` again", .0.display())]
    Uninitialised(PathBuf),
    #[error("{} does not hold a Starling database", .0.display())]
    NotStarling(PathBuf),
    #[error("{} holds the database of {client}: give another data directory", .path.display())]
    OtherClient { path: PathBuf, client: &'static str },
    #[error("there is a database of chain {} with genesis {} already", .0.chain_id, .0.genesis_hash)]
    Exists(Identity),
    #[error(
        "the database holds another chain (have: chain id {}, genesis {}; want: chain id {}, genesis {})",
        have.chain_id, have.genesis_hash, want.chain_id, want.genesis_hash
    )]
    OtherChain { have: Identity, want: Identity },
    #[error(
        "the database has schema version {have}, this program writes version {want}: use the program that wrote it, or sync again"
    )]
    Schema { have: u32, want: u32 },
    #[error("the database in {} cannot be opened: {what}. {}", dir.display(), rebuild(dir))]
    Damaged { dir: PathBuf, what: String },
    #[error(
        "the keyspaces of the database in {} disagree on the head ({heads}): it is torn. `starling db repair --datadir {}` rewinds it to \
         where they agree, if its records reach that far",
        dir.display(), dir.display()
    )]
    Torn { dir: PathBuf, heads: String },
    #[error("the repair of the database in {} did not finish: run `starling db repair` again. If it fails: {}", .0.display(), rebuild(.0))]
    Unproven(PathBuf),
    #[error(
        "the {what} of block {block} is missing or another's: run `starling db verify` to see how much is lost"
    )]
    Gap { block: BlockId, what: &'static str },
    #[error(
        "{0}: `starling db repair` cuts it at its last whole batch. After a power cut nothing that was synced is lost by it"
    )]
    Journal(#[from] DamagedJournal),
    #[error("the database is in use{}: one process at a time can open it, stop the other first", .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    Locked { pid: Option<u32> },
    #[error("only {free} bytes are free on the disk of the database, {floor} must stay free")]
    NoSpace { free: u64, floor: u64 },
    #[error(
        "a write to the database failed, and it accepts no more: the log says above what failed. Fix that (the disk, its file system, room \
         on it) and start again: what was acknowledged is kept. If it names a wrong checksum, `starling db verify` says what is damaged and \
         what helps"
    )]
    Poisoned,
    #[error("block {block:?} does not build on the stored head {head:?}")]
    Unlinked { block: BlockId, head: BlockId },
    #[error("the genesis block cannot be unwound")]
    Genesis,
    #[error("block {0} cannot be unwound: its unwind record is no longer kept")]
    NoUnwindRecord(u64),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("database: {0}")]
    Database(String),
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl StoreError {
    /// Adds the path to an I/O error.
    pub(in crate::chain) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// Whether a write failed only for lack of disk space.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }
}

/// Advice for rebuilding a database that cannot be repaired. The payload log beside the database
/// must not be removed: it records the blocks that were signed here.
pub fn rebuild(dir: &Path) -> String {
    format!(
        "Restore a backup; or remove the folder {} and nothing beside it, run `starling init --datadir {dir}` with the genesis file, \
         and then `starling import --datadir {dir}` with a file of blocks, or start the node and let it fetch them again",
        dir.join(DATABASE).display(),
        dir = dir.display()
    )
}

/// Text of a fjall error for users. The error's own `Display` is a dump of types.
pub(in crate::chain) fn describe_error(error: &fjall::Error) -> String {
    let (checksum, missing) = (
        "a part of a file is not what was written",
        "a file is missing or cannot be read as what it was",
    );
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => error.to_string(),
        fjall::Error::Storage(LsmError::ChecksumMismatch { .. }) => checksum.into(),
        fjall::Error::Storage(LsmError::Unrecoverable)
        | fjall::Error::Unrecoverable
        | fjall::Error::InvalidVersion(_) => missing.into(),
        fjall::Error::Storage(other) => format!("{checksum} ({other:?})"),
        other => format!("{other:?}"),
    }
}
