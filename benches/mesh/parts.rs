//! Time to check one message, compared with the sum of its indispensable parts: snappy, keccak, one
//! signature recovery, SSZ.

use crate::{
    node::{self, CHAIN, VERSION, forks, signed},
    support::{self, Times, print_times},
};
use alloy_primitives::keccak256;
use alloy_trie::root::ordered_trie_root_encoded;
use starling_proto::{
    gossip::{self, CheckContext, DEFAULT_THRESHOLD_SECS, Decompressed, Seen, Signers, Verdict},
    payload::WirePayload,
    sign,
};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// Bar: longest time of the check, as a multiple of the sum of its parts.
const BAR: f64 = 1.2;
/// Number of messages, each measured once with every method.
const MESSAGES: usize = 500;

fn timed<T>(times: &mut Times, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = black_box(work());
    times.push(begun.elapsed());
    done
}

/// The median time to decompress and check a block of `bytes` bytes.
pub fn check_time(bytes: usize) -> Duration {
    let mut times = Times::default();
    let mut source = node::Source::new(bytes);
    (0..MESSAGES / 5).for_each(|_| check(&message(&mut source), &mut times));
    times.percentile(50)
}

fn message(source: &mut node::Source) -> Vec<u8> {
    let block = source.next();
    gossip::encode_message(&signed(&block), &block.to_wire(VERSION)).expect("it can be packed")
}

fn check(message: &[u8], times: &mut Times) {
    let signers = Signers::new(sign::address(&support::sequencer()));
    let forks = forks();
    let context = CheckContext {
        chain_id: CHAIN,
        signers: &signers,
        threshold_secs: DEFAULT_THRESHOLD_SECS,
        forks: &forks,
    };
    let mut seen = Seen::default();
    let verdict = timed(times, || {
        let tagged = gossip::decompress_tagged(message);
        let (flag, bytes) = Decompressed::untag(&tagged);
        gossip::check(
            VERSION,
            flag,
            bytes,
            support::unix_now(),
            &context,
            &mut seen,
        )
    });
    assert!(matches!(verdict, Verdict::Accept(..)), "{verdict:?}");
}

pub fn run(bytes: usize) {
    let mut all = [(); 7].map(|()| Times::default());
    let [whole, snappy, keccak, recovery, ssz, root, id] = &mut all;
    let mut source = node::Source::new(bytes);
    let mut sizes = (0, 0);
    for _ in 0..MESSAGES {
        let message = message(&mut source);
        check(&message, whole);
        let tagged = timed(snappy, || gossip::decompress_tagged(&message));
        let (flag, bytes) = Decompressed::untag(&tagged);
        let (signature, wire) = bytes.split_first_chunk().expect("a signature");
        sizes = (message.len(), wire.len());
        let hash = timed(keccak, || {
            sign::signing_hash(CHAIN, sign::payload_hash(wire))
        });
        timed(recovery, || sign::recover_hash(signature, hash)).expect("a signature");
        let decoded = timed(ssz, || WirePayload::decode(VERSION, wire)).expect("a payload");
        let block = decoded.into_payload().expect("a block");
        timed(root, || {
            (
                ordered_trie_root_encoded(&block.transactions),
                keccak256(alloy_rlp::encode(&block.header)),
            )
        });
        timed(id, || {
            gossip::message_id(&gossip::topic(CHAIN, VERSION), flag, bytes)
        });
    }
    let [whole, snappy, keccak, recovery, ssz, root, id] = &all;
    println!("a message of {} bytes, {} decompressed", sizes.0, sizes.1);
    print_times("snappy", snappy);
    print_times("keccak of what is signed", keccak);
    print_times("one recovery", recovery);
    print_times("SSZ", ssz);
    print_times("keccak of the block: root and header", root);
    print_times("decompressed and checked", whole);
    print_times("besides: the message's id (SHA-256)", id);
    let median = |times: &[&Times]| {
        times
            .iter()
            .map(|times| times.percentile(50).as_secs_f64())
            .sum::<f64>()
    };
    let hashes = median(&[snappy, keccak, recovery, ssz, root]);
    let without = median(&[snappy, keccak, recovery, ssz]);
    println!(
        "the check is {:.2} x the sum of its parts (bar {BAR}); {:.2} x that sum without the hashes of the block itself\n",
        median(&[whole]) / hashes,
        median(&[whole]) / without
    );
}
