//! A store with any kind of damage: the damage is found, and is repaired if possible or refused
//! otherwise.

use super::*;
use crate::{
    chain::{
        Chain,
        evm::tests::address_of,
        rows::keys,
        store::{DATABASE, KINDS, Space},
        tests::{
            datadir,
            grow::{grow, grown},
            killed, open,
        },
        trie::StackTrie,
        view::State,
    },
    db::repair::{RepairError, Repaired, cut_journals, repair},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::HashMap, path::Path};

pub(crate) const CACHE: u64 = 4 << 20;

pub(crate) fn check(dir: &Path) -> DamageReport {
    let store = Store::open(dir, CACHE, None).unwrap();
    verify(&store, Samples::default(), &mut |_, _, _| {}).unwrap()
}

fn mend(dir: &Path) -> Result<Repaired, RepairError> {
    repair(&Store::open(dir, CACHE, None).unwrap(), &mut |_, _, _| {})
}

fn counted(report: &DamageReport, what: &str) -> u64 {
    report
        .checked
        .iter()
        .find(|(name, _)| *name == what)
        .map_or(0, |(_, count)| *count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_store_is_found_so() {
    let dir = grown(1, 60).await;
    let report = check(dir.path());
    assert!(report.is_sound(), "{report:#?}");
    for (what, least) in [
        ("head", 60),
        ("accounts", 20),
        ("trie nodes", 10),
        ("codes", 1),
        ("blocks", 61),
        ("transactions", 80),
    ] {
        assert!(
            counted(&report, what) >= least,
            "{what}: {}",
            counted(&report, what)
        );
    }
    for (what, least) in [("rows of trie history", 200), ("blocks with proofs", 60)] {
        assert!(
            counted(&report, what) >= least,
            "{what}: {}",
            counted(&report, what)
        );
    }
    for (what, least) in [
        ("unwind records", 60),
        ("rows of state history", 200),
        ("blocks executed again", 60),
    ] {
        assert!(
            counted(&report, what) >= least,
            "{what}: {}",
            counted(&report, what)
        );
    }
    // A second repair finds nothing to do and changes nothing.
    assert_eq!(mend(dir.path()).unwrap(), Default::default());
    let slots = Store::open(dir.path(), CACHE, None)
        .unwrap()
        .snapshot()
        .unwrap()
        .rows(Space::State, b"s")
        .count();
    assert!(slots > 5, "{slots} slots");
}

/// The rows of a kind, except names of hashed keys. Other rows do not depend on these names, so
/// damage to them is not found.
fn rows_of_kind(store: &Store, space: Space, kind: Option<usize>) -> Vec<(Bytes, Bytes)> {
    let snapshot = store.snapshot().unwrap();
    let rows = snapshot.rows(space, &[]).map(Result::unwrap);
    rows.filter(|(key, value)| {
        let is_name = space == Space::Code && matches!(value.len(), 20 | 32);
        !key.starts_with(b"_") && space.kind(key) == kind && !is_name
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_code_is_found_whatever_byte_its_hash_begins_with() {
    let dir = grown(5, 3).await;
    let store = Store::open(dir.path(), CACHE, None).unwrap();
    let mut rewrite = store.rewrite();
    let code = Bytes::from_static(b"the code of another hash");
    for first in [b'_', 0] {
        let hash = B256::repeat_byte(first);
        rewrite
            .set(Space::Code, hash.as_slice(), Some(&code))
            .unwrap();
    }
    rewrite.finish().unwrap();
    drop(store);
    let report = check(dir.path());
    assert_eq!(report.count, 2, "{report:#?}");
}

/// The value with one bit flipped, or with one byte if it is empty.
fn flip_a_bit(value: &[u8], rng: &mut StdRng) -> Bytes {
    let mut value = value.to_vec();
    if value.is_empty() {
        value.push(0);
    }
    let at = rng.random_range(0..value.len());
    value[at] ^= 1 << rng.random_range(0..8);
    value.into()
}

/// Rows of every kind are removed or changed. The damage is found, and repaired if the row can be
/// computed from others.
#[tokio::test(flavor = "multi_thread")]
async fn damage_to_any_kind_of_row_is_found() {
    let sound = grown(2, 40).await;
    let mut rng = StdRng::seed_from_u64(2);
    let mut repairs = 0;
    for (space, kinds) in KINDS {
        if space == Space::Meta {
            continue;
        }
        let all = if kinds.is_empty() {
            vec![None]
        } else {
            (0..kinds.len()).map(Some).collect()
        };
        for kind in all {
            let tag = kind.map(|kind| kinds[kind].0);
            // Only chains from before the merge have this row.
            if (space, tag) == (Space::State, Some(keys::TOTAL_DIFFICULTY)) {
                continue;
            }
            for change in [false, true] {
                let dir = killed(sound.path());
                let store = Store::open(dir.path(), CACHE, None).unwrap();
                let rows = rows_of_kind(&store, space, kind);
                let (key, value) = rows[rng.random_range(0..rows.len())].clone();
                let changed = change.then(|| flip_a_bit(&value, &mut rng));
                let mut rewrite = store.rewrite();
                rewrite.set(space, &key, changed.as_ref()).unwrap();
                rewrite.finish().unwrap();
                drop(store);
                let what = format!("row {key} of {}, changed: {change}", space.name());
                let report = check(dir.path());
                // State history older than the unwind records is only checked by replays of
                // samples. In this test all unwind records are kept.
                assert!(!report.is_sound(), "{what}");
                match mend(dir.path()) {
                    Ok(_) => {
                        let after = check(dir.path());
                        assert!(after.is_sound(), "{what}: {report:#?} {after:#?}");
                        repairs += 1;
                    }
                    Err(RepairError::Lost(_) | RepairError::Read(_)) => {
                        let follows = matches!(
                            tag,
                            Some(b't' | b'u' | b'n' | b'N' | b'x' | b'r' | b'L' | b'A')
                        );
                        let senders = space == Space::Blocks && tag == Some(b's');
                        assert!(!follows && !senders, "{what}: {report:#?}");
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
    assert!(repairs >= 12, "{repairs} repairs");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_should_not_be_there_are_found() {
    let sound = grown(3, 30).await;
    let hash = B256::repeat_byte(0x77);
    let account = {
        let store = Store::open(sound.path(), CACHE, None).unwrap();
        let snapshot = store.snapshot().unwrap();
        let (key, _) = snapshot.rows(Space::State, b"a").next().unwrap().unwrap();
        B256::from_slice(&key[1..])
    };
    let below = [keys::storage_node_prefix(&account).as_ref(), &[3, 4]].concat();
    let extra: [(Space, Vec<u8>, bool); 9] = [
        (Space::State, keys::slot(&hash, &hash).to_vec(), false),
        (Space::State, keys::account(&hash).to_vec(), false),
        (
            Space::State,
            keys::storage_node_prefix(&hash).to_vec(),
            true,
        ),
        (Space::State, below, true),
        (Space::State, vec![b't', 1, 2, 3, 4, 5, 6, 7], true),
        (
            Space::Blocks,
            [&7u64.to_be_bytes()[..], b"z"].concat(),
            true,
        ),
        (Space::Index, [b"x", hash.as_slice()].concat(), true),
        (
            Space::Index,
            [&b"n"[..], &99u64.to_be_bytes()].concat(),
            true,
        ),
        (Space::History, b"Hs".to_vec(), false),
    ];
    for (space, key, repairable) in extra {
        let dir = killed(sound.path());
        let store = Store::open(dir.path(), CACHE, None).unwrap();
        let mut rewrite = store.rewrite();
        rewrite
            .set(space, &key, Some(&Bytes::from_static(&[1, 2, 3])))
            .unwrap();
        rewrite.finish().unwrap();
        drop(store);
        let key = hex::encode(key);
        let report = check(dir.path());
        assert!(!report.is_sound(), "{key}");
        if repairable {
            mend(dir.path()).unwrap();
            assert!(
                check(dir.path()).is_sound(),
                "{key}: {:#?}",
                check(dir.path())
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_journal_is_refused_and_cut() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    grow(&chain, 4, 20).await;
    // After a kill, all data is still in the journal.
    let copied = killed(dir.path());
    let head = chain.view().head().number;
    let journal = copied.path().join(DATABASE).join("0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used / 2] ^= 0x10;
    std::fs::write(&journal, &bytes).unwrap();
    let error = Store::open(copied.path(), CACHE, None)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("0.jnl") && error.contains("starling db repair"),
        "{error}"
    );

    let kept = cut_journals(copied.path()).unwrap();
    assert_eq!(std::fs::read(&kept[0]).unwrap(), bytes);
    let report = check(copied.path());
    assert!(report.is_sound(), "{report:#?}");
    let left = counted(&report, "head");
    assert!(left > 0 && left < head, "{left} of {head}");
    // Replaying the payload log restores the head.
    let (chain, _threads) = open(copied.path());
    assert_eq!(chain.view().head().number, head);
}

#[test]
fn an_empty_trie_has_the_empty_root() {
    let root = StackTrie::default().finish(|_, _| Ok::<_, ()>(())).unwrap();
    assert_eq!(root, alloy_trie::EMPTY_ROOT_HASH);
}

/// Parts of the state after a block: nonce and balance of an account, the value of a slot, and the
/// account's code.
type StateValues = (Option<(u64, U256)>, U256, Option<Bytes>);

fn values(state: &State, address: Address, slot: U256) -> StateValues {
    let account = state.account(address).unwrap();
    let code = account.and_then(|account| state.code(account.code_hash).unwrap());
    (
        account.map(|account| (account.nonce, account.balance)),
        state.storage(address, slot).unwrap(),
        code,
    )
}

/// Values of accounts and slots after each block, read when the block was the head.
struct ReplayedStates {
    addresses: Vec<Address>,
    slots: Vec<U256>,
    values: HashMap<(u64, Address, U256), StateValues>,
}

impl ReplayedStates {
    /// Adds `blocks` blocks to a chain and reads all values after each block.
    async fn grow(chain: &Chain, blocks: u64) -> Self {
        let sender = address_of(1);
        let mut addresses = vec![sender, Address::repeat_byte(0xfe), Address::repeat_byte(9)];
        addresses.extend((0..30).map(|nonce| sender.create(nonce)));
        let plain = (0..60u64).map(|nonce| Address::from_word(keccak256(nonce.to_be_bytes())));
        addresses.extend(plain);
        let slots: Vec<_> = (0..12).map(U256::from).collect();
        let mut replayed = HashMap::new();
        for number in 0..=blocks {
            if number > 0 {
                grow(chain, number, 1).await;
            }
            let state = chain.view().state();
            for address in &addresses {
                for slot in &slots {
                    replayed.insert((number, *address, *slot), values(&state, *address, *slot));
                }
            }
        }
        Self {
            addresses,
            slots,
            values: replayed,
        }
    }

    /// Reads 1,000 random values at blocks from `oldest` to `newest`. Enough of them must be of
    /// accounts that exist.
    fn check(&self, view: &Arc<View>, oldest: u64, newest: u64, rng: &mut StdRng) {
        let mut written = 0;
        for _ in 0..1_000 {
            let address = *self.addresses.choose(rng).unwrap();
            let slot = *self.slots.choose(rng).unwrap();
            let number = rng.random_range(oldest..=newest);
            let read = values(&view.state_at(number).unwrap().unwrap(), address, slot);
            assert_eq!(
                read,
                self.values[&(number, address, slot)],
                "{address} {slot} at {number}"
            );
            written += u32::from(read.0.is_some());
        }
        assert!(written > 50, "{written}");
    }
}

/// Random accounts and slots at old blocks have the values that they had when the block was the
/// head. Below the window of old states, no state is returned.
#[tokio::test(flavor = "multi_thread")]
async fn old_states_are_read_as_they_were() {
    const BLOCKS: u64 = 120;
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let replayed = ReplayedStates::grow(&chain, BLOCKS).await;
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let mut rng = StdRng::seed_from_u64(21);
    for window in [None, Some(50)] {
        {
            let store = Store::open(dir.path(), CACHE, None).unwrap();
            store.keep_states(window);
            store.prune().unwrap();
        }
        let (chain, threads) = open(dir.path());
        let view = chain.view();
        let oldest = view.oldest_state();
        assert_eq!(oldest, window.map_or(0, |window| BLOCKS - window));
        assert!((0..oldest).all(|number| view.state_at(number).unwrap().is_none()));
        replayed.check(&view, oldest, BLOCKS, &mut rng);
        drop((view, chain));
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
        let report = check(dir.path());
        assert!(report.is_sound(), "{report:#?}");
    }
}
