//! Blocks from the chain into a file, which geth's `import` reads as well as ours.

use crate::{
    chain::{Chain, ChainError, Options, Threads, view::ReadError},
    transfer::{Progress, block_file::BlockWriter, import::stop},
};
use std::{path::Path, path::PathBuf};
use tokio_util::sync::CancellationToken;

/// A view serves for so many blocks: it pins what it can see.
const BLOCKS_PER_VIEW: u64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{} cannot be written: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("Export error: block number {last} larger than head block {head}")]
    AboveHead { last: u64, head: u64 },
    #[error("Export error: the first block {first} is after the last, {last}")]
    Order { first: u64, last: u64 },
    #[error("block {0} is not in the database: `starling db verify` says what else is missing")]
    Missing(u64),
    #[error("the export was interrupted; the last block in the file is {0}: export from the next on, and it is appended")]
    Interrupted(u64),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Opens the chain on a thread that may wait.
pub(super) async fn open(options: Options) -> Result<(Chain, Threads), ChainError> {
    tokio::task::spawn_blocking(move || Chain::open(&options)).await.map_err(|_| ChainError::Stopped)?
}

/// Writes the blocks from `range.0` to `range.1`, both included, to a file, and appends if a range is given; else all blocks from
/// the genesis block to the head, in place of what the file held. Returns how many were written.
pub async fn export(
    options: Options,
    file: &Path,
    range: Option<(u64, u64)>,
    token: CancellationToken,
) -> Result<u64, ExportError> {
    let (chain, threads) = open(options).await?;
    let file = file.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&chain, &file, range, &token));
    let result = written.await.map_err(|_| ChainError::Stopped)?;
    stop(threads).await?;
    result
}

fn write(chain: &Chain, path: &Path, range: Option<(u64, u64)>, token: &CancellationToken) -> Result<u64, ExportError> {
    let head = chain.view().head().number;
    let (first, last) = range.unwrap_or((genesis(chain)?, head));
    if last > head {
        return Err(ExportError::AboveHead { last, head });
    }
    if first > last {
        return Err(ExportError::Order { first, last });
    }
    let failed = |source| ExportError::File { path: path.to_owned(), source };
    let mut file = BlockWriter::create(path, range.is_some()).map_err(failed)?;
    let mut progress = Progress::new("export", last - first + 1, false);
    let mut view = chain.view();
    let mut interrupted = None;
    for number in first..=last {
        if token.is_cancelled() {
            interrupted = Some(ExportError::Interrupted(number.saturating_sub(1)));
            break;
        }
        if (number - first).is_multiple_of(BLOCKS_PER_VIEW) {
            view = chain.view();
        }
        let payload = view.payload(number)?.ok_or(ExportError::Missing(number))?;
        file.write(&payload).map_err(failed)?;
        progress.set(number - first + 1, String::new);
    }
    file.finish().map_err(failed)?;
    progress.end();
    match interrupted {
        Some(error) => Err(error),
        None => {
            tracing::info!(first, last, file = %path.display(), "exported blocks");
            Ok(last - first + 1)
        }
    }
}

/// Number of the genesis block, which is not always zero.
fn genesis(chain: &Chain) -> Result<u64, ExportError> {
    Ok(chain.genesis()?.number)
}
