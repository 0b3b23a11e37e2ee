//! Channels under construction. Before Holocene [`ChannelBank`] holds any number of channels. From
//! Holocene on [`ChannelAssembler`] holds a single one.

mod assembler;
mod bank;

pub(super) use assembler::ChannelAssembler;
pub(super) use bank::{BankRead, ChannelBank};

use crate::frame::Frame;

/// Bytes that each frame counts against the limits of channels, in addition to its data (specs:
/// derivation, channel bank: frame_overhead). The actual overhead of an encoded frame is
/// [`FRAME_OVERHEAD`](crate::frame::FRAME_OVERHEAD).
const CHANNEL_FRAME_OVERHEAD: u64 = 200;

fn frame_size(frame: &Frame) -> u64 {
    frame.data.len() as u64 + CHANNEL_FRAME_OVERHEAD
}

/// The active channel stage, chosen by the L1 origin's fork (op-node: ChannelMux).
#[derive(Debug)]
pub(super) enum ChannelMux {
    Bank(ChannelBank),
    Assembler(ChannelAssembler),
}

impl ChannelMux {
    pub fn new(holocene: bool) -> Self {
        if holocene {
            Self::Assembler(ChannelAssembler::default())
        } else {
            Self::Bank(ChannelBank::default())
        }
    }
}

#[cfg(test)]
mod tests;
