//! Methods of the operator: those that change what a node follows, builds or serves.
//!
//! No web page may call them. A browser sends a page's requests from the operator's own machine,
//! past firewalls and to loopback addresses, and it names the page in the header `Origin`. Without
//! authentication, that header is all that tells such a request from the operator's. An endpoint
//! that serves these methods to other machines is logged with what its callers can do there.

use super::{
    access::{Access, Caller},
    api::Api,
    error::RpcError,
};
use std::time::Instant;

/// Namespaces that are the operator's as a whole.
const NAMESPACES: [&str; 4] = ["admin", "miner", "testing", "txmgr"];

/// The operator's methods of other namespaces.
const METHODS: [&str; 14] = [
    "debug_setHead",
    "debug_standardTraceBadBlockToFile",
    "debug_standardTraceBlockToFile",
    "debug_sync",
    "opp2p_blockAddr",
    "opp2p_blockPeer",
    "opp2p_blockSubnet",
    "opp2p_connectPeer",
    "opp2p_disconnectPeer",
    "opp2p_protectPeer",
    "opp2p_unblockAddr",
    "opp2p_unblockPeer",
    "opp2p_unblockSubnet",
    "opp2p_unprotectPeer",
];

/// Methods with great effect, and the effect in words that follow "can".
const POWERS: [(&str, &str); 12] = [
    (
        "admin_setUnsafeBlockSigner",
        "replace the signer whose blocks are followed",
    ),
    ("admin_stopSequencer", "stop and start the sequencer"),
    ("admin_resetDerivationPipeline", "reset derivation"),
    ("admin_startHTTP", "open and close RPC servers"),
    ("admin_importChain", "import and export blocks"),
    ("admin_removePeer", "add and remove peers"),
    ("admin_stopBatcher", "stop and start the batcher"),
    ("admin_stopProposer", "stop and start the proposer"),
    (
        "txmgr_setMinPriorityFee",
        "raise the fees of transactions on L1",
    ),
    ("miner_setMaxDASize", "limit the blocks that are built"),
    ("debug_setHead", "move the head"),
    ("testing_commitBlockV1", "append blocks of any content"),
];

fn namespace(method: &str) -> &str {
    method.split('_').next().unwrap_or_default()
}

/// Whether a method is the operator's.
fn is_operators(method: &str) -> bool {
    NAMESPACES.contains(&namespace(method)) || METHODS.contains(&method)
}

/// The effects that a caller without a key can have through the methods of `api`. `access` are the
/// rules of callers; with `None`, every caller may call every method.
pub fn powers_of_anyone(api: &Api, access: Option<&Access>) -> Vec<&'static str> {
    let open = |method: &str| {
        api.name_of(method).is_some() && access.is_none_or(|access| access.is_open(method))
    };
    let powers = POWERS.iter().filter(|(method, _)| open(method));
    powers.map(|(_, power)| *power).collect()
}

/// The sender of a request, or of all requests of a connection.
#[derive(Clone, Debug, Default)]
pub struct RequestSender {
    /// The caller whose budget pays for the calls; `None` if calls are not limited.
    pub caller: Option<Caller>,
    /// Whether a web page sends the requests.
    pub is_page: bool,
}

impl RequestSender {
    /// Admits a call of a method that `api` may serve, and takes the call's cost from the budget of
    /// its caller. Returns the error of a refusal.
    pub fn admit(&self, api: &Api, method: &str) -> Result<(), RpcError> {
        if self.is_page && is_operators(method) && api.serves(namespace(method)) {
            return Err(RpcError::server(format!(
                "{method} is not available to web pages: call it from a program, without an Origin header"
            )));
        }
        let now = Instant::now();
        let caller = self.caller.as_ref();
        caller.map_or(Ok(()), |caller| caller.admit(method, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::NAMESPACES as SERVED;

    #[test]
    fn every_method_that_is_named_here_exists() {
        let served = |method: &str| {
            let mut methods = SERVED.iter().flat_map(|namespace| namespace.methods);
            methods.any(|(name, _)| *name == method)
        };
        assert!(METHODS.iter().all(|method| served(method)));
        let of_services = [
            "admin_stopBatcher",
            "admin_stopProposer",
            "txmgr_setMinPriorityFee",
        ];
        for (method, _) in POWERS {
            assert!(is_operators(method), "{method}");
            assert!(served(method) || of_services.contains(&method), "{method}");
        }
        for method in [
            "eth_call",
            "debug_traceCall",
            "opp2p_peers",
            "txpool_status",
        ] {
            assert!(!is_operators(method), "{method}");
        }
    }
}
