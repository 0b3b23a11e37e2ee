//! The guard of a run: a process of its own that outlives a killed controller. It waits until its
//! standard input ends, which happens when the controller ends for whatever reason. Then it kills
//! every process of the run and removes the run's folder.
//!
//! Processes of a run are recognised by a variable in their environment, which their children
//! inherit. So the guard needs no list of process ids, which could have been given to others.

use super::error::LabError;
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

/// Clean up after a run whose controller has ended
#[derive(clap::Args)]
pub struct GuardArgs {
    folder: PathBuf,
}

impl GuardArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        io::stdin().read_to_end(&mut Vec::new())?;
        clean(&self.folder)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The running guard. Dropping it makes the guard clean up; the drop waits for that.
pub struct LabGuard {
    child: Child,
    input: Option<ChildStdin>,
}

impl LabGuard {
    /// Starts the guard of a run. `program` is `netsim`.
    pub fn start(program: &Path, folder: &Path) -> Result<Self, LabError> {
        let child = Command::new(program)
            .arg("guard")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A signal to the terminal's process group must not end the guard with the controller.
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|error| LabError::Start {
            name: "the guard".to_owned(),
            program: program.to_owned(),
            error,
        })?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }
}

impl Drop for LabGuard {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Kills all processes of a run and removes its folder.
fn clean(folder: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let running = processes(folder)?;
        if running.is_empty() {
            break;
        }
        for pid in &running {
            // A process that has just ended needs no signal.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        anyhow::ensure!(begun.elapsed() < LIMIT, "processes {running:?} do not end");
        std::thread::sleep(PAUSE);
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            anyhow::bail!("{} cannot be removed: {error}", folder.display())
        }
        _ => Ok(()),
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
