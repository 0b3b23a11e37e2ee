//! The server of `payload_by_number`. [`Blocks::block`] is called on blocking threads.
//!
//! Overload: peers that send requests faster than the disk can read, and peers that do not read
//! their responses. The quota bounds streams and responses in memory, and excess streams are reset
//! at once. Each peer has a token bucket, and all peers together have one. A request waits for its
//! tokens, and is refused if it would wait for too long. Reading and writing have deadlines. Excess
//! streams and stalls are offences.

use super::{
    SwarmView, accept_streams,
    bucket::{LONGEST_WAIT, PEER_RATE, SHARED_RATE, TokenBucket},
    quota::{ByTrust, Quota, QuotaCapacity, QuotaLimits, Requester},
};
use crate::{
    clock::unix_now,
    host::streams::Incoming,
    metrics::{self as meters, Side},
    types::Blocks,
    types::ChainGenesis,
};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use parking_lot::Mutex;
use starling_proto::{
    fork::ForkSchedule,
    reqresp::{self, NumberRefusal, REQUEST_LEN},
};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, time::timeout};

const READ_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const LIMITS: QuotaLimits = QuotaLimits {
    // A peer that runs this node requests 16 blocks at once.
    streams: QuotaCapacity {
        peer: 32,
        address: Some(64),
        total: 256,
    },
    responses: QuotaCapacity {
        peer: 8,
        address: Some(8),
        total: 24,
    },
    rate: PEER_RATE,
};
const COUNTER: &str = "starling_p2p_serve_total";

/// The rules by which requests are answered. Pure, apart from the reads of the chain.
#[derive(Clone)]
pub struct NumberRules {
    pub genesis: ChainGenesis,
    pub forks: ForkSchedule,
    pub blocks: Arc<dyn Blocks>,
}

impl NumberRules {
    /// The response to a request for block `number`. `unix` is Unix time.
    pub fn respond(&self, number: u64, unix: u64) -> Result<Vec<u8>, NumberRefusal> {
        if number < self.genesis.id.number || number > self.genesis.number_at(unix) {
            return Err(NumberRefusal::InvalidRequest);
        }
        let payload = self.blocks.block(number).ok_or(NumberRefusal::NotFound)?;
        reqresp::encode_response(&payload, &self.forks).map_err(|_| NumberRefusal::Other(3))
    }
}

/// The server of `payload_by_number`.
pub struct NumberServer {
    rules: NumberRules,
    quota: Arc<Quota>,
    /// The token buckets that all trusted peers share, and that all untrusted peers share.
    tokens: ByTrust<Mutex<TokenBucket>>,
}

impl NumberServer {
    pub fn new(
        genesis: ChainGenesis,
        forks: ForkSchedule,
        blocks: Arc<dyn Blocks>,
        swarm: SwarmView,
    ) -> Self {
        Self {
            rules: NumberRules {
                genesis,
                forks,
                blocks,
            },
            quota: Arc::new(Quota::new(LIMITS, swarm)),
            tokens: ByTrust::new(|| Mutex::new(TokenBucket::new(SHARED_RATE, Instant::now()))),
        }
    }

    /// Serves streams until the swarm has ended.
    pub async fn run(self: Arc<Self>, incoming: mpsc::Receiver<Incoming>) {
        let quota = self.quota.clone();
        let serve = move |requester, stream| self.clone().serve(requester, stream);
        accept_streams(quota, COUNTER, incoming, serve).await;
    }

    /// Waits for the tokens of one request; `false` if the wait would be too long. The peer's own
    /// bucket comes first, so its excess requests use no tokens of the shared bucket.
    async fn wait(&self, requester: &Requester) -> bool {
        let mut left = LONGEST_WAIT;
        for bucket in [requester.tokens(), self.tokens.get(requester.trusted)] {
            // Release the lock before the wait.
            let wait = bucket.lock().take_within(left, Instant::now());
            let Some(wait) = wait else { return false };
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            left -= wait;
        }
        true
    }

    async fn serve(self: Arc<Self>, requester: Requester, mut stream: Stream) -> io::Result<()> {
        let mut request = [0; REQUEST_LEN];
        timeout(READ_TIMEOUT, stream.read_exact(&mut request)).await??;
        let begun = Instant::now();
        let in_time = self.wait(&requester).await;
        let permits = requester.response_permits().await;
        let _permits = permits.map_err(io::Error::other)?;
        let number = u64::from_le_bytes(request);
        let response = if in_time {
            self.response(number).await
        } else {
            Err(NumberRefusal::Other(3))
        };
        let (result, code, bytes) = match response {
            Ok(bytes) => ("ok", 0, bytes),
            Err(refusal) => (label(refusal), refusal.code(), vec![refusal.code()]),
        };
        meters::request(Side::Server, number, code, begun.elapsed());
        metrics::counter!(COUNTER, "result" => result).increment(1);
        timeout(WRITE_TIMEOUT, async {
            stream.write_all(&bytes).await?;
            stream.close().await
        })
        .await?
    }

    async fn response(&self, number: u64) -> Result<Vec<u8>, NumberRefusal> {
        let rules = self.rules.clone();
        let read = tokio::task::spawn_blocking(move || rules.respond(number, unix_now()));
        read.await.unwrap_or(Err(NumberRefusal::Other(3)))
    }
}

fn label(refusal: NumberRefusal) -> &'static str {
    match refusal {
        NumberRefusal::NotFound => "not_found",
        NumberRefusal::InvalidRequest => "invalid",
        NumberRefusal::Other(_) => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::PeerInfo;
    use alloy_primitives::B256;
    use futures::FutureExt;
    use libp2p::PeerId;
    use starling_proto::payload::{BlockId, Payload};
    use tokio::sync::watch;

    struct Nothing;

    impl Blocks for Nothing {
        fn knows(&self, _: B256) -> bool {
            false
        }

        fn block(&self, _: u64) -> Option<Payload> {
            None
        }
    }

    #[tokio::test]
    async fn requests_of_untrusted_peers_take_no_tokens_of_a_protected_peer() {
        let protected = PeerInfo {
            id: PeerId::random(),
            address: "/ip4/10.0.0.1/tcp/1".parse().unwrap(),
            agent: String::new(),
            outbound: true,
            protected: true,
            connections: 1,
        };
        let peers = watch::channel(vec![protected.clone()]).1;
        let swarm = SwarmView {
            peers,
            offences: mpsc::channel(1).0,
        };
        let server = NumberServer::new(
            ChainGenesis {
                id: BlockId::default(),
                time: 0,
                block_time: 2,
            },
            ForkSchedule::default(),
            Arc::new(Nothing),
            swarm,
        );
        let served_at_once = |id: PeerId, requests: usize| {
            let requester = server.quota.requester(id);
            (0..requests)
                .filter(|_| server.wait(&requester).now_or_never() == Some(true))
                .count()
        };
        // The buckets also refill while a busy machine pauses this test, so the upper bounds have a
        // margin.
        let alone = served_at_once(PeerId::random(), 30);
        assert!((15..20).contains(&alone), "{alone} of one untrusted peer");
        let untrusted: usize = (0..10).map(|_| served_at_once(PeerId::random(), 15)).sum();
        assert!((25..45).contains(&untrusted), "{untrusted} of ten more");
        assert!(served_at_once(protected.id, 15) == 15, "a protected peer");
    }
}
