//! The warning about an endpoint that serves the operator's methods to other machines.

use super::Site;
use crate::rpc::operator::powers_of_anyone;
use std::net::SocketAddr;

impl Site {
    /// The effects that whoever reaches `addr` can have on the node, in words that follow "can".
    /// `None` if there are none, if callers must authenticate, or if only this machine reaches
    /// `addr`.
    pub(in crate::rpc) fn exposure(&self, addr: SocketAddr) -> Option<String> {
        if addr.ip().to_canonical().is_loopback() || self.secret.is_some() {
            return None;
        }
        let http = self.http.as_ref().map(|http| http.api.clone());
        let ws = self.ws.lock().as_ref().map(|ws| ws.side.api.clone());
        let mut powers = Vec::new();
        for api in http.into_iter().chain(ws) {
            for power in powers_of_anyone(&api, self.access.as_deref()) {
                if !powers.contains(&power) {
                    powers.push(power);
                }
            }
        }
        (!powers.is_empty()).then(|| powers.join(", "))
    }

    /// Warns if callers without a key or a secret can act as the operator at `addr`. `flag` is the
    /// prefix of the endpoint's options.
    pub fn warn_of_exposure(&self, addr: SocketAddr, flag: &str) {
        if let Some(powers) = self.exposure(addr) {
            tracing::warn!(
                address = %addr,
                "the operator's methods are served on an address that is not loopback: a stranger who reaches it can {powers}; set --{flag}.addr=127.0.0.1, or let a firewall protect the port"
            );
        }
    }
}
