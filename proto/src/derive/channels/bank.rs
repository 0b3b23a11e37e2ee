//! The channel bank of the forks before Holocene: channels receive their frames in any order, and
//! are read in the order in which they were opened.

use super::frame_size;
use crate::{
    derive::{DropCounts, DropReason},
    frame::{ChannelId, Frame},
};
use alloy_primitives::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Open channels. Each has a ticket, which counts channels in the order of opening.
#[derive(Debug, Default)]
pub(in crate::derive) struct ChannelBank {
    channels: BTreeMap<u64, BankChannel>,
    tickets: HashMap<ChannelId, u64>,
    /// Tickets of complete channels.
    ready: BTreeSet<u64>,
    next_ticket: u64,
    /// Sum of the sizes of all channels.
    size: u64,
}

#[derive(Debug)]
struct BankChannel {
    id: ChannelId,
    /// Number of the L1 block with the first frame seen.
    opened: u64,
    /// Copies of the frames' data: a frame must not keep the rest of its data item alive.
    frames: BTreeMap<u16, Bytes>,
    /// Number of the last frame, once that is seen.
    end: Option<u16>,
    size: u64,
}

/// The result of reading the bank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::derive) enum BankRead {
    Channel(Bytes),
    /// The oldest channel had timed out and is removed: read again.
    TimedOut,
    Nothing,
}

impl ChannelBank {
    /// Takes the first complete channel, or before Canyon the oldest channel if it is complete.
    /// The oldest channel is removed if it was opened more than `timeout` L1 blocks before
    /// `origin`. Later ones cannot have timed out if the oldest has not.
    pub fn read(
        &mut self,
        origin: u64,
        timeout: u64,
        canyon: bool,
        drops: &mut DropCounts,
    ) -> BankRead {
        let Some((&oldest, channel)) = self.channels.first_key_value() else {
            return BankRead::Nothing;
        };
        if channel.is_late(origin, timeout) {
            self.remove(oldest);
            drops.add(DropReason::ChannelTimeout);
            return BankRead::TimedOut;
        }
        let first_ready = self.ready.first().copied();
        let Some(ticket) = first_ready.filter(|ticket| canyon || *ticket == oldest) else {
            return BankRead::Nothing;
        };
        let channel = self.remove(ticket);
        BankRead::Channel(channel.map(BankChannel::into_data).unwrap_or_default())
    }

    /// Adds a frame included in L1 block `origin`, then removes the oldest channels until all
    /// together are within `limit` bytes.
    pub fn ingest(
        &mut self,
        frame: &Frame,
        origin: u64,
        timeout: u64,
        limit: u64,
        drops: &mut DropCounts,
    ) {
        let ticket = *self.tickets.entry(frame.id).or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        let channel = self.channels.entry(ticket).or_insert_with(|| BankChannel {
            id: frame.id,
            opened: origin,
            frames: BTreeMap::new(),
            end: None,
            size: 0,
        });
        if channel.is_late(origin, timeout) {
            return drops.add(DropReason::LateFrame);
        }
        let before = channel.size;
        if !channel.add(frame) {
            return drops.add(DropReason::Frame);
        }
        self.size = self.size - before + channel.size;
        if channel.is_ready() {
            self.ready.insert(ticket);
        }
        while self.size > limit
            && let Some((&oldest, _)) = self.channels.first_key_value()
        {
            self.remove(oldest);
            drops.add(DropReason::ChannelSize);
        }
    }

    fn remove(&mut self, ticket: u64) -> Option<BankChannel> {
        let channel = self.channels.remove(&ticket)?;
        self.tickets.remove(&channel.id);
        self.ready.remove(&ticket);
        self.size -= channel.size;
        Some(channel)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.channels.len()
    }
}

impl BankChannel {
    fn is_late(&self, origin: u64, timeout: u64) -> bool {
        self.opened.saturating_add(timeout) < origin
    }

    /// Numbers are distinct and none is above the last one's, so the count tells.
    fn is_ready(&self) -> bool {
        self.end
            .is_some_and(|end| self.frames.len() == usize::from(end) + 1)
    }

    /// Whether the frame fits. The last frame evicts those with its number or a higher one; the
    /// channel then counts only the last frame's size, an accident of op-node that every node
    /// repeats because it decides which channels the bank can hold.
    fn add(&mut self, frame: &Frame) -> bool {
        let is_closed = self
            .end
            .is_some_and(|end| frame.is_last || frame.number >= end);
        if is_closed || self.frames.contains_key(&frame.number) {
            return false;
        }
        if frame.is_last {
            self.end = Some(frame.number);
            let highest = self.frames.last_key_value().map(|(number, _)| *number);
            if highest.is_some_and(|highest| frame.number < highest) {
                self.frames.split_off(&frame.number);
                self.size = 0;
            }
        }
        self.frames
            .insert(frame.number, Bytes::copy_from_slice(&frame.data));
        self.size += frame_size(frame);
        true
    }

    fn into_data(self) -> Bytes {
        let length = self.frames.values().map(|data| data.len()).sum();
        let mut all = Vec::with_capacity(length);
        for data in self.frames.values() {
            all.extend_from_slice(data);
        }
        all.into()
    }
}
