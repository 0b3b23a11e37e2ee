//! The blocks that a search returns, compared with the blocks whose receipts have the values.

use super::*;
use crate::chain::store::IndexWindow;

/// Random logs of a few addresses and topics.
fn logs(dice: &mut Dice) -> Vec<Log> {
    let log = |dice: &mut Dice| {
        let topics = (0..dice.below(5)).map(|_| B256::repeat_byte(dice.below(6) as u8));
        let topics = topics.collect();
        Log::new_unchecked(
            Address::repeat_byte(dice.below(6) as u8),
            topics,
            Bytes::new(),
        )
    };
    (0..dice.below(4)).map(|_| log(dice)).collect()
}

/// A store with `stored` blocks that have logs, and a view with `above` more blocks.
fn world(dir: &Path, stored: u64, above: u64, dice: &mut Dice) -> (Store, Vec<Vec<Log>>, View) {
    let mut plain = Plain::default();
    let store = create(dir, CACHES[2], &mut plain, dice);
    let (mut all, mut blocks) = (vec![vec![]], vec![]);
    let mut parent = store.head();
    for number in 1..=stored + above {
        let logs = logs(dice);
        let header = Header {
            parent_hash: parent.hash,
            number,
            ..Default::default()
        };
        let receipt = Receipt {
            tx_type: 0,
            success: true,
            cumulative_gas_used: 1,
            logs: logs.clone(),
            deposit_nonce: None,
            deposit_version: None,
            post_state: None,
        };
        let payload = Arc::new(Payload::sealed(header, vec![]));
        parent = payload.id();
        all.push(logs);
        blocks.push(Arc::new(ExecutedBlock::new(
            payload,
            vec![],
            Arc::new(vec![receipt]),
            Arc::default(),
        )));
    }
    store.keep_logs(IndexWindow::All);
    store
        .commit(&blocks[..stored as usize], None, None)
        .unwrap();
    store.rotate().unwrap();
    let kept = blocks.split_off(stored as usize);
    let view = View::new(store.snapshot().unwrap(), kept, None, None).unwrap();
    (store, all, view)
}

/// A random filter that constrains some positions.
fn filter(dice: &mut Dice) -> (Vec<Address>, Vec<Vec<B256>>) {
    let most = 1 + dice.below(3);
    let addresses = (0..dice.below(most)).map(|_| Address::repeat_byte(dice.below(7) as u8));
    let addresses = addresses.collect();
    let mut topics = vec![];
    for _ in 0..dice.below(4) {
        let most = 1 + dice.below(3);
        let some = (0..dice.below(most)).map(|_| B256::repeat_byte(dice.below(7) as u8));
        topics.push(some.collect());
    }
    (addresses, topics)
}

/// Whether, at each constrained position, some log of the block has one of the alternatives.
fn has_all(logs: &[Log], addresses: &[Address], topics: &[Vec<B256>]) -> bool {
    let any = |position: usize, wanted: &[B256]| {
        let mut found = logs.iter().filter_map(|log| log.topics().get(position));
        wanted.is_empty() || found.any(|topic| wanted.contains(topic))
    };
    (addresses.is_empty() || logs.iter().any(|log| addresses.contains(&log.address)))
        && topics
            .iter()
            .enumerate()
            .all(|(at, wanted)| any(at, wanted))
}

fn candidates(search: &LogSearch, view: &View, from: u64, to: u64) -> Vec<u64> {
    let (mut found, mut next) = (vec![], from);
    let mut cursor = search.cursor(view, u64::MAX);
    while let Some(number) = cursor.candidate(next, to).unwrap() {
        found.push(number);
        next = number + 1;
    }
    found
}

#[test]
fn a_search_names_the_stored_blocks_that_have_the_values_and_all_others() {
    let (dir, mut dice) = (tempfile::tempdir().unwrap(), Dice(StdRng::seed_from_u64(9)));
    let (_store, all, view) = world(dir.path(), 300, 20, &mut dice);
    let mut skipped = 0;
    for _ in 0..400 {
        let (addresses, topics) = filter(&mut dice);
        let (from, to) = (dice.below(320), dice.below(321));
        let search = LogSearch::new(&addresses, &topics);
        let found = candidates(&search, &view, from, to);
        let expected: Vec<u64> = (from..=to)
            .filter(|number| *number > 300 || has_all(&all[*number as usize], &addresses, &topics))
            .collect();
        // A filter without constraints has to read every block.
        let unconstrained = addresses.is_empty() && topics.iter().all(Vec::is_empty);
        let expected = if unconstrained {
            (from..=to).collect()
        } else {
            expected
        };
        assert_eq!(found, expected, "{addresses:?} {topics:?} {from}..={to}");
        skipped += (to + 1).saturating_sub(from) as usize - found.len();
    }
    assert!(skipped > 10_000, "{skipped} blocks need not be read");
}

#[test]
fn a_search_that_takes_long_names_the_block_that_it_has_reached() {
    let (dir, mut dice) = (tempfile::tempdir().unwrap(), Dice(StdRng::seed_from_u64(9)));
    let mut plain = Plain::default();
    let store = create(dir.path(), CACHES[2], &mut plain, &mut dice);
    // Blocks with two alternating values, so that no block has both.
    let mut parent = store.head();
    let mut blocks = vec![];
    for number in 1..=2000u64 {
        let header = Header {
            parent_hash: parent.hash,
            number,
            ..Default::default()
        };
        let (address, topic) = (Address::repeat_byte(1), B256::repeat_byte(1));
        let log = if number % 2 == 0 {
            Log::new_unchecked(address, vec![], Bytes::new())
        } else {
            Log::new_unchecked(Address::ZERO, vec![topic], Bytes::new())
        };
        let receipt = Receipt {
            tx_type: 0,
            success: true,
            cumulative_gas_used: 1,
            logs: vec![log],
            deposit_nonce: None,
            deposit_version: None,
            post_state: None,
        };
        let payload = Arc::new(Payload::sealed(header, vec![]));
        parent = payload.id();
        let receipts = Arc::new(vec![receipt]);
        blocks.push(Arc::new(ExecutedBlock::new(
            payload,
            vec![],
            receipts,
            Arc::default(),
        )));
    }
    store.commit(&blocks, None, None).unwrap();
    let view = View::new(store.snapshot().unwrap(), vec![], None, None).unwrap();
    let search = LogSearch::new(&[Address::repeat_byte(1)], &[vec![B256::repeat_byte(1)]]);
    let found = candidates(&search, &view, 1, 2000);
    assert!(found.len() > 4 && found.len() < 20, "{found:?}");
}
