//! Proofs at earlier blocks, checked with an independent verifier and against the values at that
//! block, after commits, unwinds, reopening and pruning.

use super::*;
use crate::chain::{
    changes::{AccountChange, Changes},
    rows::ExecutedBlock,
    store::{Identity, Space, Store},
    trie,
    view::View,
};
use alloy_consensus::Header;
use alloy_primitives::{KECCAK256_EMPTY, U256};
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use starling_proto::payload::Payload;
use std::{collections::BTreeMap, path::Path, sync::Arc};

const CACHE: u64 = 1 << 20;
const SLOTS: u64 = 60;

type Plain = BTreeMap<Address, (AccountChange, BTreeMap<U256, U256>)>;

/// A stored chain and the expected values at each of its blocks.
struct World {
    rng: StdRng,
    addresses: Vec<Address>,
    store: Store,
    /// By block number: the header, and the values after the block.
    chain: Vec<(Header, Plain)>,
}

impl World {
    fn new(dir: &Path, seed: u64) -> Self {
        let mut addresses: Vec<_> = (0..300u64)
            .map(|n| Address::from_word(keccak256(n.to_be_bytes())))
            .collect();
        addresses.push(MESSAGE_PASSER);
        let mut plain = Plain::new();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut changes = Changes::default();
        for address in addresses.iter().skip(200).chain([&MESSAGE_PASSER]) {
            change(&mut rng, *address, &mut plain, &mut changes);
        }
        let update = trie::genesis(&changes).unwrap();
        let header = Header {
            state_root: update.state_root,
            ..Default::default()
        };
        let genesis = Payload::sealed(header.clone(), vec![]);
        let identity = Identity {
            chain_id: 901,
            genesis_hash: genesis.hash,
        };
        let store = Store::create(dir, CACHE, identity, &genesis, &update.overlay).unwrap();
        Self {
            rng,
            addresses,
            store,
            chain: vec![(header, plain)],
        }
    }

    fn view(&self) -> Arc<View> {
        Arc::new(View::new(self.store.snapshot().unwrap(), vec![], None, None).unwrap())
    }

    /// Adds blocks that create, destroy and change accounts, delete slots, and withdraw through the
    /// message passer, stored in groups of up to five.
    fn grow(&mut self, blocks: usize) {
        let mut left = blocks;
        while left > 0 {
            let group = self.rng.random_range(1..=left.min(5));
            let mut executed = Vec::new();
            for _ in 0..group {
                executed.push(self.block(&executed));
            }
            self.store.commit(&executed, None, None).unwrap();
            left -= group;
        }
    }

    fn block(&mut self, above: &[Arc<ExecutedBlock>]) -> Arc<ExecutedBlock> {
        let view = Arc::new(
            View::new(self.store.snapshot().unwrap(), above.to_vec(), None, None).unwrap(),
        );
        let mut plain = self.chain.last().unwrap().1.clone();
        let mut changes = Changes::default();
        for _ in 0..self.rng.random_range(0..6) {
            let address = *self.addresses.choose(&mut self.rng).unwrap();
            if changes.accounts.contains_key(&keccak256(address)) {
                continue;
            }
            match self.rng.random_range(0..4) {
                0 if address != MESSAGE_PASSER => {
                    plain.remove(&address);
                    changes.accounts.insert(keccak256(address), None);
                }
                _ => change(&mut self.rng, address, &mut plain, &mut changes),
            }
        }
        if self.rng.random_range(0..3) == 0
            && !changes.accounts.contains_key(&keccak256(MESSAGE_PASSER))
        {
            change(&mut self.rng, MESSAGE_PASSER, &mut plain, &mut changes);
        }
        let update = view.state().update(&changes).unwrap();
        let head = view.head();
        let header = Header {
            parent_hash: head.hash,
            number: head.number + 1,
            state_root: update.state_root,
            ..Default::default()
        };
        self.chain.push((header.clone(), plain));
        Arc::new(ExecutedBlock::new(
            Arc::new(Payload::sealed(header, vec![])),
            vec![],
            Arc::default(),
            Arc::new(update.overlay),
        ))
    }

    fn unwind(&mut self, blocks: usize) {
        for _ in 0..blocks {
            self.store.unwind_one().unwrap();
            self.chain.pop();
        }
    }

    fn head(&self) -> u64 {
        self.chain.len() as u64 - 1
    }

    /// The proofs of an account and its slots at a block pass an independent verifier, and contain
    /// the values at that block.
    fn check(&self, view: &Arc<View>, number: u64, address: Address, slots: &[U256]) {
        let (header, plain) = &self.chain[number as usize];
        let proof = view
            .provable_state(number, address)
            .unwrap()
            .unwrap_or_else(|| panic!("no proofs at {number}"))
            .prove(address, slots)
            .unwrap_or_else(|e| panic!("{address} at {number}: {e}"));
        let there = plain.get(&address);
        let wanted = there.map(|(account, _)| (account.nonce, account.balance));
        assert_eq!(
            proof
                .account
                .map(|account| (account.nonce, account.balance)),
            wanted,
            "{address} at {number}"
        );
        let storage_root = proof
            .account
            .map_or(alloy_trie::EMPTY_ROOT_HASH, |account| account.storage_root);
        let leaf = there.map(|(account, _)| {
            alloy_rlp::encode(TrieAccount {
                nonce: account.nonce,
                balance: account.balance,
                storage_root,
                code_hash: account.code_hash,
            })
        });
        let key = Nibbles::unpack(keccak256(address));
        verify_proof(header.state_root, key, leaf, &proof.nodes).unwrap();
        for (slot, proof) in slots.iter().zip(&proof.slots) {
            let value = there
                .and_then(|(_, slots)| slots.get(slot))
                .copied()
                .unwrap_or_default();
            assert_eq!(proof.value, value, "slot {slot} of {address} at {number}");
            let leaf = (!value.is_zero()).then(|| alloy_rlp::encode(value));
            let key = Nibbles::unpack(keccak256(B256::from(*slot)));
            verify_proof(storage_root, key, leaf, &proof.nodes).unwrap();
        }
    }

    fn check_random(&mut self, oldest: u64, times: usize) {
        let view = self.view();
        for _ in 0..times {
            let address = match self.rng.random_range(0..4) {
                0 => MESSAGE_PASSER,
                _ => *self.addresses.choose(&mut self.rng).unwrap(),
            };
            let slots: Vec<_> = (0..3)
                .map(|_| U256::from(self.rng.random_range(0..SLOTS)))
                .collect();
            let number = self.rng.random_range(oldest..=self.head());
            self.check(&view, number, address, &slots);
        }
    }

    fn reopen(self, dir: &Path) -> Self {
        let Self {
            rng,
            addresses,
            store,
            chain,
        } = self;
        drop(store);
        Self {
            rng,
            addresses,
            store: Store::open(dir, CACHE, None).unwrap(),
            chain,
        }
    }

    fn count(&self, tag: u8) -> usize {
        self.store
            .snapshot()
            .unwrap()
            .rows(Space::History, &[tag])
            .count()
    }
}

/// Sets an account and some of its slots: to new values, and to zero, which deletes them.
fn change(rng: &mut StdRng, address: Address, plain: &mut Plain, changes: &mut Changes) {
    let empty = AccountChange {
        nonce: 0,
        balance: U256::ZERO,
        code_hash: KECCAK256_EMPTY,
    };
    let (account, slots) = plain.entry(address).or_insert((empty, BTreeMap::new()));
    account.nonce += 1;
    account.balance = U256::from(rng.random_range(0..1_000_000));
    changes.accounts.insert(keccak256(address), Some(*account));
    let storage = changes.storages.entry(keccak256(address)).or_default();
    let [most, range] = *[[4, SLOTS], [30, SLOTS], [4, 3], [0, 1]]
        .choose(rng)
        .unwrap();
    let clear = rng.random_range(0..3) == 0;
    for _ in 0..most {
        let slot = U256::from(rng.random_range(0..range));
        let value = if clear {
            U256::ZERO
        } else {
            U256::from(rng.random_range(0..3))
        };
        storage.slots.insert(keccak256(B256::from(slot)), value);
        slots.insert(slot, value);
    }
    slots.retain(|_, value| !value.is_zero());
}

#[test]
fn every_block_can_be_proven_over_reorgs_and_reopens() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 1);
    for round in 0..12 {
        world.grow(40);
        world.check_random(0, 30);
        let down = world.rng.random_range(0..35);
        world.unwind(down);
        world.check_random(0, 30);
        if round % 4 == 3 {
            world = world.reopen(dir.path());
        }
    }
    world.check_random(0, 1_000);
    // No trie history of unwound blocks is left.
    let snapshot = world.store.snapshot().unwrap();
    let numbers = snapshot
        .rows(Space::History, b"T")
        .map(|row| keys::trie_history_parts(&row.unwrap().0).unwrap().number);
    assert!(numbers.max().unwrap() <= world.head());
    assert_eq!(world.count(b'B') as u64, world.head());
}

/// Every row of a trie is restored, not only the rows on the path to one key.
#[test]
fn every_row_is_restored_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 2);
    let rows = |world: &World| -> BTreeMap<Bytes, Bytes> {
        let snapshot = world.store.snapshot().unwrap();
        let nodes =
            [keys::STATE_NODE, keys::STORAGE_NODE].map(|tag| snapshot.rows(Space::State, &[tag]));
        nodes.into_iter().flatten().map(Result::unwrap).collect()
    };
    let mut then = vec![(0, rows(&world))];
    for _ in 0..25 {
        world.grow(3);
        then.push((world.head(), rows(&world)));
    }
    let all: BTreeMap<&Bytes, ()> = then
        .iter()
        .flat_map(|(_, rows)| rows.keys().map(|key| (key, ())))
        .collect();
    let snapshot = world.store.snapshot().unwrap();
    for (number, rows) in &then {
        for key in all.keys() {
            assert_eq!(
                snapshot.node_row_at(key, *number).unwrap().as_ref(),
                rows.get(*key),
                "{key} at {number}"
            );
        }
    }
}

/// Number of blocks for which the message passer's proofs are kept: all blocks of this test.
const PASSER_WINDOW: u64 = 900;

impl World {
    /// Bytes of trie history in the store's proof window.
    fn proof_bytes(&self) -> u64 {
        self.store.snapshot().unwrap().proof_bytes().unwrap()
    }

    /// Bounds trie history to a third of its bytes, and states to 150 blocks. Checks that a view
    /// taken before pruning can still read its proofs. Returns the oldest block with proofs.
    fn shrink_window(&mut self) -> u64 {
        let bytes = self.proof_bytes();
        let before = self.count(b'T');
        self.store.keep_proofs(bytes / 3).unwrap();
        // The state window bounds proofs too, except those of the message passer.
        self.store.keep_states(Some(150));
        self.grow(100);
        let held = self.view();
        let oldest = held.oldest_proof(Address::ZERO);
        assert!(oldest > 400 && oldest < 572, "{oldest}");
        self.check_random(oldest.max(550), 100);
        self.grow(200);
        self.store.prune().unwrap();
        for number in oldest.max(550)..oldest.max(550) + 20 {
            let address = *self.addresses.choose(&mut self.rng).unwrap();
            self.check(&held, number, address, &[U256::ZERO]);
        }
        drop(held);
        self.store.prune().unwrap();
        let now = self.view();
        let oldest = now.oldest_proof(Address::ZERO);
        assert!(
            now.provable_state(oldest - 1, Address::ZERO)
                .unwrap()
                .is_none()
        );
        assert!(self.proof_bytes() <= bytes / 3);
        assert!(
            self.count(b'T') < before * 3 / 4,
            "{} of {before} rows",
            self.count(b'T')
        );
        oldest
    }

    /// The message passer has proofs at every block of its own window, and no other account has.
    fn check_message_passer(&mut self) {
        let view = self.view();
        assert_eq!(view.oldest_proof(MESSAGE_PASSER), 0);
        for number in 0..=self.head() {
            let slots: Vec<_> = (0..SLOTS / 4)
                .map(|_| U256::from(self.rng.random_range(0..SLOTS)))
                .collect();
            self.check(&view, number, MESSAGE_PASSER, &slots);
        }
        // A state that is kept for the message passer alone refuses other accounts, instead of
        // returning their newest rows as old ones.
        let old = view.provable_state(10, MESSAGE_PASSER).unwrap().unwrap();
        let other = self
            .addresses
            .iter()
            .find(|address| self.chain[10].1.contains_key(*address))
            .unwrap();
        assert!(matches!(old.account(*other), Err(ReadError::Pruned(10))));
    }

    /// The message passer's window, shortened to 200 blocks, prunes the passer's proofs too.
    fn end_passer_window(&mut self) {
        self.store.0.history.passer.store(200, Ordering::Relaxed);
        self.grow(400);
        self.store.prune().unwrap();
        let oldest = self.view().oldest_proof(MESSAGE_PASSER);
        assert!(oldest > 0, "{oldest}");
    }
}

#[test]
fn the_window_is_a_size_and_the_message_passer_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 3);
    world
        .store
        .0
        .history
        .passer
        .store(PASSER_WINDOW, Ordering::Relaxed);
    // Without a limit, all trie history is kept.
    world.grow(600);
    assert_eq!(world.view().oldest_proof(Address::ZERO), 0);
    let oldest = world.shrink_window();
    world = world.reopen(dir.path());
    world.check_random(oldest, 300);
    world.check_message_passer();
    world.end_passer_window();
}

/// Trie history is pruned with the states, since trie rows without leaf values prove nothing.
#[test]
fn trie_history_goes_with_the_states() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 5);
    world.grow(300);
    let rows = |world: &World| -> Vec<(bool, u64)> {
        let rows = world.store.snapshot().unwrap().rows(Space::History, b"T");
        rows.map(|row| row.unwrap().0)
            .map(|key| {
                (
                    is_message_passer_history(&key),
                    keys::trie_history_parts(&key).unwrap().number,
                )
            })
            .collect()
    };
    let before = rows(&world);
    world.store.keep_states(Some(50));
    world.store.prune().unwrap();
    let oldest = world.store.snapshot().unwrap().oldest_state();
    assert_eq!(oldest, 250);
    let wanted: Vec<_> = before
        .iter()
        .copied()
        .filter(|(passers, number)| *passers || *number > oldest)
        .collect();
    assert!(
        wanted.len() < before.len() * 9 / 10,
        "{} of {} rows are kept",
        wanted.len(),
        before.len()
    );
    assert_eq!(rows(&world), wanted);
    world.check_random(oldest, 200);
    let view = world.view();
    for number in 0..=world.head() {
        world.check(&view, number, MESSAGE_PASSER, &[U256::ZERO]);
    }
}

/// A chain stored before trie history existed can be proven from its head at the upgrade on.
#[test]
fn without_trie_history_the_window_begins_at_the_head() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path(), 4);
    world.grow(30);
    let mut rewrite = world.store.rewrite();
    for row in world.store.snapshot().unwrap().rows(Space::History, b"") {
        let (key, _) = row.unwrap();
        if matches!(key[0], b'T' | b'B') || key.as_ref() == b"_proofs" {
            rewrite.set(Space::History, &key, None).unwrap();
        }
    }
    rewrite.finish().unwrap();
    let mut world = world.reopen(dir.path());
    assert_eq!(world.view().oldest_proof(Address::ZERO), 30);
    world.grow(30);
    assert_eq!(world.view().oldest_proof(MESSAGE_PASSER), 30);
    world.check_random(30, 200);
    world.unwind(40);
    world.grow(50);
    assert_eq!(world.view().oldest_proof(Address::ZERO), 30);
    world.check_random(30, 200);
}

#[test]
fn only_the_message_passers_rows_are_its_own() {
    let way = Nibbles::unpack(keccak256(MESSAGE_PASSER));
    let row =
        |path: &Nibbles| is_message_passer_history(&keys::trie_history(&keys::state_node(path), 7));
    for depth in 0..20 {
        let mut path = way.slice(..depth);
        assert!(row(&path), "{depth}");
        path.push(3);
        assert!(row(&path), "the children of {depth}");
        path.push(3);
        assert_eq!(
            row(&path),
            way.slice(..depth + 1) == path.slice(..depth + 1),
            "below a child of {depth}"
        );
    }
    let of = |address| {
        is_message_passer_history(&keys::trie_history(
            &keys::storage_node(&keccak256(address), &way.slice(..3)),
            7,
        ))
    };
    assert!(of(MESSAGE_PASSER) && !of(Address::ZERO));
    let of = |address| {
        is_message_passer_history(&keys::history(
            &keys::slot(&keccak256(address), &B256::ZERO),
            7,
        ))
    };
    assert!(of(MESSAGE_PASSER) && !of(Address::ZERO));
    assert!(
        !is_message_passer_history(b"T")
            && !is_message_passer_history(b"")
            && !is_message_passer_history(b"Tt")
            && !is_message_passer_history(b"Tt\x09\x00\0\0\0\0\0\0\0\0")
    );
    let key = keys::trie_history(&keys::state_node(&way), 7);
    assert_eq!(
        keys::trie_history_parts(&key),
        Some(keys::TrieHistoryKey {
            trie: b"t",
            depth: 64,
            path: keccak256(MESSAGE_PASSER).as_slice(),
            number: 7,
        })
    );
}

/// An account with this nonce, and a balance computed from the nonce.
fn account_with(nonce: u64) -> Option<AccountChange> {
    Some(AccountChange {
        nonce,
        balance: U256::from(nonce) << 60,
        code_hash: KECCAK256_EMPTY,
    })
}

/// Hashed address of account `n`.
fn hashed_address(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

/// A store of a genesis block with 30,000 accounts.
fn large_state(dir: &Path) -> (Store, Payload) {
    let all = Changes {
        accounts: (0..30_000)
            .map(|n| (hashed_address(n), account_with(1)))
            .collect(),
        ..Default::default()
    };
    let update = trie::genesis(&all).unwrap();
    let genesis = Payload::sealed(
        Header {
            state_root: update.state_root,
            ..Default::default()
        },
        vec![],
    );
    let identity = Identity {
        chain_id: 901,
        genesis_hash: genesis.hash,
    };
    let store = Store::create(dir, CACHE, identity, &genesis, &update.overlay).unwrap();
    (store, genesis)
}

/// Trie history is small compared to the trie rows that a block writes, since it has no whole
/// nodes.
#[test]
fn history_of_the_trie_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let (store, genesis) = large_state(dir.path());
    let view = Arc::new(View::new(store.snapshot().unwrap(), vec![], None, None).unwrap());
    // Ten transfers: twenty changed accounts.
    let some = Changes {
        accounts: (0..20)
            .map(|n| (hashed_address(n * 1_000), account_with(2)))
            .collect(),
        ..Default::default()
    };
    let update = view.state().update(&some).unwrap();
    let header = Header {
        parent_hash: genesis.hash,
        number: 1,
        state_root: update.state_root,
        ..Default::default()
    };
    let payload = Arc::new(Payload::sealed(header, vec![]));
    let block = Arc::new(ExecutedBlock::new(
        payload,
        vec![],
        Arc::default(),
        Arc::new(update.overlay),
    ));
    let mut sizes = BTreeMap::<(&str, char), (usize, usize)>::new();
    for row in crate::chain::store::written_rows(&[block]) {
        let size = sizes.entry((row.keyspace, row.key[0] as char)).or_default();
        size.0 += 1;
        size.1 += row.key.len() + row.value.map_or(0, |value| value.len());
    }
    println!("rows and bytes of a block of ten transfers: {sizes:?}");
    let [trie, unwind] = ['T', 'U'].map(|tag| sizes[&("history", tag)].1);
    let nodes = sizes[&("state", 't')].1;
    assert!(
        trie * 4 < nodes && unwind * 3 < nodes,
        "{trie} and {unwind} of {nodes}"
    );
}
