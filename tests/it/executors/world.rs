//! The compared chains: one whose genesis is at each fork, and one that passes through all forks.

use super::{accounts, contracts};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling::devnet::genesis::{MESSAGE_PASSER, Plan, build};
use starling_proto::fork::{Fork, ForkSchedule};

/// Timestamp of the genesis blocks, Unix seconds.
pub const GENESIS_TIME: u64 = 1_700_000_000;

/// Every fork up to `fork` is active from genesis on.
pub fn from_genesis(fork: Fork) -> ForkSchedule {
    ForkSchedule::from_genesis(fork)
}

/// Bedrock at genesis, and then a new fork every `blocks` blocks (of two seconds each), up to
/// `last`.
pub fn ladder(last: Fork, blocks: u64) -> ForkSchedule {
    let later = Fork::ALL
        .into_iter()
        .filter(|fork| (Fork::Regolith..=last).contains(fork));
    later.fold(ForkSchedule::from_genesis(Fork::Bedrock), |forks, fork| {
        forks.with(fork, Some(GENESIS_TIME + 2 * blocks * fork as u64))
    })
}

/// A development network's genesis with these forks, the test's contracts, and ether for the test's
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
        // op-geth would write these fields even into a header whose fork does not have them yet.
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
    // Give the message passer some storage, as on every chain whose predeploys are proxies: op-geth
    // omits the withdrawals root of an empty storage from its payloads.
    alloc[&MESSAGE_PASSER.to_string()]["storage"] =
        json!({ B256::repeat_byte(7).to_string(): B256::repeat_byte(7) });
    alloc.extend(contracts::alloc());
    // Each account gets 10^30 wei.
    alloc.extend(accounts::funded().iter().map(|address| {
        (
            address.to_string(),
            json!({"balance": "0xc9f2c9cd04674edea40000000"}),
        )
    }));
    file
}
