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
    use nix::sched::{CloneFlags, unshare};
    use std::os::unix::fs::MetadataExt;
    let enter = || {
        // The folder of a process belongs to its effective user and group.
        let process = std::fs::metadata("/proc/self")?;
        let (user, group) = (process.uid(), process.gid());
        if user == 0 {
            return Ok(());
        }
        unshare(CloneFlags::CLONE_NEWUSER)?;
        // The kernel accepts a map of groups only from a process that cannot change its groups.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
    };
    enter().map_err(|error| PacketRefusal::User { error })
}

#[cfg(not(target_os = "linux"))]
pub fn gain_namespace_rights() -> Result<(), PacketRefusal> {
    Err(PacketRefusal::Unsupported)
}
