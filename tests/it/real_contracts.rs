//! A network on the published contracts: with genesis files of a deployment tool, and a deposit
//! through the real portal.

use crate::{
    clients::passes,
    net::{Devnet, Node, ask, call, number, script, starling, wait},
};
use alloy_primitives::{Address, Bytes, TxKind, U256, hex};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

fn fixtures() -> Option<PathBuf> {
    starling_testkit::fixture("devnet/jovian")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&starling::chain::genesis::read_file(path).unwrap()).unwrap()
}

fn init(datadir: &Path, args: &[&Path]) -> Output {
    starling()
        .arg("init")
        .arg(format!("--datadir={}", datadir.display()))
        .args(args)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    [output.stdout.as_slice(), output.stderr.as_slice()]
        .map(String::from_utf8_lossy)
        .concat()
}

#[test]
fn init_gives_the_hash_of_the_rollup_config() {
    let Some(fixtures) = fixtures() else { return };
    let genesis = fixtures.join("l2-genesis.json.zst");
    let rollup = fixtures.join("rollup.json");
    let expected = read(&rollup)["genesis"]["l2"]["hash"]
        .as_str()
        .unwrap()
        .to_owned();
    let dir = tempfile::tempdir().unwrap();
    let packed = init(&dir.path().join("packed"), &[&genesis]);
    assert!(
        packed.status.success() && said(&packed).contains(&expected),
        "{}",
        said(&packed)
    );

    // A genesis file without a config, as registries publish it.
    let mut bare = read(&genesis);
    bare["config"] = Value::Null;
    let bare_path = dir.path().join("bare.json");
    std::fs::write(&bare_path, bare.to_string()).unwrap();
    let option = PathBuf::from(format!("--rollup.config={}", rollup.display()));
    let joined = init(&dir.path().join("joined"), &[&option, &bare_path]);
    assert!(
        joined.status.success() && said(&joined).contains(&expected),
        "{}",
        said(&joined)
    );
    let alone = init(&dir.path().join("alone"), &[&bare_path]);
    assert!(
        !alone.status.success() && said(&alone).contains("config is missing"),
        "{}",
        said(&alone)
    );
    bare["timestamp"] = 5.into();
    std::fs::write(&bare_path, bare.to_string()).unwrap();
    let other = init(&dir.path().join("other"), &[&option, &bare_path]);
    assert!(
        !other.status.success() && said(&other).contains("the two are of different chains"),
        "{}",
        said(&other)
    );
    assert!(!dir.path().join("other").exists(), "nothing is written");
}

/// Starts a network on the published genesis files, with one replica.
fn network(fixtures: &Path) -> Devnet {
    let option = |name: &str, file: &str| format!("--{name}={}", fixtures.join(file).display());
    let files = [
        option("l1.genesis", "l1-allocs.json.zst"),
        option("l2.genesis", "l2-genesis.json.zst"),
        option("rollup.config", "rollup.json"),
    ];
    let args: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .chain(["--l1.block-time=2", "--replicas=1"])
        .collect();
    Devnet::start(&args)
}

/// Runs the external clients' scripts on the published contracts. viem reads the L1 fee of a
/// transaction from the real oracle and pays about that fee; ethers deploys and uses a token.
#[test]
fn foreign_clients_through_a_replica() {
    let Some(fixtures) = fixtures() else { return };
    if script("viem").is_none() {
        return;
    }
    let net = network(&fixtures);
    let replica = net.replicas().remove(0);
    for (package, account) in ["viem", "ethers"].into_iter().zip(&net.accounts[3..]) {
        let Some(command) = script(package) else {
            return;
        };
        passes(command, &replica, account, net.l2_chain_id);
    }
}

#[test]
fn a_deposit_through_the_real_portal_arrives() {
    let Some(fixtures) = fixtures() else { return };
    let net = network(&fixtures);
    has_the_published_addresses(&net, &read(&fixtures.join("rollup.json")));
    let to = Address::repeat_byte(0x77);
    deposits_arrive(&net, to);
    pays_the_fees_of_the_portals_chain(&net, to);
}

/// Checks that the files in the network's folder have the published addresses, and that the chains
/// of both layers begin together.
fn has_the_published_addresses(net: &Devnet, published: &Value) {
    assert_eq!(
        net.portal,
        published["deposit_contract_address"]
            .as_str()
            .unwrap()
            .parse::<Address>()
            .unwrap()
    );
    assert_eq!(net.l2_chain_id, 13);
    assert!(net.log().contains("both chains begin now"), "{}", net.log());
    let rollup = read(&net.dir.join("rollup.json"));
    for (node, chain) in [(&net.l1(), "l1"), (&net.replicas()[0], "l2")] {
        let genesis = ask(&node.http, "eth_getBlockByNumber", json!(["0x0", false]));
        assert_eq!(genesis["hash"], rollup["genesis"][chain]["hash"]);
        assert_eq!(
            number(&genesis["timestamp"]),
            rollup["genesis"]["l2_time"].as_u64().unwrap()
        );
    }
    assert_eq!(rollup["chain_op_config"], published["chain_op_config"]);
}

/// Sends a raw transaction to this node. Returns its receipt.
fn mined(node: &Node, raw: &Bytes) -> Value {
    let hash = ask(&node.http, "eth_sendRawTransaction", json!([raw]));
    wait("the receipt", Duration::from_secs(30), || {
        call(&node.http, "eth_getTransactionReceipt", json!([hash]))
            .ok()
            .filter(|receipt| !receipt.is_null())
    })
}

/// Sends deposits on L1, and checks the balance on L2.
fn deposits_arrive(net: &Devnet, to: Address) {
    let value = U256::from(1_000_000_000_000_000u64);
    // Calldata of depositTransaction(to, value, gasLimit, isCreation, data)
    let mut input = hex::decode("e9e05c42").unwrap();
    for word in [
        U256::from_be_slice(to.as_slice()),
        value,
        U256::from(100_000),
        U256::ZERO,
        U256::from(160),
        U256::ZERO,
    ] {
        input.extend(word.to_be_bytes::<32>());
    }
    let portal = TxKind::Call(net.portal);
    let raw = net.accounts[1].sign(1337, 0, portal, value, input.into(), 1_000_000);
    let included = mined(&net.l1(), &raw);
    assert_eq!(included["status"], "0x1", "{included}");
    let replica = &net.replicas()[0];
    wait("the deposit on L2", Duration::from_secs(60), || {
        let balance = ask(&replica.http, "eth_getBalance", json!([to, "latest"]));
        (balance == json!(format!("{value:#x}"))).then_some(())
    });
}

/// Sends a transfer on L2 from an account with ether, and checks its fees. The L1 attributes, which
/// the real predeploy reads, come from the portal's chain.
fn pays_the_fees_of_the_portals_chain(net: &Devnet, to: Address) {
    let replica = &net.replicas()[0];
    // The earlier deposit counted as a transaction of its sender, so the nonce is 1.
    let to = TxKind::Call(to);
    let raw = net.accounts[1].sign(13, 1, to, U256::from(1), Bytes::new(), 21_000);
    let receipt = mined(replica, &raw);
    assert_eq!(receipt["status"], "0x1");
    let oracle = "0x420000000000000000000000000000000000000F";
    let l1_base_fee = ask(
        &replica.http,
        "eth_call",
        json!([{"to": oracle, "data": "0x519b4bd3"}, receipt["blockNumber"]]),
    );
    assert_eq!(
        l1_base_fee.as_str().unwrap().parse::<U256>().unwrap(),
        U256::from(number(&receipt["l1GasPrice"]))
    );
}
