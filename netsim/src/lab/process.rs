//! One node's process. A process that ends without a request of the controller fails the run.

use super::{error::LabError, logs::LogFindings, mounts};
use crate::guard::MARK;
use crate::packet::PacketHost;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fmt,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// Timeout of an orderly stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of the creation of a data directory.
const INIT_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of the verification of a database of a few hundred blocks.
const VERIFY_LIMIT: Duration = Duration::from_secs(300);
/// Number of lines of a log's end that an error shows.
const TAIL: usize = 25;

/// The end of a process after SIGINT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProcessEnd {
    #[default]
    Success,
    /// The process ended in time with this status, or could not be waited for.
    Failure(String),
    /// The process did not end within [`STOP_LIMIT`].
    Killed,
}

impl ProcessEnd {
    /// Adds a later end. The first one that was no success counts.
    pub fn add(&mut self, later: Self) {
        if *self == Self::Success {
            *self = later;
        }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("ended after SIGINT"),
            Self::Failure(status) => write!(f, "ended after SIGINT with {status}"),
            Self::Killed => write!(
                f,
                "did not end within {} s after SIGINT and was killed",
                STOP_LIMIT.as_secs()
            ),
        }
    }
}

/// A node's command lines, and its process while it runs.
pub struct LabProcess {
    pub name: String,
    /// The program; an upgrade changes it.
    pub program: PathBuf,
    /// Arguments that create the data directory; empty for a node without one.
    pub init: Vec<String>,
    pub args: Vec<String>,
    pub datadir: Option<PathBuf>,
    pub log: PathBuf,
    /// Folder of the run, for the guard.
    pub folder: PathBuf,
    /// Id of the process whose mount namespace the node enters; `None` for the machine's namespace.
    pub mount_holder: Option<u32>,
    /// The host on which the process runs; `None` for this machine.
    pub host: Option<Arc<PacketHost>>,
    child: Option<Child>,
    pub is_frozen: bool,
    /// Number of starts.
    pub starts: u64,
}

impl LabProcess {
    pub fn new(name: &str, program: &Path, args: Vec<String>, log: PathBuf, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: program.to_owned(),
            init: Vec::new(),
            args,
            datadir: None,
            log,
            folder: folder.to_owned(),
            mount_holder: None,
            host: None,
            child: None,
            is_frozen: false,
            starts: 0,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Removes the data directory and creates it anew.
    pub async fn initialise(&mut self) -> Result<(), LabError> {
        self.initialise_within(INIT_LIMIT).await
    }

    async fn initialise_within(&mut self, limit: Duration) -> Result<(), LabError> {
        let Some(datadir) = self.datadir.clone() else {
            return Ok(());
        };
        let seen = self.view(&datadir);
        if seen.exists() {
            let removed = tokio::fs::remove_dir_all(&seen).await;
            removed.map_err(LabError::io(&datadir))?;
        }
        let mut command = self.command(&self.init)?;
        // Dropping the future kills the process.
        let status = timeout(limit, command.status()).await;
        let status = status.map_err(|_| self.slow("the creation of the data", limit))?;
        let status = status.map_err(|error| self.start_error(error))?;
        if status.success() {
            return Ok(());
        }
        Err(self.died(&status.to_string()))
    }

    pub fn start(&mut self) -> Result<(), LabError> {
        let mut command = self.command(&self.args)?;
        let child = match &self.host {
            Some(host) => host.within(|| command.spawn()).and_then(|child| child),
            None => command.spawn(),
        };
        self.child = Some(child.map_err(|error| self.start_error(error))?);
        self.is_frozen = false;
        self.starts += 1;
        Ok(())
    }

    /// Replaces a text in the arguments.
    pub fn replace(&mut self, from: &str, to: &str) {
        for argument in &mut self.args {
            if argument.contains(from) {
                *argument = argument.replace(from, to);
            }
        }
    }

    /// Appends a value to an option with a list, which may be absent.
    pub fn append(&mut self, option: &str, value: &str) {
        let mut arguments = self.args.iter_mut();
        if let Some(list) = arguments.find(|argument| argument.starts_with(option)) {
            list.push(',');
            list.push_str(value);
            return;
        }
        self.args.push(format!("{option}{value}"));
    }

    /// Removes the values that begin with a text from an option with a list, and an empty list.
    pub fn remove(&mut self, option: &str, begin: &str) {
        for argument in &mut self.args {
            if let Some(list) = argument.strip_prefix(option) {
                let kept = list.split(',').filter(|value| !value.starts_with(begin));
                *argument = format!("{option}{}", kept.collect::<Vec<_>>().join(","));
            }
        }
        self.args.retain(|argument| argument != option);
    }

    /// Sends a signal. A process that has just ended needs none.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    pub fn freeze(&mut self, frozen: bool) {
        let signal = if frozen {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        self.signal(signal);
        self.is_frozen = frozen;
    }

    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().await;
        }
        self.is_frozen = false;
    }

    /// Stops the process with SIGINT.
    pub async fn stop(&mut self) -> ProcessEnd {
        self.interrupt();
        self.wait_or_kill().await
    }

    /// Thaws a frozen process and sends SIGINT.
    pub fn interrupt(&mut self) {
        if self.is_frozen {
            self.freeze(false);
        }
        self.signal(Signal::SIGINT);
    }

    /// Waits until an interrupted process has ended, and kills it if that takes too long.
    pub async fn wait_or_kill(&mut self) -> ProcessEnd {
        let Some(mut child) = self.child.take() else {
            return ProcessEnd::Success;
        };
        match timeout(STOP_LIMIT, child.wait()).await {
            Ok(Ok(status)) if status.success() => ProcessEnd::Success,
            Ok(Ok(status)) => ProcessEnd::Failure(status.to_string()),
            Ok(Err(error)) => ProcessEnd::Failure(error.to_string()),
            Err(_) => {
                let _ = child.kill().await;
                ProcessEnd::Killed
            }
        }
    }

    /// Returns an error if the process has ended without a request.
    pub fn check(&mut self) -> Result<(), LabError> {
        let status = self
            .child
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten());
        let Some(status) = status else {
            return Ok(());
        };
        self.child = None;
        Err(self.died(&status.to_string()))
    }

    /// Verifies the data directory of a node that is down. The error is what the program found.
    pub async fn verify(&self) -> Result<(), String> {
        self.verify_within(VERIFY_LIMIT).await
    }

    async fn verify_within(&self, limit: Duration) -> Result<(), String> {
        let datadir = self.datadir.as_deref().unwrap_or(Path::new("."));
        let args = ["db", "verify", "--datadir"].map(str::to_owned).to_vec();
        let command = self.command(&args).map_err(|error| error.to_string());
        let mut command = command?;
        command
            .arg(datadir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = timeout(limit, command.output()).await;
        let output = output.map_err(|_| self.slow("`db verify`", limit).to_string())?;
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        Err(lines[lines.len().saturating_sub(TAIL)..].join(" | "))
    }

    /// The path under which this process sees a path of the node.
    pub fn view(&self, path: &Path) -> PathBuf {
        let inside = |holder| mounts::view(holder, path);
        self.mount_holder.map_or_else(|| path.to_owned(), inside)
    }

    /// The last lines of the log.
    pub fn tail(&self) -> String {
        let log = self.log_text();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// The log so far.
    pub fn log_text(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The events of the log so far.
    pub fn findings(&self) -> LogFindings {
        LogFindings::read(&self.log_text())
    }

    fn died(&self, status: &str) -> LabError {
        LabError::Died {
            name: self.name.clone(),
            status: status.to_owned(),
            tail: self.tail(),
        }
    }

    fn slow(&self, what: &'static str, limit: Duration) -> LabError {
        LabError::Slow {
            name: self.name.clone(),
            what,
            limit,
        }
    }

    fn start_error(&self, error: std::io::Error) -> LabError {
        LabError::Start {
            name: self.name.clone(),
            program: self.program.clone(),
            error,
        }
    }

    /// A command that writes to the node's log. It has a process group of its own, so that a Ctrl-C
    /// in our terminal does not reach it.
    pub fn command(&self, args: &[String]) -> Result<Command, LabError> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(LabError::io(&self.log))?;
        let other = log.try_clone().map_err(LabError::io(&self.log))?;
        let mut command = match self.mount_holder {
            // nsenter becomes the program, so the process id is the program's.
            Some(holder) => {
                let mut command = Command::new("nsenter");
                let target = format!("--target={holder}");
                command.args([&target, "--mount", "--"]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(other)
            .process_group(0)
            .kill_on_drop(true);
        starling::devnet::remove_options(&mut command);
        command.env(MARK, &self.folder);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The processes ignore SIGINT and end by themselves, since a shell that is started with SIGINT
    /// ignored cannot trap it.
    #[tokio::test]
    async fn a_stopped_process_has_the_status_with_which_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let ready_file = folder.path().join("ready");
        let mut end = ProcessEnd::default();
        for status in ["0", "3", "4"] {
            let ready = ready_file.display();
            let script = format!("trap '' INT; : > {ready}; sleep 0.1; exit {status}");
            let args = vec!["-c".to_owned(), script];
            let log = folder.path().join("log");
            let mut process = LabProcess::new("a", Path::new("/bin/sh"), args, log, folder.path());
            assert_eq!(process.stop().await, ProcessEnd::Success, "not started");
            process.start().unwrap();
            while !ready_file.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            fs::remove_file(&ready_file).unwrap();
            end.add(process.stop().await);
        }
        assert_eq!(end.to_string(), "ended after SIGINT with exit status: 3");
        let killed = "did not end within 20 s after SIGINT and was killed";
        assert_eq!(ProcessEnd::Killed.to_string(), killed);
    }

    #[test]
    fn values_are_appended_to_a_list_replaced_in_it_and_removed_from_it() {
        let args = ["--x=1", "--list=/a/1/p,/b/2/q"]
            .map(str::to_owned)
            .to_vec();
        let here = Path::new("/");
        let mut process = LabProcess::new("a", here, args, PathBuf::new(), here);
        process.append("--list=", "/c/3/r");
        process.replace("/b/2/", "/d/4/");
        process.remove("--list=", "/a/1/");
        assert_eq!(process.args, ["--x=1", "--list=/d/4/q,/c/3/r"]);
        process.remove("--list=", "/");
        assert_eq!(process.args, ["--x=1"]);
        process.append("--list=", "/e/5/s");
        assert_eq!(process.args, ["--x=1", "--list=/e/5/s"]);
    }

    /// A process whose program ignores its arguments and sleeps for a minute.
    fn sleeping(folder: &Path) -> LabProcess {
        let program = folder.join("program");
        // Another process writes the file: a test that forks meanwhile would keep ours open, and
        // the kernel does not start a file that is open for writing.
        let script = "printf '#!/bin/sh\\nexec sleep 60\\n' > \"$0\" && chmod 755 \"$0\"";
        let mut writer = std::process::Command::new("sh");
        let status = writer.args(["-c", script]).arg(&program).status();
        assert!(status.unwrap().success());
        let mut process = LabProcess::new("a", &program, Vec::new(), folder.join("log"), folder);
        process.datadir = Some(folder.join("data"));
        process
    }

    #[tokio::test]
    async fn programs_that_do_not_end_are_failures() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = sleeping(folder.path());
        let limit = Duration::from_millis(300);
        let created = process.initialise_within(limit).await.unwrap_err();
        assert_eq!(
            created.to_string(),
            "the creation of the data of a took more than 0 s, and was ended"
        );
        let verified = process.verify_within(limit).await.unwrap_err();
        assert_eq!(
            verified,
            "`db verify` of a took more than 0 s, and was ended"
        );
    }
}
