use super::*;
use crate::devnet::genesis::{Plan, SYSTEM_CONFIG, build};
use starling_proto::fork::ForkSchedule;
use std::{fs, path::Path};

const NOW: u64 = 1_800_000_000;
const SEQUENCER: Address = Address::repeat_byte(0x5e);

/// Files as a deployment tool might have written them earlier; built by our own genesis module.
fn given() -> Given {
    let files = build(&Plan {
        time: 1_000,
        l2_block_time: 2,
        sequencer: SEQUENCER,
    })
    .expect("files");
    Given {
        l1: files.l1_genesis,
        l2: files.l2_genesis,
        rollup: files.rollup,
    }
}

fn refusal(change: impl FnOnce(&mut Given)) -> String {
    let mut given = given();
    change(&mut given);
    given
        .files(NOW, None, 1)
        .expect_err("a refusal")
        .to_string()
}

#[test]
fn both_chains_begin_now_and_the_hashes_are_theirs() {
    let old = given();
    let files = given().files(NOW, Some(1), 1).expect("files");
    let (l1, l2) = (
        parse(L1, &files.l1_genesis).expect("L1"),
        parse(L2, &files.l2_genesis).expect("L2"),
    );
    assert_eq!(
        (
            l1.header.timestamp,
            l2.header.timestamp,
            files.rollup.genesis.l2_time
        ),
        (NOW, NOW, NOW)
    );
    assert_eq!(
        (files.rollup.genesis.l1.hash, files.rollup.genesis.l2.hash),
        (l1.header.hash_slow(), l2.header.hash_slow())
    );
    assert_ne!(files.rollup.genesis.l2.hash, old.rollup.genesis.l2.hash);
    assert_eq!(
        l2.header.state_root,
        parse(L2, &old.l2).expect("L2").header.state_root,
        "everybody has money already"
    );
    assert_eq!(files.rollup.block_time, 1);
    assert_eq!(
        given()
            .files(NOW, None, 1)
            .expect("files")
            .rollup
            .block_time,
        2
    );
}

#[test]
fn forks_after_genesis_stay_as_far_away() {
    let mut given = given();
    given.rollup.forks = given.rollup.forks.clone().with(Fork::Karst, Some(1_060));
    given.l2["config"]["karstTime"] = 1_060.into();
    let files = given.files(NOW, None, 1).expect("files");
    assert_eq!(
        files.rollup.forks,
        ForkSchedule::from_genesis(Fork::Jovian).with(Fork::Karst, Some(NOW + 60))
    );
    assert_eq!(files.l2_genesis["config"]["karstTime"], NOW + 60);
    assert_eq!(files.l2_genesis["config"]["jovianTime"], 0);
}

#[test]
fn the_signer_is_read_from_the_system_config() {
    assert_eq!(given().signer().expect("a signer"), SEQUENCER);
    let mut alloc = given();
    alloc.l1 = alloc.l1["alloc"].take();
    assert_eq!(alloc.signer().expect("a signer"), SEQUENCER);
    let mut bare = given();
    let mut account = bare.l1["alloc"][SYSTEM_CONFIG.to_string()].take();
    let storage = account["storage"].as_object().expect("storage").clone();
    account["storage"] = storage
        .into_iter()
        .map(|(slot, word)| (slot.trim_start_matches("0x").to_uppercase(), word))
        .collect::<Map<_, _>>()
        .into();
    bare.l1 = json!({ "alloc": { SYSTEM_CONFIG.to_string().trim_start_matches("0x"): account } });
    assert_eq!(bare.signer().expect("a signer"), SEQUENCER);
    bare.rollup.l1_system_config_address = Address::repeat_byte(1);
    assert!(
        bare.signer()
            .expect_err("nobody")
            .to_string()
            .contains("has no signer of unsafe blocks")
    );
}

#[test]
fn an_alloc_alone_is_an_l1_of_the_chain_that_the_rollup_config_names() {
    let mut given = given();
    given.l1 = given.l1["alloc"].take();
    given.rollup.l1_chain_id = 1337;
    let files = given.files(NOW, None, 1).expect("files");
    assert_eq!(
        parse(L1, &files.l1_genesis).expect("L1").spec.chain_id,
        1337
    );
}

#[test]
fn accounts_without_money_get_some_and_others_keep_theirs() {
    let [first, second, third] =
        [0, 1, 2].map(|n| accounts::all()[n].address.to_string().to_lowercase());
    let mut given = given();
    let alloc = given.l2["alloc"].as_object_mut().expect("alloc");
    alloc.retain(|key, _| {
        !accounts::all()
            .iter()
            .any(|account| account.address.to_string() == *key)
    });
    alloc.insert(first.clone(), json!({ "balance": "0x0", "nonce": "0x7" }));
    alloc.insert(
        second.trim_start_matches("0x").to_owned(),
        json!({ "balance": "0x5" }),
    );
    let alloc = given.files(NOW, None, 1).expect("files").l2_genesis["alloc"].take();
    let full = format!("{:#x}", accounts::BALANCE);
    assert_eq!(alloc[first], json!({ "balance": full, "nonce": "0x7" }));
    assert_eq!(alloc[second.trim_start_matches("0x")]["balance"], "0x5");
    assert_eq!(
        entry(&alloc, &hex::decode(&third[2..]).expect("hex")).expect("the third")["balance"],
        full
    );
    assert!(alloc.get(&second).is_none());
}

#[test]
fn a_genesis_without_a_config_takes_the_rollup_configs() {
    let mut without = given();
    without.l2["config"] = Value::Null;
    let hash = |given: Given| {
        given
            .files(NOW, None, 1)
            .expect("files")
            .rollup
            .genesis
            .l2
            .hash
    };
    assert_eq!(hash(without), hash(given()));
    let sentence = refusal(|given| {
        given.l2["config"] = Value::Null;
        given.rollup.chain_op_config = None;
    });
    assert!(
        sentence.contains("--l2.genesis") && sentence.contains("has no chain_op_config"),
        "{sentence}"
    );
}

#[test]
fn files_of_different_networks_are_refused() {
    assert!(
        refusal(|given| given.rollup.l1_chain_id = 5)
            .contains("--l1.genesis: the chain id is 900, and the rollup config says 5")
    );
    assert!(
        refusal(|given| given.l2["config"]["chainId"] = 5.into())
            .contains("--l2.genesis: the chain id is 5")
    );
    assert!(
        refusal(|given| given.l2["config"]["karstTime"] = 1_060.into())
            .contains("--l2.genesis: the time of karst is not")
    );
    let exchange = |given: &mut Given| {
        std::mem::swap(&mut given.l1, &mut given.l2);
        std::mem::swap(&mut given.rollup.l1_chain_id, &mut given.rollup.l2_chain_id);
    };
    assert!(refusal(exchange).contains("--l1.genesis: this is the genesis of an L2"));
    assert!(
        refusal(|given| given.l1 = json!(5))
            .contains("--l1.genesis: the file is neither a genesis nor an alloc")
    );
    assert!(refusal(|given| given.l2 = json!([])).contains("--l2.genesis"));
    assert!(
        refusal(|given| given.l1["alloc"] = json!(5))
            .contains("--l1.genesis: invalid genesis file: alloc is not an object")
    );
}

#[test]
fn files_are_read_packed_or_not_and_an_absent_one_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let written = given();
    let packed = zstd::encode_all(written.l1.to_string().as_bytes(), 1).expect("zstd");
    fs::write(path("l1.json.zst"), packed).expect("written");
    fs::write(path("l2.json"), written.l2.to_string()).expect("written");
    fs::write(path("rollup.json"), written.rollup.to_json()).expect("written");
    let files = DevnetFiles {
        l1: path("l1.json.zst"),
        l2: path("l2.json"),
        rollup: path("rollup.json"),
    };
    let read = Given::read(&files).expect("files");
    assert_eq!(
        (read.l1, read.l2, read.rollup),
        (written.l1, written.l2, written.rollup)
    );
    let refusal = |files: DevnetFiles| Given::read(&files).expect_err("a refusal").to_string();
    let absent = refusal(DevnetFiles {
        l2: path("none"),
        ..files.clone()
    });
    assert!(
        absent.starts_with("--l2.genesis: ") && absent.contains("cannot be read"),
        "{absent}"
    );
    let text = |file: &Path| {
        refusal(DevnetFiles {
            l1: file.to_path_buf(),
            ..files.clone()
        })
    };
    fs::write(path("bad.json"), "{").expect("written");
    assert!(text(&path("bad.json")).starts_with("--l1.genesis: the file is no JSON"));
    fs::write(path("bad.zst"), "{}").expect("written");
    assert!(text(&path("bad.zst")).contains("cannot be read"));
}
