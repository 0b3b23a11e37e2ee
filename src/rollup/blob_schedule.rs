//! Finds the blob base fee schedule of the rollup's L1: built in for the public chains, read from
//! `--rollup.l1-chain-config` for any other. All nodes of the rollup need the same schedule, since
//! it determines the blob base fee in the L1 attributes.

use crate::chain::genesis::read_file;
use starling_proto::{
    fork::BlobSchedule,
    l1_config::{L1ChainConfig, L1ChainConfigError},
};
use std::{
    io,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum BlobScheduleError {
    /// The message begins like op-node's.
    #[error(
        "failed to read chain spec: L1 chain {0} is not Mainnet, Sepolia, Holesky or Hoodi, so its blob base fee schedule is not built in, and \
         without it a sequencer makes blocks that no verifier derives, and a verifier derives none: give the L1's genesis file or chain \
         config with --rollup.l1-chain-config"
    )]
    NotGiven(u64),
    #[error("--rollup.l1-chain-config: failed to read chain spec: {}: {error}; check the path and its permissions", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("--rollup.l1-chain-config: {}: {error}", path.display())]
    Malformed {
        path: PathBuf,
        error: L1ChainConfigError,
    },
    #[error(
        "--rollup.l1-chain-config: {}: l1 chain config chain ID mismatch: {given} != {expected}; give the file of the L1 that rollup.json names",
        path.display()
    )]
    OtherChain {
        path: PathBuf,
        given: u64,
        expected: u64,
    },
}

/// The schedule of this L1; `None` if no schedule is built in and no file is given. For a public L1
/// the file is ignored, as in op-node.
pub fn blob_schedule(
    l1_chain_id: u64,
    file: Option<&Path>,
) -> Result<Option<BlobSchedule>, BlobScheduleError> {
    let built_in = BlobSchedule::of_chain(l1_chain_id);
    let Some(path) = file.filter(|_| built_in.is_none()) else {
        if file.is_some() {
            tracing::warn!(
                l1_chain_id,
                "--rollup.l1-chain-config is not read: the blob schedule of this L1 is built in"
            );
        }
        return Ok(built_in);
    };
    let text = read_file(path).map_err(|error| BlobScheduleError::Unreadable {
        path: path.to_path_buf(),
        error,
    })?;
    let config = L1ChainConfig::from_json(&text).map_err(|error| BlobScheduleError::Malformed {
        path: path.to_path_buf(),
        error,
    })?;
    if config.chain_id != l1_chain_id {
        let path = path.to_path_buf();
        return Err(BlobScheduleError::OtherChain {
            path,
            given: config.chain_id,
            expected: l1_chain_id,
        });
    }
    Ok(Some(config.blobs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"chainId": 900, "cancunTime": 0, "pragueTime": 0, "blobSchedule": {
        "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477},
        "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716}}}"#;

    fn read(chain_id: u64, text: &str) -> Result<Option<BlobSchedule>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("l1.json");
        std::fs::write(&path, text).unwrap();
        blob_schedule(chain_id, Some(&path)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_counts_where_nothing_is_built_in() {
        let expected =
            BlobSchedule::new(vec![(0, BlobSchedule::CANCUN), (0, BlobSchedule::PRAGUE)]);
        assert_eq!(read(900, CONFIG), Ok(Some(expected)));
        assert_eq!(blob_schedule(900, None).unwrap(), None);
        // On a public L1 the file is not even opened.
        let sepolia = BlobSchedule::of_chain(11_155_111);
        assert_eq!(
            blob_schedule(11_155_111, Some(Path::new("/nowhere/l1.json"))).unwrap(),
            sepolia
        );
    }

    #[test]
    fn a_bad_file_is_named_with_its_option() {
        for (chain_id, text, words) in [
            (901, CONFIG, "l1 chain config chain ID mismatch: 900 != 901"),
            (900, "{", "is not readable"),
            (
                900,
                r#"{"chainId": 900}"#,
                "L1 chain config does not have a blob schedule config",
            ),
        ] {
            let said = read(chain_id, text).unwrap_err();
            assert!(
                said.starts_with("--rollup.l1-chain-config: ")
                    && said.contains("l1.json")
                    && said.contains(words),
                "{said}"
            );
        }
        let said = blob_schedule(900, Some(Path::new("/nowhere/l1.json")))
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("failed to read chain spec: /nowhere/l1.json"),
            "{said}"
        );
    }
}
