//! The bank and the assembler, frame by frame.

use super::{bank::BankRead, *};
use crate::{
    channel::ChannelData,
    derive::{DropCounts, DropReason},
    frame::ChannelId,
};
use alloy_primitives::Bytes;

const TIMEOUT: u64 = 10;
const LIMIT: u64 = 10_000;

/// Parses a frame from a word such as `a1!`: channel, number, and `!` for the last frame. The word
/// is also the frame's data.
fn frame(name: &str) -> Frame {
    Frame {
        id: ChannelId::repeat_byte(name.as_bytes()[0]),
        number: name[1..].trim_end_matches('!').parse().unwrap(),
        data: Bytes::copy_from_slice(name.as_bytes()),
        is_last: name.ends_with('!'),
    }
}

fn text(data: ChannelData) -> String {
    let bytes: Vec<u8> = data.into_iter().flatten().collect();
    String::from_utf8(bytes).unwrap()
}

/// All channels that the bank returns at L1 block `origin`.
fn read_all(
    bank: &mut ChannelBank,
    origin: u64,
    canyon: bool,
    drops: &mut DropCounts,
) -> Vec<String> {
    let mut channels = Vec::new();
    loop {
        match bank.read(origin, TIMEOUT, canyon, drops) {
            BankRead::Channel(data) => channels.push(text(data)),
            BankRead::TimedOut => channels.push("late".to_owned()),
            BankRead::Nothing => return channels,
        }
    }
}

fn bank(frames: &str, drops: &mut DropCounts) -> ChannelBank {
    let mut bank = ChannelBank::default();
    for name in frames.split_whitespace() {
        bank.ingest(&frame(name), 100, TIMEOUT, LIMIT, drops);
    }
    bank
}

#[test]
fn the_bank_reads_the_oldest_channel_and_from_canyon_the_first_complete_one() {
    let drops = &mut DropCounts::default();
    let frames = "a0 b1! b0 c0!";
    assert!(read_all(&mut bank(frames, drops), 100, false, drops).is_empty());
    assert_eq!(
        read_all(&mut bank(frames, drops), 100, true, drops),
        ["b0b1!", "c0!"]
    );
    let ordered = "a0 b0! a1!";
    assert_eq!(
        read_all(&mut bank(ordered, drops), 100, false, drops),
        ["a0a1!", "b0!"]
    );
}

#[test]
fn the_bank_refuses_frames_that_contradict_the_channel() {
    for (frames, data, refused) in [
        ("a0 a0 a1!", "a0a1!", 1),
        ("a0 a1! a1!", "a0a1!", 0),
        ("a1! a2 a0", "a0a1!", 1),
        ("a1! a2! a0", "a0a1!", 1),
        ("a0 a2 a3 a1!", "a0a1!", 0),
    ] {
        let drops = &mut DropCounts::default();
        let mut bank = ChannelBank::default();
        let mut read = Vec::new();
        for name in frames.split_whitespace() {
            bank.ingest(&frame(name), 100, TIMEOUT, LIMIT, drops);
            read.extend(read_all(&mut bank, 100, true, drops));
        }
        assert_eq!(read, [data], "{frames}");
        assert_eq!(drops.get(DropReason::Frame), refused, "{frames}");
    }
}

#[test]
fn the_bank_times_channels_out_by_their_first_frame() {
    let drops = &mut DropCounts::default();
    let mut bank = bank("a0 b0!", drops);
    bank.ingest(&frame("a1!"), 111, TIMEOUT, LIMIT, drops);
    assert_eq!(drops.get(DropReason::LateFrame), 1);
    assert_eq!(read_all(&mut bank, 111, true, drops), ["late", "late"]);
    let mut bank = self::bank("a0", drops);
    bank.ingest(&frame("a1!"), 110, TIMEOUT, LIMIT, drops);
    assert_eq!(read_all(&mut bank, 110, true, drops), ["a0a1!"]);
}

#[test]
fn the_bank_drops_its_oldest_channels_beyond_the_limit() {
    let drops = &mut DropCounts::default();
    let mut bank = ChannelBank::default();
    for name in ["a0", "b0", "c0", "d0!"] {
        bank.ingest(&frame(name), 100, TIMEOUT, 3 * 202, drops);
    }
    assert_eq!(
        drops.get(DropReason::ChannelSize),
        2,
        "d0! is a byte longer"
    );
    assert_eq!(bank.len(), 2);
}

/// When the last frame evicts others, op-node forgets the size of every earlier frame of the
/// channel.
#[test]
fn an_evicting_last_frame_leaves_only_its_own_size() {
    let drops = &mut DropCounts::default();
    let mut bank = ChannelBank::default();
    for name in ["a0", "a1", "a2", "a3", "a1!"] {
        bank.ingest(&frame(name), 100, TIMEOUT, LIMIT, drops);
    }
    assert_eq!(drops.get(DropReason::Frame), 1, "a1 is there already");
    bank.ingest(&frame("a2!"), 100, TIMEOUT, LIMIT, drops);
    assert_eq!(drops.get(DropReason::Frame), 2, "so is a2");
    let mut bank = ChannelBank::default();
    for name in ["a0", "a2", "a3", "a1!"] {
        bank.ingest(&frame(name), 100, TIMEOUT, 3 * 202, drops);
    }
    bank.ingest(&frame("b0"), 100, TIMEOUT, 2 * 202 + 1, drops);
    assert_eq!(drops.get(DropReason::ChannelSize), 0);
    assert_eq!(bank.len(), 2);
}

#[test]
fn the_assembler_takes_one_channel_in_order() {
    for (frames, given, dropped) in [
        ("a0 a1 a2!", vec!["a0a1a2!"], 0),
        ("a0 a2! a1!", vec!["a0a1!"], 1),
        ("a1 a0!", vec!["a0!"], 1),
        ("a0 b1 a1!", vec!["a0a1!"], 1),
        ("a0! a1!", vec!["a0!"], 1),
        ("a0 b0! a1!", vec!["b0!"], 1),
        ("a0 a0 a1!", vec!["a0a1!"], 0),
    ] {
        let drops = &mut DropCounts::default();
        let mut assembler = ChannelAssembler::default();
        let read: Vec<_> = frames
            .split_whitespace()
            .filter_map(|name| assembler.ingest(&frame(name), 100, LIMIT, drops))
            .map(text)
            .collect();
        assert_eq!(read, given, "{frames}");
        assert_eq!(drops.get(DropReason::Frame), dropped, "{frames}");
    }
}

#[test]
fn the_assembler_drops_late_and_oversized_channels() {
    let drops = &mut DropCounts::default();
    let mut assembler = ChannelAssembler::default();
    assert!(assembler.ingest(&frame("a0"), 100, LIMIT, drops).is_none());
    assembler.expire(110, TIMEOUT, drops);
    assert_eq!(drops.get(DropReason::ChannelTimeout), 0);
    assembler.expire(111, TIMEOUT, drops);
    assert_eq!(drops.get(DropReason::ChannelTimeout), 1);
    assert!(assembler.ingest(&frame("a1!"), 111, LIMIT, drops).is_none());
    for (limit, size) in [(404, 1), (405, 0)] {
        let drops = &mut DropCounts::default();
        let mut assembler = ChannelAssembler::default();
        assembler.ingest(&frame("a0"), 100, limit, drops);
        let read = assembler.ingest(&frame("a1!"), 100, limit, drops);
        assert_eq!(drops.get(DropReason::ChannelSize), size);
        assert_eq!(read.is_some(), size == 0);
    }
}
