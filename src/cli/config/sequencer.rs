//! Options of the sequencer (`--sequencer.*`) and of its block signer (`--p2p.sequencer.key*` or
//! `--signer.*`).

use super::{CliError, Secret, Source, Values, expand_home, warn_of_key};
use crate::rollup::{
    sequencer::SequencerConfig,
    signer::{RemoteConfig, SIGN_TIMEOUT, TlsFiles},
};
use std::path::Path;

/// Configuration of a sequencer and its signer.
#[derive(Clone, Debug)]
pub struct SequencingConfig {
    pub sequencer: SequencerConfig,
    pub signer: SignerConfig,
}

/// The signer of the sequencer's blocks.
#[derive(Clone, Debug)]
pub enum SignerConfig {
    /// Private key: 32 bytes in hex, already checked.
    Key(Secret),
    Remote(RemoteConfig),
}

impl SequencingConfig {
    pub(super) fn read(
        values: &Values,
        notices: &mut Vec<String>,
    ) -> Result<Option<Self>, CliError> {
        let key = values.secret("p2p.sequencer.key")?;
        if key.is_some() {
            warn_of_key(
                values,
                "p2p.sequencer.key",
                "--p2p.sequencer.key.path",
                notices,
            );
        }
        if !values.bool("sequencer.enabled")? {
            if key.is_some()
                || values.text("p2p.sequencer.key.path")?.is_some()
                || values.text("signer.endpoint")?.is_some()
            {
                notices.push(
                    "the sequencer's signer is not used: --sequencer.enabled is not given".into(),
                );
            }
            return Ok(None);
        }
        if values.text("rpc.admin-state")?.is_some() {
            return Err(CliError::Refused {
                name: "--rpc.admin-state of a sequencer".into(),
                reason: "the file is not read, so a stopped sequencer would start again after a restart; use --sequencer.stopped instead",
            });
        }
        let defaults = SequencerConfig::default();
        let sequencer = SequencerConfig {
            l1_confs: values.uint("sequencer.l1-confs")?,
            max_safe_lag: values.uint("sequencer.max-safe-lag")?,
            // Zero means the default (as in op-node).
            sealing: Some(values.duration("sequencer.sealing-duration")?)
                .filter(|time| !time.is_zero())
                .unwrap_or(defaults.sealing),
            stopped: values.bool("sequencer.stopped")?,
            recover: values.bool("sequencer.recover")?,
        };
        Ok(Some(Self {
            sequencer,
            signer: SignerConfig::read(values)?,
        }))
    }
}

impl SignerConfig {
    fn read(values: &Values) -> Result<Self, CliError> {
        let mut given = values.secret("p2p.sequencer.key")?;
        let mut path = values.text("p2p.sequencer.key.path")?;
        match (
            values.source("p2p.sequencer.key"),
            values.source("p2p.sequencer.key.path"),
        ) {
            (Some(Source::CommandLine), Some(Source::Environment(_))) => path = None,
            (Some(Source::Environment(_)), Some(Source::CommandLine)) => given = None,
            _ => {}
        }
        if given.is_some() && path.is_some() {
            return Err(invalid(
                "p2p.sequencer.key",
                "a key file is given too; give one of them",
            ));
        }
        let remote = read_remote(values)?;
        if remote.is_some() && (given.is_some() || path.is_some()) {
            return Err(invalid(
                "signer.endpoint",
                "the sequencer's key is given too; give one of them",
            ));
        }
        let key = match (given, path) {
            (Some(key), _) => key,
            (None, Some(path)) => read_key(&expand_home(&path))?,
            (None, None) => {
                return remote.map(Self::Remote).ok_or(CliError::Missing {
                    name: "--p2p.sequencer.key.path",
                    next: "a sequencer signs its blocks: give a file with the key, OP_NODE_P2P_SEQUENCER_KEY, or a signer (--signer.endpoint)",
                });
            }
        };
        if key
            .bytes()
            .is_none_or(|bytes| secp256k1::SecretKey::from_byte_array(&bytes).is_err())
        {
            return Err(invalid("p2p.sequencer.key", "a key is 32 bytes in hex"));
        }
        Ok(Self::Key(key))
    }
}

/// Reads the remote signer's options (`--signer.*`); `None` without them.
pub(super) fn read_remote(values: &Values) -> Result<Option<RemoteConfig>, CliError> {
    let (endpoint, address) = match (
        values.text("signer.endpoint")?,
        values.text("signer.address")?,
    ) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err(invalid(
                "signer.endpoint",
                "the address it signs for is missing (--signer.address)",
            ));
        }
        (None, Some(_)) => {
            return Err(invalid(
                "signer.address",
                "the signer's endpoint is missing (--signer.endpoint)",
            ));
        }
        (Some(endpoint), Some(address)) => (endpoint, address),
    };
    if !endpoint.starts_with("http") {
        return Err(invalid(
            "signer.endpoint",
            "a URL that begins with http:// or https:// is expected",
        ));
    }
    let address = address
        .parse()
        .map_err(|_| invalid("signer.address", "an address is 20 bytes in hex"))?;
    let file = |name| values.required_text(name).map(|path| expand_home(&path));
    let tls = if values.bool("signer.tls.enabled")? {
        Some(TlsFiles {
            ca: file("signer.tls.ca")?,
            cert: file("signer.tls.cert")?,
            key: file("signer.tls.key")?,
        })
    } else {
        None
    };
    let headers = headers(values.list("signer.header")?)?;
    Ok(Some(RemoteConfig {
        endpoint: Secret::new(endpoint),
        address,
        headers,
        tls,
        timeout: SIGN_TIMEOUT,
    }))
}

/// Parses header pieces. The list was split at commas, which a value may contain, so a piece
/// without `=` belongs to the previous value.
fn headers(pieces: Vec<String>) -> Result<Vec<(String, Secret)>, CliError> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for piece in pieces {
        match (piece.split_once('='), headers.last_mut()) {
            (Some((name, value)), _) => {
                headers.push((name.trim().to_owned(), value.trim().to_owned()))
            }
            (None, Some((_, value))) => *value = format!("{value},{piece}"),
            (None, None) => return Err(invalid("signer.header", "a header is given as key=value")),
        }
    }
    Ok(headers
        .into_iter()
        .map(|(name, value)| (name, Secret::new(value)))
        .collect())
}

fn invalid(name: &'static str, reason: &str) -> CliError {
    CliError::Invalid {
        name,
        reason: reason.into(),
    }
}

fn read_key(path: &Path) -> Result<Secret, CliError> {
    std::fs::read_to_string(path)
        .map(|text| Secret::new(text.trim()))
        .map_err(|error| CliError::Unreadable {
            what: "the sequencer's key",
            path: path.to_path_buf(),
            error,
        })
}
