//! Views compared with a plain model: random blocks, commits in random groups, side branches,
//! unwinds and reopens.

mod branches;
mod log_search;
mod senders;

use super::*;
use crate::chain::{
    changes::{AccountChange, Changes, StorageChange},
    receipt::{Receipt, mined_logs, mined_receipt},
    rows::keys,
    store::{Identity, Space, Store, StoreError},
    trie,
};
use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Bytes, KECCAK256_EMPTY, Log, LogData, Signature, U256, keccak256};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use starling_proto::payload::Payload;
use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
};

#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    accounts: BTreeMap<Address, (u64, U256, B256)>,
    slots: BTreeMap<Address, BTreeMap<U256, U256>>,
    codes: BTreeMap<B256, Bytes>,
}

struct Dice(StdRng);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn address(&mut self) -> Address {
        Address::repeat_byte(self.below(12) as u8)
    }

    fn changes(&mut self, plain: &mut Plain) -> Changes {
        let mut changes = Changes::default();
        for _ in 0..self.below(5) {
            let address = self.address();
            let hash = keccak256(address);
            if self.below(6) == 0 {
                plain.accounts.remove(&address);
                plain.slots.remove(&address);
                changes.accounts.insert(hash, None);
                changes.storages.remove(&hash);
                continue;
            }
            let (mut nonce, _, mut code_hash) =
                plain
                    .accounts
                    .get(&address)
                    .copied()
                    .unwrap_or((0, U256::ZERO, KECCAK256_EMPTY));
            nonce += self.below(3);
            if self.below(4) == 0 {
                let code = Bytes::from(vec![self.below(256) as u8; 1 + self.below(50) as usize]);
                code_hash = keccak256(&code);
                plain.codes.insert(code_hash, code.clone());
                changes.codes.insert(code_hash, code);
            }
            let balance = U256::from(self.below(1000));
            // An account that was destroyed earlier in this block is recreated without its old
            // storage.
            let wiped = matches!(changes.accounts.get(&hash), Some(None)) || self.below(10) == 0;
            plain.accounts.insert(address, (nonce, balance, code_hash));
            changes.accounts.insert(
                hash,
                Some(AccountChange {
                    nonce,
                    balance,
                    code_hash,
                }),
            );
            let storage: &mut StorageChange = changes.storages.entry(hash).or_default();
            let slots = plain.slots.entry(address).or_default();
            if wiped {
                *storage = StorageChange {
                    wiped: true,
                    ..Default::default()
                };
                slots.clear();
            }
            for _ in 0..self.below(5) {
                let (slot, value) = (U256::from(self.below(10)), U256::from(self.below(4)));
                storage.slots.insert(keccak256(B256::from(slot)), value);
                slots.insert(slot, value);
            }
            slots.retain(|_, value| !value.is_zero());
        }
        changes
    }

    fn block(&mut self, parent: &Arc<View>, plain: &mut Plain) -> Arc<ExecutedBlock> {
        let update = parent.state().update(&self.changes(plain)).unwrap();
        let senders: Vec<_> = (0..self.below(4)).map(|_| self.address()).collect();
        let deposit = |from: &Address| {
            let source_hash = B256::from(U256::from(self.0.next_u64()));
            Bytes::from(
                TxDeposit {
                    source_hash,
                    from: *from,
                    ..Default::default()
                }
                .encoded_2718(),
            )
        };
        let transactions: Vec<_> = senders.iter().map(deposit).collect();
        let log = Log {
            address: Address::ZERO,
            data: LogData::new_unchecked(vec![B256::ZERO], vec![1, 2].into()),
        };
        let receipts = (0..senders.len() as u64).map(|n| Receipt {
            tx_type: 0x7e,
            success: n % 2 == 0,
            cumulative_gas_used: 21_000 * (n + 1),
            logs: vec![log.clone(); n as usize],
            deposit_nonce: Some(n),
            deposit_version: None,
            post_state: None,
        });
        let header = Header {
            parent_hash: parent.head().hash,
            number: parent.head().number + 1,
            timestamp: self.0.next_u64(),
            state_root: update.state_root,
            ..Default::default()
        };
        let receipts = Arc::new(receipts.collect());
        Arc::new(ExecutedBlock::new(
            Arc::new(Payload::sealed(header, transactions)),
            senders,
            receipts,
            Arc::new(update.overlay),
        ))
    }
}

fn check_state(state: &State, plain: &Plain) {
    assert_eq!(state.hash(), state.header().hash_slow());
    for byte in 0..12u8 {
        let address = Address::repeat_byte(byte);
        let account = state.account(address).unwrap();
        assert_eq!(
            account.map(|a| (a.nonce, a.balance, a.code_hash)),
            plain.accounts.get(&address).copied()
        );
        let none = BTreeMap::new();
        let slots = plain.slots.get(&address).unwrap_or(&none);
        for slot in 0..10 {
            let slot = U256::from(slot);
            assert_eq!(
                state.storage(address, slot).unwrap(),
                slots.get(&slot).copied().unwrap_or_default()
            );
        }
        let prefix = keys::storage_prefix(&keccak256(address));
        let mut want: Vec<_> = slots
            .iter()
            .map(|(slot, v)| (keccak256(B256::from(*slot)), *v))
            .collect();
        want.sort();
        let found = state
            .scan(&prefix, &prefix)
            .unwrap()
            .map(|row| row.unwrap());
        let found: Vec<_> = found
            .map(|(key, v)| (B256::from_slice(&key[33..]), U256::from_be_slice(&v)))
            .collect();
        assert_eq!(found, want);
        if let Some((middle, value)) = want.get(want.len() / 2) {
            let from = keys::slot(&keccak256(address), middle);
            let first = state.scan(&prefix, &from).unwrap().next();
            let (key, row) = first.unwrap().unwrap();
            assert_eq!((key, U256::from_be_slice(&row)), (from, *value));
        }
    }
    let accounts = state.scan(&keys::account_prefix(), &[]).unwrap().count();
    assert_eq!(accounts, plain.accounts.len());
    for (_, _, hash) in plain
        .accounts
        .values()
        .filter(|(_, _, hash)| *hash != KECCAK256_EMPTY)
    {
        assert_eq!(state.code(*hash).unwrap().as_ref(), plain.codes.get(hash));
    }
}

/// A branch: its blocks from genesis on, each with the state after it. Genesis has no executed
/// block.
type Branch = Vec<(Option<Arc<ExecutedBlock>>, Plain)>;

fn check_view(view: &Arc<View>, branch: &Branch, dice: &mut Dice) {
    let number = dice.below(branch.len() as u64);
    check_states(view, branch, number, dice);
    if let Some(block) = &branch[number as usize].0 {
        check_hashes(view, block);
        check_transactions(view, block);
        check_logs(view, block);
    }
}

/// Checks that the view has the states of its head and of block `number`, both provable, and no
/// state above the head.
fn check_states(view: &Arc<View>, branch: &Branch, number: u64, dice: &mut Dice) {
    let head = branch.len() as u64 - 1;
    assert_eq!(view.head().number, head);
    check_state(&view.state(), &branch[head as usize].1);
    let earlier = view.state_at(number).unwrap().unwrap();
    assert_eq!(earlier.header().number, number);
    check_state(&earlier, &branch[number as usize].1);
    assert_eq!(earlier.block_hash(number + 1).unwrap(), None);
    let (address, slot) = (dice.address(), U256::from(dice.below(10)));
    let provable = view.provable_state(number, address).unwrap().unwrap();
    let proof = provable.prove(address, &[slot]).unwrap();
    assert_eq!(
        (proof.account, proof.slots[0].value),
        (
            earlier.account(address).unwrap(),
            earlier.storage(address, slot).unwrap()
        )
    );
    assert!(view.provable_state(head + 1, address).unwrap().is_none());
    assert_eq!(view.hash_of(head + 1).unwrap(), None);
    assert!(view.payload(head + 1).unwrap().is_none());
}

fn check_hashes(view: &Arc<View>, block: &ExecutedBlock) {
    let (number, hash) = (block.payload.number(), block.payload.hash);
    let earlier = view.state_at(number).unwrap().unwrap();
    assert_eq!(view.hash_of(number).unwrap(), Some(hash));
    assert_eq!(earlier.block_hash(number).unwrap(), Some(hash));
    assert_eq!(view.number_of(hash).unwrap(), Some(number));
    assert_eq!(
        view.header_of(number).unwrap().as_ref(),
        Some(&block.payload.header)
    );
    assert_eq!(view.payload(number).unwrap().as_ref(), Some(&block.payload));
    assert_eq!(
        view.receipts(number).unwrap().as_ref(),
        Some(&block.receipts)
    );
}

/// Checks that the transactions and receipts of a block are found by number and by hash, and that
/// there are none after the last.
fn check_transactions(view: &View, block: &ExecutedBlock) {
    let number = block.payload.number();
    assert_eq!(view.senders(&block.payload).unwrap(), block.senders);
    for (index, transaction) in block.payload.transactions.iter().enumerate() {
        assert_eq!(
            view.transaction(keccak256(transaction)).unwrap(),
            Some((number, index))
        );
        assert_eq!(
            view.raw_transaction(number, index).unwrap().as_ref(),
            Some(transaction)
        );
        let mined = view.mined(number, index).unwrap().unwrap();
        assert_eq!(
            (mined.block, &mined.header, mined.index),
            (block.payload.id(), &block.payload.header, index)
        );
        assert_eq!(
            (&mined.first, &mined.raw, mined.sender),
            (
                &block.payload.transactions[0],
                transaction,
                block.senders[index]
            )
        );
        assert_eq!(Some(mined.receipt), mined_receipt(&block.receipts, index));
    }
    let beyond = block.payload.transactions.len();
    assert!(
        view.mined(number, beyond).unwrap().is_none()
            && view.raw_transaction(number, beyond).unwrap().is_none()
    );
}

/// Checks that the view finds all logs of a block with their transactions' hashes, and for a filter
/// only the logs that match.
fn check_logs(view: &View, block: &ExecutedBlock) {
    let number = block.payload.number();
    let logs = view
        .logs(number, &|_, topics| topics == [B256::ZERO])
        .unwrap()
        .unwrap();
    let expected = mined_logs(&block.receipts, &|_, _| true).into_iter();
    let expected = expected.map(|log| {
        (
            log.clone(),
            keccak256(&block.payload.transactions[log.index]),
        )
    });
    assert_eq!(logs, expected.collect::<Vec<_>>());
    assert_eq!(view.logs(number, &|_, _| false).unwrap(), Some(vec![]));
}

/// Checks that no row of an abandoned branch is visible.
fn check_absent(view: &View, gone: &[(Option<Arc<ExecutedBlock>>, Plain)]) {
    for block in gone.iter().filter_map(|(block, _)| block.as_ref()) {
        assert_eq!(view.number_of(block.payload.hash).unwrap(), None);
        assert_ne!(
            view.hash_of(block.payload.number()).unwrap(),
            Some(block.payload.hash)
        );
        for hash in block.transaction_hashes() {
            assert_eq!(view.transaction(*hash).unwrap(), None);
        }
    }
}

/// Cache sizes in bytes: too small for any row, enough for some rows, enough for all rows.
const CACHES: [u64; 3] = [0, 64 << 10, 1 << 20];

fn create(dir: &Path, cache: u64, plain: &mut Plain, dice: &mut Dice) -> Store {
    let update = trie::genesis(&dice.changes(plain)).unwrap();
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
    Store::create(dir, cache, identity, &genesis, &update.overlay).unwrap()
}

fn executed(branch: &Branch, from: u64) -> Vec<Arc<ExecutedBlock>> {
    branch[from as usize..]
        .iter()
        .map(|(block, _)| block.clone().unwrap())
        .collect()
}

/// A store that changes at random, and views that are compared with the plain model.
struct ViewModel {
    store: Store,
    /// Blocks and states of the current branch, stored or not.
    branch: Branch,
    /// Views that are still read while blocks are stored and unwound.
    held: VecDeque<(Arc<View>, Branch)>,
    dice: Dice,
    /// Chooses the rows that are read of views other than the current one.
    other_dice: Dice,
    /// Number of side branches that forked off at the stored head or above it.
    high_forks: u64,
    /// Number of side branches that forked off below the stored head.
    deep_forks: u64,
    cache: u64,
    dir: tempfile::TempDir,
}

impl ViewModel {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [mut dice, other_dice] =
            [seed, seed + 1000].map(|seed| Dice(StdRng::seed_from_u64(seed)));
        let mut plain = Plain::default();
        let cache = CACHES[seed as usize % CACHES.len()];
        let store = create(dir.path(), cache, &mut plain, &mut dice);
        Self {
            store,
            branch: vec![(None, plain)],
            held: VecDeque::new(),
            dice,
            other_dice,
            high_forks: 0,
            deep_forks: 0,
            cache,
            dir,
        }
    }

    /// A view of `blocks` above the stored block `base`. It may share the row index of a view in
    /// `near`.
    fn view(&self, near: &[Arc<View>], base: u64, blocks: Vec<Arc<ExecutedBlock>>) -> Arc<View> {
        let near: Vec<&View> = near.iter().map(|view| &**view).collect();
        let snapshot = self.store.snapshot().unwrap();
        Arc::new(View::near_branch(&near, snapshot, base, blocks, None, None, UNWIND_DATA).unwrap())
    }

    /// A view of the stored blocks only.
    fn stored_view(&self) -> Arc<View> {
        let snapshot = self.store.snapshot().unwrap();
        Arc::new(View::new(snapshot, vec![], None, None).unwrap())
    }

    /// Held views whose row index a new view may share, of this branch or of another one.
    fn shared(&mut self) -> Vec<Arc<View>> {
        self.held
            .iter()
            .filter(|_| self.dice.below(4) > 0)
            .map(|(view, _)| view.clone())
            .collect()
    }

    /// Creates a view of the head, with some of the stored blocks still in memory, and checks all
    /// held views.
    fn view_head(&mut self) -> (Arc<View>, Vec<Arc<View>>) {
        let stored = self.store.head().number;
        let kept = stored.saturating_sub(self.dice.below(4)).max(1);
        let blocks = if self.branch.len() as u64 > kept {
            executed(&self.branch, kept)
        } else {
            vec![]
        };
        let shared = self.shared();
        let view = self.view(&shared, stored, blocks);
        check_view(&view, &self.branch, &mut self.dice);
        if self.dice.below(3) == 0 {
            view.release();
        }
        for (view, branch) in &self.held {
            check_view(view, branch, &mut self.other_dice);
        }
        self.held.push_back((view.clone(), self.branch.clone()));
        if self.held.len() > 3 {
            self.held.pop_front();
        }
        (view, shared)
    }

    /// Executes a block on the head.
    fn append(&mut self, view: &Arc<View>) {
        let mut plain = self.branch.last().unwrap().1.clone();
        let block = self.dice.block(view, &mut plain);
        let parent = self.branch.clone();
        self.branch.push((Some(block.clone()), plain));
        let child = Arc::new(view.clone().child(block, None, None).unwrap());
        check_view(&child, &self.branch, &mut self.dice);
        check_view(view, &parent, &mut self.dice);
        self.held.push_back((child, self.branch.clone()));
    }

    /// Stores some of the blocks that are not stored yet.
    fn commit(&mut self, view: &Arc<View>) {
        let stored = self.store.head().number;
        let unstored = executed(&self.branch, stored + 1);
        let some = self.dice.below(unstored.len() as u64 + 1) as usize;
        let safe = unstored[..some].last().map(|b| b.payload.id());
        self.store.commit(&unstored[..some], safe, None).unwrap();
        let snapshot = self.store.snapshot().unwrap();
        assert_eq!(snapshot.head().number, stored + some as u64);
        assert!(safe.is_none() || snapshot.safe() == safe);
        // The view from before the commit still reads as before.
        check_view(view, &self.branch, &mut self.dice);
    }

    /// Executes a side branch, possibly from below the stored head. The branch may replace the
    /// chain.
    fn fork(&mut self, near: &[Arc<View>]) {
        let stored = self.store.head().number;
        let length = self.branch.len() as u64;
        let fork = length - 1 - self.dice.below(6.min(length));
        if fork < stored {
            self.deep_forks += 1;
        } else {
            self.high_forks += 1;
        }
        let mut side: Branch = self.branch[..=fork as usize].to_vec();
        for _ in 0..1 + self.dice.below(3) {
            let base = fork.min(stored);
            let view = self.view(near, base, executed(&side, base + 1));
            check_view(&view, &side, &mut self.dice);
            check_absent(&view, &self.branch[fork as usize + 1..]);
            self.held.push_back((view.clone(), side.clone()));
            let mut plain = side.last().unwrap().1.clone();
            let block = self.dice.block(&view, &mut plain);
            side.push((Some(block.clone()), plain));
            let child = Arc::new(view.child(block, None, None).unwrap());
            check_view(&child, &side, &mut self.other_dice);
        }
        if self.dice.below(2) == 0 {
            self.unwind_to(fork);
            self.branch = side;
        }
    }

    /// Unwinds the store to `fork`, and checks a view of every head on the way down.
    fn unwind_to(&mut self, fork: u64) {
        while self.store.head().number > fork {
            let number = self.store.unwind_one().unwrap().number as usize;
            let past = self.stored_view();
            check_view(&past, &self.branch[..=number].to_vec(), &mut self.dice);
            check_absent(&past, &self.branch[number + 1..]);
        }
    }

    /// Closes the database, after all views are dropped, and opens it again.
    fn reopen(mut self) -> Self {
        self.held.clear();
        let identity = self.store.identity();
        drop(self.store);
        let store = Store::open(self.dir.path(), self.cache, Some(identity)).unwrap();
        Self { store, ..self }
    }

    /// Unwinds every block except genesis, and checks that genesis reads as at the beginning.
    fn unwind_all(&mut self) {
        while self.store.head().number > 0 {
            self.store.unwind_one().unwrap();
        }
        assert!(matches!(self.store.unwind_one(), Err(StoreError::Genesis)));
        let genesis = self.branch[..1].to_vec();
        check_view(&self.stored_view(), &genesis, &mut self.dice);
    }
}

#[test]
fn views_agree_with_a_plain_model() {
    for seed in 0..6 {
        let mut model = ViewModel::new(seed);
        for _ in 0..150 {
            let (view, shared) = model.view_head();
            match model.dice.below(10) {
                0..5 => model.append(&view),
                5..7 => model.commit(&view),
                7..9 => model.fork(&shared),
                _ => {
                    drop((view, shared));
                    model = model.reopen();
                }
            }
        }
        assert!(
            model.branch.len() > 20 && model.high_forks > 2 && model.deep_forks > 2,
            "seed {seed}: {} blocks, {} forks from the store's head or above, {} from below",
            model.branch.len(),
            model.high_forks,
            model.deep_forks
        );
        model.unwind_all();
    }
}
