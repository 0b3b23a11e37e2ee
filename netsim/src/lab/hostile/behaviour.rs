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
    /// only has to be connected at the end.
    pub offences: &'static [&'static str],
    /// Whether the peer must be banned too. Without it the reason is enough: a node that notes it
    /// requests less from the peer or closes its connection, which is not checked here.
    pub is_banned: bool,
    pub scope: HostileScope,
}

impl fmt::Display for ExpectedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.offences.is_empty() {
            return f.write_str("a connection at the end");
        }
        let ban = if self.is_banned { "a ban and " } else { "" };
        write!(f, "{ban}one of {}", self.offences.join(", "))
    }
}

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

    /// Whether the peer passes blocks on, to be the first that is asked for those below.
    pub fn relays(self) -> bool {
        matches!(self, Self::ForkedChain | Self::Stall)
    }

    pub fn expected(self) -> ExpectedOutcome {
        use HostileScope::{AnyRequester, EveryTarget};
        let outcome = |offences, is_banned, scope| ExpectedOutcome {
            offences,
            is_banned,
            scope,
        };
        match self {
            Self::FalseHead => outcome(&["false_head"], false, EveryTarget),
            Self::ForkedChain => outcome(&["false_block", "wrong_block"], true, AnyRequester),
            Self::WrongSigner => outcome(&["wrong_signer"], true, EveryTarget),
            Self::Garbage => outcome(
                &["snappy_header", "too_large", "too_small", "signature"],
                true,
                EveryTarget,
            ),
            Self::Stall => outcome(&["no_response"], false, AnyRequester),
            Self::Flood => outcome(&["excess_streams"], true, EveryTarget),
            Self::HalfFrames => outcome(&["half_frame"], false, EveryTarget),
            Self::Eclipse => outcome(&[], false, EveryTarget),
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
