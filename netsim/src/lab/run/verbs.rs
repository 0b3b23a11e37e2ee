//! Verbs that change more than a process or a link: disks, addresses, keys and L1.
//!
//! The run calls them one after the other at their times, and waits for each: a copy of L1's data or
//! a transaction on L1 delays later verbs, and the report has the time at which each was complete.

use super::RunningLab;
use crate::guard::MARK;
use crate::lab::{
    account::LabAccount,
    error::LabError,
    l1::{self, SignerContract},
    mounts, rpc,
    topology::{L1_INDEX, SEQUENCER_INDEX},
};
use alloy_primitives::{hex, keccak256};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::process::Command;

/// Extension of the folder with a snapshot of the L1's data.
const SNAPSHOT: &str = "snapshot";

impl RunningLab<'_> {
    fn l1(&self) -> Result<SocketAddr, LabError> {
        let http = self.network.nodes[L1_INDEX].http;
        http.ok_or_else(|| LabError::L1 {
            reason: "it has no RPC".to_owned(),
        })
    }

    /// Copies the data of L1, which stops for a moment.
    pub(super) async fn snapshot_l1(&mut self, node: usize) -> Result<(), LabError> {
        let end = self.network.nodes[node].process.stop().await;
        self.stops[node].add(end);
        let data = self.l1_data(node)?;
        let copy = data.with_extension(SNAPSHOT);
        copy_folder(&data, &copy, &self.network.nodes[node].process.folder).await?;
        self.network.nodes[node].process.start()?;
        self.network.responds(node).await
    }

    /// Restarts L1 with the data of its snapshot, so that it makes other blocks than since then.
    pub(super) async fn restore_l1(&mut self, node: usize) -> Result<(), LabError> {
        let safe = match self.network.nodes[SEQUENCER_INDEX].http {
            Some(http) => {
                rpc::read_until_some(rpc::VERDICT_LIMIT, || rpc::tagged(http, "safe")).await
            }
            None => None,
        };
        let branch = l1::branch(self.l1()?).await?;
        let end = self.network.nodes[node].process.stop().await;
        self.stops[node].add(end);
        let data = self.l1_data(node)?;
        let copy = data.with_extension(SNAPSHOT);
        let removed = tokio::fs::remove_dir_all(&data).await;
        removed.map_err(LabError::io(&data))?;
        fs::rename(&copy, &data).map_err(LabError::io(&data))?;
        self.network.nodes[node].process.start()?;
        self.network.responds(node).await?;
        let fork = l1::fork_point(self.l1()?, &branch).await?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.safe_floor = self.safe_floor.max(safe.map_or(0, |block| block.number));
        self.reorgs.push(super::MadeReorg {
            at: now.as_micros() as u64,
            fork,
            head: branch.first().map_or(fork, |head| head.number),
        });
        Ok(())
    }

    /// Folder of the L1's data.
    fn l1_data(&self, node: usize) -> Result<PathBuf, LabError> {
        let process = &self.network.nodes[node].process;
        let data = process.datadir.as_deref().ok_or_else(|| LabError::L1 {
            reason: "it stores no data".to_owned(),
        })?;
        Ok(process.view(data))
    }

    /// Fills a node's disk, or removes the file that fills it.
    pub(super) async fn change_disk(&self, node: usize, is_full: bool) -> Result<(), LabError> {
        let node = &self.network.nodes[node];
        let Some(disk) = &node.disk else {
            return Ok(());
        };
        let path = node.process.view(disk);
        if !is_full {
            return mounts::free(&path);
        }
        // Half a gigabyte is written, so heads are read meanwhile.
        let filled = tokio::task::spawn_blocking(move || mounts::fill(&path)).await;
        let panicked = |error: tokio::task::JoinError| std::io::Error::other(error.to_string());
        let filled = filled.map_err(|error| LabError::io(disk)(panicked(error)))?;
        filled.map(|_| ())
    }

    /// Restarts a node at another address. Its peers find it by its name.
    pub(super) async fn move_node(&mut self, node: usize) -> Result<(), LabError> {
        let end = self.network.nodes[node].process.stop().await;
        self.stops[node].add(end);
        self.network.move_node(node).await?;
        self.network.nodes[node].process.start()?;
        self.network.responds(node).await
    }

    /// Names a new block signer on L1, then restarts the sequencer with the new key. The new key is
    /// the hash of the present one.
    pub(super) async fn change_key(&mut self, node: usize) -> Result<(), LabError> {
        let file = self.network.net.join("sequencer.key");
        let old = fs::read_to_string(&file).map_err(LabError::io(&file))?;
        let key = hex::encode(keccak256(old.trim()));
        let owner = self
            .network
            .keys
            .first()
            .and_then(|key| LabAccount::new(key));
        let (Some(owner), Some(signer)) = (owner, LabAccount::new(&key)) else {
            let reason = "the network has no key of its contracts' owner".to_owned();
            return Err(LabError::L1 { reason });
        };
        let contract = SignerContract {
            chain_id: self.network.l1_chain_id,
            address: self.network.system_config,
            owner: &owner,
        };
        contract.set_signer(self.l1()?, signer.address).await?;
        fs::write(&file, key).map_err(LabError::io(&file))?;
        let end = self.network.nodes[node].process.stop().await;
        self.stops[node].add(end);
        self.network.nodes[node].process.start()?;
        self.network.responds(node).await
    }
}

/// Copies a folder with all that is in it. An earlier copy is replaced. A process of the run
/// copies, so that the guard ends it when the run is interrupted: a task that blocks would go on
/// and create the folder of the run again.
async fn copy_folder(from: &Path, to: &Path, run: &Path) -> Result<(), LabError> {
    if to.exists() {
        let removed = tokio::fs::remove_dir_all(to).await;
        removed.map_err(LabError::io(to))?;
    }
    let output = copying(from, to, run).output().await;
    let output = output.map_err(LabError::io(to))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::io(to)(io::Error::other(reason)))
}

fn copying(from: &Path, to: &Path, run: &Path) -> Command {
    let mut command = Command::new("cp");
    command
        .args(["-R", "--"])
        .args([from, to])
        .env(MARK, run)
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[tokio::test]
    async fn a_folder_is_copied_whole_and_replaces_a_copy_from_before() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["data", "copy"].map(|name| folder.path().join(name));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/file"), "new").unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("old"), "old").unwrap();
        copy_folder(&from, &to, folder.path()).await.unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/file")).unwrap(), "new");
        assert!(!to.join("old").exists());
        let missing = folder.path().join("missing");
        let error = copy_folder(&missing, &to, folder.path()).await.unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }

    #[test]
    fn the_guard_of_the_run_finds_the_process_that_copies() {
        let [from, to, run] = ["/from", "/to", "/run"].map(Path::new);
        let command = copying(from, to, run);
        let mut variables = command.as_std().get_envs();
        let mark = (OsStr::new(MARK), Some(OsStr::new("/run")));
        assert!(variables.any(|it| it == mark));
    }
}
