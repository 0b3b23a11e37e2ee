//! Tests of the task with a real transaction manager, on a stand-in L1 and a stand-in rollup node.

use super::*;
use crate::{
    l2_source::{L2Endpoints, L2Source, RpcSource},
    proposer::stand_in::{CONTRACT, FakeChain, FakeL1, FakeNode, STEP, root_at, signer},
    rollup::{http_fake::CannedServer, l1::L1Config},
    txmgr::{
        options::TxOptions,
        shell::{TxManagerError, TxManagerParts, manager},
    },
};
use alloy_primitives::Address;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The stand-in L1 and the stand-in rollup node.
struct World {
    l1: FakeL1,
    node: Arc<Mutex<FakeNode>>,
    rollup: CannedServer,
}

/// A running proposer with its transaction manager.
struct Running {
    proposer: ProposerHandle,
    closing: CancellationToken,
    ending: CancellationToken,
    task: JoinHandle<Result<(), ProposerError>>,
    manager: JoinHandle<Result<(), TxManagerError>>,
}

fn tx_options() -> TxOptions {
    TxOptions {
        num_confirmations: 2,
        receipt_query_interval: Duration::from_millis(20),
        retry_interval: Duration::from_millis(10),
        resubmission_timeout: Duration::from_millis(600),
        network_timeout: Duration::from_secs(5),
        ..TxOptions::default()
    }
}

fn oracle() -> ProposerOptions {
    ProposerOptions {
        rollup_rpc: vec!["x".into()],
        l2oo_address: Some(CONTRACT),
        poll_interval: Duration::from_millis(20),
        tx: tx_options(),
        ..ProposerOptions::default()
    }
}

fn factory() -> ProposerOptions {
    ProposerOptions {
        l2oo_address: None,
        game_factory_address: Some(CONTRACT),
        proposal_interval: Duration::from_secs(600),
        game_type: 1,
        ..oracle()
    }
}

impl World {
    async fn start(finalized: u64) -> Self {
        let node = Arc::new(Mutex::new(FakeNode {
            current_l1: 995,
            finalized,
            is_lying: false,
        }));
        Self {
            l1: FakeL1::start().await,
            rollup: FakeNode::start(node.clone()).await,
            node,
        }
    }

    async fn run(&self, options: ProposerOptions) -> Running {
        let l1 = L1Client::new(&L1Config::new(self.l1.server.url())).unwrap();
        let parts = TxManagerParts {
            options: options.tx.clone(),
            l1: l1.clone(),
            signer: signer(),
            metrics: "test_proposer_",
        };
        let (txs, manager) = manager(parts).await.unwrap();
        let endpoints = L2Endpoints {
            rollup: vec![self.rollup.url()],
            eth: vec![],
            check_interval: Duration::ZERO,
            timeout: Duration::from_secs(5),
        };
        let source = L2Source::Rpc(Arc::new(RpcSource::new(&endpoints).unwrap()));
        let parts = ProposerParts {
            options,
            source: source.into(),
            l1,
            txs,
        };
        let (proposer, task) = super::proposer(parts).unwrap();
        let (closing, ending) = (CancellationToken::new(), CancellationToken::new());
        Running {
            proposer,
            task: tokio::spawn(task.run(closing.clone(), ending.clone())),
            manager: tokio::spawn(manager.run(CancellationToken::new(), ending.clone())),
            closing,
            ending,
        }
    }

    async fn wait(&self, until: impl Fn(&FakeChain) -> bool) {
        for _ in 0..1_500 {
            if until(&self.l1.chain.lock()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not happen");
    }

    fn are_in_order(&self) -> bool {
        let chain = self.l1.chain.lock();
        let mut expected = (1..).map(|n| STEP * n).map(|n| (n, root_at(n)));
        chain
            .outputs
            .iter()
            .all(|output| Some(*output) == expected.next())
    }
}

impl Running {
    /// Ends proposer and transaction manager like a kill: without waiting for any transaction.
    async fn kill(self) {
        self.ending.cancel();
        self.task.await.unwrap().unwrap();
        self.manager.await.unwrap().unwrap();
    }
}

async fn some_polls() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn outputs_reach_the_oracle_in_order_and_a_stop_keeps_the_one_in_flight() {
    let world = World::start(5 * STEP).await;
    let running = world.run(oracle()).await;
    world.wait(|l1| l1.outputs.len() == 5).await;
    some_polls().await;
    assert_eq!(
        world.l1.chain.lock().outputs.len(),
        5,
        "the sixth is not final"
    );
    world.l1.chain.lock().mines = false;
    let head = world.l1.chain.lock().head;
    world.node.lock().current_l1 = head - 2;
    world.node.lock().finalized = 6 * STEP;
    world.wait(|l1| l1.pool.len() == 1).await;
    running.closing.cancel();
    some_polls().await;
    assert!(!running.task.is_finished(), "it waits for the confirmation");
    world.l1.chain.lock().mines = true;
    running.task.await.unwrap().unwrap();
    assert_eq!(world.l1.chain.lock().outputs.len(), 6);
    assert!(world.are_in_order());
    running.ending.cancel();
}

#[tokio::test]
async fn a_kill_between_send_and_receipt_costs_no_second_proposal() {
    for options in [oracle(), factory()] {
        let world = World::start(2 * STEP).await;
        world.l1.chain.lock().mines = false;
        let first = world.run(options.clone()).await;
        world.wait(|l1| l1.pool.len() == 1).await;
        let nonce = world.l1.chain.lock().nonce;
        first.kill().await;
        // More blocks are finalized by now, so a second proposal would differ from the first.
        world.node.lock().finalized = 2 * STEP + 5;
        let second = world.run(options.clone()).await;
        some_polls().await;
        assert_eq!(world.l1.chain.lock().pool.len(), 1, "it waits");
        world.l1.chain.lock().mines = true;
        if options.l2oo_address.is_some() {
            world.wait(|l1| l1.outputs.len() == 2).await;
        } else {
            world.wait(|l1| l1.games.len() == 1).await;
        }
        some_polls().await;
        {
            let chain = world.l1.chain.lock();
            let sent = (chain.nonce - nonce) as usize;
            assert_eq!(chain.outputs.len() + chain.games.len(), sent);
        }
        assert!(world.are_in_order());
        second.kill().await;
    }
}

#[tokio::test]
async fn games_are_one_per_interval_of_l1s_clock() {
    let world = World::start(50).await;
    world.l1.chain.lock().mines = false;
    let running = world.run(factory()).await;
    for count in 1..=3 {
        world.wait(|l1| l1.pool.len() == 1).await;
        world.l1.chain.lock().mine();
        world.l1.chain.lock().mine();
        assert_eq!(world.l1.chain.lock().games.len(), count);
        // Less than the interval has passed: nothing is proposed, although there is a newer block.
        world.node.lock().finalized += 1;
        world.l1.chain.lock().head += 45;
        some_polls().await;
        assert!(world.l1.chain.lock().pool.is_empty());
        world.l1.chain.lock().head += 10;
    }
    let games = world.l1.chain.lock().games.clone();
    let roots: Vec<_> = games.iter().map(|game| game.claim).collect();
    assert_eq!(roots, [root_at(50), root_at(51), root_at(52)]);
    running.kill().await;
}

#[tokio::test]
async fn a_claim_that_is_on_l1_is_not_proposed_again() {
    let world = World::start(50).await;
    let running = world.run(factory()).await;
    world.wait(|l1| l1.games.len() == 1).await;
    world.l1.chain.lock().head += 1_000;
    some_polls().await;
    {
        let chain = world.l1.chain.lock();
        assert_eq!((chain.games.len(), chain.nonce), (1, 1));
    }
    running.kill().await;
}

#[tokio::test]
async fn start_and_stop_have_op_proposers_answers() {
    let world = World::start(0).await;
    let running = world.run(oracle()).await;
    let proposer = &running.proposer;
    some_polls().await;
    let said = proposer.start().await.unwrap_err().to_string();
    assert_eq!(said, "proposer is already running");
    proposer.stop().await.unwrap();
    let said = proposer.stop().await.unwrap_err().to_string();
    assert_eq!(said, "proposer is not running");
    world.node.lock().finalized = STEP;
    some_polls().await;
    assert_eq!(world.l1.chain.lock().outputs.len(), 0);
    proposer.start().await.unwrap();
    world.wait(|l1| l1.outputs.len() == 1).await;
    let mut status = proposer.status();
    let proposed = status.wait_for(|status| status.proposed == Some(STEP));
    proposed.await.unwrap();
    let proposer = proposer.clone();
    running.kill().await;
    assert_eq!(proposer.stop().await, Err(ProposerCommandError::Ended));
}

#[tokio::test]
async fn commands_are_answered_while_l1_is_waited_for() {
    let world = World::start(STEP).await;
    let version = super::super::contracts::version();
    world.l1.lie(&version, serde_json::Value::Null);
    let running = world.run(oracle()).await;
    let stop = running.proposer.stop();
    let stopped = tokio::time::timeout(Duration::from_secs(10), stop).await;
    assert_eq!(stopped, Ok(Ok(())));
    world.l1.chain.lock().lies.clear();
    some_polls().await;
    assert_eq!(world.l1.chain.lock().outputs.len(), 0, "it is stopped");
    running.proposer.start().await.unwrap();
    world.wait(|l1| l1.outputs.len() == 1).await;
    running.kill().await;
}

#[tokio::test]
async fn a_key_that_is_not_the_proposer_sends_nothing_until_it_is() {
    let world = World::start(STEP).await;
    world.l1.chain.lock().proposer = Address::repeat_byte(0x55);
    let running = world.run(oracle()).await;
    some_polls().await;
    assert_eq!(world.l1.chain.lock().nonce, 0);
    world.l1.chain.lock().proposer = signer().address();
    world.wait(|l1| l1.outputs.len() == 1).await;
    running.kill().await;
}

#[tokio::test]
async fn an_address_without_a_contract_ends_the_start_with_the_option() {
    let world = World::start(STEP).await;
    let version = super::super::contracts::version();
    world.l1.lie(&version, serde_json::json!("0x"));
    let running = world.run(oracle()).await;
    let error = running.task.await.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("there is no such contract") && error.contains("--l2oo-address"),
        "{error}"
    );
    running.ending.cancel();
}

#[tokio::test]
async fn an_output_whose_root_is_not_that_of_its_parts_is_not_proposed() {
    let world = World::start(STEP).await;
    world.node.lock().is_lying = true;
    let running = world.run(oracle()).await;
    some_polls().await;
    assert_eq!(world.l1.chain.lock().nonce, 0);
    world.node.lock().is_lying = false;
    world.wait(|l1| l1.outputs.len() == 1).await;
    running.kill().await;
}

#[tokio::test]
async fn a_transaction_that_is_stuck_is_replaced_before_anything_is_proposed() {
    let world = World::start(STEP).await;
    {
        let mut chain = world.l1.chain.lock();
        (chain.mines, chain.foreign_pool) = (false, 1);
    }
    let running = world.run(oracle()).await;
    world.wait(|l1| l1.pool.len() == 1).await;
    let to = alloy_consensus::Transaction::to(&world.l1.chain.lock().pool[0]);
    assert_eq!(to, Some(signer().address()), "an empty one");
    {
        let mut chain = world.l1.chain.lock();
        (chain.mines, chain.foreign_pool) = (true, 0);
    }
    world.wait(|l1| l1.outputs.len() == 1).await;
    running.kill().await;
}
