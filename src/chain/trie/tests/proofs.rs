//! Proofs, checked by another verifier.

use super::*;

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
