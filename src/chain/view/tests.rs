//! Views against a plain model: random blocks, commits in random groups, side branches, unwinds and
//! reopens.

mod branches;
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
            // An account that vanished earlier in this block comes back with nothing of its
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

/// A branch: its blocks from genesis (of which the first has no executed block), and the state
/// after each.
type Branch = Vec<(Option<Arc<ExecutedBlock>>, Plain)>;

fn check_view(view: &Arc<View>, branch: &Branch, dice: &mut Dice) {
    let head = branch.len() as u64 - 1;
    assert_eq!(view.head().number, head);
    check_state(&view.state(), &branch[head as usize].1);
    let number = dice.below(branch.len() as u64);
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

    let Some(block) = &branch[number as usize].0 else {
        return;
    };
    let hash = block.payload.hash;
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

/// Rows of an abandoned branch must not show.
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

/// Bytes of cache: nothing, a row here and there, everything.
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

#[test]
fn views_agree_with_a_plain_model() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let [mut dice, mut other_dice] =
            [seed, seed + 1000].map(|seed| Dice(StdRng::seed_from_u64(seed)));
        let mut plain = Plain::default();
        let cache = CACHES[seed as usize % CACHES.len()];
        let mut store = create(dir.path(), cache, &mut plain, &mut dice);
        // Views that somebody still reads, whatever is stored and taken back meanwhile.
        let mut held: VecDeque<(Arc<View>, Branch)> = VecDeque::new();
        let mut branch: Branch = vec![(None, plain)];
        let mut forks = [0; 2];
        for _ in 0..150 {
            let stored = store.head().number;
            // Some blocks that are stored already stay in memory.
            let kept = stored.saturating_sub(dice.below(4)).max(1);
            let blocks = if branch.len() as u64 > kept {
                executed(&branch, kept)
            } else {
                vec![]
            };
            // Some share the index of a view that was made before, of this branch or of another
            // one.
            let shared: Vec<Arc<View>> = held
                .iter()
                .filter(|_| dice.below(4) > 0)
                .map(|(view, _)| view.clone())
                .collect();
            let near: Vec<&View> = shared.iter().map(|view| &**view).collect();
            let mut view = Arc::new(
                View::near_branch(
                    &near,
                    store.snapshot().unwrap(),
                    stored,
                    blocks,
                    None,
                    None,
                    UNWIND_DATA,
                )
                .unwrap(),
            );
            check_view(&view, &branch, &mut dice);
            if dice.below(3) == 0 {
                view.release();
            }
            for (view, branch) in &held {
                check_view(view, branch, &mut other_dice);
            }
            held.push_back((view.clone(), branch.clone()));
            if held.len() > 3 {
                held.pop_front();
            }
            match dice.below(10) {
                0..5 => {
                    let mut plain = branch.last().unwrap().1.clone();
                    let block = dice.block(&view, &mut plain);
                    branch.push((Some(block.clone()), plain));
                    let child = Arc::new(view.clone().child(block, None, None).unwrap());
                    check_view(&child, &branch, &mut dice);
                    check_view(&view, &branch[..branch.len() - 1].to_vec(), &mut dice);
                    held.push_back((child, branch.clone()));
                }
                5..7 => {
                    let unstored = executed(&branch, stored + 1);
                    let some = dice.below(unstored.len() as u64 + 1) as usize;
                    let safe = unstored[..some].last().map(|b| b.payload.id());
                    store.commit(&unstored[..some], safe, None).unwrap();
                    let snapshot = store.snapshot().unwrap();
                    assert_eq!(snapshot.head().number, stored + some as u64);
                    assert!(safe.is_none() || snapshot.safe() == safe);
                    // The view from before the commit still reads as before.
                    check_view(&view, &branch, &mut dice);
                }
                7..9 => {
                    // A side branch, possibly from below the store.
                    let fork = branch.len() as u64 - 1 - dice.below(6.min(branch.len() as u64));
                    let mut side: Branch = branch[..=fork as usize].to_vec();
                    forks[usize::from(fork < stored)] += 1;
                    for _ in 0..1 + dice.below(3) {
                        let base = fork.min(stored);
                        let blocks = executed(&side, base + 1);
                        view = Arc::new(
                            View::near_branch(
                                &near,
                                store.snapshot().unwrap(),
                                base,
                                blocks,
                                None,
                                None,
                                UNWIND_DATA,
                            )
                            .unwrap(),
                        );
                        check_view(&view, &side, &mut dice);
                        check_absent(&view, &branch[fork as usize + 1..]);
                        held.push_back((view.clone(), side.clone()));
                        let mut plain = side.last().unwrap().1.clone();
                        let block = dice.block(&view, &mut plain);
                        side.push((Some(block.clone()), plain));
                        check_view(
                            &Arc::new(view.clone().child(block, None, None).unwrap()),
                            &side,
                            &mut other_dice,
                        );
                    }
                    if dice.below(2) == 0 {
                        // The side branch becomes the chain.
                        while store.head().number > fork {
                            let head = store.unwind_one().unwrap();
                            let number = head.number as usize;
                            let past = Arc::new(
                                View::new(store.snapshot().unwrap(), vec![], None, None).unwrap(),
                            );
                            check_view(&past, &branch[..=number].to_vec(), &mut dice);
                            check_absent(&past, &branch[number + 1..]);
                        }
                        branch = side;
                    }
                }
                _ => {
                    drop((view, shared));
                    held.clear();
                    let identity = store.identity();
                    drop(store);
                    store = Store::open(dir.path(), cache, Some(identity)).unwrap();
                }
            }
        }
        assert!(
            branch.len() > 20 && forks[0] > 2 && forks[1] > 2,
            "seed {seed}: {} blocks, forks {forks:?}",
            branch.len()
        );
        while store.head().number > 0 {
            store.unwind_one().unwrap();
        }
        assert!(matches!(store.unwind_one(), Err(StoreError::Genesis)));
        let genesis = Arc::new(View::new(store.snapshot().unwrap(), vec![], None, None).unwrap());
        check_view(&genesis, &branch[..1].to_vec(), &mut dice);
    }
}
