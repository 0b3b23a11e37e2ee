//! Slots of L1 blocks, from the genesis and slot time that each beacon endpoint reports for itself.

use super::{BeaconCause, BeaconClient, BeaconEndpoint, BeaconError, Quoted};
use serde::Deserialize;

pub(super) const GENESIS: &str = "/eth/v1/beacon/genesis";
pub(super) const SPEC: &str = "/eth/v1/config/spec";
pub(super) const NO_SLOT_TIME: &str = "slots of zero seconds";

/// Time of slot 0 in Unix seconds, and seconds per slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotClock {
    pub genesis_time: u64,
    /// Seconds per slot, never zero.
    pub seconds_per_slot: u64,
}

impl SlotClock {
    /// The slot of a block at `time` (Unix seconds); `None` before genesis.
    pub fn slot(&self, time: u64) -> Option<u64> {
        Some(time.checked_sub(self.genesis_time)? / self.seconds_per_slot)
    }
}

impl BeaconClient {
    /// The slot of a block at `time` (Unix seconds) in the requests to one endpoint.
    ///
    /// Each endpoint's own genesis is used, so an endpoint with a wrong genesis does not affect the
    /// others. An archive that serves blobs only is used with the genesis of another endpoint.
    /// (op-node reads genesis and slot time once, from the main endpoint, and cannot use a fallback
    /// before the main endpoint has responded.)
    pub(super) async fn slot_at(&self, index: usize, time: u64) -> Result<u64, BeaconError> {
        let mut clock = self.clock_of(index).await;
        if matches!(&clock, Err(error) if error.cause.may_lack_the_path()) {
            for other in (0..self.inner.endpoints.len()).filter(|other| *other != index) {
                if let Ok(found) = self.clock_of(other).await {
                    clock = Ok(found);
                    break;
                }
            }
        }
        let clock = clock?;
        clock.slot(time).ok_or_else(|| {
            let genesis = clock.genesis_time;
            self.error(index, GENESIS, BeaconCause::BeforeGenesis { time, genesis })
        })
    }

    /// Genesis and slot time of an endpoint, requested once.
    pub(crate) async fn clock_of(&self, index: usize) -> Result<SlotClock, BeaconError> {
        let endpoint = &self.inner.endpoints[index];
        let clock = endpoint
            .clock
            .get_or_try_init(|| self.read_clock(index))
            .await;
        clock.copied()
    }

    /// Reads genesis and slot time of an endpoint. Logs an error if another endpoint has reported
    /// different ones.
    async fn read_clock(&self, index: usize) -> Result<SlotClock, BeaconError> {
        #[derive(Deserialize)]
        struct BeaconGenesis {
            genesis_time: Quoted,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        struct BeaconSpec {
            seconds_per_slot: Quoted,
        }
        let genesis: BeaconGenesis = self.get(index, GENESIS).await?;
        let mut seconds_per_slot = self.inner.seconds_per_slot;
        if seconds_per_slot == 0 {
            let spec: BeaconSpec = self.get(index, SPEC).await?;
            seconds_per_slot = spec.seconds_per_slot.0;
        }
        if seconds_per_slot == 0 {
            return Err(self.error(index, SPEC, BeaconCause::Untrue(NO_SLOT_TIME.into())));
        }
        let clock = SlotClock {
            genesis_time: genesis.genesis_time.0,
            seconds_per_slot,
        };
        let differs = |other: &&BeaconEndpoint| other.clock.get().is_some_and(|has| *has != clock);
        if let Some(other) = self.inner.endpoints.iter().find(differs) {
            tracing::error!(
                endpoint = %self.inner.endpoints[index].http.name(),
                other = %other.http.name(),
                genesis_time = clock.genesis_time,
                "two beacon endpoints have different genesis or slot times: one is not of the rollup's L1; correct or remove it (--l1.beacon, --l1.beacon-fallbacks)"
            );
        }
        Ok(clock)
    }
}

#[cfg(test)]
mod tests;
