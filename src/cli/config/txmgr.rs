//! Options of the transaction manager and of its account's key: `--private-key`,
//! `--private-key.path`, `--mnemonic` with `--hd-path`, or `--signer.*`.

use super::{CliError, Source, Values, expand_home, sequencer::read_remote};
use crate::txmgr::{
    options::TxOptions,
    sign::{TxSignerConfig, key_from_file},
};

/// Differences between the transaction options of op-batcher and op-proposer.
#[derive(Clone, Copy, Debug)]
pub struct TxNames {
    /// Deprecated name of `--hd-path`.
    pub old_hd_path: &'static str,
    /// Whether the program has options for the tips of blob transactions.
    pub has_blobs: bool,
}

/// Names in op-batcher.
pub const BATCHER: TxNames = TxNames {
    old_hd_path: "sequencer-hd-path",
    has_blobs: true,
};

/// Names in op-proposer.
pub const PROPOSER: TxNames = TxNames {
    old_hd_path: "l2-output-hd-path",
    has_blobs: false,
};

/// Reads and checks the transaction options.
pub fn options(values: &Values, names: TxNames) -> Result<TxOptions, CliError> {
    let defaults = TxOptions::default();
    let mut options = TxOptions {
        num_confirmations: values.uint("num-confirmations")?,
        safe_abort_nonce_too_low_count: values.uint("safe-abort-nonce-too-low-count")?,
        fee_limit_multiplier: values.uint("fee-limit-multiplier")?,
        fee_limit_threshold: values.float("txmgr.fee-limit-threshold")?,
        min_tip_cap: values.float("txmgr.min-tip-cap")?,
        max_tip_cap: values.float("txmgr.max-tip-cap")?,
        min_basefee: values.float("txmgr.min-basefee")?,
        max_basefee: values.float("txmgr.max-basefee")?,
        resubmission_timeout: values.duration("resubmission-timeout")?,
        rebroadcast_interval: values.duration("txmgr.rebroadcast-interval")?,
        retry_interval: values.duration("txmgr.retry-interval")?,
        max_retries: values.uint("txmgr.max-retries")?,
        network_timeout: values.duration("network-timeout")?,
        send_timeout: values.duration("txmgr.send-timeout")?,
        not_in_mempool_timeout: values.duration("txmgr.not-in-mempool-timeout")?,
        receipt_query_interval: values.duration("txmgr.receipt-query-interval")?,
        already_published_custom_errs: values.list("txmgr.already-published-custom-errs")?,
        cell_proof_time: values.uint("txmgr.cell-proof-time")?,
        ..defaults
    };
    if names.has_blobs {
        options.blob_tip_cap_dynamic = values.bool("txmgr.blob-tip-cap-dynamic")?;
        options.blob_tip_cap_percentile = values.uint("txmgr.blob-tip-cap-percentile")?;
        options.blob_tip_cap_range = values.uint("txmgr.blob-tip-cap-range")?;
    }
    let checked = options.settings();
    checked.map_err(|error| CliError::Usage(error.to_string()))?;
    Ok(options)
}

/// Reads the location of the key. For a key on the command line, adds a notice with better options.
pub fn signer(
    values: &Values,
    names: TxNames,
    notices: &mut Vec<String>,
) -> Result<TxSignerConfig, CliError> {
    let key = values.secret("private-key")?;
    let path = values.text("private-key.path")?;
    let words = values.secret("mnemonic")?;
    let remote = read_remote(values)?;
    let given = [
        key.is_some(),
        path.is_some(),
        words.is_some(),
        remote.is_some(),
    ];
    if given.into_iter().filter(|given| *given).count() > 1 {
        return Err(CliError::Usage(
            "can only provide at most one of: [private key, mnemonic, remote signer] (--private-key, --private-key.path, --mnemonic, --signer.endpoint)".into(),
        ));
    }
    for (name, is_given) in [
        ("private-key", key.is_some()),
        ("mnemonic", words.is_some()),
    ] {
        if is_given && values.source(name) == Some(&Source::CommandLine) {
            notices.push(format!(
                "--{name} shows the key to everyone on this machine: better put it in a file (--private-key.path), in the environment, or in a signer (--signer.endpoint)"
            ));
        }
    }
    match (key, path, words, remote) {
        (Some(key), ..) => Ok(TxSignerConfig::Key(key)),
        (_, Some(path), ..) => {
            let key = key_from_file(&expand_home(&path));
            let key = key.map_err(|error| CliError::Usage(error.to_string()))?;
            Ok(TxSignerConfig::Key(key))
        }
        (_, _, Some(words), _) => Ok(TxSignerConfig::Mnemonic {
            words,
            path: hd_path(values, names)?,
        }),
        (.., Some(remote)) => Ok(TxSignerConfig::Remote(remote)),
        _ => Err(CliError::Missing {
            name: "--private-key.path",
            next: "transactions on L1 are signed: give a file with the key, a wallet (--mnemonic), or a signer (--signer.endpoint)",
        }),
    }
}

fn hd_path(values: &Values, names: TxNames) -> Result<String, CliError> {
    let path = values.text("hd-path")?;
    let path = path.map_or_else(|| values.text(names.old_hd_path), |path| Ok(Some(path)))?;
    path.ok_or(CliError::Missing {
        name: "--hd-path",
        next: "a wallet has many accounts: give the path, as m/44'/60'/0'/0/0",
    })
}

#[cfg(test)]
mod tests;
