//! The frame queue: frames of one data item, and the order of frames that Holocene requires.

use super::{DropCounts, DropReason};
use crate::frame::{self, Frame};
use alloy_primitives::Bytes;
use std::collections::VecDeque;

/// Frames of the current data item that no channel has taken yet.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    frames: VecDeque<Frame>,
}

impl FrameQueue {
    pub fn pop(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    /// Decodes a data item and puts its frames in the queue, which must be empty.
    pub fn load(&mut self, item: &Bytes, holocene: bool, drops: &mut DropCounts) {
        let Ok(frames) = frame::decode(item) else {
            return drops.add(DropReason::Frames);
        };
        let count = frames.len();
        self.frames = if holocene {
            prune(frames).into()
        } else {
            frames.into()
        };
        let dropped = count - self.frames.len();
        drops.add_many(DropReason::FrameOrder, dropped as u64);
    }
}

/// Keeps the frames that continue the frame before them without a gap (specs: holocene, frame
/// queue). A frame with number 0 removes the frames just before it if their channel is still
/// incomplete.
fn prune(frames: Vec<Frame>) -> Vec<Frame> {
    let mut kept: Vec<Frame> = Vec::with_capacity(frames.len());
    for next in frames {
        while let Some(last) = kept.last()
            && next.number == 0
            && next.id != last.id
            && !last.is_last
        {
            kept.pop();
        }
        let fits = match kept.last() {
            None => true,
            Some(last) if last.id == next.id => {
                !last.is_last && last.number.wrapping_add(1) == next.number
            }
            Some(_) => next.number == 0,
        };
        if fits {
            kept.push(next);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ChannelId;

    /// Parses frames from words such as `a1!`: channel, number, and `!` for the last frame.
    fn frames(text: &str) -> Vec<Frame> {
        text.split_whitespace()
            .map(|word| Frame {
                id: ChannelId::repeat_byte(word.as_bytes()[0]),
                number: word[1..].trim_end_matches('!').parse().unwrap(),
                data: Bytes::new(),
                is_last: word.ends_with('!'),
            })
            .collect()
    }

    /// The cases from the specification, "holocene: frame queue", and some from op-node's tests.
    #[test]
    fn holocene_keeps_only_frames_in_order() {
        for (given, kept) in [
            ("a0 a1 a2!", "a0 a1 a2!"),
            ("a0 a2 a1!", "a0 a1!"),
            ("a0 a1! a2", "a0 a1!"),
            ("a0 a1! a0", "a0 a1!"),
            ("a0 b0 b1!", "b0 b1!"),
            ("a0 a1 b0! a2!", "b0!"),
            ("a0 a1! b0 b1!", "a0 a1! b0 b1!"),
            ("a0 b1 a1!", "a0 a1!"),
            ("a3 a4 b0", "b0"),
            ("a0! b0 c0 d0", "a0! d0"),
            ("a1 a2 b1", "a1 a2"),
            ("a0 a0 a1!", "a0 a1!"),
            ("", ""),
        ] {
            assert_eq!(prune(frames(given)), frames(kept), "{given}");
        }
    }
}
