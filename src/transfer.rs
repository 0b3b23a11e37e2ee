//! `starling import` and `starling export`: copy blocks from files into the chain, and from the
//! chain into files.
//!
//! Both commands run the chain in their own process and lock the data directory. Memory is bounded
//! whatever the files contain. An import reads ahead through a bounded channel and sends the
//! executor small groups of blocks. An export takes a new view at intervals, since a view pins all
//! rows that it can see. Progress is shown as a bar on a terminal, and otherwise in log lines.

pub mod block_file;
mod export;
mod import;

pub use export::{ExportError, export};
pub use import::{ImportCounts, ImportError, import};

use crate::{
    chain::{Chain, Options},
    cli::config::{ExportConfig, ImportConfig},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Sync interval of a store that an export only reads.
const NOTHING_TO_COMMIT: Duration = Duration::from_secs(1);

/// Time between two log lines about progress.
const LOG_EVERY: Duration = Duration::from_secs(8);

/// Runs `starling import`.
pub async fn run_import(config: ImportConfig, token: CancellationToken) -> Result<(), ImportError> {
    import(config.chain, config.history, &config.files, token)
        .await
        .map(drop)
}

/// Runs `starling export`.
pub async fn run_export(config: ExportConfig, token: CancellationToken) -> Result<(), ExportError> {
    let options = Options {
        datadir: config.datadir,
        cache: config.cache,
        commit_interval: NOTHING_TO_COMMIT,
    };
    export(options, &config.file, config.range, token)
        .await
        .map(drop)
}

/// Exports blocks of a running chain to a file, all blocks if `range` is `None`. Waits for the
/// disk.
pub fn export_running(
    chain: &Chain,
    file: &Path,
    range: Option<(u64, u64)>,
    token: &CancellationToken,
) -> Result<u64, ExportError> {
    export::write(chain, file, range, token)
}

/// Imports the blocks of a file into a running chain.
pub async fn import_running(
    chain: &Chain,
    file: &Path,
    token: &CancellationToken,
) -> Result<ImportCounts, ImportError> {
    let mut counts = ImportCounts::default();
    import::import_file(chain, file, &mut counts, token).await?;
    Ok(counts)
}

/// Progress of a long job: a bar on a terminal, otherwise a line in the log every [`LOG_EVERY`].
pub(crate) struct JobProgress {
    bar: ProgressBar,
    logged: Instant,
    what: &'static str,
}

impl JobProgress {
    /// Creates the progress of a job. `length` is in bytes if `bytes` is true, otherwise in items.
    pub(crate) fn new(what: &'static str, length: u64, bytes: bool) -> Self {
        let bar = ProgressBar::new(length);
        let template = if bytes {
            "{prefix} [{bar:30}] {bytes}/{total_bytes} {msg} {eta}"
        } else {
            "{prefix} [{bar:30}] {pos}/{len} {msg} {eta}"
        };
        // The templates are constants. If one were invalid, the bar would have its default style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        Self {
            bar,
            logged: Instant::now(),
            what,
        }
    }

    pub(crate) fn set(&mut self, position: u64, message: impl FnOnce() -> String) {
        self.bar.set_position(position);
        if !self.bar.is_hidden() {
            self.bar.set_message(message());
        } else if self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            tracing::info!(
                done = position,
                of = self.bar.length().unwrap_or_default(),
                "{}: {}",
                self.what,
                message()
            );
        }
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests;
