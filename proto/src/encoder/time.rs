//! Time limits of a channel, in numbers of L1 blocks.

use super::CloseReason;

/// Time limits of all channels, in L1 blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTimes {
    max_duration: u64,
    channel_timeout: u64,
    sequencing_window: u64,
    safety_margin: u64,
}

/// The safety margin is longer than the channel timeout, so every channel would be late from its
/// first frame on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("channel timeout is less than the safety margin: {timeout} < {margin}")]
pub struct ShortTimeout {
    /// Channel timeout in L1 blocks.
    pub timeout: u64,
    /// Safety margin in L1 blocks.
    pub margin: u64,
}

impl ChannelTimes {
    /// Sequencing window of the rollup, in L1 blocks.
    pub fn sequencing_window(&self) -> u64 {
        self.sequencing_window
    }

    /// `max_duration` (`--max-channel-duration`) counts from the L1 origin of the last block
    /// submitted before the channel; 0 is no limit. `channel_timeout` and `sequencing_window` are
    /// those of the rollup. `safety_margin` (`--sub-safety-margin`) is how much earlier the channel
    /// closes.
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

    /// Channel timeout in L1 blocks: readers drop a channel whose frames are further apart.
    pub fn channel_timeout(&self) -> u64 {
        self.channel_timeout
    }
}

/// The L1 block at which a channel must close: the earliest of its limits.
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
    /// The deadline of a new channel. `last_origin` is the newest L1 origin of the channels with
    /// submitted frames, or that of the safe head if there are none.
    pub fn new(times: ChannelTimes, last_origin: u64) -> Self {
        let mut deadline = Self { times, due: None };
        if times.max_duration > 0 {
            deadline.bring_forward(last_origin, times.max_duration, CloseReason::MaxDuration);
        }
        deadline
    }

    /// A block with this L1 origin was added to the channel: applies its sequencing window.
    pub fn on_block(&mut self, origin: u64) {
        let blocks = self.before_margin(self.times.sequencing_window);
        self.bring_forward(origin, blocks, CloseReason::SequencingWindow);
    }

    /// A frame of the channel was included in this L1 block: applies the channel timeout.
    pub fn on_inclusion(&mut self, l1_block: u64) {
        let blocks = self.before_margin(self.times.channel_timeout);
        self.bring_forward(l1_block, blocks, CloseReason::ChannelTimeout);
    }

    /// The reason to close the channel if this is the number of the L1 head; `None` if it can stay
    /// open.
    pub fn due(&self, l1_head: u64) -> Option<CloseReason> {
        let due = self.due.filter(|due| l1_head >= due.l1_block);
        due.map(|due| due.reason)
    }

    /// Subtracts the safety margin; a limit shorter than the margin becomes 0.
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
