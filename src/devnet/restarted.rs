//! Nodes that a user started again by their printed command lines. They are no child processes of
//! the devnet, which finds them by their command lines in `/proc` when it ends, and stops them like
//! its own.

use super::NodePlan;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{fs, path::Path, time::Duration};
use tokio::time::{Instant, sleep};

/// Options of which each node has one, with a file or folder that no other node has.
const IDENTITIES: [&str; 2] = ["--datadir=", "--private-key.path="];
/// Interval between checks whether a process still runs after SIGINT.
const CHECK: Duration = Duration::from_millis(50);

/// A running process of a node that the devnet did not start.
#[derive(Debug)]
pub struct RestartedNode {
    pid: i32,
    name: String,
    /// Its command line as the system has it. A process with the same id and another command line
    /// is another process.
    command: Vec<u8>,
}

impl RestartedNode {
    /// The running processes of a node, without the one that the devnet started.
    pub fn of(node: &NodePlan, started: u32) -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| u32::try_from(*pid) != Ok(started))
            .filter_map(|pid| {
                let command = command_of(pid)?;
                is_of(&command, node).then(|| Self {
                    pid,
                    name: node.name.clone(),
                    command,
                })
            })
            .collect()
    }

    fn is_running(&self) -> bool {
        command_of(self.pid).as_ref() == Some(&self.command)
    }

    fn signal(&self, signal: Signal) {
        // A failure means that the process has just ended by itself.
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// Stops the process with SIGINT, then kills it if it still runs after `limit`.
    pub async fn stop(&self, limit: Duration) {
        self.signal(Signal::SIGINT);
        let deadline = Instant::now() + limit;
        while self.is_running() {
            if Instant::now() >= deadline {
                let name = &self.name;
                super::status::say(&format!("{name} does not stop: it is killed"));
                return self.signal(Signal::SIGKILL);
            }
            sleep(CHECK).await;
        }
    }
}

/// The arguments of a process, each ended by a zero byte; `None` if it has ended, even if nobody has
/// waited for it.
fn command_of(pid: i32) -> Option<Vec<u8>> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (!command.is_empty()).then_some(command)
}

/// Whether a command line is that of a node, perhaps with other options.
fn is_of(command: &[u8], node: &NodePlan) -> bool {
    let given: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
    let planned: Vec<&str> = node.command.iter().map(String::as_str).collect();
    let ([program, role, options @ ..], [own_program, own_role, own_options @ ..]) =
        (given.as_slice(), planned.as_slice())
    else {
        return false;
    };
    let name = |program: &str| Path::new(program).file_name().map(ToOwned::to_owned);
    let is_identity = |option: &&&str| IDENTITIES.iter().any(|it| option.starts_with(it));
    let identity = own_options.iter().find(is_identity);
    name(&String::from_utf8_lossy(program)) == name(own_program)
        && *role == own_role.as_bytes()
        && identity.is_some_and(|identity| options.contains(&identity.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devnet::NodeRole;
    use std::process::{Command, Stdio};

    fn node(command: &[&str]) -> NodePlan {
        NodePlan {
            name: "replica-1".into(),
            role: NodeRole::Replica,
            init: vec![],
            command: command.iter().map(|word| word.to_string()).collect(),
            http: String::new(),
            ws: String::new(),
            rpc: None,
            metrics: String::new(),
            p2p: None,
            beacon: None,
            log: "log".into(),
        }
    }

    #[test]
    fn a_node_is_known_by_program_role_and_directory() {
        let plan = node(&[
            "/bin/starling",
            "node",
            "--datadir=/net/r1",
            "--l1=http://l",
        ]);
        let is_of = |words: &[&str]| is_of(words.join("\0").as_bytes(), &plan);
        assert!(is_of(&[
            "/bin/starling",
            "node",
            "--datadir=/net/r1",
            "--l1=http://l",
            ""
        ]));
        assert!(is_of(&[
            "starling",
            "node",
            "--log.level=debug",
            "--datadir=/net/r1"
        ]));
        for other in [
            &["starling", "node", "--datadir=/net/r10"][..],
            &["starling", "export", "--datadir=/net/r1", "file"],
            &["starling", "devnet", "--datadir=/net"],
            &["grep", "node", "--datadir=/net/r1"],
            &["starling"],
            &[],
        ] {
            assert!(!is_of(other), "{other:?}");
        }
        let batcher = node(&["starling", "batcher", "--private-key.path=/net/batcher.key"]);
        let line = b"starling\0batcher\0--private-key.path=/net/batcher.key\0";
        assert!(super::is_of(line, &batcher));
    }

    /// A process that ignores SIGINT. Its parent, this test, has not waited for it when it is gone.
    #[tokio::test]
    async fn a_node_that_was_started_again_is_stopped_or_killed() {
        let dir = tempfile::tempdir().unwrap();
        let identity = format!("--datadir={}", dir.path().display());
        // The shell must start no program: until it runs, its process has the shell's command line.
        let script = "trap '' INT; echo ready; read line";
        let words = ["sh", "-c", script, "node", &identity];
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let plan = node(&["/bin/sh", "-c", &identity]);
        assert!(RestartedNode::of(&plan, child.id()).is_empty(), "its own");
        let found = RestartedNode::of(&plan, 0);
        assert_eq!(found.len(), 1);
        found[0].stop(Duration::from_millis(100)).await;
        assert!(!child.wait().unwrap().success());
        found[0].stop(Duration::ZERO).await;
        assert!(RestartedNode::of(&plan, 0).is_empty());
    }
}
