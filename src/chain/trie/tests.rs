//! The trie, compared with roots that alloy-trie computes from scratch, over random blocks with
//! difficult keys and values.

mod proofs;
mod roots;
mod witness;

use super::*;
use crate::chain::{
    rows::ExecutedBlock,
    store::{Identity, Store},
    view::{State, View},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::{HashBuilder, TrieAccount, root::state_root_unhashed};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use starling_proto::payload::Payload;
use std::sync::Arc;

type Storage = BTreeMap<B256, U256>;

/// A plain model of a state, as maps.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    accounts: BTreeMap<B256, AccountChange>,
    storages: BTreeMap<B256, Storage>,
}

impl Model {
    fn apply(&mut self, changes: &Changes) {
        for (hash, storage) in &changes.storages {
            let slots = self.storages.entry(*hash).or_default();
            if storage.wiped {
                slots.clear();
            }
            slots.extend(&storage.slots);
            slots.retain(|_, value| !value.is_zero());
        }
        for (hash, account) in &changes.accounts {
            match account {
                Some(account) => {
                    self.accounts.insert(*hash, *account);
                }
                None => {
                    self.accounts.remove(hash);
                    self.storages.remove(hash);
                }
            }
        }
        self.storages.retain(|_, slots| !slots.is_empty());
    }

    fn storage_root(&self, hash: &B256) -> B256 {
        // The model's keys are used unhashed: they stand for hashes.
        let mut builder = HashBuilder::default();
        for (key, value) in self.storages.get(hash).into_iter().flatten() {
            builder.add_leaf(Nibbles::unpack(key), &alloy_rlp::encode(value));
        }
        builder.root()
    }

    fn state_root(&self) -> B256 {
        let mut builder = HashBuilder::default();
        for (hash, account) in &self.accounts {
            builder.add_leaf(
                Nibbles::unpack(hash),
                &encode_account(account, self.storage_root(hash)),
            );
        }
        builder.root()
    }

    /// The changes that create this state from the empty state.
    fn as_changes(&self) -> Changes {
        let storage = |slots: &Storage| StorageChange {
            wiped: false,
            slots: slots.clone(),
        };
        Changes {
            accounts: self
                .accounts
                .iter()
                .map(|(hash, account)| (*hash, Some(*account)))
                .collect(),
            storages: self
                .storages
                .iter()
                .map(|(hash, slots)| (*hash, storage(slots)))
                .collect(),
            codes: BTreeMap::new(),
            names: Vec::new(),
        }
    }

    fn rows(&self) -> BTreeMap<Bytes, Bytes> {
        let update = genesis(&self.as_changes()).unwrap();
        assert_eq!(update.state_root, self.state_root());
        update
            .overlay
            .rows
            .into_iter()
            .map(|(key, row)| (key, row.after.unwrap()))
            .collect()
    }
}

struct Rng(StdRng);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// A random key. Keys share long prefixes: few different nibbles, and mostly the same ones
    /// until near the end.
    fn key(&mut self) -> B256 {
        let mut key = B256::repeat_byte(if self.below(4) == 0 { 0x11 } else { 0x00 });
        let first = [0, 0, 1, 15, 30, 31][self.below(6) as usize];
        for byte in &mut key[first..] {
            if self.below(6) == 0 {
                *byte = [0x00, 0x01, 0x10, 0x11, 0x1f, 0xf1][self.below(6) as usize];
            }
        }
        // Only the last byte differs. Branches are then so deep that leaves and branches are
        // inlined.
        if self.below(3) == 0 {
            key[31] = self.below(256) as u8;
        }
        key
    }

    fn value(&mut self) -> U256 {
        match self.below(4) {
            0 => U256::from(self.below(200)),
            1 => U256::from(self.0.next_u64()),
            2 => U256::from(1),
            _ => U256::from_be_bytes(keccak256(self.0.next_u64().to_be_bytes()).0),
        }
    }

    /// Changes of a random block; half of them are of accounts and slots that exist.
    fn changes(&mut self, model: &Model) -> Changes {
        let accounts = 1 + self.below(6);
        self.changes_of(model, accounts, 12)
    }

    /// Changes of `accounts` accounts, and of fewer than `slots` slots in each.
    fn changes_of(&mut self, model: &Model, accounts: u64, slots: u64) -> Changes {
        let mut changes = Changes::default();
        for _ in 0..accounts {
            let known = model
                .accounts
                .keys()
                .nth(self.below(1 + model.accounts.len() as u64) as usize)
                .copied();
            let hash = if self.below(2) == 0 { known } else { None }.unwrap_or_else(|| self.key());
            if self.below(5) == 0 {
                changes.accounts.insert(hash, None);
                changes.storages.remove(&hash);
                continue;
            }
            let old = model.accounts.get(&hash);
            let account = AccountChange {
                nonce: old.map_or(0, |a| a.nonce) + self.below(2),
                balance: if self.below(2) == 0 {
                    self.value()
                } else {
                    old.map_or(U256::ZERO, |a| a.balance)
                },
                code_hash: KECCAK256_EMPTY,
            };
            changes.accounts.insert(hash, Some(account));
            if self.below(3) > 0 {
                let there = model.storages.get(&hash).cloned().unwrap_or_default();
                let storage = self.storage_change(&there, slots);
                changes.storages.insert(hash, storage);
            }
        }
        if self.below(40) == 0 {
            changes
                .accounts
                .extend(model.accounts.keys().map(|hash| (*hash, None)));
            changes.storages.clear();
        }
        changes
    }

    /// Changes of fewer than `most` slots of a storage. The storage may also be wiped, or emptied
    /// slot by slot.
    fn storage_change(&mut self, there: &Storage, most: u64) -> StorageChange {
        let mut storage = StorageChange {
            wiped: self.below(8) == 0,
            ..Default::default()
        };
        for _ in 0..self.below(most) {
            let known = there
                .keys()
                .nth(self.below(1 + there.len() as u64) as usize)
                .copied();
            let slot = if self.below(2) == 0 { known } else { None }.unwrap_or_else(|| self.key());
            let value = if self.below(3) == 0 {
                U256::ZERO
            } else {
                self.value()
            };
            storage.slots.insert(slot, value);
        }
        if self.below(10) == 0 {
            storage
                .slots
                .extend(there.keys().map(|slot| (*slot, U256::ZERO)));
        }
        storage
    }
}

/// A store with an empty chain, for views with any rows above it.
struct Bench {
    store: Store,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let genesis = Payload::sealed(
            Header {
                state_root: EMPTY_ROOT_HASH,
                ..Default::default()
            },
            vec![],
        );
        let identity = Identity {
            chain_id: 1,
            genesis_hash: genesis.hash,
        };
        let store =
            Store::create(dir.path(), 1 << 20, identity, &genesis, &Overlay::default()).unwrap();
        Self { store, _dir: dir }
    }

    /// A state with exactly these rows.
    fn state(&self, rows: &BTreeMap<Bytes, Bytes>, state_root: B256) -> State {
        let snapshot = self.store.snapshot().unwrap();
        let header = Header {
            parent_hash: snapshot.head().hash,
            number: 1,
            state_root,
            ..Default::default()
        };
        let rows = rows
            .iter()
            .map(|(k, v)| {
                (
                    k.clone(),
                    RowChange {
                        before: None,
                        after: Some(v.clone()),
                    },
                )
            })
            .collect();
        let block = ExecutedBlock::new(
            Arc::new(Payload::sealed(header, vec![])),
            vec![],
            Arc::default(),
            Arc::new(Overlay {
                rows,
                codes: vec![],
                names: vec![],
            }),
        );
        Arc::new(View::new(snapshot, vec![Arc::new(block)], None, None).unwrap()).state()
    }
}

fn turn(rows: &mut BTreeMap<Bytes, Bytes>, overlay: &Overlay, back: bool) {
    for (key, row) in &overlay.rows {
        let (from, to) = if back {
            (&row.after, &row.before)
        } else {
            (&row.before, &row.after)
        };
        assert_eq!(rows.get(key), from.as_ref(), "row {key}");
        assert_ne!(from, to, "row {key} does not change");
        match to {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
}

/// The witness of a whole state: every node that has a hash, encoded from the state's rows.
fn witness(bench: &Bench, model: &Model, rows: &BTreeMap<Bytes, Bytes>) -> Witness {
    let state = bench.state(rows, model.state_root());
    let mut preimages = Vec::new();
    collect(
        &StateSource::new(Some(&state), None),
        &walk::root_node(model.state_root()),
        Nibbles::new(),
        &mut preimages,
    );
    for hash in model.storages.keys() {
        let source = StateSource::new(Some(&state), Some(*hash));
        collect(
            &source,
            &walk::root_node(model.storage_root(hash)),
            Nibbles::new(),
            &mut preimages,
        );
    }
    Witness::new(preimages)
}

fn collect(source: &StateSource<'_>, node: &Node, path: Nibbles, out: &mut Vec<Bytes>) {
    let loaded = match node {
        Node::Empty => return,
        Node::Stored { reference, kind } => source.load(&path, reference, *kind).unwrap(),
        _ => node.clone(),
    };
    let reference = |node: &Node| match node {
        Node::Stored { reference, .. } => reference.clone(),
        other => panic!("{other:?}"),
    };
    match loaded {
        Node::Leaf { key, value } => out.push(node::rlp_leaf(&key, path.len(), &value).into()),
        Node::Extension { nibbles, child } => {
            out.push(node::rlp_extension(&nibbles, &reference(&child)).into());
            collect(source, &child, path.join(&nibbles), out);
        }
        Node::Branch(children) => {
            let present: Vec<_> = children
                .iter()
                .enumerate()
                .filter(|(_, c)| **c != Node::Empty)
                .collect();
            let mask = present.iter().fold(0, |mask, (index, _)| mask | 1 << index);
            let references: Vec<_> = present.iter().map(|(_, c)| reference(c)).collect();
            out.push(node::rlp_branch(mask, &references).into());
            for (index, child) in present {
                let mut path = path;
                path.push(index as u8);
                collect(source, child, path, out);
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn random_blocks_give_the_roots_and_rows_of_a_build_from_scratch() {
    let bench = Bench::new();
    let (mut inline_children, mut large_tries) = (0, 0);
    // Ten thousand blocks, since restructured branches and inline nodes are rare in random blocks.
    for seed in 0..168u8 {
        let mut rng = Rng(StdRng::seed_from_u64(seed.into()));
        let mut model = Model::default();
        let mut rows = BTreeMap::new();
        for block in 0..60 {
            // The last blocks have so many leaves that the work is distributed over threads.
            let changes = if block < 58 {
                rng.changes(&model)
            } else {
                rng.changes_of(&model, 200, 300)
            };
            let slots = changes.storages.values().map(|storage| storage.slots.len());
            large_tries += slots
                .chain([changes.accounts.len()])
                .filter(|leaves| *leaves >= PARALLEL)
                .count();
            let before = model.clone();
            model.apply(&changes);
            let state = bench.state(&rows, before.state_root());
            let update = state.update(&changes).unwrap();
            let place = || format!("seed {seed}, block {block}");
            assert_eq!(update.state_root, model.state_root(), "{}", place());
            for (hash, root) in &update.storage_roots {
                assert_eq!(*root, model.storage_root(hash), "{}", place());
            }
            let old_rows = rows.clone();
            turn(&mut rows, &update.overlay, false);
            assert_eq!(rows, model.rows(), "{}", place());
            let mut back = rows.clone();
            turn(&mut back, &update.overlay, true);
            assert_eq!(back, old_rows, "{}", place());
            inline_children += rows
                .iter()
                .filter(|(key, row)| !keys::is_flat(key) && row[0] == 0 && row[5..7] != [0, 0])
                .count();

            if block % 10 == 9 {
                let witness = witness(&bench, &before, &old_rows);
                let roots = witness.update(before.state_root(), &changes).unwrap();
                assert_eq!(roots.state_root, model.state_root(), "{}", place());
                for (hash, root) in roots.storage_roots {
                    assert_eq!(root, model.storage_root(&hash), "{}", place());
                }
            }
        }
    }
    assert!(
        inline_children > 1000,
        "the test must meet inline nodes, met {inline_children}"
    );
    assert!(
        large_tries > 1000,
        "the test must meet tries that are shared out, met {large_tries}"
    );
}

#[test]
fn a_missing_row_is_an_error_or_changes_nothing() {
    let bench = Bench::new();
    let mut errors = 0;
    for seed in 0..30u8 {
        let mut rng = Rng(StdRng::seed_from_u64(seed.into()));
        let mut model = Model::default();
        for _ in 0..8 {
            model.apply(&rng.changes(&model));
        }
        let rows = model.rows();
        // The last blocks have so many changes that the work is distributed over threads.
        let changes = if seed < 28 {
            rng.changes(&model)
        } else {
            rng.changes_of(&model, 200, 12)
        };
        let mut after = model.clone();
        after.apply(&changes);
        for key in rows.keys().filter(|key| !keys::is_flat(key)) {
            let mut torn = rows.clone();
            torn.remove(key);
            match bench.state(&torn, model.state_root()).update(&changes) {
                Ok(update) => assert_eq!(update.state_root, after.state_root(), "without {key}"),
                Err(TrieError::Missing { .. }) => errors += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let whole = witness(&bench, &model, &rows);
        for hash in whole.nodes.keys() {
            let mut torn = whole.clone();
            torn.nodes.remove(hash);
            match torn.update(model.state_root(), &changes) {
                Ok(roots) => assert_eq!(roots.state_root, after.state_root()),
                Err(TrieError::Missing { hash: missing, .. }) => assert_eq!(missing, Some(*hash)),
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(errors > 50, "{errors}");
}

#[test]
fn storage_without_its_account_is_refused() {
    let storage = StorageChange {
        wiped: false,
        slots: [(B256::ZERO, U256::from(1))].into(),
    };
    let changes = Changes {
        storages: [(B256::ZERO, storage)].into(),
        ..Default::default()
    };
    assert!(matches!(
        genesis(&changes),
        Err(TrieError::Orphan(B256::ZERO))
    ));
}
