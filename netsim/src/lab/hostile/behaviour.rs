//! The behaviours of hostile peers, by name, and the entries that each leaves in the ledger of a
//! sound node.

use std::{fmt, str::FromStr};

/// The one rule that a hostile peer breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostileBehaviour {
    /// Claims a head that cannot exist yet.
    FalseHead,
    /// Claims the true head and serves blocks of another branch.
    ForkedChain,
    /// Publishes blocks that another key has signed.
    WrongSigner,
    /// Publishes bytes that are no block.
    Garbage,
    /// Claims the true head, accepts requests and never responds.
    Stall,
    /// Sends requests faster than they are served, and reads no response.
    Flood,
    /// Begins gossip frames and does not finish them.
    HalfFrames,
    /// Is in the mesh and passes nothing on.
    Eclipse,
}

/// The ledgers that must have an entry about hostile peers of one behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostileScope {
    /// Each peer at each node that it dials.
    EveryTarget,
    /// At least one peer at one node: a node chooses the peers that it requests blocks from.
    AnyRequester,
}

/// The entries that the ledger of a sound node must have about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedOutcome {
    /// Offences of which the ledger has at least one, by reason; empty if the peer breaks no rule and
    /// only has to stay connected.
    pub offences: &'static [&'static str],
    /// Whether every offence must be in the ledger of some node.
    pub needs_all: bool,
    /// Offences after which the peer must be banned by the end. Without one the peer is starved: it
    /// gets no more requests, or loses its connections.
    pub banning: &'static [&'static str],
    /// Largest number of requests for headers or blocks that one node may send after the first
    /// offence; `None` if the peer claims no blocks, or is banned.
    pub later_requests: Option<u64>,
    pub scope: HostileScope,
}

impl fmt::Display for ExpectedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.offences.is_empty() {
            return f.write_str("a connection before the first fault and at the end");
        }
        let ban = if self.banning.is_empty() {
            ""
        } else {
            "a ban and "
        };
        write!(f, "{ban}one of {}", self.offences.join(", "))?;
        match self.later_requests {
            Some(most) => write!(f, ", and at most {most} requests after that"),
            None => Ok(()),
        }
    }
}

impl ExpectedOutcome {
    fn new(offences: &'static [&'static str], scope: HostileScope) -> Self {
        Self {
            offences,
            needs_all: false,
            banning: &[],
            later_requests: None,
            scope,
        }
    }
}

/// Requests that a node may send to a peer that never responds, after the first offence. Several are
/// in flight when the first one times out, and the peer may be requested from again after a pause.
const STALLED_REQUESTS: u64 = 8;
/// Requests that a node may send to a peer with a false head: one may be in flight when its status
/// arrives.
const MISLED_REQUESTS: u64 = 1;

impl HostileBehaviour {
    pub const ALL: [Self; 8] = [
        Self::FalseHead,
        Self::ForkedChain,
        Self::WrongSigner,
        Self::Garbage,
        Self::Stall,
        Self::Flood,
        Self::HalfFrames,
        Self::Eclipse,
    ];

    /// The behaviour as files and command lines write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::FalseHead => "false-head",
            Self::ForkedChain => "forked-chain",
            Self::WrongSigner => "wrong-signer",
            Self::Garbage => "garbage",
            Self::Stall => "stall",
            Self::Flood => "flood",
            Self::HalfFrames => "half-frames",
            Self::Eclipse => "eclipse",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.word() == word)
    }

    /// Whether the peer acts on requests of its victims. Such a peer claims blocks, so that it gets
    /// requests.
    pub fn serves(self) -> bool {
        matches!(self, Self::FalseHead | Self::ForkedChain | Self::Stall)
    }

    /// Whether the peer passes blocks on, so that nodes request the blocks below from it first.
    pub fn relays(self) -> bool {
        matches!(self, Self::ForkedChain | Self::Stall)
    }

    pub fn expected(self) -> ExpectedOutcome {
        use HostileScope::{AnyRequester, EveryTarget};
        const GARBAGE: &[&str] = &["snappy_header", "too_large", "too_small", "signature"];
        let banned = |offences, scope| ExpectedOutcome {
            banning: offences,
            ..ExpectedOutcome::new(offences, scope)
        };
        let starved = |offences, requests, scope| ExpectedOutcome {
            later_requests: Some(requests),
            ..ExpectedOutcome::new(offences, scope)
        };
        match self {
            Self::FalseHead => starved(&["false_head"], MISLED_REQUESTS, EveryTarget),
            // A wrong block alone is no proof: honest peers on another branch send such blocks too.
            Self::ForkedChain => ExpectedOutcome {
                banning: &["false_block"],
                ..ExpectedOutcome::new(&["false_block", "wrong_block"], AnyRequester)
            },
            Self::WrongSigner => banned(&["wrong_signer"], EveryTarget),
            Self::Garbage => ExpectedOutcome {
                needs_all: true,
                ..banned(GARBAGE, EveryTarget)
            },
            Self::Stall => starved(&["no_response"], STALLED_REQUESTS, AnyRequester),
            Self::Flood => banned(&["excess_streams"], EveryTarget),
            Self::HalfFrames => banned(&["half_frame"], EveryTarget),
            Self::Eclipse => ExpectedOutcome::new(&[], EveryTarget),
        }
    }
}

impl fmt::Display for HostileBehaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for HostileBehaviour {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let words = || Self::ALL.map(Self::word).join(", ");
        Self::named(word).ok_or_else(|| format!("no behaviour; use one of {}", words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_its_behaviour_in_files_and_reports() {
        for behaviour in HostileBehaviour::ALL {
            assert_eq!(behaviour.word().parse(), Ok(behaviour));
            assert_eq!(behaviour.to_string(), behaviour.word());
        }
        assert!("garbag".parse::<HostileBehaviour>().is_err());
    }
}
