//! A mount namespace for the nodes of a run: file systems of limited size for some data
//! directories, and a resolver configuration of the lab's own. The namespace belongs to a holder
//! process, and nodes enter it when they start. The mounts are not visible outside, and the kernel
//! removes them with the last process, so the guard has no mount to clean up.

use super::error::LabError;
use crate::guard::MARK;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

/// Size of a limited file system. A node stops writing below 64 MiB of free space, and needs some
/// more for its journals.
const DISK: u64 = 512 << 20;
/// Bytes of one write of the file that fills a file system.
const CHUNK: usize = 1 << 20;
/// Name of that file.
const FILLER: &str = "filler";

/// Commands of the holder. Its arguments are the resolver configuration, which may be empty, and
/// the directories of limited file systems. A directory gets its file system before any node runs.
const SCRIPT: &str = "set -e; size=$1; conf=$2; shift 2
if [ -n \"$conf\" ]; then mount --bind \"$conf\" /etc/resolv.conf; fi
for dir; do mount -t tmpfs -o size=\"$size\",mode=0755 netsim \"$dir\"; done
echo ready
exec sleep infinity";

/// The holder of a namespace. The namespace ends with it and with the nodes that run in it.
#[derive(Debug)]
pub struct LabMounts {
    holder: u32,
    _child: Child,
}

impl LabMounts {
    /// Opens a namespace for the run in `folder`. Fails with the reason of the system.
    pub async fn open(
        folder: &Path,
        resolver: Option<&Path>,
        disks: &[PathBuf],
    ) -> Result<Self, LabError> {
        for disk in disks {
            fs::create_dir_all(disk).map_err(LabError::io(disk))?;
        }
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--", "sh", "-c", SCRIPT, "netsim"])
            .arg(DISK.to_string())
            .arg(resolver.map_or(OsStr::new(""), Path::as_os_str))
            .args(disks)
            .env(MARK, folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let refused = |reason: String| LabError::Mounts { reason };
        let mut child = command
            .spawn()
            .map_err(|error| refused(format!("unshare cannot be started: {error}")))?;
        let output = child.stdout.take().map(BufReader::new);
        let mut line = String::new();
        if let Some(mut output) = output {
            let read = output.read_line(&mut line).await;
            read.map_err(|error| refused(error.to_string()))?;
        }
        match child.id() {
            Some(holder) if line == "ready\n" => Ok(Self {
                holder,
                _child: child,
            }),
            _ => Err(refused(errors_of(child).await)),
        }
    }

    /// Process id of the holder, whose namespace nodes enter.
    pub fn holder(&self) -> u32 {
        self.holder
    }
}

/// The errors that a holder wrote before it ended.
async fn errors_of(mut child: Child) -> String {
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        // The reason is left empty if these errors are not text.
        let _ = errors.read_to_string(&mut text).await;
    }
    let _ = child.kill().await;
    text.trim().replace('\n', " | ")
}

/// The path under which this process sees a path of the holder's namespace.
pub fn view(holder: u32, path: &Path) -> PathBuf {
    let inside = path.strip_prefix("/").unwrap_or(path);
    Path::new("/proc")
        .join(holder.to_string())
        .join("root")
        .join(inside)
}

/// Writes a file into `disk` until no space is left.
pub fn fill(disk: &Path) -> Result<u64, LabError> {
    let path = disk.join(FILLER);
    let mut file = File::create(&path).map_err(LabError::io(&path))?;
    let chunk = vec![1; CHUNK];
    let mut written = 0;
    // The last bytes are written one page at a time.
    for size in [CHUNK, 4 << 10] {
        loop {
            match file.write(&chunk[..size]) {
                Ok(0) => break,
                Ok(len) => written += len as u64,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(LabError::Io { path, error }),
            }
            if written > DISK {
                let error = io::Error::other("it takes more bytes than its file system has");
                return Err(LabError::Io { path, error });
            }
        }
    }
    Ok(written)
}

/// Removes the file of [`fill`].
pub fn free(disk: &Path) -> Result<(), LabError> {
    let path = disk.join(FILLER);
    fs::remove_file(&path).map_err(LabError::io(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a namespace with one limited file system; `None`, recorded as a skip, where the system
    /// refuses it.
    async fn with_disk(folder: &Path) -> Option<LabMounts> {
        let opened = LabMounts::open(folder, None, &[folder.join("disk")]).await;
        if let Err(error) = &opened {
            println!("{error}");
        }
        let what = "the right to make a mount namespace (run as root)";
        starling_testkit::require(opened.ok(), what)
    }

    #[tokio::test]
    async fn a_disk_fills_up_and_is_freed_and_leaves_no_mount() {
        let folder = tempfile::tempdir().unwrap();
        let Some(namespace) = with_disk(folder.path()).await else {
            return;
        };
        let outside = folder.path().join("disk");
        let disk = view(namespace.holder(), &outside);
        let written = fill(&disk).unwrap();
        assert!((DISK / 2..=DISK).contains(&written), "{written}");
        let more = fs::write(disk.join("more"), [1; 1 << 16]).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::StorageFull);
        free(&disk).unwrap();
        fs::write(disk.join("more"), [1; 1 << 16]).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts().contains(&*folder.path().to_string_lossy()));
    }

    #[tokio::test]
    async fn a_mount_that_fails_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent");
        let error = LabMounts::open(folder.path(), Some(&absent), &[]).await;
        let error = error.unwrap_err().to_string();
        let begin =
            "the verbs `fill-disk` and `move` need a mount namespace, which this machine refuses: ";
        let reason = error.strip_prefix(begin).expect(&error);
        assert!(reason.len() > 20 && reason.contains("; "), "{error}");
    }
}
