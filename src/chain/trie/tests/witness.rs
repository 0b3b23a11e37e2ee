//! Bare witnesses: complete ones, and ones with missing or wrong nodes.

use super::*;

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
            // Store the changed node under the old hash, so that the walk loads it. No preimage
            // like this exists, but the code must not rely on that.
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
