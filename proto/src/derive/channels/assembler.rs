//! The channel assembler of Holocene: one channel at a time, frames strictly in order.

use super::frame_size;
use crate::{
    channel::ChannelData,
    derive::{DropCounts, DropReason},
    frame::{ChannelId, Frame},
};
use alloy_primitives::Bytes;

/// The channel that is being received, if any.
#[derive(Debug, Default)]
pub(in crate::derive) struct ChannelAssembler {
    channel: Option<StagedChannel>,
}

#[derive(Debug)]
struct StagedChannel {
    id: ChannelId,
    /// Number of the L1 block that includes the channel's first frame.
    opened: u64,
    /// Number of frames so far, which is also the number of the next frame.
    frames: u32,
    /// Copies of the frames' data, so that a frame does not keep the memory of its whole data item.
    data: ChannelData,
    size: u64,
}

impl ChannelAssembler {
    /// Drops the channel if it was opened more than `timeout_blocks` L1 blocks before `origin`.
    pub fn expire(&mut self, origin: u64, timeout_blocks: u64, drops: &mut DropCounts) {
        let timed_out =
            |channel: &StagedChannel| channel.opened.saturating_add(timeout_blocks) < origin;
        if self.channel.as_ref().is_some_and(timed_out) {
            self.channel = None;
            drops.add(DropReason::ChannelTimeout);
        }
    }

    /// Adds a frame that L1 block `inclusion` includes. Returns the channel's data if this frame
    /// completes the channel. `limit` bounds the size of a channel in bytes.
    pub fn ingest(
        &mut self,
        frame: &Frame,
        inclusion: u64,
        limit: u64,
        drops: &mut DropCounts,
    ) -> Option<ChannelData> {
        if frame.number == 0 {
            let replaced = self.channel.replace(StagedChannel {
                id: frame.id,
                opened: inclusion,
                frames: 0,
                data: ChannelData::default(),
                size: 0,
            });
            drops.add_many(DropReason::ChannelReplaced, replaced.is_some().into());
        }
        let next = |channel: &&mut StagedChannel| {
            channel.id == frame.id && channel.frames == u32::from(frame.number)
        };
        let Some(channel) = self.channel.as_mut().filter(next) else {
            drops.add(DropReason::Frame);
            return None;
        };
        channel.frames += 1;
        channel.size += frame_size(frame);
        if channel.size > limit {
            self.channel = None;
            drops.add(DropReason::ChannelSize);
            return None;
        }
        channel.data.push(Bytes::copy_from_slice(&frame.data));
        if !frame.is_last {
            return None;
        }
        self.channel.take().map(|channel| channel.data)
    }
}
