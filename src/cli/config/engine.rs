//! Engine API options of an execution core: `--authrpc.*`, and `--rollup.halt`, which lets the
//! rollup node stop the core.

use super::{CliError, Values, datadir, expand_home, host};
use crate::rpc::engine::superchain::HaltAt;
use std::path::PathBuf;

/// Configuration of the Engine API server.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Host name or IP address.
    pub addr: String,
    pub port: u16,
    pub vhosts: Vec<String>,
    /// File with the JWT secret, created if missing.
    pub jwt_secret: PathBuf,
    /// Which number of a newer required protocol version (major, minor or patch) stops the node;
    /// `None` disables this.
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
