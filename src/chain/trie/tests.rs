//! The trie against alloy-trie's from-scratch roots, over random blocks with keys and values chosen
//! to be nasty.

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

/// The plain model of a state.
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
        // Keys are used as they are: they stand for hashes.
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

    /// The same state as changes to nothing.
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

    /// Keys that share long prefixes: few different nibbles, and mostly one value until near the
    /// end.
    fn key(&mut self) -> B256 {
        let mut key = B256::repeat_byte(if self.below(4) == 0 { 0x11 } else { 0x00 });
        let first = [0, 0, 1, 15, 30, 31][self.below(6) as usize];
        for byte in &mut key[first..] {
            if self.below(6) == 0 {
                *byte = [0x00, 0x01, 0x10, 0x11, 0x1f, 0xf1][self.below(6) as usize];
            }
        }
        // Only the last byte differs: branches so deep that leaves and branches are inlined.
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

    /// A block's changes; half of them touch what is there already.
    fn changes(&mut self, model: &Model) -> Changes {
        let accounts = 1 + self.below(6);
        self.changes_of(model, accounts, 12)
    }

    /// Changes of so many accounts, and of fewer than so many slots of each.
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
                let mut storage = StorageChange {
                    wiped: self.below(8) == 0,
                    ..Default::default()
                };
                let there = model.storages.get(&hash).cloned().unwrap_or_default();
                for _ in 0..self.below(slots) {
                    let known = there
                        .keys()
                        .nth(self.below(1 + there.len() as u64) as usize)
                        .copied();
                    let slot =
                        if self.below(2) == 0 { known } else { None }.unwrap_or_else(|| self.key());
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
}

/// A store of an empty chain, and a view on rows above it.
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

    /// A state that holds exactly these rows.
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

/// The witness of a state: every node of it that has a hash, encoded from its rows.
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
    // Ten thousand blocks: restructured branches and inline nodes are rare among random ones.
    for seed in 0..168u8 {
        let mut rng = Rng(StdRng::seed_from_u64(seed.into()));
        let mut model = Model::default();
        let mut rows = BTreeMap::new();
        for block in 0..60 {
            // The last ones are so large that their leaves are shared out.
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
fn proofs_convince_another_verifier() {
    let bench = Bench::new();
    let (mut present, mut absent, mut inline) = (0, 0, 0);
    for seed in 0..30u8 {
        let mut rng = Rng(StdRng::seed_from_u64(seed.into()));
        let mut model = Model::default();
        for _ in 0..12 {
            model.apply(&rng.changes(&model));
        }
        let rows = model.rows();
        let state = bench.state(&rows, model.state_root());
        let mut check = |account: Option<B256>, root: B256, key: B256, leaf: Option<Bytes>| {
            let nodes = proof::path(
                &StateSource::new(Some(&state), account),
                root,
                &key,
                leaf.as_ref(),
            )
            .unwrap();
            let value = leaf.as_ref().map(|leaf| leaf.to_vec());
            alloy_trie::proof::verify_proof(root, Nibbles::unpack(key), value, &nodes).unwrap();
            *if leaf.is_some() {
                &mut present
            } else {
                &mut absent
            } += 1;
            inline += usize::from(
                account.is_some()
                    && nodes
                        .last()
                        .is_some_and(|node| node.len() < 80 && leaf.is_some()),
            );
            // A value that differs from the flat rows is not proved.
            let other = Some(Bytes::from_static(&[0xc0]));
            let lie = proof::path(
                &StateSource::new(Some(&state), account),
                root,
                &key,
                other.as_ref(),
            );
            assert!(matches!(lie, Err(TrieError::Damaged(_))));
        };
        let account_leaf = |hash: &B256| {
            model
                .accounts
                .get(hash)
                .map(|a| encode_account(a, model.storage_root(hash)))
        };
        let mut others: Vec<_> = (0..40).map(|_| rng.key()).collect();
        others.extend(model.accounts.keys());
        for key in &others {
            check(None, model.state_root(), *key, account_leaf(key));
        }
        for (account, slots) in &model.storages {
            let slot_value =
                |slot: &B256| slots.get(slot).map(|value| alloy_rlp::encode(value).into());
            for key in others.iter().chain(slots.keys()) {
                check(
                    Some(*account),
                    model.storage_root(account),
                    *key,
                    slot_value(key),
                );
            }
        }
    }
    assert!(
        present > 200 && absent > 200 && inline > 20,
        "{present} {absent} {inline}"
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
        // The last ones are so large that they are shared out.
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
fn a_witness_reads_accounts_and_slots() {
    let bench = Bench::new();
    let addresses: Vec<_> = (0..50u8).map(Address::repeat_byte).collect();
    let mut model = Model::default();
    for (i, address) in addresses.iter().enumerate().take(40) {
        let hash = keccak256(address);
        model.accounts.insert(
            hash,
            AccountChange {
                nonce: i as u64,
                balance: U256::from(i),
                code_hash: KECCAK256_EMPTY,
            },
        );
        if i % 2 == 0 {
            let slots = (1..=i as u64)
                .map(|n| (keccak256(B256::from(U256::from(n))), U256::from(n * 1000)))
                .collect();
            model.storages.insert(hash, slots);
        }
    }
    model.storages.retain(|_, slots| !slots.is_empty());
    let witness = witness(&bench, &model, &model.rows());
    let root = model.state_root();
    for (i, address) in addresses.iter().enumerate() {
        let account = witness.account(root, *address).unwrap();
        assert_eq!(
            account.map(|a| (a.nonce, a.balance)),
            (i < 40).then_some((i as u64, U256::from(i)))
        );
        assert_eq!(
            witness.storage_root(root, *address).unwrap(),
            model.storage_root(&keccak256(address))
        );
        for n in 0..45u64 {
            let there = i < 40 && i % 2 == 0 && n >= 1 && n <= i as u64;
            let want = if there {
                U256::from(n * 1000)
            } else {
                U256::ZERO
            };
            assert_eq!(
                witness.storage(root, *address, U256::from(n)).unwrap(),
                want
            );
        }
    }
    assert!(matches!(
        Witness::default().account(root, addresses[0]),
        Err(TrieError::Missing { .. })
    ));
}

#[test]
fn hostile_nodes_are_errors() {
    let mut rng = Rng(StdRng::seed_from_u64(7));
    let bench = Bench::new();
    let mut model = Model::default();
    for _ in 0..10 {
        model.apply(&rng.changes(&model));
    }
    let changes = rng.changes(&model);
    let whole = witness(&bench, &model, &model.rows());
    for hash in whole.nodes.keys() {
        for _ in 0..20 {
            // Under its old hash, so that the walk meets it: no preimage like this exists, but the
            // code must not rely on that.
            let mut bent = whole.clone();
            let mut node = bent.nodes[hash].to_vec();
            let at = rng.below(node.len() as u64) as usize;
            node[at] = rng.below(256) as u8;
            bent.nodes.insert(*hash, node.into());
            let _ = bent.update(model.state_root(), &changes);
        }
    }
    for (key, row) in model.rows().iter().filter(|(key, _)| !keys::is_flat(key)) {
        for _ in 0..20 {
            let mut row = row.to_vec();
            let at = rng.below(row.len() as u64) as usize;
            row[at] = rng.below(256) as u8;
            let mut rows = model.rows();
            rows.insert(key.clone(), row.into());
            let _ = bench.state(&rows, model.state_root()).update(&changes);
        }
    }
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

#[test]
fn ten_thousand_accounts_from_nothing() {
    let accounts: BTreeMap<_, _> = (0..10_000u64)
        .map(|n| {
            (
                keccak256(n.to_be_bytes()),
                AccountChange {
                    nonce: n,
                    balance: U256::from(n),
                    code_hash: KECCAK256_EMPTY,
                },
            )
        })
        .collect();
    let changes = Changes {
        accounts: accounts.iter().map(|(hash, a)| (*hash, Some(*a))).collect(),
        ..Default::default()
    };
    let leaf =
        |a: &AccountChange| TrieAccount::new(a.nonce, a.balance, EMPTY_ROOT_HASH, a.code_hash);
    let want = state_root_unhashed_by_hash(accounts.iter().map(|(hash, a)| (*hash, leaf(a))));
    assert_eq!(genesis(&changes).unwrap().state_root, want);
}

fn state_root_unhashed_by_hash(accounts: impl Iterator<Item = (B256, TrieAccount)>) -> B256 {
    alloy_trie::root::state_root(accounts)
}

#[test]
fn an_alloc_gives_the_root_of_alloy_trie() {
    let addresses: Vec<_> = (0..200u8).map(Address::repeat_byte).collect();
    let leaf =
        |n: usize| TrieAccount::new(n as u64, U256::from(n), EMPTY_ROOT_HASH, KECCAK256_EMPTY);
    let want = state_root_unhashed(
        addresses
            .iter()
            .enumerate()
            .map(|(n, address)| (*address, leaf(n))),
    );
    let account = |n: usize| AccountChange {
        nonce: n as u64,
        balance: U256::from(n),
        code_hash: KECCAK256_EMPTY,
    };
    let accounts = addresses
        .iter()
        .enumerate()
        .map(|(n, address)| (keccak256(address), Some(account(n))))
        .collect();
    assert_eq!(
        genesis(&Changes {
            accounts,
            ..Default::default()
        })
        .unwrap()
        .state_root,
        want
    );
}

/// The secure tries of ethereum/tests: any value as leaf, keys hashed.
#[test]
fn ethereum_tests_secure_tries() {
    let Some(dir) = starling_testkit::fixture("trie-rlp/ethereum-tests/TrieTests") else {
        return;
    };
    let bytes = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => alloy_primitives::hex::decode(hex).unwrap(),
        None => text.as_bytes().to_vec(),
    };
    let mut cases = 0;
    for file in [
        "trieanyorder_secureTrie.json",
        "trietest_secureTrie.json",
        "hex_encoded_securetrie_test.json",
    ] {
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join(file)).unwrap()).unwrap();
        for (name, case) in json.as_object().unwrap() {
            let mut entries: Vec<(String, Option<String>)> = Vec::new();
            match &case["in"] {
                serde_json::Value::Object(map) => {
                    entries.extend(
                        map.iter()
                            .map(|(key, value)| (key.clone(), value.as_str().map(String::from))),
                    );
                }
                list => entries.extend(list.as_array().unwrap().iter().map(|pair| {
                    (
                        pair[0].as_str().unwrap().into(),
                        pair[1].as_str().map(String::from),
                    )
                })),
            }
            let mut root = Node::Empty;
            for (key, value) in entries {
                let value = value.map(|value| Bytes::from(bytes(&value)));
                let change = LeafChange {
                    key: keccak256(bytes(&key)),
                    value,
                    exists: false,
                };
                // One by one, the trie of the step before held in memory by the walk.
                root = walk::update(
                    &StateSource::new(None, None),
                    root,
                    Nibbles::new(),
                    &[change],
                )
                .unwrap();
            }
            let want: B256 = case["root"].as_str().unwrap().parse().unwrap();
            assert_eq!(seal(&root).0, want, "{file}: {name}");
            cases += 1;
        }
    }
    assert!(cases >= 10);
}
