//! Decides what happens to the held blocks when the rollup node reports new heads (op-batcher:
//! computeSyncActions). Pure.
//!
//! A report has the local-safe head, the unsafe head, and the L1 block up to which the node has
//! derived. Every block above the safe head must be posted. If the held blocks or the channels
//! contradict these heads, all of them are dropped, and loading begins again above the safe head:
//! posting data twice is harmless, a missing block is not.

use super::blocks::HeldBlocks;
use crate::l2_source::SourceHeads;
use starling_proto::l1info::L2BlockRef;
use std::fmt;

/// The heads in a rollup node's sync status that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// Number of the L1 block up to which the node has derived.
    pub current_l1: u64,
    /// Newest L2 block derived from L1 (op-node: local safe, which ignores interop dependencies).
    pub local_safe_l2: L2BlockRef,
    /// Newest L2 block: the unsafe head.
    pub unsafe_l2: L2BlockRef,
}

impl SourceStatus {
    /// Reads a sync status. Fails if it lacks a head that every synced node reports. While its
    /// pipeline resets, a node does not know up to which L1 block it has derived, and its safe head
    /// may be too low: blocks above it could be posted twice.
    pub fn read(heads: &SourceHeads) -> Result<Self, OutOfSync> {
        heads.head_l1.ok_or(OutOfSync::NoL1)?;
        Ok(Self {
            current_l1: heads.current_l1.ok_or(OutOfSync::EmptyHead)?.id.number,
            local_safe_l2: heads.local_safe_l2.ok_or(OutOfSync::EmptyHead)?,
            unsafe_l2: heads.unsafe_l2.ok_or(OutOfSync::EmptyHead)?,
        })
    }
}

/// Progress of a channel on L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOutcome {
    /// Number of the channel's newest L2 block.
    pub newest_l2: u64,
    /// Number of the last L1 block with frames of the channel; `None` until L1 has confirmed them
    /// all.
    pub complete_at: Option<u64>,
}

/// The reason why a status was ignored. Blocks and channels stay until the next status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfSync {
    /// The node reports no L1 head yet.
    #[error("Received empty sync status, backing off")]
    NoL1,
    /// The node does not report its safe or unsafe head, or its derivation's L1 block, yet.
    #[error("empty BlockRef in sync status")]
    EmptyHead,
    /// The node derives again from an earlier L1 block, for example after its restart.
    #[error("sequencer currentL1 reversed from {before} to {now}")]
    Reversed {
        /// L1 block number up to which the node had derived at an earlier status.
        before: u64,
        /// L1 block number up to which the node has derived at this status.
        now: u64,
    },
}

/// The reason why all blocks and channels were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClearCause {
    /// The safe head is below the oldest held block's parent.
    SafeBelowOldest,
    /// The safe head is above the newest held block.
    SafeAboveNewest,
    /// The safe head differs from the held block of its height.
    SafeReorg,
    /// An unsafe block differs from the held block of its height, or does not extend the newest
    /// one.
    UnsafeReorg,
    /// Derivation has passed all frames of a channel, but the channel's blocks are not safe.
    LostChannel,
    /// An L1 reorg has removed the L1 origin of a block, so that derivation would ignore it.
    OriginReorg,
}

impl fmt::Display for ClearCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SafeBelowOldest => "next safe block is below oldest block in state",
            Self::SafeAboveNewest => "safe head above newest block in state",
            Self::SafeReorg => "safe chain reorg",
            Self::UnsafeReorg => "Found L2 reorg",
            Self::LostChannel => "sequencer did not make expected progress",
            Self::OriginReorg => "L1 reorg removed the L1 origin of a block",
        })
    }
}

/// Decision about a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncDecision {
    /// Ignore the status; blocks and channels stay as they are.
    Wait(OutOfSync),
    /// Drop all blocks and channels, and begin loading above the safe head.
    Clear(ClearCause),
    /// Drop the blocks and channels up to the safe head.
    Prune,
}

/// Decides what a status changes. `last_l1` is the L1 block number up to which the node had derived
/// at the last status. `channels` may be in any order.
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
