//! Range sync in the swarm's task: sends and cancels the range requests of [`Sync`], refreshes the
//! statuses of peers, and logs the progress of a gap.
//!
//! [`Sync`]: crate::sync::Sync

use super::Service;
use crate::{
    clock::unix_now,
    peers::Offence,
    sync::{
        FetchError, PeerStatus, RangeRequest,
        client::by_range::{RangeClient, RangeResponse, ResponseSender, protocol},
    },
    types::ChainGenesis,
    types::SyncReport,
};
use libp2p::{PeerId, StreamProtocol, identify};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};

/// Time between two requests for a peer's status.
const REFRESH: Duration = Duration::from_secs(10);
/// Status requests in flight.
const STATUSES: usize = 32;
/// Queue depth of responses.
const RESPONSES: usize = 32;
/// Time between two log lines of progress, and between two warnings about a stalled gap.
const PROGRESS: Duration = Duration::from_secs(10);
const STALL_WARNING: Duration = Duration::from_secs(60);
/// Seconds that a peer's clock may be ahead of ours.
const CLOCK: u64 = 60;

/// The tasks of range sync.
pub struct Ranging {
    client: Option<RangeClient>,
    genesis: ChainGenesis,
    protocol: Option<StreamProtocol>,
    /// Responses, by the ids of their requests.
    pub responses: mpsc::Receiver<(u64, RangeResponse)>,
    responses_in: mpsc::Sender<(u64, RangeResponse)>,
    tasks: JoinSet<()>,
    /// The requests in flight.
    requests: HashMap<u64, (PeerId, AbortHandle)>,
    pub statuses: JoinSet<(PeerId, Result<PeerStatus, FetchError>)>,
    /// When each peer is asked for its status next.
    due: HashMap<PeerId, Instant>,
    progress: GapProgressLog,
}

/// The last log lines about a gap.
#[derive(Debug, Default)]
struct GapProgressLog {
    /// When progress was last logged, and the blocks that had arrived by then.
    progress: Option<(Instant, u64)>,
    warned: Option<Instant>,
}

impl GapProgressLog {
    /// Blocks per second, if it is time to log progress, and whether to warn that a gap is stalled.
    /// `arrived` counts the blocks that peers have delivered on request, by range or by number.
    fn update(
        &mut self,
        report: &SyncReport,
        arrived: u64,
        stalled: bool,
        now: Instant,
    ) -> (Option<f64>, bool) {
        let warns = stalled
            && self
                .warned
                .is_none_or(|last| now.saturating_duration_since(last) >= STALL_WARNING);
        if warns || !stalled {
            self.warned = stalled.then_some(now);
        }
        (self.rate(report, arrived, now), warns)
    }

    /// The rate of arrivals. `missing` does not measure progress: it grows during the backward walk
    /// and stays level while the tip moves.
    fn rate(&mut self, report: &SyncReport, arrived: u64, now: Instant) -> Option<f64> {
        if report.missing == 0 || report.peers == 0 {
            self.progress = None;
            return None;
        }
        let (since, before) = *self.progress.get_or_insert((now, arrived));
        let elapsed = now.saturating_duration_since(since);
        if elapsed < PROGRESS {
            return None;
        }
        self.progress = Some((now, arrived));
        Some((arrived.saturating_sub(before) as f64 / elapsed.as_secs_f64() * 10.0).round() / 10.0)
    }
}

impl Ranging {
    pub fn new(client: Option<RangeClient>, genesis: ChainGenesis, chain_id: u64) -> Self {
        let (responses_in, responses) = mpsc::channel(RESPONSES);
        Self {
            client,
            genesis,
            protocol: protocol(chain_id),
            responses,
            responses_in,
            tasks: JoinSet::new(),
            requests: HashMap::new(),
            statuses: JoinSet::new(),
            due: HashMap::new(),
            progress: GapProgressLog::default(),
        }
    }
}

impl Service {
    /// The peer has said which protocols it speaks: from now on it is asked for its status.
    pub(super) fn track_status(&mut self, peer: PeerId) {
        let Some(protocol) = &self.ranging.protocol else {
            return;
        };
        let speaks = |info: &identify::Info| info.protocols.contains(protocol);
        let speaks = self
            .host
            .connected()
            .get(&peer)
            .and_then(|peer| peer.identity.as_ref())
            .is_some_and(speaks);
        if speaks && self.may_fetch_from(&peer) {
            self.ranging.due.entry(peer).or_insert_with(Instant::now);
            self.request_statuses(Instant::now());
        }
    }

    pub(super) fn untrack_status(&mut self, peer: &PeerId) {
        self.ranging.due.remove(peer);
    }

    pub(super) fn request_statuses(&mut self, now: Instant) {
        let Some(client) = &self.ranging.client else {
            return;
        };
        for (peer, due) in &mut self.ranging.due {
            if *due <= now && self.ranging.statuses.len() < STATUSES {
                *due = now + REFRESH;
                let (client, peer) = (client.clone(), *peer);
                self.ranging
                    .statuses
                    .spawn(async move { (peer, client.status(peer).await) });
            }
        }
    }

    pub(super) fn on_status(&mut self, peer: PeerId, status: Result<PeerStatus, FetchError>) {
        let now = Instant::now();
        if !self.ranging.due.contains_key(&peer) {
            return;
        }
        match status {
            Ok(status) => {
                let highest = self.ranging.genesis.number_at(unix_now() + CLOCK);
                if status.head.number > highest {
                    let evidence = format!(
                        "its head is {}, and none above {highest} can be there yet",
                        status.head
                    );
                    return self.on_offence(peer, Offence::FalseHead, &evidence);
                }
                self.sync.on_status(peer, status, now);
            }
            Err(FetchError::Malformed(evidence)) => {
                self.on_offence(peer, Offence::MalformedResponse, &evidence)
            }
            Err(error) => tracing::debug!(%peer, ?error, "no status from peer"),
        }
    }

    pub(super) fn fetch_range(&mut self, id: u64, peer: PeerId, request: RangeRequest) {
        while self.ranging.tasks.try_join_next().is_some() {}
        let Some(client) = self.ranging.client.clone() else {
            return;
        };
        let responses = ResponseSender {
            id,
            responses: self.ranging.responses_in.clone(),
        };
        let fetch = client.fetch(peer, request, responses);
        let task = self.ranging.tasks.spawn(fetch);
        self.ranging.requests.insert(id, (peer, task));
    }

    pub(super) fn cancel_range(&mut self, id: u64) {
        if let Some((_, task)) = self.ranging.requests.remove(&id) {
            task.abort();
        }
    }

    pub(super) fn on_range_response(&mut self, id: u64, response: RangeResponse) {
        let now = Instant::now();
        match response {
            RangeResponse::Links(links) => self.sync.on_links(id, &links, now),
            RangeResponse::Blocks(blocks) => {
                metrics::counter!("starling_p2p_range_blocks_total").increment(blocks.len() as u64);
                self.sync.on_blocks(id, blocks, now);
            }
            RangeResponse::End(outcome) => {
                let Some((peer, _)) = self.ranging.requests.remove(&id) else {
                    return;
                };
                let result = outcome.as_ref().map_or_else(FetchError::label, |()| "ok");
                metrics::counter!("starling_p2p_range_total", "result" => result).increment(1);
                match &outcome {
                    Ok(()) => self.peers.reputation.on_valid_response(peer, unix_now()),
                    // A connection lost during a request is nobody's offence.
                    Err(FetchError::NoResponse) if self.host.connected().contains_key(&peer) => {
                        self.on_offence(peer, Offence::NoResponse, "asked for a range of blocks");
                    }
                    Err(_) => {}
                }
                self.sync.on_range_end(id, outcome, now);
            }
        }
    }

    pub(super) fn report_sync(&self) -> SyncReport {
        let stalled = self.sync.stall(Instant::now()).map(|(_, why)| why);
        SyncReport {
            stalled,
            ..self.sync.report()
        }
    }

    /// Logs progress and stalls; called once a second.
    pub(super) fn log_progress(&mut self, now: Instant) {
        let (report, stall) = (self.sync.report(), self.sync.stall(now));
        let (rate, warns) =
            self.ranging
                .progress
                .update(&report, self.sync.arrived(), stall.is_some(), now);
        if let Some(blocks_per_second) = rate {
            let SyncReport {
                target,
                missing,
                linked,
                peers,
                ..
            } = report;
            tracing::info!(
                target_block = target,
                missing,
                linked,
                peers,
                blocks_per_second,
                "blocks are fetched from peers"
            );
        }
        if let Some((missing, why)) = stall.filter(|_| warns) {
            tracing::warn!(number = missing.number, hash = %missing.hash, why, "blocks are missing and no peer delivers them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_gap_is_logged_without_peers_too() {
        let (mut log, start) = (GapProgressLog::default(), Instant::now());
        let mut update = |missing, peers, stalled, seconds| {
            let report = SyncReport {
                missing,
                peers,
                ..Default::default()
            };
            log.update(&report, 0, stalled, start + Duration::from_secs(seconds))
                .1
        };
        assert!(update(100, 0, true, 0), "no peer is connected");
        assert!(!update(100, 0, true, 30), "it was logged");
        assert!(update(101, 2, true, 61));
        assert!(!update(51, 2, false, 71), "it makes progress");
        assert!(update(51, 2, true, 72), "and is stalled again");
        assert!(!update(0, 2, false, 82));
    }

    #[test]
    fn blocks_that_arrive_by_number_are_counted_while_the_gap_grows_downward() {
        let (mut log, start) = (GapProgressLog::default(), Instant::now());
        let mut update = |missing, arrived, seconds| {
            let report = SyncReport {
                missing,
                peers: 2,
                ..Default::default()
            };
            log.update(
                &report,
                arrived,
                false,
                start + Duration::from_secs(seconds),
            )
            .0
        };
        assert_eq!(update(1, 0, 0), None);
        assert_eq!(
            update(401, 400, 10),
            Some(40.0),
            "the walk down: more is known to be missing than before"
        );
        assert_eq!(
            update(401, 405, 20),
            Some(0.5),
            "the tip moves as fast as blocks arrive"
        );
        assert_eq!(update(401, 405, 30), Some(0.0));
        assert_eq!(update(0, 806, 40), None, "nothing is missing");
    }
}
