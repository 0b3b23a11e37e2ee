//! A complete OP Stack chain: our L1 with the published contracts and our sequencer; op-node over
//! our core, which derives the batches of op-batcher; op-proposer, which claims output roots in
//! dispute games.

use super::{
    NODE,
    network::{PATIENCE, our_core, reaches, turn},
    programs::{Started, bare_op_node, no_discovery, programs},
};
use crate::{
    batcher::FreshReplica,
    net::{Devnet, ask, call, number, wait},
};
use alloy_primitives::{B256, hex, keccak256};
use serde_json::{Value, json};
use starling::devnet::accounts;
use std::{fs, path::Path};

/// The account that posts batches. In the published deployment the proposer's account has this role
/// too; separate accounts avoid conflicts over nonces.
const BATCHER: usize = 8;
const BATCHER_PROGRAM: &str = "STARLING_OP_BATCHER";
const PROPOSER_PROGRAM: &str = "STARLING_OP_PROPOSER";
/// The proposer's account in the published deployment.
const PROPOSER: usize = 9;

/// Starts our network on the published contracts, with the batcher account `batcher`.
fn network(fixtures: &Path, temp: &Path, batcher: &str) -> Devnet {
    let mut rollup: Value =
        serde_json::from_str(&fs::read_to_string(fixtures.join("rollup.json")).unwrap()).unwrap();
    rollup["genesis"]["system_config"]["batcherAddr"] = batcher.into();
    fs::write(temp.join("rollup.json"), rollup.to_string()).unwrap();
    let files = [
        format!(
            "--l1.genesis={}",
            fixtures.join("l1-allocs.json.zst").display()
        ),
        format!(
            "--l2.genesis={}",
            fixtures.join("l2-genesis.json.zst").display()
        ),
        format!("--rollup.config={}", temp.join("rollup.json").display()),
    ];
    let args: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .chain(["--l1.block-time=2", "--l2.block-time=1", "--replicas=0"])
        .collect();
    Devnet::start(&args)
}

/// Calls a contract on L1 and returns the result.
pub fn read(l1: &str, to: &str, signature: &str, argument: Option<u64>) -> Vec<u8> {
    let mut data = keccak256(signature)[..4].to_vec();
    data.extend(
        argument
            .map(|number| B256::left_padding_from(&number.to_be_bytes()))
            .iter()
            .flat_map(|word| word.0),
    );
    let answer = ask(
        l1,
        "eth_call",
        json!([{ "to": to, "data": hex::encode_prefixed(data) }, "latest"]),
    );
    hex::decode(answer.as_str().expect("bytes")).expect("hex")
}

fn last_number(words: &[u8]) -> u64 {
    u64::from_be_bytes(words[words.len() - 8..].try_into().expect("eight bytes"))
}

/// The output root of a block, computed from our sequencer's header (specs: proposals, version 0).
fn output_root(sequencer: &str, at: u64) -> B256 {
    let block = ask(
        sequencer,
        "eth_getBlockByNumber",
        json!([format!("{at:#x}"), false]),
    );
    let word = |name: &str| {
        block[name]
            .as_str()
            .expect("a hash")
            .parse::<B256>()
            .expect("a hash")
    };
    // From Isthmus on the header's withdrawals root is the storage root of the message passer.
    let words = [
        B256::ZERO,
        word("stateRoot"),
        word("withdrawalsRoot"),
        word("hash"),
    ];
    keccak256(words.map(|word| word.0).concat())
}

/// Waits for two dispute games. Returns the claimed block number and output root of each.
fn two_claims(l1: &str, factory: &str, mut check: impl FnMut()) -> [(u64, B256); 2] {
    wait("two dispute games", PATIENCE, || {
        check();
        (last_number(&read(l1, factory, "gameCount()", None)) >= 2).then_some(())
    });
    [0, 1].map(|index| {
        let game = read(l1, factory, "gameAtIndex(uint256)", Some(index));
        let game = hex::encode_prefixed(&game[game.len() - 20..]);
        let at = last_number(&read(l1, &game, "l2BlockNumber()", None));
        assert!(at > 0);
        (at, B256::from_slice(&read(l1, &game, "rootClaim()", None)))
    })
}

/// Our network on the published contracts, our execution core, and op-node over that core.
struct Whole {
    rollup: Started,
    core: Started,
    net: Devnet,
}

impl Whole {
    /// `options` are additional options of op-node.
    fn start(
        fixtures: &Path,
        temp: &Path,
        op_node: &Path,
        options: impl Fn(&Devnet) -> Vec<String>,
    ) -> Self {
        let batcher = accounts::all()[BATCHER].address.to_string();
        let net = network(fixtures, temp, &batcher);
        fs::write(net.dir.join("jwt"), hex::encode([7; 32])).unwrap();
        let core = our_core(&net.dir, "core", "l2-genesis.json");
        let file = |name: &str| net.dir.join(name).display().to_string();
        let sequencer = net.sequencer();
        let chain = vec![
            format!("--l1={}", net.l1().http),
            "--l1.http-poll-interval=500ms".into(),
            format!("--rollup.config={}", file("rollup.json")),
            format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
            format!(
                "--p2p.static={}",
                sequencer.p2p.as_deref().expect("a multiaddr")
            ),
        ];
        let options = [no_discovery(), chain, options(&net)].concat();
        let rollup = bare_op_node(&net.dir, op_node, "op-node", &core, &options);
        reaches(&core, 5);
        Self { rollup, core, net }
    }

    /// The programs that write to L1, configured to read from op-node and our core.
    fn writers(&self) -> Writers<'_> {
        Writers {
            net: &self.net,
            eth: self.core.url.clone(),
            rollup: self.rollup.url.clone(),
        }
    }

    /// Waits until the node at `url` has twenty safe blocks, and checks that our sequencer made
    /// them.
    fn assert_safe_blocks(&mut self, url: &str, writers: &mut [&mut Started]) {
        let safe = wait("blocks to become safe", PATIENCE, || {
            self.check(writers);
            let safe = call(url, "eth_getBlockByNumber", json!(["safe", false])).ok()?;
            (!safe.is_null() && number(&safe["number"]) >= 20).then_some(safe)
        });
        let made = ask(
            &self.net.sequencer().http,
            "eth_getBlockByNumber",
            json!([safe["number"], false]),
        );
        assert_eq!(
            safe["hash"], made["hash"],
            "what {url} derived from the batches is what our sequencer made"
        );
    }

    /// Waits for two dispute games, and checks that each claims the output root of its block.
    fn assert_claims(&mut self, factory: &str, writers: &mut [&mut Started]) {
        for (at, claim) in two_claims(&self.net.l1().http, factory, || self.check(writers)) {
            let output = output_root(&self.net.sequencer().http, at);
            assert_eq!(claim, output, "the claim of block {at}");
        }
    }

    /// Panics if a foreign program has ended.
    fn check(&mut self, writers: &mut [&mut Started]) {
        self.rollup.check();
        writers.iter_mut().for_each(|writer| writer.check());
    }
}

/// Endpoints from which op-batcher and op-proposer read the chain.
struct Writers<'a> {
    net: &'a Devnet,
    eth: String,
    rollup: String,
}

impl Writers<'_> {
    /// Starts op-batcher, which posts every few L1 blocks.
    fn batcher(&self, program: &Path, name: &str, more: &[&str]) -> Started {
        let mut options = vec![
            format!("--l2-eth-rpc={}", self.eth),
            "--max-channel-duration=2".into(),
            "--sub-safety-margin=4".into(),
        ];
        options.extend(more.iter().map(ToString::to_string));
        self.start(program, name, BATCHER, &options)
    }

    /// Starts op-proposer, which claims output roots in games of this factory.
    fn proposer(&self, program: &Path, factory: &str) -> Started {
        // Game type 1 is the permissioned one, which the deployment has.
        let options = [
            "--game-type=1".into(),
            "--proposal-interval=10s".into(),
            "--allow-non-finalized".into(),
            format!("--game-factory-address={factory}"),
        ];
        self.start(program, "op-proposer", PROPOSER, &options)
    }

    /// Starts op-batcher or op-proposer, with the options common to both.
    fn start(&self, program: &Path, name: &str, account: usize, options: &[String]) -> Started {
        let port = starling_testkit::free_port();
        let mut words = vec![
            program.display().to_string(),
            format!("--l1-eth-rpc={}", self.net.l1().http),
            format!("--rollup-rpc={}", self.rollup),
            format!("--private-key={}", accounts::all()[account].private_key),
            "--rpc.addr=127.0.0.1".into(),
            format!("--rpc.port={port}"),
        ];
        words.extend(
            [
                "--poll-interval=1s",
                "--num-confirmations=1",
                "--txmgr.receipt-query-interval=500ms",
            ]
            .map(String::from),
        );
        words.extend_from_slice(options);
        let url = format!("http://127.0.0.1:{port}");
        Started::new(&self.net.dir, name, words, url)
    }
}

/// The address of the deployment's factory of dispute games.
fn game_factory(fixtures: &Path) -> String {
    let text = fs::read_to_string(fixtures.join("deployments.json")).unwrap();
    let deployed: Value = serde_json::from_str(&text).unwrap();
    let factory = &deployed["opChainDeployments"][0]["DisputeGameFactoryProxy"];
    factory.as_str().expect("an address").to_owned()
}

#[test]
fn op_batcher_and_op_proposer_serve_the_whole() {
    let Some([node, batcher, proposer]) = programs([NODE, BATCHER_PROGRAM, PROPOSER_PROGRAM])
    else {
        return;
    };
    let Some(fixtures) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    let _turn = turn();
    let temp = tempfile::tempdir().unwrap();
    let mut whole = Whole::start(&fixtures, temp.path(), &node, |_| vec![]);
    let factory = game_factory(&fixtures);
    let mut batcher = whole.writers().batcher(&batcher, "op-batcher", &[]);
    let mut proposer = whole.writers().proposer(&proposer, &factory);
    let writers = &mut [&mut batcher, &mut proposer];
    let core = whole.core.url.clone();
    whole.assert_safe_blocks(&core, writers);
    whole.assert_claims(&factory, writers);
}

/// URL of the L1's Beacon API.
pub fn beacon(net: &Devnet) -> String {
    let l1 = net.l1();
    let mut ports = l1
        .command
        .iter()
        .filter_map(|word| word.strip_prefix("--dev.beacon.port="));
    format!("http://127.0.0.1:{}", ports.next().expect("a port"))
}

#[test]
fn blobs_of_op_batcher_on_our_l1_are_derived_by_op_node_and_by_our_node() {
    let Some([node, batcher]) = programs([NODE, BATCHER_PROGRAM]) else {
        return;
    };
    let Some(fixtures) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    let _turn = turn();
    let temp = tempfile::tempdir().unwrap();
    let mut whole = Whole::start(&fixtures, temp.path(), &node, |net| {
        vec![format!("--l1.beacon={}", beacon(net))]
    });
    let blobs = ["--data-availability-type=blobs"];
    let mut batcher = whole.writers().batcher(&batcher, "op-batcher", &blobs);
    for url in [whole.core.url.clone(), whole.net.sequencer().http] {
        whole.assert_safe_blocks(&url, &mut [&mut batcher]);
    }
    let l1 = whole.net.l1().http;
    let head = ask(&l1, "eth_blockNumber", json!([]));
    let with_blobs = (1..=number(&head)).filter(|height| {
        let params = json!([format!("{height:#x}"), false]);
        let block = ask(&l1, "eth_getBlockByNumber", params);
        number(&block["blobGasUsed"]) > 0
    });
    assert!(with_blobs.count() > 0, "the batches are in blobs");
}

/// Options of op-batcher, one set for each mode.
const MODES: [&[&str]; 3] = [
    &["--data-availability-type=calldata"],
    &[
        "--data-availability-type=blobs",
        "--batch-type=1",
        "--compression-algo=brotli-10",
    ],
    &["--data-availability-type=auto", "--target-num-frames=2"],
];

#[test]
fn op_batcher_and_op_proposer_read_our_node_alone() {
    let Some([batcher, proposer]) = programs([BATCHER_PROGRAM, PROPOSER_PROGRAM]) else {
        return;
    };
    let Some(fixtures) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    let _turn = turn();
    let temp = tempfile::tempdir().unwrap();
    let account = accounts::all()[BATCHER].address.to_string();
    let net = network(&fixtures, temp.path(), &account);
    let rollup = net.sequencer().rpc.expect("a rollup node");
    let writers = Writers {
        net: &net,
        eth: net.sequencer().http,
        rollup: rollup.clone(),
    };
    let factory = game_factory(&fixtures);
    let mut proposer = writers.proposer(&proposer, &factory);
    let safe = || {
        let status = ask(&rollup, "optimism_syncStatus", json!([]));
        status["safe_l2"]["number"].as_u64().expect("a number")
    };
    for (round, mode) in MODES.iter().enumerate() {
        let mut batcher = writers.batcher(&batcher, &format!("op-batcher-{round}"), mode);
        let later = safe() + 20;
        wait("blocks to become safe", PATIENCE, || {
            batcher.check();
            proposer.check();
            (safe() >= later).then_some(())
        });
        batcher.stop();
    }
    let claims = two_claims(&net.l1().http, &factory, || proposer.check());
    let replica = FreshReplica::derives(&net, safe());
    for (at, claim) in claims {
        let block = json!([format!("{at:#x}")]);
        let output = ask(&replica.rpc, "optimism_outputAtBlock", block);
        assert_eq!(
            output["outputRoot"],
            json!(claim),
            "the claim of block {at}"
        );
    }
}
