//! `ConfigUpdate` logs that no honest SystemConfig emits. The contract at its address emits the log
//! that it is told to, so L1 has updates of every type in forms that derivation must ignore. One of
//! them alone splits the safe chain if it is applied.

use super::{
    l1::L1Call,
    world::{ActionPlan, ActionWorld, OWNER, account},
};
use alloy_primitives::{B256, U256};
use serde_json::Value;
use starling::devnet::genesis::SYSTEM_CONFIG;
use starling_proto::{
    config_update::CONFIG_UPDATE_EVENT,
    l1info::L1BlockInfo,
    payload::Payload,
    system_config::{FeeScalars, SystemConfig},
};

/// Code that emits a log: the call's first three words are the topics, the rest is the log's data.
const EMITTER: &str = "0x604035602035600035606036038060606000376000a300";

/// Words of a log's data: offset and length of the ABI's `bytes`, then the values.
type LogWords = Vec<U256>;

pub fn plan() -> ActionPlan {
    let l1_genesis = |genesis: &mut Value| {
        genesis["alloc"][SYSTEM_CONFIG.to_string()]["code"] = EMITTER.into();
    };
    ActionPlan {
        l1_genesis,
        ..ActionPlan::default()
    }
}

fn word(value: u128) -> U256 {
    U256::from(value)
}

/// The call by which the contract emits a log of this type with this data.
fn emit(kind: u8, version: u8, data: &[U256]) -> L1Call {
    let topics = [
        CONFIG_UPDATE_EVENT,
        B256::with_last_byte(version),
        B256::with_last_byte(kind),
    ];
    let data = data.iter().map(|word| B256::from(*word));
    let input: Vec<B256> = topics.into_iter().chain(data).collect();
    L1Call {
        from: account(OWNER),
        to: SYSTEM_CONFIG,
        value: 0,
        input: input.concat().into(),
        blobs: vec![],
    }
}

/// The data of an update with these values.
fn data(values: &[U256]) -> LogWords {
    let head = [word(32), word(values.len() as u128 * 32)];
    [&head, values].concat()
}

/// The values of a valid update of each type that derivation applies, except the batcher's.
fn valid() -> Vec<(u8, LogWords)> {
    let scalars = FeeScalars {
        base_fee: 2_000,
        blob_base_fee: 900_000,
    };
    let fees = vec![word(0), scalars.encode().into()];
    vec![
        (1, fees),
        (2, vec![word(40_000_000)]),
        (4, vec![word(100 << 32 | 3)]),
        (5, vec![word(1_000 << 64 | 77)]),
        (6, vec![word(2_000_000_000)]),
        (7, vec![word(500)]),
    ]
}

/// Updates without effect: fee scalars in undefined forms, values that do not fit their types, and
/// valid values of each type in data or under a version of another form.
fn ignored() -> Vec<L1Call> {
    let word_with = |version: usize, bit: usize| (word(1) << bit) | (word(version as u128) << 248);
    let mut calls: Vec<L1Call> = [
        word(1) << 32,
        word_with(0, 247),
        word_with(1, 64),
        word_with(2, 0),
    ]
    .into_iter()
    .map(|scalar| emit(1, 0, &data(&[word(0), scalar])))
    .collect();
    for (kind, bit) in [(0, 160), (2, 64), (4, 32), (4, 0), (6, 64), (7, 16)] {
        calls.push(emit(kind, 0, &data(&[word(1) << bit])));
    }
    let stranger = U256::from_be_bytes(B256::with_last_byte(7).0);
    for (kind, values) in valid().into_iter().chain([(0, vec![stranger])]) {
        let valid = data(&values);
        let (mut offset, mut length) = (valid.clone(), valid.clone());
        offset[0] = word(64);
        length[1] += word(32);
        let trailing = [&valid[..], &[word(0)]].concat();
        let cut = &valid[..valid.len() - 1];
        calls
            .extend([&offset[..], &length[..], &trailing[..], cut].map(|data| emit(kind, 0, data)));
        calls.push(emit(kind, 1, &valid));
    }
    calls.push(emit(8, 0, &data(&[word(1)])));
    // The signer of unsafe blocks is not derived, whatever the data.
    calls.push(emit(3, 0, &[]));
    calls
}

/// Mines an L1 block with these calls, derives the blocks of its epoch, and returns the first one.
fn derive_after(world: &mut ActionWorld, calls: &[L1Call]) -> std::sync::Arc<Payload> {
    world.l1.mine(calls);
    let epoch = world.l1.height();
    world.l1.mine_to(epoch + 1);
    let blocks = world.extend(epoch);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
    let first = blocks
        .iter()
        .find(|block| L1BlockInfo::of(block).expect("L1 attributes").number == epoch);
    first.expect("a block of the epoch").clone()
}

/// Emits every update that must be ignored, then a valid one of each type.
pub fn emit_updates(world: &mut ActionWorld) {
    let read = |world: &ActionWorld, block: &Payload| {
        SystemConfig::of(block, &world.author.rollup).expect("a block of the chain")
    };
    let first = derive_after(world, &[]);
    let before = read(world, &first);
    let unchanged = derive_after(world, &ignored());
    assert_eq!(read(world, &unchanged), before);
    let calls: Vec<L1Call> = valid()
        .iter()
        .map(|(kind, values)| emit(*kind, 0, &data(values)))
        .collect();
    let changed = derive_after(world, &calls);
    let changed = read(world, &changed);
    let (_, fees) = valid().swap_remove(0);
    assert_eq!(changed.scalar, B256::from(fees[1]));
    assert_eq!(changed.gas_limit, 40_000_000);
    assert_eq!(
        (changed.eip1559.denominator, changed.eip1559.elasticity),
        (100, 3)
    );
    assert_eq!(
        (changed.operator_fee_scalar, changed.operator_fee_constant),
        (1_000, 77)
    );
    assert_eq!(
        (changed.min_base_fee, changed.da_footprint_gas_scalar),
        (2_000_000_000, 500)
    );
}

#[test]
fn a_verifier_ignores_config_updates_in_undefined_forms() {
    emit_updates(&mut ActionWorld::new(plan()));
}
