//! The chains that are compared: a genesis for each fork, and one that passes through all.

use super::{accounts, contracts};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling::devnet::genesis::{MESSAGE_PASSER, Plan, build};
use starling_proto::fork::{Fork, ForkSchedule};

/// Unix seconds.
pub const GENESIS_TIME: u64 = 1_700_000_000;

/// Every fork up to this one from the first block on.
pub fn from_genesis(fork: Fork) -> ForkSchedule {
    ForkSchedule::from_genesis(fork)
}

/// Bedrock at genesis, and a new fork every `blocks` blocks of two seconds, up to `last`.
pub fn ladder(last: Fork, blocks: u64) -> ForkSchedule {
    let later = Fork::ALL
        .into_iter()
        .filter(|fork| (Fork::Regolith..=last).contains(fork));
    later.fold(ForkSchedule::from_genesis(Fork::Bedrock), |forks, fork| {
        forks.with(fork, Some(GENESIS_TIME + 2 * blocks * fork as u64))
    })
}

/// A development network's genesis with these forks, the contracts of the test and ether for its
/// accounts.
pub fn genesis(forks: &ForkSchedule) -> Value {
    let plan = Plan {
        time: GENESIS_TIME,
        l2_block_time: 2,
        sequencer: Address::repeat_byte(1),
    };
    let mut file = build(&plan).expect("a genesis").l2_genesis;
    let config = file["config"].as_object_mut().expect("a config");
    for fork in Fork::ALL.into_iter().filter(|fork| *fork > Fork::Bedrock) {
        let ethereum = match fork {
            Fork::Canyon => Some("shanghaiTime"),
            Fork::Ecotone => Some("cancunTime"),
            Fork::Isthmus => Some("pragueTime"),
            Fork::Karst => Some("osakaTime"),
            _ => None,
        };
        let own = format!("{}Time", fork.name());
        for key in ethereum.into_iter().chain([own.as_str()]) {
            match forks.time(fork) {
                Some(time) => config.insert(key.to_owned(), time.into()),
                None => config.remove(key),
            };
        }
    }
    let start = forks.at(GENESIS_TIME);
    if start < Fork::Ecotone {
        // op-geth writes them into a header that has no place for them yet.
        let file = file.as_object_mut().expect("an object");
        file.remove("excessBlobGas");
        file.remove("blobGasUsed");
    }
    file["extraData"] = match start {
        fork if fork < Fork::Holocene => "0x",
        fork if fork < Fork::Jovian => "0x00000000fa00000006",
        _ => "0x01000000fa000000060000000000000000",
    }
    .into();
    let alloc = file["alloc"].as_object_mut().expect("an alloc");
    // As on every chain whose predeploys are proxies. op-geth leaves the withdrawals root of an
    // empty storage out of its payloads.
    alloc[&MESSAGE_PASSER.to_string()]["storage"] =
        json!({ B256::repeat_byte(7).to_string(): B256::repeat_byte(7) });
    alloc.extend(contracts::alloc());
    // 10^30 wei each.
    alloc.extend(accounts::funded().iter().map(|address| {
        (
            address.to_string(),
            json!({"balance": "0xc9f2c9cd04674edea40000000"}),
        )
    }));
    file
}
