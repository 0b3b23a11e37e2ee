//! Per-address limits on shared resources, so that the clients of one address cannot take all of
//! them.
//!
//! Loopback and private addresses have no limit, because all clients behind a reverse proxy there
//! have the proxy's address.

use super::schedule::network;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
};
use tokio::sync::Semaphore;

/// The shares of those addresses that use one now.
pub struct Shares {
    each: usize,
    live: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Shares {
    pub fn new(each: usize) -> Self {
        Self {
            each: each.min(Semaphore::MAX_PERMITS),
            live: Mutex::default(),
        }
    }

    /// The share of an address, or of the /64 network of an IPv6 address, since one owner has at
    /// least such a network. The share exists as long as it is in use. `None` for loopback and
    /// private addresses.
    pub fn of(&self, address: IpAddr) -> Option<Arc<Semaphore>> {
        let network = network(address)?;
        let mut live = self.live.lock();
        if let Some(share) = live.get(&network).and_then(Weak::upgrade) {
            return Some(share);
        }
        live.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.each));
        live.insert(network, Arc::downgrade(&share));
        Some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_share_and_this_machine_or_a_private_network_none() {
        let shares = Shares::new(2);
        let of = |text: &str| shares.of(text.parse().unwrap());
        let (first, second) = (
            of("203.0.113.1").unwrap(),
            of("::ffff:203.0.113.1").unwrap(),
        );
        let _held = first.try_acquire_many_owned(2).unwrap();
        assert!(second.try_acquire().is_err(), "it is the same");
        assert!(of("203.0.113.2").unwrap().try_acquire().is_ok());
        let network = of("2001:db8::1").unwrap();
        assert!(
            Arc::ptr_eq(&network, &of("2001:db8::2").unwrap()),
            "one owner"
        );
        assert!(of("127.0.0.1").is_none() && of("::1").is_none());
        assert!(of("10.0.0.1").is_none() && of("fd00::1").is_none());
    }
}
