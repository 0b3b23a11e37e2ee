//! Follows the heads of L1 by polling. Wakes whoever holds the other end; keeps the last answer
//! when the endpoint fails.

use super::{L1Block, L1Client, L1Error, Tag};
use std::time::Duration;
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// L1's heads at the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Heads {
    pub head: Option<L1Block>,
    pub safe: Option<L1Block>,
    pub finalized: Option<L1Block>,
}

/// A client of L1 and the heads that are being followed with it.
pub struct FollowedL1 {
    pub client: L1Client,
    pub heads: watch::Receiver<L1Heads>,
}

/// Polls the head every `head_interval` (`--l1.http-poll-interval`), safe and finalized every
/// `epoch_interval` (`--l1.epoch-poll-interval`), until the token is cancelled.
pub async fn follow_heads(
    l1: L1Client,
    heads: watch::Sender<L1Heads>,
    head_interval: Duration,
    epoch_interval: Duration,
    token: CancellationToken,
) {
    let mut head_tick = tokio::time::interval(head_interval);
    let mut epoch_tick = tokio::time::interval(epoch_interval);
    head_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    epoch_tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let poll = async {
        let mut away = false;
        loop {
            tokio::select! {
                _ = head_tick.tick() => {
                    let answer = l1.block(Tag::Latest).await;
                    if std::mem::replace(&mut away, answer.is_err()) != away {
                        match &answer {
                            Ok(_) => tracing::info!(endpoint = l1.endpoint(), "L1 answers again"),
                            Err(error) => tracing::warn!(%error, "L1's head cannot be read; trying again until it can"),
                        }
                    }
                    if let Ok(Some(block)) = answer {
                        heads.send_if_modified(|h| replace(&mut h.head, block));
                    }
                }
                _ = epoch_tick.tick() => {
                    if let Some(block) = told(l1.block(Tag::Safe).await) {
                        heads.send_if_modified(|h| replace(&mut h.safe, block));
                    }
                    if let Some(block) = told(l1.block(Tag::Finalized).await) {
                        heads.send_if_modified(|h| replace(&mut h.finalized, block));
                    }
                }
            }
        }
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = poll => {}
    }
}

fn told(answer: Result<Option<L1Block>, L1Error>) -> Option<L1Block> {
    answer.unwrap_or_else(|error| {
        tracing::warn!(%error, "an L1 head could not be read");
        None
    })
}

fn replace(slot: &mut Option<L1Block>, block: L1Block) -> bool {
    slot.replace(block) != Some(block)
}
