//! Blocks by a signer that nobody here has heard of: an offence, or the first sign that L1 names another signer.
//!
//! Nodes read a change of the signer from L1 at different times, so honest peers may pass on blocks of a new signer before this node
//! knows it. Somebody who can read L1 may wait for such a doubt (`Network::signer_in_doubt`). The first unknown signer is told to
//! them, and what peers did with its blocks is held back, that a block unpacks to very much included, until they answer with the
//! signer that L1 names now. One signer is in doubt at a time and at most [`HELD`] offences are held: everything else is judged at
//! once, as it is where nobody waits.

use alloy_primitives::Address;
use libp2p::PeerId;
use tokio::sync::oneshot;

/// Offences held back. At a block every two seconds, two minutes of them.
const HELD: usize = 64;

/// Who sent a message, and its bloat.
pub type Held = (PeerId, u32);

/// At most one signer in doubt.
#[derive(Debug, Default)]
pub struct Doubt {
    /// Who waits for a doubt.
    asker: Option<oneshot::Sender<Address>>,
    asked: Option<(Address, Vec<Held>)>,
}

impl Doubt {
    /// Tells `asker` the next signer in doubt. Replaces who waited before.
    pub fn wait(&mut self, asker: oneshot::Sender<Address>) {
        self.asker = Some(asker);
    }

    /// A peer sent a block by an unknown signer. Whether the judgement is held back.
    pub fn hold(&mut self, peer: PeerId, signer: Address, bloat: u32) -> bool {
        if let Some((asked, held)) = &mut self.asked {
            let holds = *asked == signer && held.len() < HELD;
            if holds {
                held.push((peer, bloat));
            }
            return holds;
        }
        let told = self
            .asker
            .take()
            .is_some_and(|asker| asker.send(signer).is_ok());
        if told {
            self.asked = Some((signer, vec![(peer, bloat)]));
        }
        told
    }

    /// The answer: L1 names this signer. Gives the signer that was in doubt and whom to judge after all.
    pub fn settle(&mut self, named: Address) -> Option<(Address, Vec<Held>)> {
        self.asked.take().filter(|(asked, _)| *asked != named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Address = Address::repeat_byte(2);
    const OTHER: Address = Address::repeat_byte(3);

    #[test]
    fn one_signer_is_asked_about_and_what_peers_did_waits_for_the_answer() {
        let mut doubt = Doubt::default();
        let [a, b] = [PeerId::random(), PeerId::random()];
        assert!(!doubt.hold(a, NEW, 0), "nobody waits");
        let (asker, mut asked) = oneshot::channel();
        doubt.wait(asker);
        assert!(doubt.hold(a, NEW, 0) && doubt.hold(b, NEW, 0) && !doubt.hold(b, OTHER, 0));
        assert_eq!(asked.try_recv(), Ok(NEW));
        assert_eq!(doubt.settle(NEW), None, "it is the signer");
        assert!(!doubt.hold(a, OTHER, 0), "nobody waits any more");

        let (asker, _asked) = oneshot::channel();
        doubt.wait(asker);
        let held = (0..HELD + 9).filter(|_| doubt.hold(a, OTHER, 8)).count();
        assert_eq!(held, HELD);
        assert_eq!(doubt.settle(NEW), Some((OTHER, vec![(a, 8); HELD])));
        assert_eq!(doubt.settle(NEW), None, "judged once");
    }

    #[test]
    fn a_waiter_that_went_away_is_none() {
        let mut doubt = Doubt::default();
        let (asker, asked) = oneshot::channel();
        doubt.wait(asker);
        drop(asked);
        assert!(!doubt.hold(PeerId::random(), NEW, 0));
    }
}
