//! Costs of posting: the cost of each channel, and how long the account's balance lasts. Pure.

use starling_proto::frame::ChannelId;
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Duration over which spending is measured.
const WINDOW: Duration = Duration::from_secs(3_600);
/// Number of slots into which [`WINDOW`] is divided; costs are summed per slot.
const SLOTS: u32 = 60;
/// Runway in hours below which the operator is warned.
const SHORT_HOURS: f64 = 24.0;

/// Maximum number of channels whose costs are kept. A transaction confirmed after its channel was
/// dropped adds an entry that [`Spending::take_channel`] does not remove, so the map is cleared at
/// this size.
const MAX_CHANNELS: usize = 1_024;

/// Cost of posting in wei, per channel and over the last hour.
#[derive(Debug, Default)]
pub struct Spending {
    /// Cost so far of each channel that is not complete.
    channels: HashMap<ChannelId, u128>,
    /// Slots of the last hour, oldest first.
    recent: VecDeque<SpendingSlot>,
    first: Option<Instant>,
    is_short: bool,
}

#[derive(Clone, Copy, Debug)]
struct SpendingSlot {
    since: Instant,
    wei: u128,
}

impl Spending {
    /// Adds the cost of a transaction of this channel.
    pub fn add(&mut self, channel: ChannelId, wei: u128, now: Instant) {
        if self.channels.len() >= MAX_CHANNELS {
            self.channels.clear();
        }
        let cost = self.channels.entry(channel).or_default();
        *cost = cost.saturating_add(wei);
        self.first.get_or_insert(now);
        match self.recent.back_mut() {
            Some(last) if now < last.since + WINDOW / SLOTS => {
                last.wei = last.wei.saturating_add(wei)
            }
            _ => self.recent.push_back(SpendingSlot { since: now, wei }),
        }
        self.forget(now);
    }

    /// Removes a channel that is complete or dropped, and returns its cost.
    pub fn take_channel(&mut self, channel: ChannelId) -> Option<u128> {
        self.channels.remove(&channel)
    }

    /// Forgets the costs of all channels.
    pub fn clear_channels(&mut self) {
        self.channels.clear();
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |slot: &mut SpendingSlot| now.saturating_duration_since(slot.since) > WINDOW;
        while self.recent.pop_front_if(is_old).is_some() {}
    }

    /// Hours for which `balance` (wei) lasts at the spending rate of the last hour; `None` if
    /// nothing was spent. In the first hour, the rate is measured since the first transaction, but
    /// over ten minutes at least.
    pub fn runway(&mut self, balance: u128, now: Instant) -> Option<f64> {
        self.forget(now);
        let spent: u128 = self.recent.iter().map(|slot| slot.wei).sum();
        let since = self
            .first
            .map(|first| now.saturating_duration_since(first))?;
        let measured = since.clamp(WINDOW / 6, WINDOW);
        let per_hour = spent as f64 * WINDOW.as_secs_f64() / measured.as_secs_f64();
        (per_hour > 0.0).then(|| balance as f64 / per_hour)
    }

    /// Whether to warn: true when the runway becomes short, false while it stays short.
    pub fn warns(&mut self, hours: Option<f64>) -> bool {
        let was_short = self.is_short;
        self.is_short = hours.is_some_and(|hours| hours < SHORT_HOURS);
        self.is_short && !was_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = WINDOW;

    fn hours(spending: &mut Spending, balance: u128, now: Instant) -> u64 {
        spending.runway(balance, now).expect("spent").round() as u64
    }

    #[test]
    fn the_runway_is_the_balance_by_the_spending_of_the_last_hour() {
        let start = Instant::now();
        let mut spending = Spending::default();
        assert_eq!(spending.runway(1_000, start), None);
        for minute in 0..180 {
            let now = start + Duration::from_secs(60) * minute;
            spending.add(ChannelId::ZERO, 10, now);
        }
        let end = start + 3 * HOUR;
        assert_eq!(hours(&mut spending, 60_000, end), 100);
        assert!(spending.recent.len() <= 61);
        assert_eq!(
            spending.runway(60_000, end + 2 * HOUR),
            None,
            "nothing was spent lately"
        );
        assert_eq!(spending.take_channel(ChannelId::ZERO), Some(1_800));
        assert_eq!(spending.take_channel(ChannelId::ZERO), None);
    }

    #[test]
    fn a_first_transaction_is_not_taken_for_a_rate() {
        let start = Instant::now();
        let mut spending = Spending::default();
        spending.add(ChannelId::ZERO, 10, start);
        assert_eq!(hours(&mut spending, 6_000, start), 100);
    }

    #[test]
    fn a_short_runway_warns_once() {
        let mut spending = Spending::default();
        let warned = [
            None,
            Some(30.0),
            Some(23.0),
            Some(20.0),
            Some(25.0),
            Some(1.0),
        ];
        let warned = warned.map(|hours| spending.warns(hours));
        assert_eq!(warned, [false, false, true, false, false, true]);
    }
}
