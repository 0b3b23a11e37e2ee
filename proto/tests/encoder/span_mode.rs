//! Channels of span batches: the work of encoding, and how close the channels come to their target.

use crate::{
    CONTEXT, ONE_SPAN,
    blocks::{BlockPlan, chain, endless_chain, recorded, transfer, transfers},
    channels::{Encoded, assert_holds, encode},
    filled, settings,
};
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    batch::Batch,
    channel::{BatchContext, ChannelCompression},
    encoder::{
        BatchFormat, ChannelEncoder, CloseReason, CompressorKind, EncoderSettings, MAX_BLOCKS,
    },
    frame::ChannelId,
    payload::Payload,
};
use std::num::NonZeroUsize;

fn one_span(target: u32) -> EncoderSettings {
    settings(ONE_SPAN, CompressorKind::Shadow, target)
}

/// A chain with one transaction per block. `len` gives the bytes of its data by block number, and
/// `is_random` whether they are incompressible.
fn with_data(blocks: u64, len: fn(u64) -> usize, is_random: fn(u64) -> bool) -> Vec<Payload> {
    let plan = |number| BlockPlan {
        advances: false,
        transactions: vec![filled(CONTEXT, number, len(number), is_random(number))],
    };
    chain(CONTEXT, (0..blocks).map(plan))
}

/// The channels without the last one; all of these are full.
fn full(settings: &EncoderSettings, blocks: &[Payload]) -> Vec<Encoded> {
    let mut channels = encode(settings, CONTEXT, blocks);
    channels.pop();
    assert!(!channels.is_empty(), "enough blocks");
    let mut rest = blocks;
    for channel in &channels {
        let (own, after) = rest.split_at(channel.blocks);
        assert_holds(channel, CONTEXT, own);
        rest = after;
        assert_eq!(channel.reason, CloseReason::CompressorFull);
        assert!(channel.output <= settings.target());
    }
    channels
}

#[test]
fn a_thousand_blocks_cost_at_most_four_compressions() {
    let blocks = transfers(CONTEXT, 1_300, 3);
    let channels = full(&one_span(300_000), &blocks);
    let channel = &channels[0];
    assert!(channel.blocks > 900, "{} blocks", channel.blocks);
    assert!(channel.compressed <= 4 * channel.input);
    assert!(channel.output > 300_000 * 98 / 100, "{}", channel.output);
}

/// Wrong predictions lead to more measurements, or to blocks being removed again. They never lead
/// to a channel above its target, or far below.
#[test]
fn channels_are_full_whatever_the_blocks_compress_to() {
    let uneven = |number: u64| (number.wrapping_mul(2_654_435_761) % 997) as usize;
    let shapes: [(&str, Vec<Payload>); 5] = [
        ("random", with_data(300, |_| 300, |_| true)),
        (
            "uneven",
            with_data(400, uneven, |number| number.is_multiple_of(3)),
        ),
        (
            "ever smaller output",
            with_data(2_000, |_| 300, |number| number < 40),
        ),
        (
            "random at last",
            with_data(1_200, |_| 400, |number| number > 500),
        ),
        (
            "random in turns",
            with_data(1_500, |_| 300, |number| number / 60 % 2 == 0),
        ),
    ];
    for (name, blocks) in shapes {
        let settings = one_span(20_000);
        for channel in full(&settings, &blocks) {
            let work = channel.compressed as f64 / channel.input as f64;
            println!(
                "{name}: {} blocks, {} bytes, {work:.1}",
                channel.blocks, channel.output
            );
            assert!(channel.output > 19_000, "{name}: {}", channel.output);
            assert!(work < 12.0, "{name}: {work}");
        }
    }
}

/// A chain whose first blocks compress to 70 bytes. So many of the random blocks after them are
/// appended before the output is measured.
fn misleading() -> Vec<Payload> {
    with_data(600, |_| 400, |number| number > 200)
}

#[test]
fn blocks_taken_on_a_wrong_estimate_are_given_back() {
    let blocks = misleading();
    let settings = one_span(20_000);
    let mut encoder = ChannelEncoder::new(ChannelId::ZERO, &settings, CONTEXT, true).unwrap();
    let mut taken = 0;
    for block in &blocks {
        if !encoder.add(block).unwrap() {
            break;
        }
        taken += 1;
    }
    let left = encoder.blocks().len();
    assert!(left < taken, "{left} of {taken}: no block was given back");
    assert_eq!(encoder.last().unwrap().id, blocks[left - 1].id());
    assert_eq!(encoder.first().unwrap().id, blocks[0].id());
    assert!(encoder.output_len() <= settings.target());
    // With one more block, the channel would reach the target or close for being near it.
    let with_one_more = EncoderSettings {
        max_frame_size: 1_000_000,
        ..settings
    };
    let more = encode(&with_one_more, CONTEXT, &blocks[..left + 1]);
    assert!(more[0].output > settings.target() * 99 / 100);
}

#[test]
fn a_channel_closed_by_time_keeps_within_its_target() {
    let blocks = misleading();
    let settings = one_span(20_000);
    let mut gave_back = false;
    for count in [1, 40, 200, 230, 260, 280, 500] {
        let mut encoder = ChannelEncoder::new(ChannelId::ZERO, &settings, CONTEXT, true).unwrap();
        let mut taken = 0;
        for block in &blocks[..count] {
            taken += usize::from(encoder.add(block).unwrap());
            if encoder.close_reason().is_some() {
                break;
            }
        }
        let is_open = encoder.close_reason().is_none();
        encoder.close(CloseReason::MaxDuration).unwrap();
        let expected = if is_open {
            CloseReason::MaxDuration
        } else {
            CloseReason::CompressorFull
        };
        assert_eq!(encoder.close_reason(), Some(expected));
        assert!(encoder.output_len() <= settings.target());
        gave_back |= is_open && encoder.blocks().len() < taken;
    }
    assert!(gave_back, "no close at a wrong estimate");
}

#[test]
fn a_new_span_begins_after_the_most_blocks() {
    let blocks = transfers(CONTEXT, 25, 2);
    let format = BatchFormat::Span {
        max_blocks: NonZeroUsize::new(10),
    };
    let channels = encode(
        &settings(format, CompressorKind::Shadow, 100_000),
        CONTEXT,
        &blocks,
    );
    assert_eq!(channels.len(), 1);
    let spans = crate::channels::batches(&channels[0].frames, CONTEXT);
    let counts: Vec<_> = spans
        .iter()
        .map(|batch| match batch {
            Batch::Span(span) => span.blocks.len(),
            Batch::Singular(_) => 0,
        })
        .collect();
    assert_eq!(counts, [10, 10, 5]);
    assert_holds(&channels[0], CONTEXT, &blocks);
}

#[test]
fn blocks_of_op_mainnet_become_no_larger() {
    let Some(recorded) = recorded() else { return };
    let (context, blocks) = (recorded.context, recorded.blocks);
    assert_eq!(blocks.len(), 143);
    let mut sizes = Vec::new();
    for compression in [ChannelCompression::Zlib, ChannelCompression::Brotli9] {
        let settings = EncoderSettings {
            compression,
            ..one_span(900_000)
        };
        let channels = encode(&settings, context, &blocks);
        assert_eq!(channels.len(), 1);
        assert_holds(&channels[0], context, &blocks);
        sizes.push(channels[0].output);
    }
    let most = recorded.channel.len() as u64 * 102 / 100;
    println!("recorded {}, now {sizes:?}", recorded.channel.len());
    assert!(sizes[0] <= most && sizes[1] <= sizes[0]);
}

/// Empty blocks add hardly any output, so only their number closes the channel.
#[test]
fn a_channel_has_a_most_number_of_blocks() {
    let settings = one_span(900_000);
    let mut encoder = ChannelEncoder::new(ChannelId::ZERO, &settings, CONTEXT, true).unwrap();
    let blocks = endless_chain(CONTEXT, std::iter::repeat(BlockPlan::default()));
    let refused = blocks
        .into_iter()
        .find(|block| !encoder.add(block).unwrap());
    assert_eq!(refused.unwrap().number(), MAX_BLOCKS as u64 + 1);
    assert_eq!(encoder.blocks().len(), MAX_BLOCKS);
    assert_eq!(encoder.close_reason(), Some(CloseReason::CompressorFull));
    assert!(encoder.output_len() < 2_000);
}

/// A block of another chain, or with a transaction that spans cannot encode, is refused. The
/// channel is unchanged.
#[test]
fn a_block_that_no_span_holds_is_refused_alone() {
    let good = transfers(CONTEXT, 3, 1);
    let blob_transaction = Bytes::from_static(&[3, 0xc0]);
    let other = BatchContext {
        chain_id: 13,
        ..CONTEXT
    };
    for bad in [blob_transaction, transfer(other, 1)] {
        let mut encoder =
            ChannelEncoder::new(ChannelId::ZERO, &one_span(5_000), CONTEXT, true).unwrap();
        encoder.add(&good[0]).unwrap();
        let header = good[1].header.clone();
        let mut transactions = good[1].transactions.clone();
        transactions.push(bad);
        assert!(encoder.add(&Payload::sealed(header, transactions)).is_err());
        encoder.add(&good[1]).unwrap();
        encoder.close(CloseReason::Terminated).unwrap();
        assert_eq!(encoder.blocks().len(), 2);
        assert_ne!(encoder.first().unwrap().id.hash, B256::ZERO);
    }
}
