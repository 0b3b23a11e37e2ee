//! Scores: what a peer did, what it weighs, and how it is forgotten. Pure.
//!
//! Without topic parameters the router itself charges nothing for a message that was rejected, so every rejection and every offence
//! against request and response feeds the application score (P5), which the router adds to what it knows: peers crowded on one
//! address (P6) and broken promises (P7).

use libp2p::gossipsub::{PeerScoreParams, PeerScoreThresholds};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

/// An epoch of the parameters, in slots. A slot is the time between two blocks.
const EPOCH: u32 = 6;
/// A penalty has faded to a hundredth after ten epochs: 0.01 ^ (1 / 60).
const DECAY_EPOCHS: u32 = 10;
/// Scores of peers that left are remembered this many epochs.
const RETAIN_EPOCHS: u32 = 100;
const DECAY_TO_ZERO: f64 = 0.01;
const COLOCATION: (f64, f64) = (-35.0, 10.0);
const BEHAVIOUR: (f64, f64) = (-16.0, 6.0);

/// `--p2p.scoring`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scoring {
    /// Offences are counted and reported, and weigh nothing.
    None,
    #[default]
    Light,
}

/// The factor by which a counter shrinks every slot.
pub fn decay() -> f64 {
    DECAY_TO_ZERO.powf(1.0 / f64::from(DECAY_EPOCHS * EPOCH))
}

/// How long the score of a peer that left is kept.
pub fn retention(slot: Duration) -> Duration {
    slot * EPOCH * RETAIN_EPOCHS
}

/// The router's parameters for blocks every `slot`. Any number of peers may share an address in `crowds`: those of static peers, and
/// this machine's own.
pub fn router_params(slot: Duration, crowds: impl IntoIterator<Item = IpAddr>) -> PeerScoreParams {
    let mut whitelist: HashSet<IpAddr> = crowds.into_iter().collect();
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
        // Of this library alone: the network's parameters know no such penalty.
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

/// What a peer did wrong. [`Offence::label`] is the reason in logs, metrics and the ledger, [`Offence::class`] what it weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// Gossip that the check rejected, and by which row.
    Gossip(&'static str),
    /// A message by nobody whose word counts that had grown by so many MiB more than a block does when it was unpacked, or a copy.
    Bomb(u32),
    /// So many messages in one frame that no node of this network sends: with an author, or on a topic that is not ours.
    Stray(u32),
    /// Bytes on a gossip stream that are no gossip.
    Framing,
    /// A gossip frame that was begun and never sent.
    HalfFrame,
    /// The same message again and again.
    Replay,
    /// Messages faster than its share of checks.
    Flood,
    /// No answer to a request in time, or an error that is not "not found".
    NoResponse,
    /// An answer that is not an answer.
    MalformedResponse,
    /// A payload that is not the parent a trusted block names. Also done by honest peers on another branch.
    WrongBlock,
    /// A block, or header, other than the one it was asked for by hash: a lie, since it could have refused.
    FalseBlock,
    /// It refuses a block that it says it has. Also done by honest peers on another branch.
    FalseStatus,
    /// It says that its head is one that cannot be there yet.
    FalseHead,
    /// More requests open than a peer may have.
    ExcessStreams,
    /// More streams open, for whatever it may be, than any node has.
    StreamFlood,
    /// A request that was begun and never sent, or an answer that was asked for and not read.
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

    pub fn class(&self) -> Class {
        match self {
            Offence::Gossip(
                "snappy_header" | "snappy" | "too_large" | "too_small" | "signature" | "panic",
            )
            | Offence::Stray(_)
            | Offence::Framing
            | Offence::StreamFlood => Class::Garbage,
            Offence::Gossip(_) | Offence::WrongBlock | Offence::FalseStatus => Class::BadBlock,
            Offence::Bomb(_) => Class::Bomb,
            Offence::FalseBlock => Class::Lie,
            Offence::FalseHead => Class::Malformed,
            Offence::Flood => Class::Flood,
            Offence::NoResponse => Class::ErrorResponse,
            Offence::MalformedResponse => Class::Malformed,
            Offence::ExcessStreams | Offence::Replay => Class::Excess,
            Offence::StalledStream | Offence::HalfFrame => Class::Stalled,
        }
    }

    /// How often it counts.
    pub fn times(&self) -> f64 {
        match self {
            Offence::Bomb(size) => f64::from(*size),
            Offence::Stray(messages) => f64::from(*messages),
            _ => 1.0,
        }
    }
}

/// What is counted about a peer. The network's three come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    ValidResponse,
    ErrorResponse,
    /// What no honest peer sends: it is not even a message that somebody signed.
    Garbage,
    /// A block that we must refuse and that honest peers may send all the same: the signer we know is an old one, we have missed a
    /// fork, who is seventh at a height depends on the order of arrival, the peer is on another branch.
    BadBlock,
    Malformed,
    Stalled,
    Excess,
    Flood,
    /// Work that was made with few bytes.
    Bomb,
    /// Proven by what it sent: a ban at once.
    Lie,
}

impl Class {
    pub const ALL: [Class; 10] = [
        Class::ValidResponse,
        Class::ErrorResponse,
        Class::Garbage,
        Class::BadBlock,
        Class::Malformed,
        Class::Stalled,
        Class::Excess,
        Class::Flood,
        Class::Bomb,
        Class::Lie,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Class::ValidResponse => "valid_response",
            Class::ErrorResponse => "error_response",
            Class::Garbage => "garbage",
            Class::BadBlock => "bad_block",
            Class::Malformed => "malformed_response",
            Class::Stalled => "stalled_stream",
            Class::Excess => "excess_streams",
            Class::Flood => "flood",
            Class::Bomb => "bomb",
            Class::Lie => "lie",
        }
    }

    /// What one deed weighs, and how many count at most. At the default threshold of -100 six messages of garbage in a row are a ban;
    /// answers that fail never are, nor is one bad block a slot (it settles at 2 / (1 - decay) = 27).
    pub fn weight(self) -> (f64, f64) {
        match self {
            Class::ValidResponse => (0.5, 10.0),
            Class::ErrorResponse => (-1.0, 9.0),
            Class::Garbage => (-20.0, 20.0),
            Class::BadBlock => (-2.0, 200.0),
            Class::Malformed => (-5.0, 80.0),
            Class::Stalled => (-4.0, 100.0),
            Class::Excess => (-1.0, 400.0),
            Class::Flood => (-0.05, 8000.0),
            // Two of the largest are a ban.
            Class::Bomb => (-10.0, 40.0),
            Class::Lie => (-150.0, 2.0),
        }
    }
}

/// The counters of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters([f64; Class::ALL.len()]);

impl Counters {
    /// Counts a deed; returns by how much the score changed.
    pub fn add(&mut self, class: Class) -> f64 {
        self.add_times(class, 1.0)
    }

    /// Counts a deed so many times.
    pub fn add_times(&mut self, class: Class, times: f64) -> f64 {
        let (weight, cap) = class.weight();
        let counter = &mut self.0[class as usize];
        let before = *counter;
        *counter = (before + times).min(cap.max(before));
        (*counter - before) * weight
    }

    /// One slot passes.
    pub fn decay(&mut self) {
        let factor = decay();
        for counter in &mut self.0 {
            *counter *= factor;
            if *counter < DECAY_TO_ZERO {
                *counter = 0.0;
            }
        }
    }

    pub fn get(&self, class: Class) -> f64 {
        self.0[class as usize]
    }

    /// The application score.
    pub fn score(&self) -> f64 {
        Class::ALL
            .iter()
            .map(|class| self.get(*class) * class.weight().0)
            .sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|counter| *counter == 0.0)
    }

    /// The score's largest debts first, in words.
    pub fn explain(&self) -> String {
        let mut debts: Vec<(f64, Class)> = Class::ALL
            .iter()
            .map(|class| (self.get(*class) * class.weight().0, *class))
            .collect();
        debts.retain(|(points, _)| *points < -0.5);
        debts.sort_by(|a, b| a.0.total_cmp(&b.0));
        debts
            .iter()
            .map(|(points, class)| format!("{} {points:.1}", class.label()))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// In the network's terms, of which 0.5 valid - error - 20 rejected is the same score.
    pub fn responses(&self) -> Responses {
        let (valid, error) = (
            self.get(Class::ValidResponse),
            self.get(Class::ErrorResponse),
        );
        let rest = self.score()
            - valid * Class::ValidResponse.weight().0
            - error * Class::ErrorResponse.weight().0;
        Responses {
            valid_responses: valid,
            error_responses: error,
            // Not -0.
            rejected_payloads: (rest / Class::Garbage.weight().0).max(0.0),
        }
    }
}

/// A peer's score as the network's nodes report and store it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scores {
    pub gossip: GossipScores,
    pub req_resp: Responses,
    /// Ours: the counters behind the application score, by class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub offences: BTreeMap<String, f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GossipScores {
    /// The whole score, the application's part included.
    pub total: f64,
    pub blocks: TopicScores,
    #[serde(rename = "IPColocationFactor")]
    pub ip_colocation_factor: f64,
    pub behavioral_penalty: f64,
}

/// Zero, since topics have no parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicScores {
    pub time_in_mesh: f64,
    pub first_message_deliveries: f64,
    pub mesh_message_deliveries: f64,
    pub invalid_message_deliveries: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Responses {
    pub valid_responses: f64,
    pub error_responses: f64,
    pub rejected_payloads: f64,
}

impl GossipScores {
    /// Takes the router's part of a score (all but the application's) apart again; `sharing` peers are at the peer's address.
    pub fn of(router: f64, application: f64, sharing: usize) -> Self {
        let surplus = (sharing as f64 - COLOCATION.1).max(0.0);
        // A crowd that is allowed costs nothing.
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
    pub fn of(gossip: GossipScores, counters: &Counters) -> Self {
        let named = Class::ALL
            .iter()
            .map(|class| (class.label().to_owned(), counters.get(*class)));
        Self {
            gossip,
            req_resp: counters.responses(),
            offences: named.filter(|(_, count)| *count > 0.0).collect(),
        }
    }

    /// The counters of a stored record; one of another program has the network's three only. Numbers nobody counts up to are cut.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        let mut set = |class: Class, count: f64| {
            let count = if count.is_finite() { count } else { 0.0 };
            counters.0[class as usize] = count.clamp(0.0, class.weight().1);
        };
        if self.offences.is_empty() {
            set(Class::ValidResponse, self.req_resp.valid_responses);
            set(Class::ErrorResponse, self.req_resp.error_responses);
            set(Class::Garbage, self.req_resp.rejected_payloads);
        }
        for class in Class::ALL {
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
        assert_eq!(read[0].req_resp, Responses::default());
        assert_eq!(read[0].gossip, read[1].gossip);
        assert_eq!(
            read[1].req_resp,
            Responses {
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
        // Another program's counters are believed up to our bounds.
        assert_eq!(read[1].counters().score(), 5.0 - 9.0 - 400.0);
    }

    #[test]
    fn the_networks_formula_gives_our_score() {
        let mut counters = Counters::default();
        for class in Class::ALL {
            for _ in 0..3 {
                counters.add(class);
            }
        }
        let Responses {
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

    /// The score after `slots` slots with `deeds` of a class in each.
    fn settled(class: Class, deeds: usize, slots: usize) -> f64 {
        let mut counters = Counters::default();
        for _ in 0..slots {
            for _ in 0..deeds {
                counters.add(class);
            }
            counters.decay();
        }
        counters.score()
    }

    #[test]
    fn what_honest_peers_do_never_bans_and_what_they_never_do_soon_does() {
        assert!(settled(Class::ErrorResponse, 100, 1000) >= -9.0);
        assert!(settled(Class::ValidResponse, 100, 1000) <= 5.0);
        assert!(settled(Class::BadBlock, 1, 10_000) > -30.0);
        assert!(settled(Class::Flood, 10, 10_000) > -10.0);
        assert!(settled(Class::Flood, 2_000, 2) < -100.0);
        assert!(settled(Class::BadBlock, 20, 10) < -100.0);
        let bombs = |sizes: &[u32]| {
            let mut counters = Counters::default();
            for bomb in sizes.iter().map(|size| Offence::Bomb(*size)) {
                counters.add_times(bomb.class(), bomb.times());
            }
            counters.score()
        };
        assert!(bombs(&[8]) > -100.0 && bombs(&[8, 8]) < -100.0 && bombs(&[1; 5]) > -100.0);
        let mut counters = Counters::default();
        for _ in 0..6 {
            counters.add(Class::Garbage);
        }
        assert!(counters.score() < -100.0, "six rejected messages");
        for _ in 0..120 {
            counters.decay();
        }
        assert_eq!(counters.score(), 0.0, "and forgotten");
    }

    #[test]
    fn the_routers_part_is_taken_apart() {
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
