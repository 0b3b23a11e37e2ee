//! The guard of a run: a process of its own that outlives a killed controller. It waits until its
//! standard input ends, which happens when the controller ends for whatever reason. Then it kills
//! every process of the run and removes the run's folder. A run is that of a lab, or a simulation with
//! real chains, whose folder is in memory.
//!
//! Processes of a run are recognised by a variable in their environment, which their children
//! inherit. So the guard needs no list of process ids, which could have been given to others.

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// Variable in the environment of all processes of a run, with the run's folder. It must not begin
/// like an option of a node: `starling devnet` removes those from its nodes' environment.
pub const MARK: &str = "NETSIM_LAB";

/// Time in which killed processes must be gone.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two searches for processes.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before a second search that must find nothing either. A process that the controller has just
/// forked has the controller's environment until it executes its program.
const AGAIN: Duration = Duration::from_millis(100);
/// Prefix of the names of runs' folders, which are temporary.
pub const PREFIX: &str = "netsim-";
/// A file system in memory, for files of simulations.
pub const MEMORY: &str = "/dev/shm";

/// Clean up after a run whose controller has ended
#[derive(clap::Args)]
pub struct GuardArgs {
    folder: PathBuf,
}

impl GuardArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            is_of_run(&self.folder),
            "{} is not the temporary folder of a run, so it is not removed",
            self.folder.display()
        );
        io::stdin().read_to_end(&mut Vec::new())?;
        clean(&self.folder, LIMIT, || processes(&self.folder))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The running guard. Dropping it makes the guard clean up; the drop waits for that.
pub struct RunGuard {
    child: Child,
    input: Option<ChildStdin>,
}

impl RunGuard {
    /// Starts the guard of a run. `program` is `netsim`.
    pub fn start(program: &Path, folder: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg("guard")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A signal to the terminal's process group must not end the guard with the controller.
            .process_group(0)
            .spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        drop(self.input.take());
        let problem = match self.child.wait() {
            Ok(status) if status.success() => return,
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        println!("  processes or files of the run may be left, since its guard failed: {problem}");
    }
}

/// Whether a folder can be that of a run, so that a mistaken command line removes no other one.
fn is_of_run(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let parent = folder.parent().and_then(|it| it.canonicalize().ok());
    let temporary = [std::env::temp_dir(), MEMORY.into()];
    let mut temporary = temporary.iter().filter_map(|it| it.canonicalize().ok());
    name.starts_with(PREFIX) && temporary.any(|it| Some(it) == parent)
}

/// Kills all processes of a run, which `search` finds, and removes its folder. The folder is removed
/// also if a process does not end within the limit.
fn clean(
    folder: &Path,
    limit: Duration,
    search: impl FnMut() -> io::Result<Vec<Pid>>,
) -> anyhow::Result<()> {
    let ended = end_processes(limit, search);
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let folder = folder.display();
            ended.with_context(|| format!("{folder} cannot be removed: {error}"))?;
            anyhow::bail!("{folder} cannot be removed: {error}")
        }
        _ => ended,
    }
}

/// Kills processes until two searches in succession find none.
fn end_processes(
    limit: Duration,
    mut search: impl FnMut() -> io::Result<Vec<Pid>>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut was_empty = false;
    loop {
        let running = search()?;
        if running.is_empty() && was_empty {
            return Ok(());
        }
        was_empty = running.is_empty();
        for pid in &running {
            // A process that has just ended needs no signal.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        anyhow::ensure!(
            was_empty || begun.elapsed() < limit,
            "processes {running:?} do not end"
        );
        std::thread::sleep(if was_empty { AGAIN } else { PAUSE });
    }
}

/// Ids of the running processes of a run. The environment of a process that has ended but was not
/// waited for is empty, so it does not count.
fn processes(folder: &Path) -> io::Result<Vec<Pid>> {
    let mark = format!("{MARK}={}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else {
            continue;
        };
        // The environment of other users' processes cannot be read.
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|it| it == mark.as_bytes())
        {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// A process that this test may kill.
    fn sleeping() -> (Child, Pid) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        (child, pid)
    }

    #[test]
    fn a_process_that_the_first_search_does_not_find_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, pid) = sleeping();
        let mut found = vec![vec![], vec![pid], vec![], vec![]].into_iter();
        clean(folder.path(), LIMIT, || Ok(found.next().unwrap())).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        assert_eq!(found.len(), 0, "two searches find nothing");
        assert!(!folder.path().exists());
    }

    /// The killed process is not waited for, so its id is not given to another one.
    #[test]
    fn the_folder_is_removed_also_if_a_process_does_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, pid) = sleeping();
        let limit = Duration::from_millis(50);
        let error = clean(folder.path(), limit, || Ok(vec![pid])).unwrap_err();
        let expected = format!("processes [Pid({pid})] do not end");
        assert_eq!(error.to_string(), expected);
        assert!(!folder.path().exists());
        child.wait().unwrap();
    }

    #[test]
    fn only_the_temporary_folder_of_a_run_is_removed() {
        let temporary = std::env::temp_dir();
        assert!(is_of_run(&temporary.join("netsim-x")));
        assert!(is_of_run(&Path::new(MEMORY).join("netsim-x")));
        assert!(!is_of_run(&temporary.join("other")));
        assert!(!is_of_run(&temporary.join("netsim-x/netsim-y")));
        assert!(!is_of_run(Path::new("/netsim-x")));
        assert!(!is_of_run(Path::new("/")));
    }
}
