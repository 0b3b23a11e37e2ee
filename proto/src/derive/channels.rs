//! Channels under construction: the bank of any number of them before Holocene, and the single one
//! since.

mod assembler;
mod bank;

pub(super) use assembler::ChannelAssembler;
pub(super) use bank::{BankRead, ChannelBank};

use crate::frame::Frame;

/// Bytes that a frame counts beyond its data against the limits of channels.
const FRAME_OVERHEAD: u64 = 200;

fn frame_size(frame: &Frame) -> u64 {
    frame.data.len() as u64 + FRAME_OVERHEAD
}

/// The channel stage of the pipeline, by the L1 origin's fork.
#[derive(Debug)]
pub(super) enum ChannelStage {
    Bank(ChannelBank),
    Assembler(ChannelAssembler),
}

impl ChannelStage {
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
