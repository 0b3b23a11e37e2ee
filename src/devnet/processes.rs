//! The nodes' processes. If a node's process ends, the devnet reports it but never restarts it. No
//! node outlives the devnet that started it.

use super::{NodePlan, restarted::RestartedNode};
use nix::{
    sys::signal::{Signal, kill, raise},
    unistd::{Pid, getppid},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Environment variable with the devnet's process id. A node that has it ends when that process
/// ends. Without it, the printed command line works alone.
const PARENT: &str = "STARLING_PARENT";
/// Interval at which a node checks that its devnet is still running.
const PARENT_CHECK: Duration = Duration::from_secs(1);
/// Delay between requests to a node that does not respond yet.
const RETRY: Duration = Duration::from_millis(20);
/// Number of bytes of a log's end that an error message shows.
const LOG_TAIL: u64 = 2_000;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("{name} cannot be started: {error}")]
    Start { name: String, error: io::Error },
    #[error("the log {} cannot be written: {error}", path.display())]
    Log { path: PathBuf, error: io::Error },
    #[error("{name} ended with {status}; its log {} says:\n{tail}", log.display())]
    Ended {
        name: String,
        status: ExitStatus,
        log: PathBuf,
        tail: String,
    },
    #[error("{name} did not respond within {} s; see its log {}", limit.as_secs(), log.display())]
    Silent {
        name: String,
        limit: Duration,
        log: PathBuf,
    },
}

/// Prefixes of environment variables that set options of a node.
const OPTION_PREFIXES: [&str; 5] = [
    "OP_NODE_",
    "OP_BATCHER_",
    "OP_PROPOSER_",
    "GETH_",
    "STARLING_",
];

/// A running node.
#[derive(Debug)]
pub struct Process {
    pub node: NodePlan,
    pub pid: u32,
    child: Child,
    ended: Option<ExitStatus>,
}

/// Runs the command that creates a node's data directory.
pub async fn initialise(node: &NodePlan) -> Result<(), ProcessError> {
    let status = command(node, &node.init)?.status().await;
    let status = status.map_err(|error| ProcessError::Start {
        name: node.name.clone(),
        error,
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(ended(node, status))
    }
}

impl Process {
    /// Starts a node and returns once it responds.
    pub async fn start(node: &NodePlan, limit: Duration) -> Result<Self, ProcessError> {
        let child = command(node, &node.command)?.spawn();
        let mut child = child.map_err(|error| ProcessError::Start {
            name: node.name.clone(),
            error,
        })?;
        let deadline = Instant::now() + limit;
        while !super::status::responds(node).await {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(ended(node, status));
            }
            if Instant::now() > deadline {
                return Err(ProcessError::Silent {
                    name: node.name.clone(),
                    limit,
                    log: node.log.clone(),
                });
            }
            sleep(RETRY).await;
        }
        Ok(Self {
            node: node.clone(),
            pid: child.id().unwrap_or_default(),
            child,
            ended: None,
        })
    }

    /// Exit status of the process. Returned only by the first call after the exit.
    pub fn just_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.child.try_wait().ok().flatten();
        self.ended
    }

    /// The last lines of the node's log.
    pub fn log_tail(&self) -> String {
        tail(&self.node.log).unwrap_or_default()
    }
}

/// Stops all nodes with SIGINT, then kills those that still run after `limit`. Nodes that a user
/// started again are stopped with them.
pub async fn stop(mut processes: Vec<Process>, limit: Duration) {
    let again = processes.iter();
    let again: Vec<_> = again
        .flat_map(|process| RestartedNode::of(&process.node, process.pid))
        .collect();
    for process in processes.iter().filter(|process| process.ended.is_none()) {
        if let Ok(pid) = i32::try_from(process.pid) {
            // Ignore a failure: the process may have just ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
    }
    let stopping = processes.iter_mut().map(|process| async move {
        if timeout(limit, process.child.wait()).await.is_err() {
            super::status::say(&format!(
                "{} does not stop: it is killed",
                process.node.name
            ));
            let _ = process.child.kill().await;
        }
    });
    let stopping = futures::future::join_all(stopping);
    let again = futures::future::join_all(again.iter().map(|node| node.stop(limit)));
    tokio::join!(stopping, again);
}

/// In a node that a devnet started: stops the node when the devnet's process ends, for whatever
/// reason. Does nothing in other nodes.
pub fn end_with_parent() {
    let Some(parent) = std::env::var(PARENT)
        .ok()
        .and_then(|pid| pid.parse::<i32>().ok())
    else {
        return;
    };
    let watch = move || {
        while getppid() == Pid::from_raw(parent) {
            std::thread::sleep(PARENT_CHECK);
        }
        // Triggers the same shutdown as Ctrl-C.
        let _ = raise(Signal::SIGINT);
    };
    if let Err(error) = std::thread::Builder::new()
        .name("parent-watch".into())
        .spawn(watch)
    {
        tracing::warn!(%error, "this node will not notice when its devnet ends");
    }
}

/// Command for a child process that writes to the node's log and is killed when dropped. The child
/// has its own process group, so that a Ctrl-C in our terminal does not reach the child.
fn command(node: &NodePlan, argv: &[String]) -> Result<Command, ProcessError> {
    let open = || OpenOptions::new().create(true).append(true).open(&node.log);
    let failed = |error| ProcessError::Log {
        path: node.log.clone(),
        error,
    };
    let (out, err) = (open().map_err(failed)?, open().map_err(failed)?);
    let (program, arguments) = argv
        .split_first()
        .map_or(("", argv), |(program, rest)| (program.as_str(), rest));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .kill_on_drop(true);
    remove_options(&mut command);
    command.env(PARENT, std::process::id().to_string());
    Ok(command)
}

/// Removes options of a node from the environment of a command. Its command line is complete, and
/// options in our environment may be for another node.
pub fn remove_options(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OPTION_PREFIXES
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
}

fn ended(node: &NodePlan, status: ExitStatus) -> ProcessError {
    let tail = tail(&node.log).unwrap_or_default();
    ProcessError::Ended {
        name: node.name.clone(),
        status,
        log: node.log.clone(),
        tail,
    }
}

/// The end of a file, from the beginning of a line.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = if length > LOG_TAIL {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        &text
    };
    Ok(whole.trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devnet::NodeRole;

    fn node(argv: &[&str], log: PathBuf) -> NodePlan {
        let argv: Vec<String> = argv.iter().map(|word| word.to_string()).collect();
        NodePlan {
            name: "a node".into(),
            role: NodeRole::Replica,
            init: argv.clone(),
            command: argv,
            // No server listens on the discard port of this machine.
            http: "http://127.0.0.1:9".into(),
            ws: String::new(),
            rpc: None,
            metrics: String::new(),
            p2p: None,
            beacon: None,
            log,
        }
    }

    #[tokio::test]
    async fn a_node_that_dies_is_reported_with_its_last_words() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let node = node(
            &["sh", "-c", "echo port 1 is in use >&2; exit 3"],
            dir.path().join("log"),
        );
        for error in [
            initialise(&node).await.expect_err("it fails").to_string(),
            Process::start(&node, Duration::from_secs(10))
                .await
                .expect_err("it fails")
                .to_string(),
        ] {
            assert!(
                error.starts_with("a node ended with exit status: 3")
                    && error.ends_with("port 1 is in use"),
                "{error}"
            );
        }
        Ok(())
    }

    /// Responds to one request for a block number.
    async fn answer_once(listener: tokio::net::TcpListener) -> io::Result<()> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await?;
        let mut question = vec![0; 4_096];
        let length = stream.read(&mut question).await?;
        assert!(String::from_utf8_lossy(&question[..length]).contains("eth_blockNumber"));
        let body = r#"{"jsonrpc":"2.0","id":0,"result":"0x2a"}"#;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        stream
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
            .await
    }

    #[tokio::test]
    async fn a_node_has_started_when_it_answers_and_its_end_is_told_once() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let http = format!("http://{}", listener.local_addr()?);
        let node = NodePlan {
            http,
            ..node(&["sleep", "60"], dir.path().join("log"))
        };
        let (answered, process) = tokio::join!(
            answer_once(listener),
            Process::start(&node, Duration::from_secs(10))
        );
        answered?;
        let mut process = process?;
        assert_eq!(process.just_ended(), None);
        kill(Pid::from_raw(process.pid.try_into()?), Signal::SIGKILL)?;
        let ended = loop {
            match process.just_ended() {
                Some(status) => break status,
                None => sleep(Duration::from_millis(5)).await,
            }
        };
        assert!(!ended.success());
        assert_eq!(process.just_ended(), None);
        Ok(())
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_given_up() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let node = node(&["sleep", "60"], dir.path().join("log"));
        let error = Process::start(&node, Duration::from_millis(50))
            .await
            .expect_err("it is silent");
        assert!(matches!(error, ProcessError::Silent { .. }), "{error}");
        Ok(())
    }

    #[tokio::test]
    async fn stopping_interrupts_first_and_kills_after_the_limit() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let start = |argv: &[&str], log: &str| -> anyhow::Result<Process> {
            let node = node(argv, dir.path().join(log));
            let child = command(&node, &node.command)?.spawn()?;
            Ok(Process {
                pid: child.id().unwrap_or_default(),
                node,
                child,
                ended: None,
            })
        };
        // Use perl: if the tests run in the background, they ignore SIGINT, and a shell cannot trap
        // a signal that it was started to ignore.
        let polite = "$| = 1; $SIG{INT} = sub { print qq(bye\\n); exit 0 }; print qq(ready\\n); sleep 1 while 1;";
        let polite = start(&["perl", "-e", polite], "polite")?;
        let stubborn = start(
            &[
                "sh",
                "-c",
                "trap '' INT; echo ready; while :; do sleep 0.02; done",
            ],
            "stubborn",
        )?;
        for process in [&polite, &stubborn] {
            while !process.log_tail().contains("ready") {
                sleep(Duration::from_millis(5)).await;
            }
        }
        let (log, pid) = (polite.node.log.clone(), stubborn.pid);
        stop(vec![polite, stubborn], Duration::from_millis(500)).await;
        assert!(tail(&log)?.ends_with("bye"));
        assert!(
            kill(Pid::from_raw(pid.try_into()?), None).is_err(),
            "the stubborn one lives"
        );
        Ok(())
    }
}
