//! Estimates of the bytes that a block takes in a channel, by which a batcher counts its load.
//!
//! A transaction is estimated by a linear function of its size under FastLZ (specs: fjord, L1 cost
//! function), which is also what the fee for its data is computed from. The node charges by the
//! estimate of its EVM, which this crate does not have; a test of the node holds the two equal.

use crate::{deposit::DEPOSIT_TX_TYPE, payload::Payload};

/// Bytes of a batch besides its transactions, as op-batcher estimates them.
const BATCH_OVERHEAD: u64 = 70;
/// Bytes of the header of a transaction in a singular batch, as op-batcher estimates them.
const HEADER: u64 = 2;

/// Millionths of a byte in a byte.
const SCALE: u64 = 1_000_000;
/// Coefficients of the estimate in millionths, and its least value (specs: fjord).
const INTERCEPT: u64 = 42_585_600;
const COEFFICIENT: u64 = 836_500;
const MIN_ESTIMATE: u64 = 100 * SCALE;

/// Bytes of the end of the input in which FastLZ finds no match.
const TAIL: usize = 13;
/// Farthest match.
const MAX_DISTANCE: usize = 8_191;
/// Bytes that must be equal to begin a match.
const MIN_MATCH: usize = 3;
/// Bytes of the end of the input that a match does not extend into.
const MATCH_TAIL: usize = 4;
/// Most bytes that one instruction copies.
const MAX_COPY: usize = 262;
/// Bytes that a short instruction copies less than.
const SHORT_COPY: usize = 6;
/// Most literal bytes that one instruction adds.
const MAX_LITERALS: usize = 32;
/// Bits of a hash of three bytes.
const HASH_BITS: u32 = 13;

/// Estimated bytes of a block in a channel.
pub fn block_da_size(payload: &Payload) -> u64 {
    batched(payload).fold(BATCH_OVERHEAD, |sum, transaction| {
        sum + transaction_da_size(transaction)
    })
}

/// Bytes of a block in a channel before compression, as op-batcher estimates them.
pub fn block_raw_size(payload: &Payload) -> u64 {
    batched(payload).fold(BATCH_OVERHEAD, |sum, transaction| {
        sum + transaction.len() as u64 + HEADER
    })
}

fn batched(payload: &Payload) -> impl Iterator<Item = &[u8]> {
    let transactions = payload.transactions.iter().map(|bytes| &bytes[..]);
    transactions.filter(|transaction| transaction.first() != Some(&DEPOSIT_TX_TYPE))
}

/// Estimated bytes of a transaction (EIP-2718) in a channel, at least 100.
pub fn transaction_da_size(transaction: &[u8]) -> u64 {
    let scaled = COEFFICIENT * fastlz_len(transaction);
    scaled.saturating_sub(INTERCEPT).max(MIN_ESTIMATE) / SCALE
}

/// Bytes of `input` under FastLZ, level 1.
fn fastlz_len(input: &[u8]) -> u64 {
    let limit = input.len().saturating_sub(TAIL);
    let mut positions = [0_u32; 1 << HASH_BITS];
    // Input before `anchor` is counted.
    let (mut len, mut anchor, mut at) = (0, 0, 2);
    while let Some(found) = next_match(input, at, limit, &mut positions) {
        len += literals_len(found.at - anchor);
        let matched = match_len(input, found);
        len += copy_len(matched);
        at = found.at + matched;
        for _ in 0..2 {
            positions[hash(three_bytes(input, at))] = at as u32;
            at += 1;
        }
        anchor = at;
    }
    len + literals_len(input.len() - anchor)
}

/// Two places with the same three bytes.
#[derive(Clone, Copy)]
struct Match {
    at: usize,
    before: usize,
}

/// The next place from `at` on, below `limit`, whose three bytes stand within [`MAX_DISTANCE`]
/// before it. Notes the places on the way.
fn next_match(
    input: &[u8],
    mut at: usize,
    limit: usize,
    positions: &mut [u32; 1 << HASH_BITS],
) -> Option<Match> {
    while at < limit {
        let bytes = three_bytes(input, at);
        let slot = &mut positions[hash(bytes)];
        let before = *slot as usize;
        *slot = at as u32;
        if at - before <= MAX_DISTANCE && bytes == three_bytes(input, before) {
            // A match at the last place does not count.
            return (at + 1 < limit).then_some(Match { at, before });
        }
        at += 1;
    }
    None
}

/// Places from a match to the next one to look at: past the first byte after it that differs, less
/// [`MIN_MATCH`].
fn match_len(input: &[u8], found: Match) -> usize {
    let ahead = &input[found.at + MIN_MATCH..input.len() - MATCH_TAIL];
    let before = &input[found.before + MIN_MATCH..];
    let equal = before.iter().zip(ahead).take_while(|(a, b)| a == b).count();
    (equal + 1).min(ahead.len())
}

/// Bytes of the instructions that copy a match.
fn copy_len(matched: usize) -> u64 {
    let more = matched - 1;
    let last = if more % MAX_COPY < SHORT_COPY { 2 } else { 3 };
    (3 * (more / MAX_COPY) + last) as u64
}

/// Bytes of literals with their instructions.
fn literals_len(literals: usize) -> u64 {
    (literals + literals.div_ceil(MAX_LITERALS)) as u64
}

fn three_bytes(input: &[u8], at: usize) -> u32 {
    u32::from(input[at]) | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]) << 16
}

fn hash(bytes: u32) -> usize {
    (2_654_435_769_u32.wrapping_mul(bytes) >> (u32::BITS - HASH_BITS)) as usize
}
