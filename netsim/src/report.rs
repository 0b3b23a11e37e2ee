//! Reports of runs: one JSON file and one HTML page for each, and the comparison of two.
//!
//! A layer fills a [`RunReport`] and calls [`write()`]. The page is self-contained: styles and charts
//! (SVG) are in the file, it has no script, and it makes no request. Everything in it that comes
//! from a report is escaped, since names and reasons may come from foreign peers.

mod chart;
pub mod compare;
mod page;
mod schema;
mod style;
mod text;

pub use page::{page, propagation_picture};
pub use schema::{
    RunBan, RunCheck, RunFault, RunHop, RunJoining, RunNodeTraffic, RunPropagation, RunReport,
    RunSeries, RunSpread, RunTraffic, SCHEMA, cumulative,
};
pub use text::text;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Largest report that is read, in bytes: 64 nodes for an hour take less than a tenth.
const LARGEST: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RunReportError {
    #[error("{path} cannot be {verb}: {error}")]
    File {
        path: String,
        verb: &'static str,
        error: io::Error,
    },
    #[error(
        "{path} has {bytes} bytes, and a report has at most {largest}: name the JSON file that \
         `netsim` wrote",
        largest = LARGEST
    )]
    Large { path: String, bytes: u64 },
    #[error("{path} is no report of a run: {error}. Name the JSON file that `netsim` wrote")]
    Json {
        path: String,
        error: serde_json::Error,
    },
    #[error(
        "{path} has version {found} of the form of reports, and this netsim reads version {known}: \
         make it again, or compare with the netsim that wrote it",
        known = SCHEMA
    )]
    Schema { path: String, found: u32 },
}

/// Writes `name.json` and `name.html` into `folder`, which must exist.
pub fn write(
    report: &RunReport,
    folder: &Path,
    name: &str,
) -> Result<[PathBuf; 2], RunReportError> {
    let json = folder.join(format!("{name}.json"));
    let html = folder.join(format!("{name}.html"));
    let failed = |path: &Path, error| RunReportError::File {
        path: path.display().to_string(),
        verb: "written",
        error,
    };
    let text = serde_json::to_vec_pretty(report);
    let text = text.map_err(|error| failed(&json, error.into()))?;
    fs::write(&json, text).map_err(|error| failed(&json, error))?;
    fs::write(&html, page(report)).map_err(|error| failed(&html, error))?;
    Ok([json, html])
}

/// Reads a report that [`write()`] made.
pub fn read(path: &Path) -> Result<RunReport, RunReportError> {
    let name = path.display().to_string();
    let failed = |error| RunReportError::File {
        path: name.clone(),
        verb: "read",
        error,
    };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > LARGEST {
        return Err(RunReportError::Large { path: name, bytes });
    }
    let text = fs::read(path).map_err(failed)?;
    let report: RunReport = match serde_json::from_slice(&text) {
        Ok(report) => report,
        Err(error) => return Err(RunReportError::Json { path: name, error }),
    };
    if report.schema != SCHEMA {
        let found = report.schema;
        return Err(RunReportError::Schema { path: name, found });
    }
    Ok(report)
}
