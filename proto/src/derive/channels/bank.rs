//! The channel bank of the forks before Holocene: channels receive their frames in any order, and
//! are read in the order in which they were opened.

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
/// The protocol bounds the sum of the sizes that frames count, and lets a batcher open a channel
/// with each empty frame. Such a channel must not take more memory than its size: hence one map of
/// all frames, and small entries.
#[derive(Debug, Default)]
pub(in crate::derive) struct ChannelBank {
    channels: BTreeMap<u64, BankChannel>,
    serials: BTreeMap<ChannelId, u64>,
    /// Copies of the frames' data by [`frame_key`]: a frame must not keep the rest of its data item
    /// alive.
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
    /// Number of the L1 block with the first frame seen.
    opened: u64,
    size: u64,
    /// Number of frames.
    frames: u32,
    /// Number of the last frame, once that is seen.
    end: Option<u16>,
}

/// Frames sort by the serial number of their channel, which stays far below 48 bits, and by number
/// within the channel.
fn frame_key(serial: u64, number: u16) -> u64 {
    serial << 16 | u64::from(number)
}

/// The result of reading the bank.
#[derive(Debug)]
pub(in crate::derive) enum BankRead {
    Channel(ChannelData),
    /// The oldest channel had timed out and is removed: read again.
    TimedOut,
    Nothing,
}

impl ChannelBank {
    /// Takes the first complete channel, or before Canyon the oldest channel if it is complete.
    /// The oldest channel is removed if it was opened more than `timeout_blocks` L1 blocks before
    /// `origin`. Later ones cannot have timed out if the oldest has not.
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

    /// Adds a frame of inclusion block `inclusion`, then removes the oldest channels until all
    /// together are within `limit` bytes.
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
            // op-node's Channel.AddFrame resets the channel's size to the closing frame here. The
            // size decides which channels the bank can hold, so this is consensus and repeated.
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

    /// Numbers are distinct and none is above the last one's, so the count tells.
    fn is_ready(&self) -> bool {
        self.end
            .is_some_and(|end| self.frames == u32::from(end) + 1)
    }

    /// Whether the last frame was seen and excludes this one.
    fn is_closed_to(&self, frame: &Frame) -> bool {
        self.end
            .is_some_and(|end| frame.is_last || frame.number >= end)
    }
}
