//! Hostile peers: each does one thing that no honest node does.

use rand::{Rng, rngs::StdRng};

/// The behaviour of a hostile peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostility {
    /// Claims a head that cannot be there yet.
    FalseHead,
    /// Sends other blocks than those requested.
    FalseBlocks,
    /// Claims blocks and refuses to send them.
    Refuses,
    /// Never responds.
    Stalls,
    /// Drops every request.
    Resets,
    /// Responds with bytes that are no message.
    GarbageResponses,
    /// Gossips blocks with a signature of its own.
    WrongSigner,
    /// Gossips bytes that are no message.
    GarbageGossip,
    /// Gossips dozens of bad messages a second.
    Floods,
    /// Gossips old blocks again.
    Replays,
    /// Gossips blocks under another block's signature.
    Tampers,
}

impl Hostility {
    const ALL: [Hostility; 11] = [
        Hostility::FalseHead,
        Hostility::FalseBlocks,
        Hostility::Refuses,
        Hostility::Stalls,
        Hostility::Resets,
        Hostility::GarbageResponses,
        Hostility::WrongSigner,
        Hostility::GarbageGossip,
        Hostility::Floods,
        Hostility::Replays,
        Hostility::Tampers,
    ];

    pub fn draw(dice: &mut StdRng) -> Self {
        Self::ALL[dice.random_range(0..Self::ALL.len())]
    }
}
