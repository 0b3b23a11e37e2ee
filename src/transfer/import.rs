//! `starling import`: copies blocks from files into the chain.
//!
//! A thread reads and decodes blocks ahead, and collects groups of consecutive blocks for the
//! executor. Blocks that are in the chain already are skipped, so the same command continues an
//! interrupted import. The last valid block becomes the head, even if an invalid block follows it.

use crate::{
    chain::{Chain, ChainError, Options, Threads, executor::Imported},
    cli::config::HistoryConfig,
    transfer::{
        JobProgress,
        block_file::{BlockFileError, BlockReader, FileBlock},
    },
};
use alloy_primitives::B256;
use futures::StreamExt;
use starling_proto::payload::{BlockId, Payload};
use std::{
    future::ready,
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Maximum number of blocks in a group. A full group is sent to the executor.
const GROUP_BLOCKS: usize = 64;
/// Bytes of blocks from which a group is full.
const GROUP_BYTES: usize = 4 << 20;
/// Maximum number of groups that have been read and wait to be sent to the executor.
const GROUPS: usize = 2;
/// Maximum number of groups in the executor's queue. While one is executed, the next ones are
/// prepared.
const RUNNING: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{} cannot be opened: {source}", path.display())]
    Open {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the import stops after block {head}: {error}")]
    File {
        head: BlockId,
        error: BlockFileError,
    },
    #[error("the import stops after block {head}: {}, byte {offset}, block {block}: {reason}", path.display())]
    Block {
        head: BlockId,
        path: PathBuf,
        offset: u64,
        block: BlockId,
        reason: String,
    },
    #[error(
        "{} begins with block {block}: {reason}. The chain here has genesis {genesis} and head {head}: the file is of another chain{}",
        path.display(), if block.number > head.number + 1 { ", or blocks before it are missing" } else { "" }
    )]
    Foreign {
        path: PathBuf,
        block: BlockId,
        reason: String,
        genesis: B256,
        head: BlockId,
    },
    #[error("the import was interrupted after block {0}: the same command continues from there")]
    Interrupted(BlockId),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("the thread that reads the file cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Counts of the blocks of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportCounts {
    pub executed: u64,
    /// Number of blocks that were in the chain already.
    pub known: u64,
}

/// Imports the files one after the other, up to the first block that cannot be imported. All blocks
/// before that one are stored. `history` sets how many old states and proofs are kept.
pub async fn import(
    options: Options,
    history: HistoryConfig,
    files: &[PathBuf],
    token: CancellationToken,
) -> Result<ImportCounts, ImportError> {
    let (chain, threads) = super::export::open(options).await?;
    chain.keep_states(history.states);
    chain.keep_proofs(history.proofs)?;
    chain.keep_names(history.names);
    chain.keep_logs(history.logs);
    chain.keep_addresses(history.addresses);
    let mut counts = ImportCounts::default();
    let mut result = Ok(());
    for path in files {
        result = import_file(&chain, path, &mut counts, &token).await;
        if result.is_err() {
            break;
        }
    }
    let stopped = stop(threads).await;
    let view = chain.view();
    if let Err(ImportError::Interrupted(_)) = result {
        // Blocks that could not be stored, perhaps on a full disk, can be imported from the file
        // again.
        if let Err(error) = stopped {
            tracing::warn!(%error, executed = %view.head(), stored = %view.stored(), "some executed blocks are not stored");
        }
        return Err(ImportError::Interrupted(view.stored()));
    }
    stopped?;
    let head = view.head();
    tracing::info!(executed = counts.executed, known = counts.known, number = head.number, hash = %head.hash, "imported blocks");
    result.map(|()| counts)
}

pub(super) async fn stop(threads: Threads) -> Result<(), ChainError> {
    tokio::task::spawn_blocking(move || threads.stop())
        .await
        .map_err(|_| ChainError::Stopped)?
}

/// Consecutive blocks of a file, in order.
#[derive(Default)]
struct BlockGroup {
    blocks: Vec<FileBlock>,
    /// The reason why the file cannot be read after these blocks.
    error: Option<BlockFileError>,
}

pub(super) async fn import_file(
    chain: &Chain,
    path: &Path,
    counts: &mut ImportCounts,
    token: &CancellationToken,
) -> Result<(), ImportError> {
    let open = |source| ImportError::Open {
        path: path.to_owned(),
        source,
    };
    let reader = BlockReader::open(path).map_err(open)?;
    let position = reader.position();
    let mut progress =
        JobProgress::new("import", std::fs::metadata(path).map_err(open)?.len(), true);
    let (sender, groups) = mpsc::channel(GROUPS);
    let thread = std::thread::Builder::new()
        .name("block reader".into())
        .spawn(move || read(reader, &sender));
    thread.map_err(ImportError::Thread)?;
    // Set when the import stops early. Groups in flight are skipped then, and no more are sent.
    let stop = Arc::<AtomicBool>::default();
    let may_continue = |_: &BlockGroup| ready(!stop.load(Ordering::Relaxed));
    let sent = ReceiverStream::new(groups)
        .take_while(may_continue)
        .then(|group| send(chain, group, stop.clone()));
    let mut outcomes = pin!(sent.buffered(RUNNING));
    let (mut refused, mut ended) = (None, None);
    loop {
        let outcome = tokio::select! {
            biased;
            () = token.cancelled() => {
                stop.store(true, Ordering::Relaxed);
                // Do not wait for blocks in flight: on a full disk, they wait until there is space.
                return Err(ImportError::Interrupted(chain.view().head()));
            }
            outcome = outcomes.next() => outcome,
        };
        let Some(outcome) = outcome else { break };
        let GroupOutcome {
            positions,
            imported,
            error,
        } = outcome?;
        counts.executed += imported.executed;
        counts.known += imported.known;
        progress.set(position.load(Ordering::Relaxed), || {
            format!("block {}", chain.view().head().number)
        });
        if let Some((index, reason)) = imported.refused {
            refused = positions.get(index).map(|position| (*position, reason));
        }
        ended = error;
    }
    if let Some(error) = failure(chain, path, refused, ended) {
        return Err(error);
    }
    progress.end();
    Ok(())
}

/// The reason why the import of a file stopped before the file's end, if it did.
fn failure(
    chain: &Chain,
    path: &Path,
    refused: Option<(BlockPosition, String)>,
    ended: Option<BlockFileError>,
) -> Option<ImportError> {
    let (head, path) = (chain.view().head(), path.to_owned());
    let Some((position, reason)) = refused else {
        return ended.map(|error| ImportError::File { head, error });
    };
    let BlockPosition {
        offset,
        block,
        parent,
    } = position;
    if offset == 0 && !chain.knows(parent) {
        let genesis = chain.spec().genesis_hash;
        return Some(ImportError::Foreign {
            path,
            block,
            reason,
            genesis,
            head,
        });
    }
    Some(ImportError::Block {
        head,
        path,
        offset,
        block,
        reason,
    })
}

/// A block's number, hash and parent, and its offset in the file.
#[derive(Clone, Copy)]
struct BlockPosition {
    offset: u64,
    block: BlockId,
    parent: B256,
}

/// The outcome of importing a group.
struct GroupOutcome {
    /// The position of each block of the group, in order.
    positions: Vec<BlockPosition>,
    imported: Imported,
    /// The reason why the file cannot be read after this group.
    error: Option<BlockFileError>,
}

/// Sends a group to the executor's queue. The returned future is the outcome of the group.
async fn send(
    chain: &Chain,
    group: BlockGroup,
    stop: Arc<AtomicBool>,
) -> impl Future<Output = Result<GroupOutcome, ChainError>> + use<> {
    let BlockGroup { blocks, error } = group;
    let position = |FileBlock { offset, payload }: &FileBlock| BlockPosition {
        offset: *offset,
        block: payload.id(),
        parent: payload.parent_hash(),
    };
    let positions = blocks.iter().map(position).collect();
    let payloads = blocks
        .into_iter()
        .map(|block| Arc::new(block.payload))
        .collect();
    let sent = chain.import(payloads, stop).await;
    async {
        Ok(GroupOutcome {
            positions,
            imported: sent?.await?,
            error,
        })
    }
}

/// Reads groups ahead until the end of the file, an error, or the end of the import.
fn read(reader: BlockReader, groups: &mpsc::Sender<BlockGroup>) {
    let mut group = BlockGroup::default();
    let mut weight = 0;
    for block in reader {
        match block {
            Ok(block) => {
                weight += Payload::weight(&block.payload);
                group.blocks.push(block);
            }
            Err(error) => {
                group.error = Some(error);
                break;
            }
        }
        if group.blocks.len() >= GROUP_BLOCKS || weight >= GROUP_BYTES {
            weight = 0;
            if groups.blocking_send(std::mem::take(&mut group)).is_err() {
                return;
            }
        }
    }
    // An error means that the import has ended and dropped the receiver.
    let _ = groups.blocking_send(group);
}
