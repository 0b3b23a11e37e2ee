//! Proofs, checked by an independent verifier.

use super::*;

/// Counts of verified proofs by kind.
#[derive(Default)]
struct ProofCounts {
    present: u64,
    absent: u64,
    /// Proofs of slots whose leaf is so short that it may be embedded in its parent node.
    inline: u64,
}

impl ProofCounts {
    /// Checks that an independent verifier accepts the proof of a leaf, or of its absence, in the
    /// state trie or in an account's storage trie, and that no proof is built if the flat rows
    /// differ from the trie.
    fn check(
        &mut self,
        source: &StateSource<'_>,
        slots: bool,
        root: B256,
        key: B256,
        leaf: Option<Bytes>,
    ) {
        let nodes = proof::path(source, root, &key, leaf.as_ref()).unwrap();
        let value = leaf.as_ref().map(|leaf| leaf.to_vec());
        alloy_trie::proof::verify_proof(root, Nibbles::unpack(key), value, &nodes).unwrap();
        if leaf.is_some() {
            self.present += 1;
            let short = nodes.last().is_some_and(|node| node.len() < 80);
            self.inline += u64::from(slots && short);
        } else {
            self.absent += 1;
        }
        let other = Some(Bytes::from_static(&[0xc0]));
        let lie = proof::path(source, root, &key, other.as_ref());
        assert!(matches!(lie, Err(TrieError::Damaged(_))));
    }
}

#[test]
fn proofs_convince_another_verifier() {
    let bench = Bench::new();
    let mut counts = ProofCounts::default();
    for seed in 0..30u8 {
        let mut rng = Rng(StdRng::seed_from_u64(seed.into()));
        let mut model = Model::default();
        for _ in 0..12 {
            model.apply(&rng.changes(&model));
        }
        let state = bench.state(&model.rows(), model.state_root());
        let mut others: Vec<_> = (0..40).map(|_| rng.key()).collect();
        others.extend(model.accounts.keys());
        let source = StateSource::new(Some(&state), None);
        for key in &others {
            let leaf = model
                .accounts
                .get(key)
                .map(|account| encode_account(account, model.storage_root(key)));
            counts.check(&source, false, model.state_root(), *key, leaf);
        }
        for (account, slots) in &model.storages {
            let source = StateSource::new(Some(&state), Some(*account));
            for key in others.iter().chain(slots.keys()) {
                let leaf = slots.get(key).map(|value| alloy_rlp::encode(value).into());
                counts.check(&source, true, model.storage_root(account), *key, leaf);
            }
        }
    }
    let ProofCounts {
        present,
        absent,
        inline,
    } = counts;
    assert!(
        present > 200 && absent > 200 && inline > 20,
        "{present} {absent} {inline}"
    );
}
