//! The blob base fee in the L1 attributes that a sequencer writes, for an L1 whose blob schedule is
//! not built in.

use crate::net::{Devnet, ask, head, number, wait};
use alloy_primitives::{U256, hex};
use serde_json::{Value, json};
use starling::devnet::{
    accounts,
    genesis::{Plan, build},
};
use starling_proto::l1info::L1BlockInfo;
use std::{path::Path, time::Duration};

/// `e^(excess / fraction)` as EIP-4844 computes it.
fn blob_base_fee(excess: u64, fraction: u64) -> U256 {
    let (excess, fraction) = (u128::from(excess), u128::from(fraction));
    let (mut sum, mut term, mut i) = (0, fraction, 1);
    while term > 0 {
        sum += term;
        term = term * excess / (fraction * i);
        i += 1;
    }
    U256::from(sum / fraction)
}

#[test]
fn the_sequencer_writes_the_blob_base_fee_of_the_l1_chain_config() {
    let folder = tempfile::tempdir().expect("a folder");
    let net = start_with_another_schedule(folder.path());
    let (l1, replica) = (net.l1(), net.replicas().remove(0));
    wait(
        "blocks of several origins",
        Duration::from_secs(120),
        || head(&replica.http).filter(|head| *head >= 10),
    );

    let l1_genesis = ask(&l1.http, "eth_getBlockByNumber", json!(["0x0", false]));
    assert_eq!(number(&l1_genesis["excessBlobGas"]), 50_000_000);
    let mut origins = 0;
    for height in 1..=10 {
        let block = ask(
            &replica.http,
            "eth_getBlockByNumber",
            json!([format!("{height:#x}"), true]),
        );
        let input =
            hex::decode(block["transactions"][0]["input"].as_str().expect("input")).expect("hex");
        let info = L1BlockInfo::decode(&input).expect("L1 attributes");
        let origin: Value = ask(&l1.http, "eth_getBlockByHash", json!([info.hash, false]));
        let excess = number(&origin["excessBlobGas"]);
        assert!(
            excess > 40_000_000,
            "it sinks by Prague's target only: {excess}"
        );
        assert_eq!(
            info.blob_base_fee,
            blob_base_fee(excess, UPDATE_FRACTION),
            "excess {excess}"
        );
        assert_ne!(info.blob_base_fee, blob_base_fee(excess, 3_338_477));
        origins = origins.max(info.number);
    }
    assert!(origins > 1, "of several L1 blocks");
}

/// Prague's `baseFeeUpdateFraction` in the genesis of this L1.
const UPDATE_FRACTION: u64 = 5_007_716;

/// Starts a network whose L1 has Prague and excess blob gas from genesis on.
fn start_with_another_schedule(folder: &Path) -> Devnet {
    let mut files = build(&Plan {
        time: 1_000,
        l2_block_time: 1,
        sequencer: accounts::all()[5].address,
    })
    .expect("files");
    files.l1_genesis["config"]["pragueTime"] = 0.into();
    files.l1_genesis["config"]["blobSchedule"]["prague"] =
        json!({ "target": 6, "max": 9, "baseFeeUpdateFraction": UPDATE_FRACTION });
    files.l1_genesis["excessBlobGas"] = "0x2faf080".into();
    let option = |name: &str, file: &str, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("a file");
        format!("--{name}={}", path.display())
    };
    let options = [
        option("l1.genesis", "l1.json", files.l1_genesis.to_string()),
        option("l2.genesis", "l2.json", files.l2_genesis.to_string()),
        option("rollup.config", "rollup.json", files.rollup.to_json()),
    ];
    let args: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(["--l1.block-time=3", "--replicas=1"])
        .collect();
    Devnet::start(&args)
}
