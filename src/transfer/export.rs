//! `starling export`: copies blocks from the chain into a file, which geth's `import` can read too.

use crate::{
    chain::{Chain, ChainError, Options, Threads, view::ReadError},
    transfer::{
        JobProgress,
        block_file::{BlockReader, BlockWriter, FileBlock},
        import::stop,
    },
};
use std::{
    fs::File,
    path::{Path, PathBuf},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of blocks read through one view, since a view pins all rows that it can see.
const BLOCKS_PER_VIEW: u64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{} cannot be written: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("Export error: block number {last} larger than head block {head}")]
    AboveHead { last: u64, head: u64 },
    #[error("Export error: the first block {first} is after the last, {last}")]
    Order { first: u64, last: u64 },
    #[error("block {0} is not in the database: `starling db verify` says what else is missing")]
    Missing(u64),
    #[error("the export was interrupted before block {0}: the same command continues from there")]
    Interrupted(u64),
    #[error(
        "{} ends in the middle of {}: remove it, or export to another file",
        path.display(), last.map_or("its first block".to_owned(), |last| format!("the block after {last}"))
    )]
    Torn { path: PathBuf, last: Option<u64> },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// Opens the chain on a thread for blocking work.
pub(super) async fn open(options: Options) -> Result<(Chain, Threads), ChainError> {
    tokio::task::spawn_blocking(move || Chain::open(&options))
        .await
        .map_err(|_| ChainError::Stopped)?
}

/// Exports blocks to a file. With a range, the blocks from `range.0` to `range.1` (both included)
/// are appended to the file. Without a range, all blocks from the genesis block to the head replace
/// the contents of the file. Blocks that an interrupted export has already written are skipped.
/// Returns the number of blocks written.
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

pub(super) fn write(
    chain: &Chain,
    path: &Path,
    range: Option<(u64, u64)>,
    token: &CancellationToken,
) -> Result<u64, ExportError> {
    let head = chain.view().head().number;
    let (first, last) = range.unwrap_or((genesis(chain)?, head));
    if last > head {
        return Err(ExportError::AboveHead { last, head });
    }
    if first > last {
        return Err(ExportError::Order { first, last });
    }
    let failed = |source| ExportError::File {
        path: path.to_owned(),
        source,
    };
    let ExportStart { next, append } = start_of(chain, path, first, range.is_some())?;
    if next > last {
        tracing::info!(first, last, file = %path.display(), "the file holds these blocks already");
        return Ok(0);
    }
    let mut file = BlockWriter::create(path, append).map_err(failed)?;
    let mut progress = JobProgress::new("export", last - next + 1, false);
    let mut view = chain.view();
    let mut interrupted = None;
    for number in next..=last {
        if token.is_cancelled() {
            interrupted = Some(ExportError::Interrupted(number));
            break;
        }
        if (number - next).is_multiple_of(BLOCKS_PER_VIEW) {
            view = chain.view();
        }
        let payload = view.payload(number)?.ok_or(ExportError::Missing(number))?;
        file.write(&payload).map_err(failed)?;
        progress.set(number - next + 1, String::new);
    }
    file.finish().map_err(failed)?;
    progress.end();
    match interrupted {
        Some(error) => Err(error),
        None => {
            tracing::info!(first = next, last, file = %path.display(), "exported blocks");
            Ok(last - next + 1)
        }
    }
}

/// The position at which an export starts.
struct ExportStart {
    /// Number of the first block to write.
    next: u64,
    /// Whether to append to the file, instead of replacing its contents.
    append: bool,
}

/// Finds the start of an export by reading the file. If the file ends with an interrupted export of
/// the same blocks, an incomplete block at its end is cut off and the export continues. Otherwise
/// the export starts at `first`, and `append` says whether the contents of the file are kept.
fn start_of(
    chain: &Chain,
    path: &Path,
    first: u64,
    append: bool,
) -> Result<ExportStart, ExportError> {
    let from_start = ExportStart {
        next: first,
        append,
    };
    if !path
        .metadata()
        .is_ok_and(|file| file.is_file() && file.len() > 0)
    {
        return Ok(from_start);
    }
    let failed = |source| ExportError::File {
        path: path.to_owned(),
        source,
    };
    let mut reader = BlockReader::open(path).map_err(failed)?;
    let view = chain.view();
    let (mut held, mut torn) = (None::<(u64, u64)>, false);
    for block in reader.by_ref() {
        let Ok(FileBlock { payload, .. }) = block else {
            torn = true;
            break;
        };
        let number = payload.number();
        let follows = held.is_none_or(|(_, last)| number == last + 1);
        if !follows || view.hash_of(number)? != Some(payload.hash) {
            return Ok(from_start);
        }
        held = Some((held.map_or(number, |(begin, _)| begin), number));
    }
    let last = held.map(|(_, last)| last);
    if torn && append && (held.is_none() || reader.is_packed()) {
        return Err(ExportError::Torn {
            path: path.to_owned(),
            last,
        });
    }
    let (Some((begin, last)), false) = (held, torn && reader.is_packed()) else {
        return Ok(from_start);
    };
    if torn {
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(reader.end()))
            .map_err(failed)?;
    }
    if (begin..=last + 1).contains(&first) && (append || begin == first) {
        return Ok(ExportStart {
            next: last + 1,
            append: true,
        });
    }
    Ok(from_start)
}

/// Number of the genesis block, which is not always zero.
fn genesis(chain: &Chain) -> Result<u64, ExportError> {
    Ok(chain.genesis()?.number)
}
