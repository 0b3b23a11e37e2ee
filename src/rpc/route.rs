//! The route of transactions that wallets send to this node: into our own pool, or to the
//! sequencer. The node sets the route, and `eth_sendRawTransaction` follows it.

use super::forward::ForwardClient;
use std::{sync::Arc, time::Duration};

/// Timeout of a request to the sequencer.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response of the sequencer in bytes. An error may contain the data of a failed call.
const MAX_RESPONSE: usize = 10 << 20;

/// The destination of transactions that wallets send here.
#[derive(Clone, Debug)]
pub enum TxRoute {
    /// Our own pool: on a sequencer, and on a node without `--rollup.sequencerhttp`.
    Pool,
    /// The sequencer's JSON-RPC (`--rollup.sequencerhttp`).
    Sequencer {
        client: Arc<ForwardClient>,
        /// Whether our own pool also keeps transactions that the sequencer has accepted, so that
        /// pending nonces and transactions can be read here (`--rollup.enabletxpooladmission`).
        admit: bool,
    },
}

impl TxRoute {
    /// A route to the sequencer's JSON-RPC at `url`. With `admit`, our own pool also keeps the
    /// transactions that the sequencer has accepted. The error is a sentence.
    pub fn sequencer(url: &str, admit: bool) -> Result<Self, String> {
        ForwardClient::new(url, MAX_RESPONSE, FORWARD_TIMEOUT)
            .map(Arc::new)
            .map(|client| Self::Sequencer { client, admit })
            .map_err(|error| format!("the sequencer's URL cannot be used: {error}"))
    }
}
