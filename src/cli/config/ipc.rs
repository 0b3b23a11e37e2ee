//! Options of the local RPC socket, and of path prefixes.

use super::{datadir, expand_home};
use crate::cli::{CliError, parse::Values};
use std::path::PathBuf;

/// Name of the socket in the data directory, the same as geth's.
const DEFAULT_NAME: &str = "geth.ipc";

#[derive(Clone, Debug)]
pub struct IpcConfig {
    pub path: PathBuf,
    /// Whether the user gave the path. A default socket that cannot be served is left out.
    pub given: bool,
}

/// Reads the path prefix of a server, with geth's checks.
pub(super) fn prefix(values: &Values, name: &'static str) -> Result<String, CliError> {
    let prefix = values.text(name)?.unwrap_or_default();
    let reason = if prefix.is_empty() {
        return Ok(prefix);
    } else if !prefix.starts_with('/') {
        format!("the path prefix {prefix:?} does not begin with /")
    } else if prefix.contains(['?', '#']) {
        format!("the path prefix {prefix:?} contains ? or #")
    } else {
        return Ok(prefix);
    };
    Err(CliError::Invalid { name, reason })
}

impl IpcConfig {
    /// Reads the socket's path; `None` with `--ipcdisable`. As in geth, a name without a directory
    /// is relative to the data directory.
    pub(super) fn read(values: &Values) -> Result<Option<Self>, CliError> {
        if values.bool("ipcdisable")? {
            return Ok(None);
        }
        let path = values.text("ipcpath")?;
        let path = path.filter(|path| !path.is_empty());
        let path = expand_home(path.as_deref().unwrap_or(DEFAULT_NAME));
        let name_alone = path
            .parent()
            .is_none_or(|parent| parent.as_os_str().is_empty());
        Ok(Some(Self {
            path: if name_alone {
                datadir(values)?.join(path)
            } else {
                path
            },
            given: values.source("ipcpath").is_some(),
        }))
    }
}
