//! Reports of runs: one JSON file and one HTML page for each, and the comparison of two.
//!
//! A layer fills a [`RunReport`] and calls [`write()`]. The page is self-contained: styles and charts
//! (SVG) are in the file, it has no script, and it makes no request. Everything in it that comes
//! from a report is escaped, since names and reasons may come from foreign peers.

mod calibration;
mod chart;
pub mod compare;
mod page;
mod schema;
mod style;
mod tables;
mod text;

pub use calibration::calibration_text;
pub use page::{page, propagation_picture};
pub use schema::{
    LAB_LAYER, RunBan, RunCalibration, RunCheck, RunFault, RunHop, RunHostile, RunHostileOutcome,
    RunJoining, RunLink, RunNode, RunNodeTraffic, RunPropagation, RunReport, RunSeries, RunSpread,
    RunTraffic, SCHEMA, cumulative,
};
pub use text::{number, text};

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
        "{path} is {bytes} bytes long, and a report is at most {largest}: name a JSON file that \
         `netsim` wrote",
        largest = LARGEST
    )]
    Large { path: String, bytes: u64 },
    #[error("{path} does not contain a report: {error}. Name a JSON file that `netsim` wrote")]
    Json {
        path: String,
        error: serde_json::Error,
    },
    #[error(
        "{path} has report format {found}, and this netsim reads format {known}: run the scenario \
         again, or use the netsim that wrote the file",
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

/// A report of any format.
#[derive(serde::Deserialize)]
struct NumberedReport {
    schema: u32,
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
    let json = |error| RunReportError::Json {
        path: name.clone(),
        error,
    };
    // Fields of another format may differ, so the number is read before them.
    let numbered: NumberedReport = serde_json::from_slice(&text).map_err(json)?;
    if numbered.schema != SCHEMA {
        let found = numbered.schema;
        return Err(RunReportError::Schema { path: name, found });
    }
    serde_json::from_slice(&text).map_err(json)
}
