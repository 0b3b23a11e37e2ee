//! Batcher and proposer in the process of a node, which continues when they end.

use super::*;
use crate::{
    net::{head, signal, wait},
    posting::process::read_log,
};
use nix::sys::signal::Signal;

/// A sequencer that was restarted with a batcher or a proposer.
struct PostingNode {
    process: Running,
    log: PathBuf,
    http: String,
}

impl PostingNode {
    fn start(world: &RelayedNetwork, options: &[String]) -> Self {
        let node = world.net.sequencer();
        node.kill9();
        let log = world.net.dir.join("posting-node.log");
        Self {
            process: node.restart_with(&log, options),
            http: node.http,
            log,
        }
    }

    fn says(&self, text: &str) {
        wait(&format!("the log to say {text:?}"), PATIENCE, || {
            read_log(&self.log).contains(text).then_some(())
        });
    }

    /// Waits until the node has built further blocks.
    fn makes_blocks(&self) {
        let before = wait("a head", PATIENCE, || head(&self.http));
        wait("blocks", PATIENCE, || {
            head(&self.http).filter(|head| *head > before + 2)
        });
    }

    fn ends(mut self) {
        signal(self.process.child.id() as i32, Signal::SIGTERM);
        let status = self.process.child.wait().expect("an end");
        assert!(status.success(), "{}", read_log(&self.log));
    }
}

impl Drop for PostingNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- node\n{}", read_log(&self.log));
        }
    }
}

/// The signer's proxy first responds that the signer is down, and then that our certificate is not
/// accepted.
#[test]
fn a_batcher_that_cannot_start_holds_up_neither_node_nor_proposer() {
    let world = RelayedNetwork::start();
    let signer = Relay::start(&world.l1.url);
    signer.always("", RelayFault::Status(503));
    let (batcher, proposer) = (&world.net.accounts[BATCHER], &world.net.accounts[PROPOSER]);
    let options = [
        "--batcher.enabled".to_owned(),
        format!("--batcher.signer.endpoint={}", signer.url),
        format!("--batcher.signer.address={}", batcher.address),
        "--batcher.signer.tls.enabled=false".to_owned(),
        "--proposer.enabled".to_owned(),
        format!("--proposer.private-key={}", proposer.key_hex()),
        format!("--proposer.l2oo-address={OUTPUT_ORACLE}"),
        "--proposer.allow-non-finalized".to_owned(),
    ];
    let node = PostingNode::start(&world, &options);
    node.says("waiting for the signer");
    node.says(&format!(
        "the account that sends transactions account={}",
        proposer.address
    ));
    node.makes_blocks();
    assert!(!read_log(&node.log).contains("the batcher has ended"));
    signer.clear();
    signer.always("", RelayFault::Status(401));
    node.says("the batcher has ended; the node goes on without it, and starts it again in 60 s");
    node.makes_blocks();
    node.ends();
}

/// An additional builder lacks the throttling method, which ends the batcher. Without a batcher no
/// data are posted, so the block limits stay.
#[test]
fn the_limits_of_blocks_stay_when_the_batcher_of_a_node_has_ended() {
    let world = RelayedNetwork::start();
    let builder = Relay::start(&world.l1.url);
    let unknown = RelayFault::Error(-32601, "the method does not exist/is not available");
    builder.always("miner_setMaxDASize", unknown);
    let options = [
        "--batcher.enabled".to_owned(),
        format!(
            "--batcher.private-key={}",
            world.net.accounts[BATCHER].key_hex()
        ),
        "--batcher.poll-interval=250ms".to_owned(),
        format!("--batcher.throttle.additional-endpoints={}", builder.url),
    ];
    let node = PostingNode::start(&world, &options);
    node.says("the batcher has ended; the node goes on without it");
    node.makes_blocks();
    let log = read_log(&node.log);
    let mut limits = log.lines().filter(|line| line.contains("max_block_da"));
    let newest = limits.next_back().expect("limits");
    assert!(newest.contains("max_block_da: Some(130000)"), "{newest}");
    node.ends();
}

/// The node must not start as if its batcher could post.
#[test]
fn a_key_that_cannot_be_read_ends_the_start_of_a_node() {
    let world = RelayedNetwork::start();
    let options = [
        "--batcher.enabled".to_owned(),
        "--batcher.private-key=0x1234".to_owned(),
    ];
    let mut node = PostingNode::start(&world, &options);
    node.says("the signer");
    let status = node.process.child.wait().expect("an end");
    assert!(!status.success(), "{}", read_log(&node.log));
}
