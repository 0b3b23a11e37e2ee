//! Range sync in the swarm's task: questions asked as `range.rs` orders, statuses asked for now and then, progress shown.

use super::Service;
use crate::{
    check::unix_now,
    config::Genesis,
    handle::SyncReport,
    peers::Offence,
    range::{
        Order, Status, Trouble,
        client::{Client, News, protocol},
    },
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

/// What a peer says it has is that old at most, about.
const REFRESH: Duration = Duration::from_secs(10);
/// Peers asked for their status at once, and answers that wait.
const STATUSES: usize = 32;
const NEWS: usize = 32;
/// Time between two lines of progress, and between two of a gap that stands still.
const PROGRESS: Duration = Duration::from_secs(10);
const STALL_WARNING: Duration = Duration::from_secs(60);
/// Seconds that a peer's clock may be ahead of ours.
const CLOCK: u64 = 60;

/// What the swarm's task keeps of range sync.
pub struct Ranging {
    client: Option<Client>,
    genesis: Genesis,
    protocol: Option<StreamProtocol>,
    /// Answers to questions, by their ids.
    pub news: mpsc::Receiver<(u64, News)>,
    news_in: mpsc::Sender<(u64, News)>,
    /// The questions in the air.
    tasks: JoinSet<()>,
    asked: HashMap<u64, (PeerId, AbortHandle)>,
    pub statuses: JoinSet<(PeerId, Result<Status, Trouble>)>,
    /// When a peer is asked next.
    due: HashMap<PeerId, Instant>,
    watch: Watch,
}

/// The last log line about a gap, and its time.
#[derive(Debug, Default)]
struct Watch {
    /// When progress was last logged, and the blocks that had arrived by then.
    progress: Option<(Instant, u64)>,
    warned: Option<Instant>,
}

impl Watch {
    /// Blocks per second, if it is time to log progress, and whether to warn that a gap is stalled. `arrived` counts the blocks that peers
    /// have delivered on request, in ranges or one by one.
    fn look(
        &mut self,
        report: &SyncReport,
        arrived: u64,
        stands: bool,
        now: Instant,
    ) -> (Option<f64>, bool) {
        let warns = stands
            && self
                .warned
                .is_none_or(|last| now.saturating_duration_since(last) >= STALL_WARNING);
        if warns || !stands {
            self.warned = stands.then_some(now);
        }
        (self.rate(report, arrived, now), warns)
    }

    /// The rate of arrivals. `missing` does not measure progress: it grows during the backward walk and stays level while the tip moves.
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
    pub fn new(client: Option<Client>, genesis: Genesis, chain_id: u64) -> Self {
        let (news_in, news) = mpsc::channel(NEWS);
        Self {
            client,
            genesis,
            protocol: protocol(chain_id),
            news,
            news_in,
            tasks: JoinSet::new(),
            asked: HashMap::new(),
            statuses: JoinSet::new(),
            due: HashMap::new(),
            watch: Watch::default(),
        }
    }
}

impl Service {
    /// The peer has said what it speaks.
    pub(super) fn greet(&mut self, peer: PeerId) {
        let Some(protocol) = &self.ranging.protocol else {
            return;
        };
        let speaks = |info: &identify::Info| info.protocols.contains(protocol);
        let speaks = self
            .peers
            .get(&peer)
            .and_then(|peer| peer.identity.as_ref())
            .is_some_and(speaks);
        if speaks && self.fetching && (!self.only_static || self.statics.contains(&peer)) {
            self.ranging.due.entry(peer).or_insert_with(Instant::now);
            self.ask_statuses(Instant::now());
        }
    }

    pub(super) fn farewell(&mut self, peer: &PeerId) {
        self.ranging.due.remove(peer);
    }

    pub(super) fn ask_statuses(&mut self, now: Instant) {
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

    pub(super) fn on_status(&mut self, peer: PeerId, status: Result<Status, Trouble>) {
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
            Err(Trouble::Malformed(evidence)) => {
                self.on_offence(peer, Offence::MalformedResponse, &evidence)
            }
            Err(trouble) => tracing::debug!(%peer, ?trouble, "peer does not say what it has"),
        }
    }

    pub(super) fn on_order(&mut self, order: Order) {
        match order {
            Order::Ask { id, peer, ask } => {
                while self.ranging.tasks.try_join_next().is_some() {}
                let Some(client) = self.ranging.client.clone() else {
                    return;
                };
                let task = self.ranging.tasks.spawn(client.ask(
                    id,
                    peer,
                    ask,
                    self.ranging.news_in.clone(),
                ));
                self.ranging.asked.insert(id, (peer, task));
            }
            Order::Cancel { id } => {
                if let Some((_, task)) = self.ranging.asked.remove(&id) {
                    task.abort();
                }
            }
            Order::Charge {
                peer,
                offence,
                evidence,
            } => self.on_offence(peer, offence, &evidence),
        }
    }

    pub(super) fn on_news(&mut self, id: u64, news: News) {
        let now = Instant::now();
        match news {
            News::Links(links) => self.sync.on_links(id, &links, now),
            News::Blocks(blocks) => {
                metrics::counter!("starling_p2p_range_blocks_total").increment(blocks.len() as u64);
                self.sync.on_blocks(id, blocks, now);
            }
            News::End(outcome) => {
                let Some((peer, _)) = self.ranging.asked.remove(&id) else {
                    return;
                };
                let result = match &outcome {
                    Ok(()) => "ok",
                    Err(Trouble::NotFound) => "not_found",
                    Err(Trouble::Unreachable) => "unreachable",
                    Err(Trouble::NoAnswer) => "no_answer",
                    Err(Trouble::Malformed(_)) => "malformed",
                    Err(Trouble::False(_)) => "false",
                };
                metrics::counter!("starling_p2p_range_total", "result" => result).increment(1);
                match &outcome {
                    Ok(()) => self.reputation.on_valid_response(peer, unix_now()),
                    // That a connection was lost on the way is nobody's offence.
                    Err(Trouble::NoAnswer) if self.peers.contains_key(&peer) => {
                        self.on_offence(peer, Offence::NoResponse, "asked for a range of blocks");
                    }
                    Err(_) => {}
                }
                self.sync.on_answered(id, outcome, now);
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

    /// Once a second.
    pub(super) fn show_progress(&mut self, now: Instant) {
        let (report, stall) = (self.sync.report(), self.sync.stall(now));
        let (rate, warns) =
            self.ranging
                .watch
                .look(&report, self.sync.arrived(), stall.is_some(), now);
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
            tracing::warn!(number = missing.number, hash = %missing.hash, why, "blocks are missing and nobody brings them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_stands_still_is_told_of_without_peers_too() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut look = |missing, peers, stands, seconds| {
            let report = SyncReport {
                missing,
                peers,
                ..Default::default()
            };
            watch
                .look(&report, 0, stands, start + Duration::from_secs(seconds))
                .1
        };
        assert!(look(100, 0, true, 0), "nobody is connected");
        assert!(!look(100, 0, true, 30), "it was said");
        assert!(look(101, 2, true, 61));
        assert!(!look(51, 2, false, 71), "it moves on");
        assert!(look(51, 2, true, 72), "and stands again");
        assert!(!look(0, 2, false, 82));
    }

    #[test]
    fn blocks_that_arrive_by_number_are_counted_while_the_gap_grows_downward() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut look = |missing, arrived, seconds| {
            let report = SyncReport {
                missing,
                peers: 2,
                ..Default::default()
            };
            watch
                .look(
                    &report,
                    arrived,
                    false,
                    start + Duration::from_secs(seconds),
                )
                .0
        };
        assert_eq!(look(1, 0, 0), None);
        assert_eq!(
            look(401, 400, 10),
            Some(40.0),
            "the way down: more is known to be missing than before"
        );
        assert_eq!(
            look(401, 405, 20),
            Some(0.5),
            "the tip moves as fast as blocks arrive"
        );
        assert_eq!(look(401, 405, 30), Some(0.0));
        assert_eq!(look(0, 806, 40), None, "nothing is missing");
    }
}
