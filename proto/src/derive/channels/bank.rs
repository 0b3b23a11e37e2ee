//! The channel bank, for the forks before Holocene. A channel receives its frames in any order.
//! Channels are read in the order in which they were opened.

use super::frame_size;
use crate::{
    channel::ChannelData,
    derive::{DropCounts, DropReason},
    frame::{ChannelId, Frame},
};
use alloy_primitives::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Open channels by serial number, which counts channels in the order of opening.
///
/// The protocol bounds the sum of the channels' sizes, in which each frame counts a fixed overhead.
/// A batcher can open a channel with each empty frame. The memory of such a channel must not exceed
/// this counted size, hence one map for the frames of all channels, and small entries.
#[derive(Debug, Default)]
pub(in crate::derive) struct ChannelBank {
    channels: BTreeMap<u64, BankChannel>,
    serials: BTreeMap<ChannelId, u64>,
    /// Copies of the frames' data by [`frame_key`], so that a frame does not keep the memory of its
    /// whole data item.
    frames: BTreeMap<u64, Box<[u8]>>,
    /// Serial numbers of complete channels.
    ready: BTreeSet<u64>,
    last_serial: u64,
    /// Sum of the sizes of all channels.
    size: u64,
}

#[derive(Debug)]
struct BankChannel {
    id: ChannelId,
    /// Number of the L1 block that includes the channel's first received frame.
    opened: u64,
    size: u64,
    /// Number of frames received.
    frames: u32,
    /// Number of the channel's last frame; `None` until that frame is received.
    end: Option<u16>,
}

/// Key that sorts frames by the serial number of their channel, then by their number in the
/// channel. A serial number stays far below 48 bits.
fn frame_key(serial: u64, number: u16) -> u64 {
    serial << 16 | u64::from(number)
}

/// The result of [`ChannelBank::read`].
#[derive(Debug)]
pub(in crate::derive) enum BankRead {
    Channel(ChannelData),
    /// The oldest channel has timed out and was removed: call again.
    TimedOut,
    Nothing,
}

impl ChannelBank {
    /// Takes the first complete channel. Before Canyon takes only the oldest channel, if that is
    /// complete. The oldest channel is removed if it was opened more than `timeout_blocks` L1
    /// blocks before `origin`. If the oldest channel has not timed out, no later one has.
    pub fn read(
        &mut self,
        origin: u64,
        timeout_blocks: u64,
        canyon: bool,
        drops: &mut DropCounts,
    ) -> BankRead {
        let Some((&oldest, channel)) = self.channels.first_key_value() else {
            return BankRead::Nothing;
        };
        if channel.timed_out(origin, timeout_blocks) {
            self.remove(oldest);
            drops.add(DropReason::ChannelTimeout);
            return BankRead::TimedOut;
        }
        let first_ready = self.ready.first().copied();
        let Some(serial) = first_ready.filter(|serial| canyon || *serial == oldest) else {
            return BankRead::Nothing;
        };
        BankRead::Channel(self.remove(serial))
    }

    /// Adds a frame that L1 block `inclusion` includes. Then removes the oldest channels until the
    /// sizes of all channels sum to at most `limit` bytes.
    pub fn ingest(
        &mut self,
        frame: &Frame,
        inclusion: u64,
        timeout_blocks: u64,
        limit: u64,
        drops: &mut DropCounts,
    ) {
        let serial = *self.serials.entry(frame.id).or_insert_with(|| {
            self.last_serial += 1;
            self.last_serial
        });
        let channel = self.channels.entry(serial).or_insert_with(|| BankChannel {
            id: frame.id,
            opened: inclusion,
            size: 0,
            frames: 0,
            end: None,
        });
        if channel.timed_out(inclusion, timeout_blocks) {
            return drops.add(DropReason::LateFrame);
        }
        let key = frame_key(serial, frame.number);
        if channel.is_closed_to(frame) || self.frames.contains_key(&key) {
            return drops.add(DropReason::Frame);
        }
        self.size -= channel.size;
        if frame.is_last {
            channel.end = Some(frame.number);
            let above = key..=frame_key(serial, u16::MAX);
            let evicted = self.frames.extract_if(above, |_, _| true).count();
            // In this case op-node's Channel.AddFrame resets the channel's size to the size of the
            // closing frame. The size decides which channels the bank removes, so consensus
            // requires the same here.
            if evicted > 0 {
                channel.size = 0;
                channel.frames -= evicted as u32;
            }
        }
        channel.size += frame_size(frame);
        channel.frames += 1;
        self.size += channel.size;
        if channel.is_ready() {
            self.ready.insert(serial);
        }
        self.frames.insert(key, frame.data[..].into());
        while self.size > limit
            && let Some((&oldest, _)) = self.channels.first_key_value()
        {
            self.remove(oldest);
            drops.add(DropReason::ChannelSize);
        }
    }

    /// Whether no channel is open.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Removes a channel and returns its data.
    fn remove(&mut self, serial: u64) -> ChannelData {
        if let Some(channel) = self.channels.remove(&serial) {
            self.serials.remove(&channel.id);
            self.ready.remove(&serial);
            self.size -= channel.size;
        }
        let all = frame_key(serial, 0)..=frame_key(serial, u16::MAX);
        let frames = self.frames.extract_if(all, |_, _| true);
        frames
            .map(|(_, data)| Bytes::from(Vec::from(data)))
            .collect()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.channels.len()
    }
}

impl BankChannel {
    fn timed_out(&self, origin: u64, timeout_blocks: u64) -> bool {
        self.opened.saturating_add(timeout_blocks) < origin
    }

    /// Frame numbers are distinct and none is above `end`, so comparing the count is enough.
    fn is_ready(&self) -> bool {
        self.end
            .is_some_and(|end| self.frames == u32::from(end) + 1)
    }

    /// Whether the channel's last frame was received and its number excludes this frame.
    fn is_closed_to(&self, frame: &Frame) -> bool {
        self.end
            .is_some_and(|end| frame.is_last || frame.number >= end)
    }
}
