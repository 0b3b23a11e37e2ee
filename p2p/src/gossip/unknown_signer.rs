//! Blocks by an unknown signer: either an offence, or the first sign of a new signer on L1.
//!
//! Nodes read a change of the signer from L1 at different times, so honest peers may pass on blocks
//! of a new signer before this node knows it. A waiter that can read L1 may register
//! (`Network::unknown_signer`). The waiter gets the first unknown signer. Offences for that
//! signer's blocks, bombs included, are held until L1's current signer is reported. One signer is
//! on hold at a time, and at most [`HELD`] offences are held. All other offences are charged at
//! once, also for a signer that appears while there is no waiter.

use alloy_primitives::Address;
use libp2p::PeerId;
use starling_proto::gossip::Reason;
use tokio::sync::oneshot;

/// Largest number of held offences: two minutes of blocks at one every two seconds.
const HELD: usize = 64;

/// The sender of the message, and the message's bloat in MiB.
pub type HeldOffence = (PeerId, u32);

/// The unknown signer on hold, with its offences; at most one signer at a time.
#[derive(Debug, Default)]
pub struct UnknownSignerHold {
    waiter: Option<oneshot::Sender<Address>>,
    on_hold: Option<(Address, Vec<HeldOffence>)>,
}

/// The cost of a rejected message for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCost {
    /// Nothing: the signer was valid lately, or L1 may name the signer soon.
    Nothing,
    /// A ledger entry: our clock may be the wrong one.
    Note,
    /// An offence. `is_bomb`: the message's size is an offence too.
    Offence { is_bomb: bool },
}

impl UnknownSignerHold {
    /// The cost of a message that is rejected for `reason`. The offence may be held. `bloat` is the
    /// message's excess size in MiB. The size counts only if the current signer did not sign the
    /// block: peers may relay a block with a valid signature whatever its size.
    pub fn cost_of(&mut self, reason: &Reason, peer: PeerId, bloat: u32) -> RejectionCost {
        match reason {
            reason if reason.is_clock() => RejectionCost::Note,
            Reason::RetiredSigner(_) => RejectionCost::Nothing,
            Reason::WrongSigner(signer) if self.hold(peer, *signer, bloat) => {
                RejectionCost::Nothing
            }
            Reason::WrongSigner(_) | Reason::Signature(_) => {
                RejectionCost::Offence { is_bomb: bloat > 0 }
            }
            _ => RejectionCost::Offence { is_bomb: false },
        }
    }

    /// Reports the next unknown signer to `waiter`, which replaces an earlier one.
    pub fn set_waiter(&mut self, waiter: oneshot::Sender<Address>) {
        self.waiter = Some(waiter);
    }

    /// Handles a peer's block by an unknown signer. Returns whether the offence is held.
    pub fn hold(&mut self, peer: PeerId, signer: Address, bloat: u32) -> bool {
        if let Some((unknown, held)) = &mut self.on_hold {
            let holds = *unknown == signer && held.len() < HELD;
            if holds {
                held.push((peer, bloat));
            }
            return holds;
        }
        let reported = self
            .waiter
            .take()
            .is_some_and(|waiter| waiter.send(signer).is_ok());
        if reported {
            self.on_hold = Some((signer, vec![(peer, bloat)]));
        }
        reported
    }

    /// Ends the hold, since L1 names the signer `named`. If the signer on hold is another one,
    /// returns it with the offences to charge.
    pub fn resolve(&mut self, named: Address) -> Option<(Address, Vec<HeldOffence>)> {
        self.on_hold.take().filter(|(unknown, _)| *unknown != named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Address = Address::repeat_byte(2);
    const OTHER: Address = Address::repeat_byte(3);

    #[test]
    fn one_signer_is_reported_and_offences_are_held_until_the_signer_is_known() {
        let mut hold = UnknownSignerHold::default();
        let [a, b] = [PeerId::random(), PeerId::random()];
        assert!(!hold.hold(a, NEW, 0), "no waiter");
        let (waiter, mut reported) = oneshot::channel();
        hold.set_waiter(waiter);
        assert!(hold.hold(a, NEW, 0) && hold.hold(b, NEW, 0) && !hold.hold(b, OTHER, 0));
        assert_eq!(reported.try_recv(), Ok(NEW));
        assert_eq!(hold.resolve(NEW), None, "L1 names it");
        assert!(!hold.hold(a, OTHER, 0), "no waiter any more");

        let (waiter, _reported) = oneshot::channel();
        hold.set_waiter(waiter);
        let held = (0..HELD + 9).filter(|_| hold.hold(a, OTHER, 8)).count();
        assert_eq!(held, HELD);
        assert_eq!(hold.resolve(NEW), Some((OTHER, vec![(a, 8); HELD])));
        assert_eq!(hold.resolve(NEW), None, "charged once");
    }

    #[test]
    fn a_dropped_waiter_holds_nothing() {
        let mut hold = UnknownSignerHold::default();
        let (waiter, reported) = oneshot::channel();
        hold.set_waiter(waiter);
        drop(reported);
        assert!(!hold.hold(PeerId::random(), NEW, 0));
    }
}
