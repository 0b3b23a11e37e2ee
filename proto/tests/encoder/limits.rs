//! Limits of channels: target size, frames, input, time.

use crate::{
    CONTEXT, ONE_SPAN,
    blocks::{BlockPlan, chain, transfer, transfers},
    channels::{assert_holds, batch_of, encode},
    filled, settings,
};
use alloy_primitives::Bytes;
use flate2::{Compression, write::ZlibEncoder};
use starling_proto::{
    channel::{ChannelCompression, ChannelWriteError},
    encoder::{
        BatchFormat, ChannelDeadline, ChannelEncoder, ChannelTimes, CloseReason, CompressorKind,
        EncoderError, EncoderSettings, FrameProgress, FrameRange, SettingsError, block_da_size,
        block_raw_size, transaction_da_size,
    },
    frame::ChannelId,
    payload::Payload,
};
use std::io::Write;

const SHADOW: CompressorKind = CompressorKind::Shadow;

fn open(settings: &EncoderSettings, fjord: bool) -> ChannelEncoder {
    ChannelEncoder::new(ChannelId::repeat_byte(9), settings, CONTEXT, fjord).unwrap()
}

/// Blocks with one transaction of `len` random bytes each.
fn large(blocks: u64, len: usize) -> Vec<Payload> {
    let plan = |number| BlockPlan {
        advances: false,
        transactions: vec![filled(CONTEXT, number, len, true)],
    };
    chain(CONTEXT, (0..blocks).map(plan))
}

#[test]
fn reasons_have_the_texts_of_op_batcher() {
    let texts = [
        (CloseReason::CompressorFull, "compressor is full"),
        (
            CloseReason::InputLimit,
            "batch would cause RLP bytes to go over limit",
        ),
        (CloseReason::MaxDuration, "max channel duration reached"),
        (CloseReason::ChannelTimeout, "close to channel timeout"),
        (
            CloseReason::SequencingWindow,
            "close to sequencer window timeout",
        ),
        (
            CloseReason::MaxFrameIndex,
            "max frame index reached (uint16)",
        ),
        (CloseReason::Terminated, "channel terminated"),
    ];
    for (reason, text) in texts {
        assert_eq!(reason.to_string(), text);
    }
}

#[test]
fn a_first_block_above_the_target_has_a_channel_for_itself() {
    let blocks = large(2, 10_000);
    for format in [BatchFormat::Singular, ONE_SPAN] {
        for kind in [SHADOW, CompressorKind::Ratio(0.6), CompressorKind::None] {
            let settings = settings(format, kind, 3_000);
            let channels = encode(&settings, CONTEXT, &blocks);
            assert_eq!(channels.len(), 2, "{settings:?}");
            for (channel, block) in channels.iter().zip(&blocks) {
                assert_eq!(channel.blocks, 1);
                assert_eq!(channel.frames.len(), 4);
                assert_eq!(channel.reason, CloseReason::CompressorFull);
                assert_holds(channel, CONTEXT, std::slice::from_ref(block));
            }
        }
    }
}

#[test]
fn a_ratio_counts_input_alone() {
    let blocks = transfers(CONTEXT, 60, 2);
    let settings = settings(BatchFormat::Singular, CompressorKind::Ratio(0.5), 2_000);
    let channels = encode(&settings, CONTEXT, &blocks);
    assert!(channels.len() > 3);
    for channel in &channels[..channels.len() - 1] {
        // The block that reaches 4,000 bytes fills the channel. A block has less than 600 bytes.
        assert!((4_000..4_600).contains(&channel.input), "{}", channel.input);
        assert_eq!(channel.compressed, channel.input);
    }
}

#[test]
fn stored_batches_are_ready_at_once() {
    let settings = EncoderSettings {
        max_frame_size: 123,
        target_frames: 100,
        ..settings(BatchFormat::Singular, CompressorKind::None, 1)
    };
    let mut encoder = open(&settings, true);
    for block in &transfers(CONTEXT, 5, 2) {
        let before = encoder.output_len();
        encoder.add(block).unwrap();
        assert!(encoder.output_len() >= before + 2 * 150);
        let input = encoder.input_len();
        assert!(encoder.output_len() >= input);
    }
    let mut frames = 0;
    while encoder.next_frame().unwrap().is_some() {
        frames += 1;
    }
    assert!(frames > 10 && encoder.close_reason().is_none());
    assert!(encoder.pending_len() < 100);
}

/// The number of blocks that op-batcher's shadow compressor accepts: it compresses from the first
/// block on.
fn blocks_of_shadow(blocks: &[Payload], target: usize) -> usize {
    let mut shadow = ZlibEncoder::new(Vec::new(), Compression::best());
    let mut bound = 51;
    for (count, block) in blocks.iter().enumerate() {
        let string = alloy_rlp::encode(&batch_of(block).encode()[..]);
        shadow.write_all(&string).unwrap();
        bound += string.len();
        if bound > target {
            shadow.flush().unwrap();
            bound = shadow.get_ref().len() + 9;
            if bound > target {
                return count.max(1);
            }
        }
    }
    blocks.len()
}

#[test]
fn the_shadow_ends_channels_where_op_batcher_does() {
    let blocks = transfers(CONTEXT, 400, 3);
    for target in [700, 3_000, 20_000, 50_000] {
        let settings = settings(BatchFormat::Singular, SHADOW, target);
        let channels = encode(&settings, CONTEXT, &blocks);
        let (first, expected) = (&channels[0], blocks_of_shadow(&blocks, target as usize));
        assert_eq!(first.blocks, expected, "{target}");
        assert!(first.output <= u64::from(target));
        assert!(
            first.output >= u64::from(target) / 2,
            "{target}: {}",
            first.output
        );
    }
    // Far below the target the shadow compresses nothing.
    let few = encode(
        &settings(BatchFormat::Singular, SHADOW, 1_000_000),
        CONTEXT,
        &blocks,
    );
    assert_eq!(few[0].compressed, few[0].input);
}

#[test]
fn frames_of_an_open_channel_can_be_taken() {
    let settings = EncoderSettings {
        max_frame_size: 2_000,
        target_frames: 40,
        ..settings(BatchFormat::Singular, SHADOW, 1)
    };
    let mut encoder = open(&settings, true);
    for block in &large(40, 2_000) {
        assert!(encoder.add(block).unwrap());
        if encoder.next_frame().unwrap().is_some() {
            break;
        }
    }
    assert!(encoder.close_reason().is_none() && encoder.frames() == 1);
    let mut span = open(
        &EncoderSettings {
            format: ONE_SPAN,
            ..settings
        },
        true,
    );
    for block in &large(39, 2_000)[..36] {
        assert!(span.add(block).unwrap());
    }
    assert_eq!(span.next_frame(), Ok(None));
}

#[test]
fn a_channel_ends_before_its_frames_have_no_numbers_left() {
    for kind in [CompressorKind::Ratio(0.01), CompressorKind::None] {
        let settings = EncoderSettings {
            max_frame_size: 24,
            target_frames: 65_536,
            ..settings(BatchFormat::Singular, kind, 1)
        };
        let blocks = large(70, 1_000);
        let channels = encode(&settings, CONTEXT, &blocks);
        let channel = &channels[0];
        assert_eq!(channels.len(), 2);
        if kind != CompressorKind::None {
            assert_eq!(channel.reason, CloseReason::MaxFrameIndex);
        }
        assert!((64_000..=65_536).contains(&channel.frames.len()));
        assert_eq!(channel.frames.last().map(|frame| frame.is_last), Some(true));
        assert_holds(channel, CONTEXT, &blocks[..channel.blocks]);
    }
    // The first block needs more than 65,536 frames.
    for format in [BatchFormat::Singular, ONE_SPAN] {
        let tiny = EncoderSettings {
            max_frame_size: 24,
            ..settings(format, SHADOW, 1)
        };
        let (huge, small) = (large(1, 70_000), large(1, 100));
        let mut encoder = open(&tiny, true);
        let refused = encoder.add(&huge[0]);
        assert_eq!(refused, Err(EncoderError::BlockTooLarge(huge[0].id())));
        assert_eq!(encoder.add(&small[0]), Ok(true));
        assert_eq!(encoder.blocks().len(), 1);
    }
}

#[test]
fn the_limit_of_input_ends_a_channel_and_refuses_a_block_above_it() {
    let large_block = |number, len| BlockPlan {
        advances: false,
        transactions: vec![filled(CONTEXT, number, len, false)],
    };
    let blocks = chain(
        CONTEXT,
        [large_block(1, 6_000_000), large_block(2, 4_500_000)],
    );
    let huge = chain(CONTEXT, [large_block(1, 10_000_000)]);
    for format in [BatchFormat::Singular, ONE_SPAN] {
        for kind in [CompressorKind::Ratio(0.001), SHADOW] {
            let settings = settings(format, kind, 900_000);
            let mut encoder = open(&settings, false);
            let refused = encoder.add(&huge[0]);
            assert_eq!(refused, Err(EncoderError::BlockTooLarge(huge[0].id())));
            assert_eq!(encoder.add(&blocks[0]), Ok(true));
            assert_eq!(encoder.add(&blocks[1]), Ok(false));
            assert_eq!(encoder.close_reason(), Some(CloseReason::InputLimit));
            assert_eq!(encoder.blocks().len(), 1);
            assert!((6_000_000..6_001_000).contains(&encoder.input_len()));
            let closed = encoder.add(&blocks[1]);
            assert_eq!(closed, Err(EncoderError::Closed(CloseReason::InputLimit)));
            // With Fjord's limit both blocks fit.
            let mut encoder = open(&settings, true);
            assert_eq!(encoder.add(&blocks[0]), Ok(true));
            assert_eq!(encoder.add(&blocks[1]), Ok(true));
        }
    }
}

#[test]
fn settings_that_make_no_channel_are_refused() {
    let good = settings(ONE_SPAN, SHADOW, 1_000);
    let refused = |settings: EncoderSettings, fjord| {
        ChannelEncoder::new(ChannelId::ZERO, &settings, CONTEXT, fjord).unwrap_err()
    };
    for (max_frame_size, error) in [
        (0, SettingsError::FrameTooSmall(0)),
        (23, SettingsError::FrameTooSmall(23)),
        (1_000_024, SettingsError::FrameTooLarge(1_000_024)),
    ] {
        let settings = EncoderSettings {
            max_frame_size,
            ..good
        };
        assert_eq!(refused(settings, true), error.into());
    }
    for target_frames in [0, 65_537, u32::MAX] {
        let settings = EncoderSettings {
            target_frames,
            ..good
        };
        assert_eq!(
            refused(settings, true),
            SettingsError::Frames(target_frames).into()
        );
    }
    for ratio in [0.0, -1.0, f64::NAN] {
        let settings = EncoderSettings {
            kind: CompressorKind::Ratio(ratio),
            ..good
        };
        assert_eq!(refused(settings, true), SettingsError::Ratio.into());
    }
    for format in [BatchFormat::Singular, ONE_SPAN] {
        let compression = ChannelCompression::Brotli9;
        let settings = EncoderSettings {
            format,
            compression,
            ..good
        };
        assert_eq!(
            refused(settings, false),
            ChannelWriteError::BrotliBeforeFjord.into()
        );
    }
}

#[test]
fn a_block_that_does_not_follow_is_refused() {
    let good = settings(ONE_SPAN, SHADOW, 1_000);
    let blocks = transfers(CONTEXT, 3, 1);
    let mut encoder = open(&good, true);
    let without_attributes = Payload::sealed(blocks[0].header.clone(), vec![Bytes::new()]);
    assert!(matches!(
        encoder.add(&without_attributes),
        Err(EncoderError::Block(_))
    ));
    assert_eq!(encoder.add(&blocks[0]), Ok(true));
    let gap = encoder.add(&blocks[2]);
    let (block, last) = (blocks[2].id(), blocks[0].id());
    assert_eq!(gap, Err(EncoderError::NotConsecutive { block, last }));
    // A channel without a block has no frame.
    let mut empty = open(&good, true);
    empty.close(CloseReason::Terminated).unwrap();
    assert_eq!((empty.next_frame(), empty.blocks().len()), (Ok(None), 0));
}

#[test]
fn names_of_options_are_read() {
    for compression in ChannelCompression::ALL {
        assert_eq!(compression.to_string().parse(), Ok(compression));
    }
    assert_eq!("brotli".parse(), Ok(ChannelCompression::Brotli10));
    assert!("gzip".parse::<ChannelCompression>().is_err());
    for kind in [SHADOW, CompressorKind::Ratio(0.6), CompressorKind::None] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("".parse::<CompressorKind>().is_err());
}

#[test]
fn the_earliest_limit_of_time_closes_a_channel() {
    let times = |duration| ChannelTimes::new(duration, 50, 3_600, 10).unwrap();
    let mut deadline = ChannelDeadline::new(times(25), 1_000);
    assert_eq!(deadline.due(1_024), None);
    assert_eq!(deadline.due(1_025), Some(CloseReason::MaxDuration));
    // The block's window ends at 1,009 + 3,590. The frame in L1 block 980 times out at 980 + 40.
    deadline.on_block(1_009);
    assert_eq!(deadline.due(1_025), Some(CloseReason::MaxDuration));
    deadline.on_inclusion(980);
    assert_eq!(deadline.due(1_019), None);
    assert_eq!(deadline.due(1_020), Some(CloseReason::ChannelTimeout));
    let mut unlimited = ChannelDeadline::new(times(0), 1_000);
    assert_eq!(unlimited.due(u64::MAX), None);
    unlimited.on_block(1_009);
    unlimited.on_block(1_010);
    assert_eq!(unlimited.due(4_598), None);
    assert_eq!(unlimited.due(4_599), Some(CloseReason::SequencingWindow));
    let short = ChannelTimes::new(0, 9, 3_600, 10).unwrap_err();
    assert!(
        short
            .to_string()
            .starts_with("channel timeout is less than the safety margin")
    );
    // A window shorter than the margin, and numbers near their maximum.
    let mut narrow = ChannelDeadline::new(ChannelTimes::new(5, 10, 4, 10).unwrap(), u64::MAX);
    narrow.on_block(100);
    assert_eq!(narrow.due(99), None);
    assert_eq!(narrow.due(100), Some(CloseReason::SequencingWindow));
}

#[test]
fn frames_are_followed_to_l1() {
    let range = |begin, end| FrameRange { begin, end };
    let mut progress = FrameProgress::default();
    assert!(progress.is_untouched());
    assert_eq!(progress.take(5, 6, false), None);
    assert_eq!(progress.take(8, 6, false), Some(range(0, 6)));
    assert_eq!(progress.take(8, 6, false), None);
    assert_eq!(progress.take(8, 6, true), Some(range(6, 8)));
    assert_eq!(progress.take(8, 6, true), None);
    assert!(!progress.is_untouched() && !progress.is_complete(8));
    // All frames from the first failed one on are sent again, in order.
    progress.on_failure(range(0, 6));
    progress.on_failure(range(1, 2));
    assert_eq!(progress.take(8, 4, true), Some(range(0, 4)));
    assert_eq!(progress.take(8, 4, true), Some(range(4, 8)));
    progress.on_inclusion(range(6, 8), 100);
    progress.on_inclusion(range(0, 4), 120);
    progress.on_inclusion(range(0, 4), 9);
    assert!(!progress.is_complete(8));
    progress.on_inclusion(range(4, 8), 90);
    assert!(progress.is_complete(8) && !progress.is_untouched());
    let (first, last) = (progress.first_inclusion(), progress.last_inclusion());
    assert_eq!((first, last), (Some(90), Some(120)));
    assert!(progress.is_timed_out(30) && !progress.is_timed_out(31));
    assert!(!FrameProgress::default().is_timed_out(0));
}

#[test]
fn estimates_of_data_are_those_of_fastlz() {
    let Some(text) = starling_testkit::fixture_text("deposits-fees/l1-cost.json") else {
        return;
    };
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vectors = file["fastlz"].as_array().unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let bytes = |value: &serde_json::Value| {
            hex::decode(value.as_str().unwrap().trim_start_matches("0x")).unwrap()
        };
        let input = match vector["input_repeat"].as_array() {
            Some(repeat) => bytes(&repeat[0]).repeat(repeat[1].as_u64().unwrap() as usize),
            None => bytes(&vector["input"]),
        };
        let scaled = (836_500 * vector["len"].as_u64().unwrap()).saturating_sub(42_585_600);
        assert_eq!(
            transaction_da_size(&input),
            scaled.max(100_000_000) / 1_000_000,
            "{vector}"
        );
    }
}

#[test]
fn deposits_cost_no_data() {
    let empty = chain(CONTEXT, [BlockPlan::default()]);
    assert_eq!(
        (block_da_size(&empty[0]), block_raw_size(&empty[0])),
        (70, 70)
    );
    let transaction = transfer(CONTEXT, 5);
    let (estimate, len) = (transaction_da_size(&transaction), transaction.len() as u64);
    assert!((100..len).contains(&estimate));
    let plan = BlockPlan {
        advances: false,
        transactions: vec![transaction],
    };
    let one = chain(CONTEXT, [plan]);
    assert_eq!(block_da_size(&one[0]), 70 + estimate);
    assert_eq!(block_raw_size(&one[0]), 70 + len + 2);
}
