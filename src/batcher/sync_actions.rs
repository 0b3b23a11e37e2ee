//! Decides what happens to held blocks when the rollup node reports new heads (op-batcher:
//! computeSyncActions). Pure.
//!
//! The heads are local-safe, unsafe, and the L1 block up to which the node has derived. Everything
//! above the safe head is to be on L1. If the held blocks or the channels contradict the safe head,
//! all of them are dropped and loading begins again above it: data that is posted twice is harmless,
//! a missing block is not.

use super::blocks::HeldBlocks;
use crate::l2_source::SourceHeads;
use starling_proto::l1info::L2BlockRef;
use std::fmt;

/// Heads that a rollup node reports, as far as they matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// Number of the L1 block up to which the node has derived everything; zero while it resets.
    pub current_l1: u64,
    /// Newest L2 block that L1 determines (op-node: local safe, without interop dependencies).
    pub local_safe_l2: L2BlockRef,
    /// Newest L2 block.
    pub unsafe_l2: L2BlockRef,
}

impl SourceStatus {
    /// Fails if a head is not known that a synced node knows.
    pub fn read(heads: &SourceHeads) -> Result<Self, OutOfSync> {
        heads.head_l1.ok_or(OutOfSync::NoL1)?;
        Ok(Self {
            current_l1: heads.current_l1.map_or(0, |block| block.id.number),
            local_safe_l2: heads.local_safe_l2.ok_or(OutOfSync::EmptyHead)?,
            unsafe_l2: heads.unsafe_l2.ok_or(OutOfSync::EmptyHead)?,
        })
    }
}

/// Posting of a channel, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOutcome {
    /// Number of the channel's newest L2 block.
    pub newest_l2: u64,
    /// Number of the last L1 block with frames of the channel, if L1 has all of them.
    pub complete_at: Option<u64>,
}

/// Reason to leave everything as it is until the next status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfSync {
    /// The node knows no L1 yet.
    #[error("Received empty sync status, backing off")]
    NoL1,
    /// The node does not know one of its heads yet.
    #[error("empty BlockRef in sync status")]
    EmptyHead,
    /// The node derives again from an earlier L1 block, for example after a restart.
    #[error("sequencer currentL1 reversed from {before} to {now}")]
    Reversed {
        /// L1 block number of an earlier status.
        before: u64,
        /// L1 block number of this status.
        now: u64,
    },
}

/// Reason to drop all blocks and channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClearCause {
    /// The safe head went back.
    SafeBelowOldest,
    /// Blocks became safe that were not loaded yet.
    SafeAboveNewest,
    /// The safe block of a height is not the one held.
    SafeReorg,
    /// The unsafe block of a height is not the one held, or does not extend it.
    UnsafeReorg,
    /// Derivation has passed all frames of a channel, and its blocks are not safe.
    LostChannel,
}

impl fmt::Display for ClearCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SafeBelowOldest => "next safe block is below oldest block in state",
            Self::SafeAboveNewest => "safe head above newest block in state",
            Self::SafeReorg => "safe chain reorg",
            Self::UnsafeReorg => "Found L2 reorg",
            Self::LostChannel => "sequencer did not make expected progress",
        })
    }
}

/// Result of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDecision {
    /// Nothing changes.
    Wait(OutOfSync),
    /// Everything held is dropped, and loading begins above the safe head.
    Clear(ClearCause),
    /// Blocks and channels up to the safe head are dropped.
    Prune,
}

/// Decides by a status. `last_l1` is the number of the L1 block up to which the node had derived
/// before, `channels` are oldest first.
pub fn decide(
    status: &SourceStatus,
    last_l1: u64,
    held: &HeldBlocks,
    mut channels: impl Iterator<Item = ChannelOutcome>,
) -> SyncDecision {
    let (safe, newest) = (status.local_safe_l2.id, status.unsafe_l2.id);
    let now = status.current_l1;
    if now < last_l1 {
        let before = last_l1;
        return SyncDecision::Wait(OutOfSync::Reversed { before, now });
    }
    if held.is_empty() {
        return SyncDecision::Prune;
    }
    if safe.number < held.base().number {
        return SyncDecision::Clear(ClearCause::SafeBelowOldest);
    }
    if safe.number > held.newest().number {
        return SyncDecision::Clear(ClearCause::SafeAboveNewest);
    }
    if held.hash(safe.number) != Some(safe.hash) {
        return SyncDecision::Clear(ClearCause::SafeReorg);
    }
    if held
        .hash(newest.number)
        .is_some_and(|hash| hash != newest.hash)
    {
        return SyncDecision::Clear(ClearCause::UnsafeReorg);
    }
    let is_lost = |channel: ChannelOutcome| {
        channel.newest_l2 > safe.number && channel.complete_at.is_some_and(|at| now > at)
    };
    if channels.any(is_lost) {
        return SyncDecision::Clear(ClearCause::LostChannel);
    }
    SyncDecision::Prune
}

#[cfg(test)]
mod tests;
