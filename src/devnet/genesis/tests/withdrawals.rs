//! Withdrawals proven to the portal. The tries and their proofs are alloy's.

use super::*;
use alloy_trie::{HashBuilder, Nibbles, proof::ProofRetainer};

/// The fields of a withdrawal that the tests change; the others are constants.
#[derive(Clone, Copy)]
struct Withdrawal {
    nonce: u64,
    target: Address,
    value: u64,
}

const TARGET: Address = Address::repeat_byte(0xaa);
const WITHDRAWAL: Withdrawal = Withdrawal {
    nonce: 7,
    target: TARGET,
    value: 5,
};

/// ABI words of dynamic bytes: length, then the data, padded.
fn encoded(bytes: &[u8]) -> Vec<u8> {
    let mut words = number(bytes.len() as u64).to_vec();
    words.extend(bytes);
    words.resize(words.len().next_multiple_of(32), 0);
    words
}

impl Withdrawal {
    /// ABI encoding of the withdrawal's tuple; its hash is the hash of these bytes.
    fn tuple(&self) -> Vec<u8> {
        let words = [
            number(self.nonce),
            SEQUENCER.into_word(),
            self.target.into_word(),
            number(self.value),
            number(100_000),
            number(6 * 32),
        ];
        [words.concat(), encoded(b"hello")].concat()
    }

    /// Slot of the withdrawal in the message passer's mapping `sentMessages`.
    fn slot(&self) -> B256 {
        let hash = keccak256(self.tuple());
        keccak256([hash, B256::ZERO].concat())
    }
}

/// A message passer's storage trie with 500 other withdrawals, and a proof of `slot`.
struct Trie {
    root: B256,
    proof: Vec<Bytes>,
}

impl Trie {
    /// The trie that has `value` at the slot.
    fn new(slot: B256, value: u8) -> Self {
        let key = Nibbles::unpack(keccak256(slot));
        let mut leaves: Vec<(Nibbles, u8)> = (0..500)
            .map(|other| (Nibbles::unpack(keccak256(number(other))), 1))
            .collect();
        leaves.push((key, value));
        leaves.sort_unstable();
        let retainer = ProofRetainer::new(vec![key]);
        let mut builder = HashBuilder::default().with_proof_retainer(retainer);
        for (key, value) in leaves {
            builder.add_leaf(key, &[value]);
        }
        let root = builder.root();
        let nodes = builder.take_proof_nodes().into_nodes_sorted();
        let proof = nodes.into_iter().map(|(_, node)| node).collect();
        Self { root, proof }
    }

    /// Words of the output's proof: version, state root, storage root, block hash.
    fn output(&self) -> [B256; 4] {
        [B256::ZERO, number(1), self.root, number(2)]
    }
}

/// Calldata of `proveWithdrawalTransaction` for the oracle's first output.
fn prove(withdrawal: &Withdrawal, output: [B256; 4], proof: &[Bytes]) -> Bytes {
    const SIGNATURE: &str = "proveWithdrawalTransaction((uint256,address,address,uint256,uint256,bytes),uint256,(bytes32,bytes32,bytes32,bytes32),bytes[])";
    let tuple = withdrawal.tuple();
    let [version, state, storage, block] = output;
    let head = 7 * 32;
    let behind = number(head + tuple.len() as u64);
    let words = [
        number(head),
        number(0),
        version,
        state,
        storage,
        block,
        behind,
    ];
    let mut data = call(SIGNATURE, &words).to_vec();
    data.extend(tuple);
    data.extend(number(proof.len() as u64));
    let nodes: Vec<Vec<u8>> = proof.iter().map(|node| encoded(node)).collect();
    let mut offset = 32 * nodes.len();
    for node in &nodes {
        data.extend(number(offset as u64));
        offset += node.len();
    }
    data.extend(nodes.concat());
    data.into()
}

/// Contracts whose oracle has this output as its first one.
fn with_output(output: [B256; 4]) -> Scratch {
    let plan = Plan {
        time: 0,
        l2_block_time: 0,
        ..PLAN
    };
    let mut scratch = l1_contracts(&plan).expect("contracts");
    let signature = "proposeL2Output(bytes32,uint256,bytes32,uint256)";
    let root = keccak256(output.concat());
    let words = [root, number(SUBMISSION_INTERVAL), B256::ZERO, number(0)];
    let proposed = scratch.call(
        accounts::proposer(),
        OUTPUT_ORACLE,
        U256::ZERO,
        call(signature, &words),
    );
    proposed.expect("an output");
    scratch
}

#[test]
fn a_withdrawal_is_proven_once_and_is_not_paid_before_its_time() {
    let trie = Trie::new(WITHDRAWAL.slot(), 1);
    let mut scratch = with_output(trie.output());
    let data = prove(&WITHDRAWAL, trie.output(), &trie.proof);
    let outcome = scratch.call(SEQUENCER, PORTAL, U256::ZERO, data.clone());
    let log = &outcome.expect("a proof").logs[0];
    let hash = keccak256(WITHDRAWAL.tuple());
    let topics = [
        keccak256("WithdrawalProven(bytes32,address,address)"),
        hash,
        SEQUENCER.into_word(),
        TARGET.into_word(),
    ];
    assert_eq!(log.topics(), topics);
    let proven = call("provenWithdrawals(bytes32)", &[hash]);
    let proven = scratch.call(SEQUENCER, PORTAL, U256::ZERO, proven);
    let root = keccak256(trie.output().concat());
    assert_eq!(proven.expect("a row").output[..32], root[..]);
    let again = scratch.call(SEQUENCER, PORTAL, U256::ZERO, data);
    assert!(again.is_err(), "a second proof would put off the payment");
    let signature =
        "finalizeWithdrawalTransaction((uint256,address,address,uint256,uint256,bytes))";
    let mut finalize = call(signature, &[number(32)]).to_vec();
    finalize.extend(WITHDRAWAL.tuple());
    let early = scratch.call(SEQUENCER, PORTAL, U256::ZERO, finalize.into());
    assert!(early.is_err(), "the finalization period has not elapsed");
}

#[test]
fn withdrawals_that_the_output_does_not_contain_are_refused() {
    let trie = Trie::new(WITHDRAWAL.slot(), 1);
    let mut scratch = with_output(trie.output());
    let mut refused = |name: &str, withdrawal: &Withdrawal, output, proof: &[Bytes]| {
        let data = prove(withdrawal, output, proof);
        let outcome = scratch.call(SEQUENCER, PORTAL, U256::ZERO, data);
        assert!(outcome.is_err(), "{name}");
    };
    let richer = Withdrawal {
        value: 6,
        ..WITHDRAWAL
    };
    refused("another value", &richer, trie.output(), &trie.proof);
    let to_portal = Withdrawal {
        target: PORTAL,
        ..WITHDRAWAL
    };
    refused("to the portal", &to_portal, trie.output(), &trie.proof);
    let forged = Trie::new(richer.slot(), 1);
    refused("another output", &richer, forged.output(), &forged.proof);
    refused("another trie", &richer, trie.output(), &forged.proof);
    let absent = Trie::new(WITHDRAWAL.slot(), 2);
    refused("another slot", &WITHDRAWAL, absent.output(), &absent.proof);
    refused("no proof", &WITHDRAWAL, trie.output(), &[]);
    let (leaf, above) = trie.proof.split_last().expect("nodes");
    refused("without its leaf", &WITHDRAWAL, trie.output(), above);
    let longer = [&trie.proof[..], std::slice::from_ref(leaf)].concat();
    refused("with two leaves", &WITHDRAWAL, trie.output(), &longer);
    for (at, node) in trie.proof.iter().enumerate() {
        for byte in [0, node.len() / 2, node.len() - 1] {
            let mut proof = trie.proof.clone();
            let mut changed = node.to_vec();
            changed[byte] ^= 1;
            proof[at] = changed.into();
            let name = format!("byte {byte} of node {at}");
            refused(&name, &WITHDRAWAL, trie.output(), &proof);
        }
        let mut proof = trie.proof.clone();
        proof[at] = Bytes::new();
        refused("an empty node", &WITHDRAWAL, trie.output(), &proof);
    }
}

#[test]
fn a_slot_with_another_value_proves_no_withdrawal() {
    let trie = Trie::new(WITHDRAWAL.slot(), 2);
    let mut scratch = with_output(trie.output());
    let data = prove(&WITHDRAWAL, trie.output(), &trie.proof);
    let outcome = scratch.call(SEQUENCER, PORTAL, U256::ZERO, data);
    assert!(outcome.is_err());
}

#[test]
fn the_portal_has_the_functions_of_the_published_one_for_withdrawals() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let oracle = ask(&mut scratch, PORTAL, "l2Oracle()");
    assert_eq!(oracle, U256::from_be_bytes(OUTPUT_ORACLE.into_word().0));
    let sender = ask(&mut scratch, PORTAL, "l2Sender()");
    assert_eq!(sender, U256::from(0xdead));
    let version = scratch.call(SEQUENCER, PORTAL, U256::ZERO, call("version()", &[]));
    let version = version.expect("a version").output;
    assert_eq!(&version[64..66], b"2.", "viem proves against an oracle");
}
