//! `--authrpc.*` and `--rollup.halt`: where a rollup node finds the Engine API, and what it may do
//! to the node.

use super::{CliError, Values, datadir, expand_home, host};
use crate::rpc::engine::superchain::HaltAt;
use std::path::PathBuf;

/// Where a rollup node finds the Engine API.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// A host name or an address.
    pub addr: String,
    pub port: u16,
    pub vhosts: Vec<String>,
    /// Created if absent.
    pub jwt_secret: PathBuf,
    /// Stop when a protocol version is required that is newer in this place.
    pub halt: Option<HaltAt>,
}

impl EngineConfig {
    pub(super) fn read(values: &Values) -> Result<Self, CliError> {
        let jwt_secret = match values
            .text("authrpc.jwtsecret")?
            .filter(|path| !path.is_empty())
        {
            Some(path) => expand_home(&path),
            None => datadir(values)?.join("geth").join("jwtsecret"),
        };
        Ok(Self {
            addr: host(values.required_text("authrpc.addr")?),
            port: values.port("authrpc.port")?,
            vhosts: values.list("authrpc.vhosts")?,
            jwt_secret,
            halt: match values.text("rollup.halt")?.as_deref() {
                Some("major") => Some(HaltAt::Major),
                Some("minor") => Some(HaltAt::Minor),
                Some("patch") => Some(HaltAt::Patch),
                _ => None,
            },
        })
    }
}
