//! The time that a channel has, in numbers of L1 blocks.

use super::CloseReason;

/// Limits of a channel's time, in L1 blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTimes {
    max_duration: u64,
    channel_timeout: u64,
    sequencing_window: u64,
    safety_margin: u64,
}

/// The margin is longer than the timeout, so that every channel would be late from its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("channel timeout is less than the safety margin: {timeout} < {margin}")]
pub struct ShortTimeout {
    /// L1 blocks.
    pub timeout: u64,
    /// L1 blocks.
    pub margin: u64,
}

impl ChannelTimes {
    /// `max_duration` (`--max-channel-duration`) is counted from the L1 origin of the last block that
    /// was submitted before; 0 is no limit. `channel_timeout` and `sequencing_window` are the
    /// rollup's, `safety_margin` (`--sub-safety-margin`) is how much earlier the channel closes.
    pub fn new(
        max_duration: u64,
        channel_timeout: u64,
        sequencing_window: u64,
        safety_margin: u64,
    ) -> Result<Self, ShortTimeout> {
        if channel_timeout < safety_margin {
            return Err(ShortTimeout {
                timeout: channel_timeout,
                margin: safety_margin,
            });
        }
        Ok(Self {
            max_duration,
            channel_timeout,
            sequencing_window,
            safety_margin,
        })
    }

    /// L1 blocks over which the frames of a channel may be spread.
    pub fn channel_timeout(&self) -> u64 {
        self.channel_timeout
    }
}

/// The L1 block at which a channel must close, whichever limit comes first.
#[derive(Clone, Copy, Debug)]
pub struct ChannelDeadline {
    times: ChannelTimes,
    due: Option<Due>,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    l1_block: u64,
    reason: CloseReason,
}

impl ChannelDeadline {
    /// The deadline of a new channel. `last_origin` is the newest L1 origin that a channel with
    /// submitted frames has, or that of the safe head before the first.
    pub fn new(times: ChannelTimes, last_origin: u64) -> Self {
        let mut deadline = Self { times, due: None };
        if times.max_duration > 0 {
            deadline.bring_forward(last_origin, times.max_duration, CloseReason::MaxDuration);
        }
        deadline
    }

    /// Counts the sequencing window of a block that was added, from its L1 origin.
    pub fn on_block(&mut self, origin: u64) {
        let blocks = self.before_margin(self.times.sequencing_window);
        self.bring_forward(origin, blocks, CloseReason::SequencingWindow);
    }

    /// Counts the timeout of the channel from an L1 block with a frame of it.
    pub fn on_inclusion(&mut self, l1_block: u64) {
        let blocks = self.before_margin(self.times.channel_timeout);
        self.bring_forward(l1_block, blocks, CloseReason::ChannelTimeout);
    }

    /// The reason to close the channel if L1 has this head.
    pub fn due(&self, l1_head: u64) -> Option<CloseReason> {
        let due = self.due.filter(|due| l1_head >= due.l1_block);
        due.map(|due| due.reason)
    }

    /// A window shorter than the margin ends at once.
    fn before_margin(&self, blocks: u64) -> u64 {
        blocks.saturating_sub(self.times.safety_margin)
    }

    fn bring_forward(&mut self, from: u64, blocks: u64, reason: CloseReason) {
        let l1_block = from.saturating_add(blocks);
        if self.due.is_none_or(|due| l1_block < due.l1_block) {
            self.due = Some(Due { l1_block, reason });
        }
    }
}
