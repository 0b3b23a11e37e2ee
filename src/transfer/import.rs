//! Blocks from files into the chain.
//!
//! A thread reads and decodes ahead; the executor gets groups of blocks, each block on the one
//! before it. What is stored already is passed over, so the same command goes on where it was
//! interrupted. The last valid block is the head, whatever follows it.

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

/// A group goes to the executor with that many blocks or bytes.
const GROUP_BLOCKS: usize = 64;
const GROUP_BYTES: usize = 4 << 20;
/// Groups that are read and wait to be sent to the executor.
const GROUPS: usize = 2;
/// Groups that are with the executor: while one is executed, those after it are prepared.
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
    #[error("the import was interrupted after block {0}: the same command goes on from there")]
    Interrupted(BlockId),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("the thread that reads the file cannot be started: {0}")]
    Thread(std::io::Error),
}

/// Counts of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub executed: u64,
    /// Blocks that were in the chain already.
    pub known: u64,
}

/// Imports the files one after the other, until one of them cannot be imported on. What was
/// imported until then is stored in any case. `history` is what to keep of old states.
pub async fn import(
    options: Options,
    history: HistoryConfig,
    files: &[PathBuf],
    token: CancellationToken,
) -> Result<Counts, ImportError> {
    let (chain, threads) = super::export::open(options).await?;
    chain.keep_states(history.states);
    chain.keep_proofs(history.proofs)?;
    let mut counts = Counts::default();
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
        // Blocks that could not be stored, perhaps on a full disk, are still in the file.
        if let Err(error) = stopped {
            tracing::warn!(%error, executed = %view.head(), stored = %view.stored(), "not all that was executed is stored");
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

/// Blocks in the order of the file, then perhaps why there are no more.
type Group = (Vec<FileBlock>, Option<BlockFileError>);

async fn import_file(
    chain: &Chain,
    path: &Path,
    counts: &mut Counts,
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
    // Set when the import ends: groups in flight are skipped, and no more are sent.
    let stop = Arc::<AtomicBool>::default();
    let goes_on = |_: &Group| ready(!stop.load(Ordering::Relaxed));
    let sent = ReceiverStream::new(groups)
        .take_while(goes_on)
        .then(|group| send(chain, group, stop.clone()));
    let mut answers = pin!(sent.buffered(RUNNING));
    let (mut refused, mut ended) = (None, None);
    loop {
        let answer = tokio::select! {
            biased;
            () = token.cancelled() => {
                stop.store(true, Ordering::Relaxed);
                // Do not wait for blocks in flight: on a full disk that takes until space is free.
                return Err(ImportError::Interrupted(chain.view().head()));
            }
            answer = answers.next() => answer,
        };
        let Some(answer) = answer else { break };
        let GroupOutcome {
            places,
            imported,
            error,
        } = answer?;
        counts.executed += imported.executed;
        counts.known += imported.known;
        progress.set(position.load(Ordering::Relaxed), || {
            format!("block {}", chain.view().head().number)
        });
        if let Some((index, reason)) = imported.refused {
            refused = places.get(index).copied().map(|place| (place, reason));
        }
        ended = error;
    }
    if let Some(error) = failure(chain, path, refused, ended) {
        return Err(error);
    }
    progress.end();
    Ok(())
}

/// Why the import of a file stopped before its end, if it did.
fn failure(
    chain: &Chain,
    path: &Path,
    refused: Option<(BlockPosition, String)>,
    ended: Option<BlockFileError>,
) -> Option<ImportError> {
    let (head, path) = (chain.view().head(), path.to_owned());
    let Some((place, reason)) = refused else {
        return ended.map(|error| ImportError::File { head, error });
    };
    let BlockPosition {
        offset,
        block,
        parent,
    } = place;
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

/// A block, and where it begins in its file.
#[derive(Clone, Copy)]
struct BlockPosition {
    offset: u64,
    block: BlockId,
    parent: B256,
}

/// The outcome of a group.
struct GroupOutcome {
    places: Vec<BlockPosition>,
    imported: Imported,
    /// Why the file cannot be read on after it.
    error: Option<BlockFileError>,
}

/// Gives a group to the executor; what is returned waits for its answer.
async fn send(
    chain: &Chain,
    (blocks, error): Group,
    stop: Arc<AtomicBool>,
) -> impl Future<Output = Result<GroupOutcome, ChainError>> + use<> {
    let place = |FileBlock { offset, payload }: &FileBlock| BlockPosition {
        offset: *offset,
        block: payload.id(),
        parent: payload.parent_hash(),
    };
    let places = blocks.iter().map(place).collect();
    let payloads = blocks
        .into_iter()
        .map(|block| Arc::new(block.payload))
        .collect();
    let sent = chain.import(payloads, stop).await;
    async {
        Ok(GroupOutcome {
            places,
            imported: sent?.await?,
            error,
        })
    }
}

/// Reads ahead until the file ends, an error, or nobody takes the blocks.
fn read(reader: BlockReader, groups: &mpsc::Sender<Group>) {
    let mut group = Vec::new();
    let mut weight = 0;
    for block in reader {
        match block {
            Ok(block) => {
                weight += Payload::weight(&block.payload);
                group.push(block);
                if group.len() >= GROUP_BLOCKS || weight >= GROUP_BYTES {
                    weight = 0;
                    if groups
                        .blocking_send((std::mem::take(&mut group), None))
                        .is_err()
                    {
                        return;
                    }
                }
            }
            Err(error) => {
                let _ = groups.blocking_send((group, Some(error)));
                return;
            }
        }
    }
    let _ = groups.blocking_send((group, None));
}
