//! The moments at which a client's connection is cut.

use super::World;
use rand::{Rng, rngs::StdRng};
use std::time::Duration;

/// Index of the cut that concerns the reorg.
pub const OVER_REORG: usize = 2;

/// The moment at which a connection is cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// After the subscriptions were requested, before any response is read.
    Asked,
    /// At the first head of at least this number.
    Head(u64),
    /// At the first head of at least this number on the old branch. The client reconnects after the
    /// reorg.
    OverReorg(u64),
    /// This long after the reorg, which reaches all clients with such a cut at the same time.
    Reorg(Duration),
    /// Once this number of logs have been reported as removed.
    Removed(usize),
    /// At the first head on the new branch of at least this number.
    NewHead(u64),
    /// At the end of the chain, when all events have been received.
    End,
}

impl Cut {
    /// The cuts of a client. The client's number determines how it experiences the reorg.
    pub fn plan(number: usize, world: &World, rng: &mut StdRng) -> [Self; 5] {
        let (fork, old, tip) = (world.fork, world.old_tip.number, world.tip.number);
        let second = if number.is_multiple_of(4) {
            Self::Asked
        } else {
            Self::Head(rng.random_range(fork + 1..old))
        };
        let over_reorg = match number % 3 {
            0 => Self::OverReorg(rng.random_range(fork + 1..=old)),
            1 => Self::Reorg(Duration::from_millis(rng.random_range(0..200))),
            _ => Self::Removed(rng.random_range(1..2 * (old - fork) as usize)),
        };
        [
            Self::Head(rng.random_range(1..=fork)),
            second,
            over_reorg,
            Self::NewHead(rng.random_range(fork + 1..=old + 1)),
            Self::Head(rng.random_range(old + 1..tip)),
        ]
    }

    /// Waits for the moment of a [`Self::Reorg`] cut. Never returns for other cuts, which messages
    /// trigger.
    pub async fn moment(self, world: &World) {
        if let Self::Reorg(after) = self {
            let mut reorged = world.reorged.clone();
            let _ = reorged.wait_for(|reorged| *reorged).await;
            tokio::time::sleep(after).await;
        } else {
            std::future::pending().await
        }
    }
}
