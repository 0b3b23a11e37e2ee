//! Scores: offences, their penalties, and their decay. Pure.
//!
//! gossipsub charges nothing for a rejected message, since we set no topic parameters. So offences
//! in gossip and in request-response feed the application score (P5), to which gossipsub adds its
//! own parts: IP colocation (P6) and broken promises (P7).

use libp2p::gossipsub::{PeerScoreParams, PeerScoreThresholds};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

/// Length of an epoch in slots. A slot is the time between two blocks.
const EPOCH: u32 = 6;
/// Number of epochs in which a penalty decays to [`DECAY_TO_ZERO`]: ten epochs of six slots, so the
/// factor per slot is 0.01 ^ (1 / 60).
const DECAY_EPOCHS: u32 = 10;
/// Number of epochs for which the scores of disconnected peers are kept.
const RETAIN_EPOCHS: u32 = 100;
const DECAY_TO_ZERO: f64 = 0.01;
/// Weight and threshold of gossipsub's IP colocation penalty (P6).
const COLOCATION: (f64, f64) = (-35.0, 10.0);
/// Weight and threshold of gossipsub's behaviour penalty (P7).
const BEHAVIOUR: (f64, f64) = (-16.0, 6.0);

/// `--p2p.scoring`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scoring {
    /// Offences are reported, but do not change the score.
    None,
    /// Offences lower the score, with the parameters of op-node's light scoring.
    #[default]
    Light,
}

/// The factor by which a counter shrinks every slot.
pub fn decay() -> f64 {
    DECAY_TO_ZERO.powf(1.0 / f64::from(DECAY_EPOCHS * EPOCH))
}

/// The time for which the score of a disconnected peer is kept.
pub fn retention(slot: Duration) -> Duration {
    slot * EPOCH * RETAIN_EPOCHS
}

/// gossipsub's score parameters for a block time of `slot`. Addresses in `shared_addresses` (those
/// of static peers) and loopback are exempt from the colocation penalty.
pub fn router_params(
    slot: Duration,
    shared_addresses: impl IntoIterator<Item = IpAddr>,
) -> PeerScoreParams {
    let mut whitelist: HashSet<IpAddr> = shared_addresses.into_iter().collect();
    whitelist.extend([
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]);
    PeerScoreParams {
        topic_score_cap: 0.0,
        app_specific_weight: 1.0,
        ip_colocation_factor_weight: COLOCATION.0,
        ip_colocation_factor_threshold: COLOCATION.1,
        ip_colocation_factor_whitelist: whitelist,
        behaviour_penalty_weight: BEHAVIOUR.0,
        behaviour_penalty_threshold: BEHAVIOUR.1,
        behaviour_penalty_decay: decay(),
        decay_interval: slot,
        decay_to_zero: DECAY_TO_ZERO,
        retain_score: retention(slot),
        // This penalty exists in rust-libp2p only; the network's parameters have none.
        slow_peer_weight: 0.0,
        ..Default::default()
    }
}

pub fn router_thresholds() -> PeerScoreThresholds {
    PeerScoreThresholds {
        gossip_threshold: -10.0,
        publish_threshold: -40.0,
        graylist_threshold: -40.0,
        accept_px_threshold: 20.0,
        opportunistic_graft_threshold: 0.05,
    }
}

/// An offence of a peer. [`Offence::label`] is the reason in logs, metrics and the ledger, and
/// [`Offence::class`] sets the penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// Gossip that the check rejected, with the label of the rule.
    Gossip(&'static str),
    /// A message without a valid signature, or a copy of such a message, that is compressed too
    /// well to be a block. The number is the size, in MiB, by which it exceeds any block after
    /// unpacking.
    Bomb(u32),
    /// Messages in one frame that no node of this network sends: with an author, or on another
    /// topic. The number is their count.
    Stray(u32),
    /// Bytes on a gossip stream that are not the gossip protocol.
    Framing,
    /// A gossip frame that the peer began and did not finish. A line that fails may be the cause of
    /// one, so only repeated ones lead to a ban (`reputation.rs`).
    HalfFrame,
    /// A gossip frame that was still arriving at its time limit, as from a peer on a slow line.
    SlowFrame,
    /// The same message sent too often.
    Replay,
    /// Messages that arrive faster than they can be checked.
    Flood,
    /// No response to a request in time, or an error other than "not found".
    NoResponse,
    /// A response that breaks the protocol: it cannot be decoded, or is not of the requested form.
    MalformedResponse,
    /// A payload other than the parent that a trusted block names. Honest peers on another branch
    /// send such payloads too.
    WrongBlock,
    /// A block or header other than the one requested by hash: a lie, since the peer could have
    /// refused the request.
    FalseBlock,
    /// A refusal to send a block that the peer's status claims. Honest peers on another branch
    /// refuse too.
    FalseStatus,
    /// A status with a head that cannot exist yet.
    FalseHead,
    /// More open requests than a peer may have.
    ExcessStreams,
    /// More open streams of any protocol than an honest node uses.
    StreamFlood,
    /// A request that the peer began and did not finish, or a response that it did not read.
    StalledStream,
}

impl Offence {
    pub fn label(&self) -> &'static str {
        match self {
            Offence::Gossip(row) => row,
            Offence::Bomb(_) => "bomb",
            Offence::Stray(_) => "stray",
            Offence::Framing => "framing",
            Offence::HalfFrame => "half_frame",
            Offence::SlowFrame => "slow_frame",
            Offence::Replay => "replay",
            Offence::Flood => "flood",
            Offence::NoResponse => "no_response",
            Offence::MalformedResponse => "malformed_response",
            Offence::WrongBlock => "wrong_block",
            Offence::FalseBlock => "false_block",
            Offence::FalseStatus => "false_status",
            Offence::FalseHead => "false_head",
            Offence::ExcessStreams => "excess_streams",
            Offence::StreamFlood => "stream_flood",
            Offence::StalledStream => "stalled_stream",
        }
    }

    pub fn class(&self) -> OffenceClass {
        match self {
            Offence::Gossip(
                "snappy_header" | "snappy" | "too_large" | "too_small" | "signature" | "panic",
            )
            | Offence::Stray(_)
            | Offence::Framing
            | Offence::StreamFlood => OffenceClass::Garbage,
            Offence::Gossip(_) | Offence::WrongBlock | Offence::FalseStatus => {
                OffenceClass::BadBlock
            }
            Offence::Bomb(_) => OffenceClass::Bomb,
            Offence::FalseBlock => OffenceClass::Lie,
            Offence::FalseHead => OffenceClass::Malformed,
            Offence::Flood => OffenceClass::Flood,
            Offence::NoResponse => OffenceClass::ErrorResponse,
            Offence::MalformedResponse => OffenceClass::Malformed,
            Offence::ExcessStreams | Offence::Replay => OffenceClass::Excess,
            Offence::StalledStream | Offence::HalfFrame | Offence::SlowFrame => {
                OffenceClass::Stalled
            }
        }
    }

    /// The weight of the offence as a number of events of its class.
    pub fn times(&self) -> f64 {
        match self {
            Offence::Bomb(size) => f64::from(*size),
            Offence::Stray(messages) => f64::from(*messages),
            _ => 1.0,
        }
    }
}

/// A class of events that is counted for each peer. The first three classes are op-node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffenceClass {
    ValidResponse,
    ErrorResponse,
    /// Messages, frames or numbers of streams that no honest peer sends.
    Garbage,
    /// A block that we must refuse although an honest peer may send it. We may know an old signer
    /// or have missed a fork; the peer may be on another branch; and the order of arrival decides
    /// which block is the seventh at a height.
    BadBlock,
    Malformed,
    Stalled,
    Excess,
    Flood,
    /// A small message that causes much work.
    Bomb,
    /// A proven lie, which leads to a ban at once.
    Lie,
}

impl OffenceClass {
    pub const ALL: [OffenceClass; 10] = [
        OffenceClass::ValidResponse,
        OffenceClass::ErrorResponse,
        OffenceClass::Garbage,
        OffenceClass::BadBlock,
        OffenceClass::Malformed,
        OffenceClass::Stalled,
        OffenceClass::Excess,
        OffenceClass::Flood,
        OffenceClass::Bomb,
        OffenceClass::Lie,
    ];

    pub fn label(self) -> &'static str {
        match self {
            OffenceClass::ValidResponse => "valid_response",
            OffenceClass::ErrorResponse => "error_response",
            OffenceClass::Garbage => "garbage",
            OffenceClass::BadBlock => "bad_block",
            OffenceClass::Malformed => "malformed_response",
            OffenceClass::Stalled => "stalled_stream",
            OffenceClass::Excess => "excess_streams",
            OffenceClass::Flood => "flood",
            OffenceClass::Bomb => "bomb",
            OffenceClass::Lie => "lie",
        }
    }

    /// The score of one event, and the largest count of events. At the default threshold of -100
    /// six garbage messages in a row lead to a ban. Failed responses never do, nor does one bad
    /// block per slot (its penalty settles at 2 / (1 - decay) = 27).
    pub fn weight(self) -> (f64, f64) {
        match self {
            OffenceClass::ValidResponse => (0.5, 10.0),
            OffenceClass::ErrorResponse => (-1.0, 9.0),
            OffenceClass::Garbage => (-20.0, 20.0),
            OffenceClass::BadBlock => (-2.0, 200.0),
            OffenceClass::Malformed => (-5.0, 80.0),
            OffenceClass::Stalled => (-4.0, 100.0),
            OffenceClass::Excess => (-1.0, 400.0),
            OffenceClass::Flood => (-0.05, 8000.0),
            // Two bombs of the largest size lead to a ban.
            OffenceClass::Bomb => (-10.0, 40.0),
            OffenceClass::Lie => (-150.0, 2.0),
        }
    }
}

/// The event counters of one peer, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffenceCounters([f64; OffenceClass::ALL.len()]);

impl OffenceCounters {
    /// Counts one event; returns the change of the score.
    pub fn add(&mut self, class: OffenceClass) -> f64 {
        self.add_times(class, 1.0)
    }

    /// Counts an event as `times` events; returns the change of the score.
    pub fn add_times(&mut self, class: OffenceClass, times: f64) -> f64 {
        let (weight, cap) = class.weight();
        let counter = &mut self.0[class as usize];
        let before = *counter;
        *counter = (before + times).min(cap.max(before));
        (*counter - before) * weight
    }

    /// Lets all counters decay by one slot.
    pub fn decay(&mut self) {
        let factor = decay();
        for counter in &mut self.0 {
            *counter *= factor;
            if *counter < DECAY_TO_ZERO {
                *counter = 0.0;
            }
        }
    }

    pub fn get(&self, class: OffenceClass) -> f64 {
        self.0[class as usize]
    }

    /// The application score that follows from the counters.
    pub fn score(&self) -> f64 {
        OffenceClass::ALL
            .iter()
            .map(|class| self.get(*class) * class.weight().0)
            .sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|counter| *counter == 0.0)
    }

    /// The penalties that make up the score, the largest first, as text.
    pub fn explain(&self) -> String {
        let mut penalties: Vec<(f64, OffenceClass)> = OffenceClass::ALL
            .iter()
            .map(|class| (self.get(*class) * class.weight().0, *class))
            .collect();
        penalties.retain(|(points, _)| *points < -0.5);
        penalties.sort_by(|a, b| a.0.total_cmp(&b.0));
        penalties
            .iter()
            .map(|(points, class)| format!("{} {points:.1}", class.label()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The same score expressed in op-node's counters: 0.5 valid - error - 20 rejected.
    pub fn responses(&self) -> ResponseScores {
        let (valid, error) = (
            self.get(OffenceClass::ValidResponse),
            self.get(OffenceClass::ErrorResponse),
        );
        let rest = self.score()
            - valid * OffenceClass::ValidResponse.weight().0
            - error * OffenceClass::ErrorResponse.weight().0;
        ResponseScores {
            valid_responses: valid,
            error_responses: error,
            // `max` turns -0 into 0.
            rejected_payloads: (rest / OffenceClass::Garbage.weight().0).max(0.0),
        }
    }
}

/// A peer's score in the format in which op-node reports and stores it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scores {
    /// Scores of gossip.
    pub gossip: GossipScores,
    /// Scores of requests and responses.
    pub req_resp: ResponseScores,
    /// The counters behind the application score, by class. An addition to op-node's format.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub offences: BTreeMap<String, f64>,
}

/// The score of gossip and its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GossipScores {
    /// The whole gossip score, the application's part included.
    pub total: f64,
    /// Parts of the score by topic.
    pub blocks: TopicScores,
    /// Square of the number of peers above the limit at the peer's address (P6).
    #[serde(rename = "IPColocationFactor")]
    pub ip_colocation_factor: f64,
    /// Counter of broken promises (P7).
    pub behavioral_penalty: f64,
}

/// Scores of a topic. All are zero, since our topics have no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicScores {
    /// Topic score P1.
    pub time_in_mesh: f64,
    /// Topic score P2.
    pub first_message_deliveries: f64,
    /// Topic score P3.
    pub mesh_message_deliveries: f64,
    /// Topic score P4.
    pub invalid_message_deliveries: f64,
}

/// Counters of request-response events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResponseScores {
    /// Number of responses with a valid block.
    pub valid_responses: f64,
    /// Number of failed responses.
    pub error_responses: f64,
    /// All other offences, converted to a number of rejected payloads.
    pub rejected_payloads: f64,
}

impl GossipScores {
    /// Splits gossipsub's part of a score (all but the application's) into its factors. `sharing`
    /// is the number of peers at the peer's address.
    pub fn of(router: f64, application: f64, sharing: usize) -> Self {
        let surplus = (sharing as f64 - COLOCATION.1).max(0.0);
        // Peers at an exempt address have no colocation penalty.
        let colocation = if surplus > 0.0 && router <= surplus * surplus * COLOCATION.0 {
            surplus * surplus
        } else {
            0.0
        };
        let behaviour = router - colocation * COLOCATION.0;
        let behavioral_penalty = if behaviour < 0.0 {
            BEHAVIOUR.1 + (behaviour / BEHAVIOUR.0).sqrt()
        } else {
            0.0
        };
        Self {
            total: router + application,
            ip_colocation_factor: colocation,
            behavioral_penalty,
            ..Default::default()
        }
    }
}

impl Scores {
    /// The scores of a peer, from its gossip scores and its counters.
    pub fn of(gossip: GossipScores, counters: &OffenceCounters) -> Self {
        let named = OffenceClass::ALL
            .iter()
            .map(|class| (class.label().to_owned(), counters.get(*class)));
        Self {
            gossip,
            req_resp: counters.responses(),
            offences: named.filter(|(_, count)| *count > 0.0).collect(),
        }
    }

    /// The counters of a stored record. A record that op-node wrote has its three counters only.
    /// Counts above a class's largest count are capped.
    pub fn counters(&self) -> OffenceCounters {
        let mut counters = OffenceCounters::default();
        let mut set = |class: OffenceClass, count: f64| {
            let count = if count.is_finite() { count } else { 0.0 };
            counters.0[class as usize] = count.clamp(0.0, class.weight().1);
        };
        if self.offences.is_empty() {
            set(OffenceClass::ValidResponse, self.req_resp.valid_responses);
            set(OffenceClass::ErrorResponse, self.req_resp.error_responses);
            set(OffenceClass::Garbage, self.req_resp.rejected_payloads);
        }
        for class in OffenceClass::ALL {
            if let Some(count) = self.offences.get(class.label()) {
                set(class, *count);
            }
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> Option<serde_json::Value> {
        let text = starling_testkit::fixture_text(&format!("p2p-wire/{name}.json"))?;
        Some(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn parameters_are_those_of_the_network() {
        let Some(vectors) = fixture("light-scoring") else {
            return;
        };
        for (block_time, rows) in vectors["by_block_time"].as_object().unwrap() {
            let params = router_params(Duration::from_secs(block_time.parse().unwrap()), []);
            let number = |key: &str| rows[key].as_f64().unwrap();
            assert!(
                (params.behaviour_penalty_decay - number("behaviour_penalty_decay")).abs() < 1e-15
            );
            assert!((decay() - number("app_decay")).abs() < 1e-15);
            assert_eq!(
                params.decay_interval.as_secs_f64(),
                number("decay_interval_s")
            );
            assert_eq!(params.retain_score.as_secs_f64(), number("retain_score_s"));
            assert!(params.topics.is_empty(), "no topic is scored");
            params.validate().unwrap();
        }
        router_thresholds().validate().unwrap();
    }

    #[test]
    fn stored_records_are_read_in_both_forms_and_written_in_the_newer() {
        let Some(vectors) = fixture("score-record-json") else {
            return;
        };
        let records = vectors["records"].as_array().unwrap();
        let read: Vec<Scores> = records
            .iter()
            .map(|r| serde_json::from_value(r["peerScores"].clone()).unwrap())
            .collect();
        assert_eq!(read[0].req_resp, ResponseScores::default());
        assert_eq!(read[0].gossip, read[1].gossip);
        assert_eq!(
            read[1].req_resp,
            ResponseScores {
                valid_responses: 99.0,
                error_responses: 88.0,
                rejected_payloads: 77.0
            }
        );
        let (wanted, written) = (
            &records[1]["peerScores"],
            serde_json::to_value(&read[1]).unwrap(),
        );
        let numbers = |value: &serde_json::Value| {
            let at = |path: &str| value.pointer(path).and_then(serde_json::Value::as_f64);
            let group = [
                "timeInMesh",
                "firstMessageDeliveries",
                "meshMessageDeliveries",
                "invalidMessageDeliveries",
            ];
            let mut all: Vec<Option<f64>> = group
                .iter()
                .map(|key| at(&format!("/gossip/blocks/{key}")))
                .collect();
            let other = [
                "gossip/total",
                "gossip/IPColocationFactor",
                "gossip/behavioralPenalty",
            ];
            let responses = [
                "reqResp/validResponses",
                "reqResp/errorResponses",
                "reqResp/rejectedPayloads",
            ];
            all.extend(
                other
                    .iter()
                    .chain(&responses)
                    .map(|key| at(&format!("/{key}"))),
            );
            all
        };
        assert_eq!(numbers(wanted), numbers(&written));
        assert!(numbers(wanted).iter().all(Option::is_some));
        // Counters that another program stored are accepted up to our largest counts.
        assert_eq!(read[1].counters().score(), 5.0 - 9.0 - 400.0);
    }

    #[test]
    fn the_networks_formula_gives_our_score() {
        let mut counters = OffenceCounters::default();
        for class in OffenceClass::ALL {
            for _ in 0..3 {
                counters.add(class);
            }
        }
        let ResponseScores {
            valid_responses,
            error_responses,
            rejected_payloads,
        } = counters.responses();
        let score = 0.5 * valid_responses - error_responses - 20.0 * rejected_payloads;
        assert!((score - counters.score()).abs() < 1e-9);
        let stored: Scores = serde_json::from_str(
            &serde_json::to_string(&Scores::of(GossipScores::default(), &counters)).unwrap(),
        )
        .unwrap();
        assert_eq!(stored.counters(), counters);
    }

    /// The score after `slots` slots, with `events` events of a class in each.
    fn settled(class: OffenceClass, events: usize, slots: usize) -> f64 {
        let mut counters = OffenceCounters::default();
        for _ in 0..slots {
            for _ in 0..events {
                counters.add(class);
            }
            counters.decay();
        }
        counters.score()
    }

    #[test]
    fn offences_of_honest_peers_never_ban_and_others_soon_do() {
        assert!(settled(OffenceClass::ErrorResponse, 100, 1000) >= -9.0);
        assert!(settled(OffenceClass::ValidResponse, 100, 1000) <= 5.0);
        assert!(settled(OffenceClass::BadBlock, 1, 10_000) > -30.0);
        assert!(settled(OffenceClass::Flood, 10, 10_000) > -10.0);
        assert!(settled(OffenceClass::Flood, 2_000, 2) < -100.0);
        assert!(settled(OffenceClass::BadBlock, 20, 10) < -100.0);
        let bombs = |sizes: &[u32]| {
            let mut counters = OffenceCounters::default();
            for bomb in sizes.iter().map(|size| Offence::Bomb(*size)) {
                counters.add_times(bomb.class(), bomb.times());
            }
            counters.score()
        };
        assert!(bombs(&[8]) > -100.0 && bombs(&[8, 8]) < -100.0 && bombs(&[1; 5]) > -100.0);
        let mut counters = OffenceCounters::default();
        for _ in 0..6 {
            counters.add(OffenceClass::Garbage);
        }
        assert!(counters.score() < -100.0, "six rejected messages");
        for _ in 0..120 {
            counters.decay();
        }
        assert_eq!(counters.score(), 0.0, "and forgotten");
    }

    #[test]
    fn gossipsubs_part_is_split_into_its_factors() {
        assert_eq!(GossipScores::of(0.0, 3.0, 5).total, 3.0);
        let crowd = GossipScores::of(-35.0 * 4.0 - 16.0 * 9.0, 0.0, 12);
        assert_eq!(
            (crowd.ip_colocation_factor, crowd.behavioral_penalty),
            (4.0, 9.0)
        );
        let allowed = GossipScores::of(0.0, 0.0, 12);
        assert_eq!(
            (allowed.ip_colocation_factor, allowed.behavioral_penalty),
            (0.0, 0.0)
        );
    }
}
