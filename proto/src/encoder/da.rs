//! Estimates of the bytes that a block needs in a channel, from which a batcher computes its
//! backlog.
//!
//! A transaction's estimate is a linear function of its size under FastLZ (specs: fjord, L1 cost
//! function). The transaction's L1 fee is computed from the same estimate. The node charges that
//! fee by its EVM's own implementation, which this crate cannot use. A test of the node checks that
//! the two implementations agree.

use crate::{deposit::DEPOSIT_TX_TYPE, payload::Payload};

/// Bytes of a batch without its transactions, by op-batcher's estimate.
const BATCH_OVERHEAD: u64 = 70;
/// Bytes of a transaction's header in a singular batch, by op-batcher's estimate.
const HEADER: u64 = 2;

/// Fixed-point scale of the estimate: the constants below are in millionths.
const SCALE: u64 = 1_000_000;
/// Coefficients and minimum of the estimate in millionths (specs: fjord).
const INTERCEPT: u64 = 42_585_600;
const COEFFICIENT: u64 = 836_500;
const MIN_ESTIMATE: u64 = 100 * SCALE;

/// FastLZ begins no match in this many bytes at the end of the input.
const TAIL: usize = 13;
/// Farthest distance of a match, in bytes.
const MAX_DISTANCE: usize = 8_191;
/// Least number of equal bytes that begin a match.
const MIN_MATCH: usize = 3;
/// A match does not extend into this many bytes at the end of the input.
const MATCH_TAIL: usize = 4;
/// Largest number of bytes that one instruction copies.
const MAX_COPY: usize = 262;
/// A copy shorter than this has an instruction of two bytes instead of three.
const SHORT_COPY: usize = 6;
/// Largest number of literal bytes that one instruction adds.
const MAX_LITERALS: usize = 32;
/// Bits of a hash of three bytes, which indexes the table of positions.
const HASH_BITS: u32 = 13;

/// Estimated compressed bytes of a block in a channel.
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

/// Estimated compressed bytes of a transaction (EIP-2718) in a channel, at least 100.
pub fn transaction_da_size(transaction: &[u8]) -> u64 {
    let scaled = COEFFICIENT * fastlz_len(transaction);
    scaled.saturating_sub(INTERCEPT).max(MIN_ESTIMATE) / SCALE
}

/// Size of `input` after compression with FastLZ, level 1.
fn fastlz_len(input: &[u8]) -> u64 {
    let limit = input.len().saturating_sub(TAIL);
    let mut positions = [0_u32; 1 << HASH_BITS];
    // `len` counts the output for the input before `anchor`.
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

/// Two positions of the input with the same three bytes.
#[derive(Clone, Copy)]
struct Match {
    at: usize,
    before: usize,
}

/// Finds the next position, from `at` on and below `limit`, whose three bytes also occur at most
/// [`MAX_DISTANCE`] before it. Records all visited positions in `positions`.
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
            // FastLZ discards a match at the last position.
            return (at + 1 < limit).then_some(Match { at, before });
        }
        at += 1;
    }
    None
}

/// Distance from a match to the next position that FastLZ visits: past the first byte that differs
/// after the match, less [`MIN_MATCH`].
fn match_len(input: &[u8], found: Match) -> usize {
    let ahead = &input[found.at + MIN_MATCH..input.len() - MATCH_TAIL];
    let before = &input[found.before + MIN_MATCH..];
    let equal = before.iter().zip(ahead).take_while(|(a, b)| a == b).count();
    (equal + 1).min(ahead.len())
}

/// Bytes of the instructions that copy a match whose [`match_len`] is `matched`.
fn copy_len(matched: usize) -> u64 {
    let more = matched - 1;
    let last = if more % MAX_COPY < SHORT_COPY { 2 } else { 3 };
    (3 * (more / MAX_COPY) + last) as u64
}

/// Bytes of literals and of the instructions that add them.
fn literals_len(literals: usize) -> u64 {
    (literals + literals.div_ceil(MAX_LITERALS)) as u64
}

fn three_bytes(input: &[u8], at: usize) -> u32 {
    u32::from(input[at]) | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]) << 16
}

fn hash(bytes: u32) -> usize {
    (2_654_435_769_u32.wrapping_mul(bytes) >> (u32::BITS - HASH_BITS)) as usize
}
