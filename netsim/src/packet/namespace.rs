//! Network namespaces without names. A namespace lives as long as a file or a process that refers
//! to it, so nothing is left behind when this process is killed: neither a mount nor a device.
//!
//! Only threads made for the purpose change their namespace. Sockets and processes that such a
//! thread makes stay in the namespace when the thread has ended.

use super::error::PacketRefusal;
use std::{fs::File, io};

/// A network namespace, held by a file.
pub(super) struct NetNamespace {
    file: File,
}

#[cfg(target_os = "linux")]
impl NetNamespace {
    pub fn create() -> Result<Self, PacketRefusal> {
        use nix::sched::{CloneFlags, unshare};
        let created = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let file = created.and_then(|file| file);
        let file = file.map_err(|error| PacketRefusal::Namespace { error })?;
        Ok(Self { file })
    }

    /// Calls `act` on a thread in the namespace, and waits for it.
    pub fn within<R: Send>(&self, act: impl FnOnce() -> R + Send) -> io::Result<R> {
        use nix::sched::{CloneFlags, setns};
        on_thread(|| {
            setns(&self.file, CloneFlags::CLONE_NEWNET)?;
            Ok(act())
        })?
    }
}

/// Calls `act` on a thread of its own. A panic of `act` continues in the caller.
#[cfg(target_os = "linux")]
fn on_thread<R: Send>(act: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned());
        let joined = thread.spawn_scoped(scope, act)?.join();
        joined.map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}

#[cfg(not(target_os = "linux"))]
impl NetNamespace {
    pub fn create() -> Result<Self, PacketRefusal> {
        Err(PacketRefusal::Unsupported)
    }

    pub fn within<R: Send>(&self, _act: impl FnOnce() -> R + Send) -> io::Result<R> {
        let _ = &self.file;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Gives this process the right to create network namespaces: root has it, and others get it in a
/// user namespace. Call it before the process starts threads, since the kernel refuses a user
/// namespace to a process with several threads.
#[cfg(target_os = "linux")]
pub fn gain_namespace_rights() -> Result<(), PacketRefusal> {
    use std::os::unix::fs::MetadataExt;
    // The folder of a process belongs to its effective user and group.
    let process = std::fs::metadata("/proc/self").map_err(|error| PacketRefusal::User { error })?;
    let (user, group) = (process.uid(), process.gid());
    if user == 0 {
        return Ok(());
    }
    let probe = &mut std::process::Command::new("unshare");
    probe.args(["--user", "--map-root-user", "true"]);
    let entered = probed(probe, || enter(user, group));
    entered.map_err(|error| PacketRefusal::User { error })
}

/// Calls `enter` if the probe succeeds. A machine may allow a user namespace and refuse the maps of
/// its ids, and a process that is in such a namespace is nobody and cannot leave it. So another
/// process tries first.
#[cfg(target_os = "linux")]
fn probed(
    probe: &mut std::process::Command,
    enter: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let output = probe.output()?;
    if output.status.success() {
        return enter();
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Enters a user namespace in which this process has its ids and all rights.
#[cfg(target_os = "linux")]
fn enter(user: u32, group: u32) -> io::Result<()> {
    use nix::sched::{CloneFlags, unshare};
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // The kernel accepts a map of groups only from a process that cannot change its groups.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

#[cfg(not(target_os = "linux"))]
pub fn gain_namespace_rights() -> Result<(), PacketRefusal> {
    Err(PacketRefusal::Unsupported)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{cell::Cell, process::Command};

    #[test]
    fn a_user_namespace_is_entered_only_after_a_probe() {
        let entered = Cell::new(0);
        let attempt = |script: &str| {
            let probe = &mut Command::new("sh");
            probed(probe.args(["-c", script]), || {
                entered.set(entered.get() + 1);
                Ok(())
            })
        };
        let refused = attempt("echo the map is refused >&2; exit 1").unwrap_err();
        assert_eq!(refused.to_string(), "the map is refused");
        assert_eq!(entered.get(), 0);
        attempt("exit 0").unwrap();
        assert_eq!(entered.get(), 1);
    }
}
