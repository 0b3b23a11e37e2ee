//! Finds a network's batcher and proposer accounts and the contract for proposals, all from the
//! L1's genesis.

use super::{
    accounts::{self, DevAccount},
    genesis::OUTPUT_ORACLE,
};
use crate::{
    chain::evm::deploy::{Contract, Scratch},
    proposer::contracts,
};
use alloy_primitives::{Address, Bytes, U256, keccak256};
use serde_json::{Map, Value};
use starling_proto::config::RollupConfig;
use std::collections::BTreeMap;

/// Storage slot of SystemConfig's `batcherHash` (slot 103 in the published storage layout).
const BATCHER_HASH_SLOT: U256 = U256::from_limbs([0x67, 0, 0, 0]);

/// The contract that receives proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalContract {
    OutputOracle(Address),
    DisputeGameFactory(Address),
}

/// Account and contract of a network's proposer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PosterPlan {
    pub account: DevAccount,
    pub contract: ProposalContract,
}

/// The development account with this address.
fn account(address: Address) -> Option<DevAccount> {
    accounts::all()
        .into_iter()
        .find(|account| account.address == address)
}

/// The batcher's account, or an error message if its key is not a development key.
pub fn batcher(rollup: &RollupConfig) -> Result<DevAccount, String> {
    let address = rollup.genesis.system_config.batcher_addr;
    account(address).ok_or_else(|| {
        format!("no key of the batcher {address} is known: the network runs without a batcher")
    })
}

/// The proposer's account and contract, or an error message that says why the network has no
/// proposer.
pub fn proposer(
    l1_genesis: &Value,
    rollup: &RollupConfig,
    game_type: u32,
) -> Result<PosterPlan, String> {
    let without = |reason: &str| format!("{reason}: the network runs without a proposer");
    let mut scratch = scratch(l1_genesis);
    if scratch.contract(OUTPUT_ORACLE).is_some() {
        let account = account(accounts::proposer());
        return Ok(PosterPlan {
            account: account.ok_or_else(|| without("there is no key of the proposer"))?,
            contract: ProposalContract::OutputOracle(OUTPUT_ORACLE),
        });
    }
    let factory = factory(&mut scratch, rollup.l1_system_config_address)
        .ok_or_else(|| without("the L1's SystemConfig names no dispute game factory"))?;
    let game = ask(
        &mut scratch,
        factory,
        contracts::game_implementation(game_type),
    )
    .and_then(|answer| contracts::read_address(&answer, 0).ok())
    .filter(|game| !game.is_zero());
    let game = game.ok_or_else(|| {
        without(&format!(
            "the dispute game factory has no game of type {game_type} (--proposer.game-type)"
        ))
    })?;
    let address = permitted(&mut scratch, factory, game, game_type);
    let address = address.unwrap_or_else(accounts::proposer);
    let account = account(address)
        .ok_or_else(|| without(&format!("no key of the proposer {address} is known")))?;
    Ok(PosterPlan {
        account,
        contract: ProposalContract::DisputeGameFactory(factory),
    })
}

/// Gives the batcher a different account if it has the proposer's, because two processes cannot
/// share an account.
pub fn separate(l1_genesis: &mut Value, rollup: &mut RollupConfig, game_type: u32) {
    let batcher = rollup.genesis.system_config.batcher_addr;
    let Ok(plan) = proposer(l1_genesis, rollup, game_type) else {
        return;
    };
    if plan.account.address != batcher {
        return;
    }
    let contract = rollup.l1_system_config_address;
    let Some(accounts) = l1_genesis["alloc"].as_object_mut() else {
        return;
    };
    let entry = accounts
        .iter_mut()
        .find(|(key, _)| address(key) == Some(contract));
    let Some(storage) = entry.and_then(|(_, entry)| entry["storage"].as_object_mut()) else {
        return;
    };
    let slot = storage.iter_mut().find(|(key, value)| {
        word(key) == Some(BATCHER_HASH_SLOT) && text_word(value) == Some(batcher.into_word().into())
    });
    if let Some((_, value)) = slot {
        let other = accounts::proposer();
        *value = other.into_word().to_string().into();
        rollup.genesis.system_config.batcher_addr = other;
    }
}

/// Address of the dispute game factory that SystemConfig names.
fn factory(scratch: &mut Scratch, system_config: Address) -> Option<Address> {
    let data = Bytes::copy_from_slice(&keccak256("disputeGameFactory()")[..4]);
    let answer = ask(scratch, system_config, data)?;
    let factory = contracts::read_address(&answer, 0).ok()?;
    (!factory.is_zero()).then_some(factory)
}

/// The only account that may create games of this type; `None` if every account may.
fn permitted(
    scratch: &mut Scratch,
    factory: Address,
    game: Address,
    game_type: u32,
) -> Option<Address> {
    let arguments = ask(scratch, factory, contracts::game_arguments(game_type));
    let named = arguments.and_then(|answer| contracts::read_permitted(&answer).ok().flatten());
    named.or_else(|| {
        let answer = ask(scratch, game, contracts::proposer())?;
        let proposer = contracts::read_address(&answer, 0).ok()?;
        (!proposer.is_zero()).then_some(proposer)
    })
}

fn ask(scratch: &mut Scratch, to: Address, data: Bytes) -> Option<Bytes> {
    let outcome = scratch.call(Address::ZERO, to, U256::ZERO, data).ok()?;
    Some(outcome.output)
}

/// A scratch EVM with the contracts of a genesis.
fn scratch(l1_genesis: &Value) -> Scratch {
    let mut scratch = Scratch::default();
    let empty = Map::new();
    let alloc = l1_genesis["alloc"].as_object().unwrap_or(&empty);
    for (key, entry) in alloc {
        let code = entry["code"].as_str().and_then(|code| code.parse().ok());
        let (Some(address), Some(code)) = (address(key), code) else {
            continue;
        };
        let storage = entry["storage"].as_object().unwrap_or(&empty);
        let slots = storage
            .iter()
            .filter_map(|(slot, value)| Some((word(slot)?, text_word(value)?)));
        let contract = Contract {
            nonce: 1,
            code,
            storage: slots.collect::<BTreeMap<_, _>>(),
        };
        scratch.insert(address, contract);
    }
    scratch
}

fn address(text: &str) -> Option<Address> {
    text.parse().ok()
}

/// Parses a word in hex, with or without 0x and leading zeros.
fn word(text: &str) -> Option<U256> {
    U256::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn text_word(value: &Value) -> Option<U256> {
    word(value.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devnet::genesis::{Plan, build, l1_genesis_of};
    use alloy_primitives::B256;

    #[test]
    fn our_own_network_has_an_oracle_and_two_keys() {
        let plan = Plan {
            time: 1_700_000_000,
            l2_block_time: 2,
            sequencer: accounts::owner(),
        };
        let files = build(&plan).unwrap();
        let posters = proposer(&files.l1_genesis, &files.rollup, 1).unwrap();
        let oracle = ProposalContract::OutputOracle(OUTPUT_ORACLE);
        assert_eq!(posters.contract, oracle);
        assert_eq!(posters.account.address, accounts::proposer());
        let batcher = batcher(&files.rollup).unwrap();
        assert_eq!(batcher.address, accounts::batcher());
        let mut rollup = files.rollup;
        rollup.genesis.system_config.batcher_addr = Address::repeat_byte(1);
        assert!(
            super::batcher(&rollup)
                .unwrap_err()
                .contains("no key of the batcher")
        );
    }

    #[test]
    fn the_published_contracts_name_factory_and_proposer_and_the_batcher_moves() {
        let Some(folder) = starling_testkit::fixture("devnet/jovian") else {
            return;
        };
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let alloc = zstd::decode_all(&read("l1-allocs.json.zst")[..]).unwrap();
        let alloc: Value = serde_json::from_slice(&alloc).unwrap();
        let mut genesis = l1_genesis_of(1337, alloc.as_object().unwrap().clone());
        let text = String::from_utf8(read("rollup.json")).unwrap();
        let mut rollup = RollupConfig::from_json(&text).unwrap();
        let deployments: Value = serde_json::from_slice(&read("deployments.json")).unwrap();
        let expected = &deployments["opChainDeployments"][0]["DisputeGameFactoryProxy"];
        let expected: Address = expected.as_str().unwrap().parse().unwrap();
        let posters = proposer(&genesis, &rollup, 1).unwrap();
        let contract = ProposalContract::DisputeGameFactory(expected);
        assert_eq!(posters.contract, contract);
        assert_eq!(posters.account.address, accounts::batcher());
        let missing = proposer(&genesis, &rollup, 77).unwrap_err();
        assert!(missing.contains("no game of type 77"), "{missing}");
        separate(&mut genesis, &mut rollup, 1);
        let moved = batcher(&rollup).unwrap().address;
        assert_eq!(moved, accounts::proposer());
        let mut scratch = scratch(&genesis);
        let data = Bytes::copy_from_slice(&keccak256("batcherHash()")[..4]);
        let answer = ask(&mut scratch, rollup.l1_system_config_address, data).unwrap();
        assert_eq!(answer[..], moved.into_word()[..]);
        assert_eq!(
            B256::from_slice(&answer),
            rollup.genesis.system_config.batcher_addr.into_word()
        );
    }
}
