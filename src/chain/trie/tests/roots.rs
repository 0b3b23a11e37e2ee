//! Roots of whole states, compared with other implementations.

use super::*;

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

/// The secure tries of ethereum/tests: keys are hashed, and any value can be a leaf.
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
                // Apply the changes one by one; the walk keeps the trie of the previous step in
                // memory.
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
