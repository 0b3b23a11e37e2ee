//! Serves blocks to peers: single blocks by number (`serve/by_number.rs`, the network's protocol),
//! and headers and blocks by range (`serve/by_range.rs`, this node's own protocol). Both servers
//! accept their streams with `accept_streams` and use the quota of `serve/quota.rs`.
//!
//! Overload: peers that open more streams than are served, and peers that do not read
//! their responses. A stream beyond the quota is reset at once; a serving task holds its permits
//! until its stream is closed, and every read and write has a deadline.

pub mod bucket;
pub mod by_number;
pub mod by_range;
mod quota;

use crate::{host::streams::Incoming, peers::Offence};
use libp2p::Stream;
pub use quota::SwarmView;
use quota::{Quota, QuotaExceeded, Requester};
use std::{io, sync::Arc};
use tokio::{sync::mpsc, task::JoinSet};

/// Accepts streams until the swarm has ended, and starts a serving task for each. Dropping this
/// future drops every serving task. `counter` counts the streams that exceed the quota.
async fn accept_streams<F>(
    quota: Arc<Quota>,
    counter: &'static str,
    mut incoming: mpsc::Receiver<Incoming>,
    serve: impl Fn(Requester, Stream) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    while let Some(Incoming { peer, stream, .. }) = incoming.recv().await {
        while tasks.try_join_next().is_some() {}
        let requester = quota.requester(peer);
        let permits = match requester.stream_permits() {
            Ok(permits) => permits,
            Err(exceeded) => {
                metrics::counter!(counter, "result" => "overload").increment(1);
                // A peer is not responsible for permits that other peers hold.
                if exceeded == QuotaExceeded::Peer {
                    quota.report(peer, Offence::ExcessStreams);
                }
                continue;
            }
        };
        let (quota, served) = (quota.clone(), serve(requester, stream));
        tasks.spawn(async move {
            let _permits = permits;
            if let Err(error) = served.await {
                if error.kind() == io::ErrorKind::TimedOut {
                    quota.report(peer, Offence::StalledStream);
                }
                tracing::debug!(%peer, counter, %error, "request not served");
            }
        });
    }
}
