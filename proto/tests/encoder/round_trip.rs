//! Round trips through this crate's decoder, for every batch format, compressor kind and
//! compression.

use crate::{
    CONTEXT,
    blocks::{BlockPlan, chain, transfer},
    channels::{Encoded, assert_holds, encode},
    filled,
};
use alloy_primitives::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use starling_proto::{
    channel::ChannelCompression,
    encoder::{BatchFormat, CloseReason, CompressorKind, EncoderSettings},
    payload::Payload,
};
use std::num::NonZeroUsize;

fn formats() -> impl Strategy<Value = BatchFormat> {
    let span = |max| BatchFormat::Span {
        max_blocks: NonZeroUsize::new(max),
    };
    select(vec![BatchFormat::Singular, span(0), span(1), span(3)])
}

fn kinds() -> impl Strategy<Value = CompressorKind> {
    let ratio = |ratio| CompressorKind::Ratio(ratio);
    select(vec![
        CompressorKind::Shadow,
        CompressorKind::None,
        ratio(0.4),
        ratio(1.5),
    ])
}

prop_compose! {
    fn all_settings()(
        format in formats(),
        kind in kinds(),
        compression in select(ChannelCompression::ALL.to_vec()),
        max_frame_size in 40..2_000usize,
        target_frames in 1..5u32,
    ) -> EncoderSettings {
        EncoderSettings { format, kind, compression, max_frame_size, target_frames }
    }
}

fn transactions() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => any::<u64>().prop_map(|seed| transfer(CONTEXT, seed)),
        1 => (any::<u64>(), 0..1_500usize, any::<bool>())
            .prop_map(|(seed, len, is_random)| filled(CONTEXT, seed, len, is_random)),
    ]
}

prop_compose! {
    fn plan()(advances in any::<bool>(), transactions in vec(transactions(), 0..5)) -> BlockPlan {
        BlockPlan { advances, transactions }
    }
}

/// Checks a channel's frames and sizes against the settings.
fn assert_bounded(channel: &Encoded, settings: &EncoderSettings) {
    let last = channel.frames.len() - 1;
    let mut output = 0;
    for (index, frame) in channel.frames.iter().enumerate() {
        assert_eq!(usize::from(frame.number), index);
        assert_eq!(frame.is_last, index == last);
        let size = frame.data.len() + 23;
        assert!(size <= settings.max_frame_size);
        assert!(
            frame.is_last || size == settings.max_frame_size,
            "a frame is full"
        );
        output += frame.data.len() as u64;
    }
    assert_eq!(channel.output, output);
    let is_measured =
        settings.format != BatchFormat::Singular || settings.kind == CompressorKind::None;
    if is_measured && channel.blocks > 1 {
        assert!(
            output <= settings.target(),
            "{output} above {}",
            settings.target()
        );
    }
}

fn assert_survive(settings: &EncoderSettings, blocks: &[Payload]) {
    let channels = encode(settings, CONTEXT, blocks);
    let mut rest = blocks;
    for channel in &channels {
        let (own, after) = rest.split_at(channel.blocks);
        assert_holds(channel, CONTEXT, own);
        assert_bounded(channel, settings);
        rest = after;
    }
    assert!(rest.is_empty());
    let before_last = &channels[..channels.len() - 1];
    for channel in before_last {
        // When a span channel is closed, its last blocks may be removed; then another channel
        // follows.
        let is_given_back =
            settings.format != BatchFormat::Singular && channel.reason == CloseReason::Terminated;
        assert!(is_given_back || channel.reason == CloseReason::CompressorFull);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_survive(settings in all_settings(), plans in vec(plan(), 1..25)) {
        assert_survive(&settings, &chain(CONTEXT, plans));
    }
}

/// Tests each combination at least once, because random settings may miss some.
#[test]
fn every_combination_decodes() {
    let plan = |number: u64| BlockPlan {
        advances: number.is_multiple_of(3),
        transactions: (0..number % 4)
            .map(|index| transfer(CONTEXT, number << 8 | index))
            .collect(),
    };
    let blocks = chain(CONTEXT, (0..12).map(plan));
    for max in [None, Some(0), Some(5)] {
        let format = max.map_or(BatchFormat::Singular, |max| BatchFormat::Span {
            max_blocks: NonZeroUsize::new(max),
        });
        for kind in [
            CompressorKind::Shadow,
            CompressorKind::Ratio(0.5),
            CompressorKind::None,
        ] {
            for compression in ChannelCompression::ALL {
                let settings = EncoderSettings {
                    format,
                    kind,
                    compression,
                    max_frame_size: 400,
                    target_frames: 2,
                };
                assert_survive(&settings, &blocks);
            }
        }
    }
}
