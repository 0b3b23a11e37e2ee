//! The L1 client: sends the rollup's requests to L1 endpoints over JSON-RPC and verifies the
//! responses.
//!
//! A header's hash is recomputed, transactions and withdrawals are checked against the header, and
//! contract storage is proven against its state root, unless the endpoint is trusted. Receipts are
//! always checked against the header's root. A call that fails at one endpoint is tried at the
//! others, at most once at each. Further retries and their pace belong to the caller, but a busy
//! endpoint gets no request before its cool-down ends. [`L1Config`] limits the size, time and
//! concurrency of responses, which protects the node from a hostile endpoint.
//!
//! An [`L1Block`] is a header. [`L1BlockData`] adds inbox transactions and logs, and derivation's
//! `L1Input` is made from it. A `CheckedL1Block` is a block before its receipts are fetched.
//! Callers that need no verification (`l2_source`, `txmgr`, the proposer, builders) use [`plain`].

mod block_receipts;
mod blocks;
mod cache;
mod check;
mod data;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
pub mod plain;
mod prefetch;
mod proof;
mod receipts;
mod request;
mod response;
mod routes;
#[cfg(test)]
mod tests;
mod transport;

pub use blocks::L1Blocks;
pub use check::{L1CheckError, check_chain};
pub use data::{L1BlockData, Watched};
pub use error::{L1Error, RpcCause};
pub use follow::{FollowedL1, L1Heads, follow_heads};
pub use prefetch::Prefetcher;
pub use receipts::RpcKind;
pub use starling_proto::attributes::L1Block;
pub use transport::{L1Response, RpcCall, is_socket_path};

use crate::rollup::{
    head_search::OriginStatus, http::rotation::Rotation, rpc_calls::RpcClientMetrics,
};
use alloy_primitives::{Address, B256, Bytes, U64, U256, b256};
use alloy_rpc_types_eth::EIP1186AccountProofResponse;
use gate::{L1Gate, Urgency};
use jsonrpsee::core::client::Subscription;
use parking_lot::Mutex;
use receipts::ReceiptMethods;
use routes::L1Routes;
use serde_json::{Value, json, value::RawValue};
use starling_proto::payload::BlockId;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OnceCell;
use transport::Transport;

/// `keccak256("systemconfig.unsafeblocksigner")`; unlike in EIP-1967, 1 is not subtracted (specs:
/// system-config).
pub const UNSAFE_BLOCK_SIGNER_SLOT: B256 =
    b256!("0x65a7ed542fb37fe237fdfbdd70b31598523fe5b32879e307bae27a0bd9581c08");

/// Selector of `gasLimit()` of the SystemConfig contract.
const GAS_LIMIT_SELECTOR: [u8; 4] = [0xf6, 0x80, 0x16, 0xb7];
/// Selector of `batcherHash()` of the SystemConfig contract.
const BATCHER_HASH_SELECTOR: [u8; 4] = [0xe8, 0x1b, 0x2c, 0x6d];

const BY_NUMBER: &str = "eth_getBlockByNumber";
const BY_HASH: &str = "eth_getBlockByHash";
const SUBSCRIBE: &str = "eth_subscribe";
const SUBSCRIPTION: &str = "eth_subscription";

/// Endpoints of L1, and limits of the requests to them.
#[derive(Clone, Debug)]
pub struct L1Config {
    /// Endpoints, separated by commas. Each begins with `http://`, `https://`, `ws://` or `wss://`,
    /// or is the path of a Unix socket. Credentials are allowed. The first endpoint is used until
    /// it fails, then the next one. All must serve the same chain.
    pub url: String,
    /// Whether to accept header hashes, transactions, withdrawals and contract storage without
    /// verification (`--l1.trustrpc`).
    pub trust: bool,
    /// Timeout of one request. A call waits no longer than this for the cool-down of a busy
    /// endpoint.
    pub timeout: Duration,
    /// Largest number of requests in flight (`--l1.max-concurrency`).
    pub max_concurrency: usize,
    /// Largest number of calls in one batch (`--l1.rpc-max-batch-size`).
    pub max_batch: usize,
    /// Largest response in bytes. Over HTTP, responses to bulk requests are limited to 4 MiB. A
    /// single call with a larger response is repeated with this limit, one such call at a time.
    pub max_response_bytes: u32,
    /// Largest number of calls per second, where each call in a batch counts; zero means no limit
    /// (`--l1.rpc-rate-limit`). A burst may be as large as one batch.
    pub rate_limit: f64,
    /// Kind of the endpoint, which decides how receipts are fetched (`--l1.rpckind`).
    pub kind: RpcKind,
    /// The chain id of the rollup's L1. If it is given, each of several endpoints is checked for it
    /// before its first use.
    pub chain_id: Option<u64>,
    /// Metrics of a rollup node's L1 calls. `None` for clients of other programs.
    pub metrics: Option<RpcClientMetrics>,
}

impl L1Config {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: false,
            timeout: Duration::from_secs(10),
            max_concurrency: 10,
            max_batch: 20,
            max_response_bytes: 64 << 20,
            rate_limit: 0.0,
            kind: RpcKind::Standard,
            chain_id: None,
            metrics: None,
        }
    }
}

/// The tag of an L1 block in a JSON-RPC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Tag {
    Latest,
    Safe,
    Finalized,
}

impl L1Tag {
    fn name(self) -> &'static str {
        match self {
            L1Tag::Latest => "latest",
            L1Tag::Safe => "safe",
            L1Tag::Finalized => "finalized",
        }
    }
}

/// Selects a block by its height on the canonical chain, or by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1BlockAt {
    Number(u64),
    Hash(B256),
}

impl L1BlockAt {
    /// The JSON-RPC call for the block. With `whole` the block contains whole transactions,
    /// otherwise their hashes.
    fn call(self, whole: bool) -> RpcCall {
        match self {
            Self::Number(number) => RpcCall {
                method: BY_NUMBER,
                params: json!([U64::from(number), whole]),
            },
            Self::Hash(hash) => RpcCall {
                method: BY_HASH,
                params: json!([hash, whole]),
            },
        }
    }

    /// Fails if `block`, the response, is another block than the requested one.
    fn check(self, block: &L1Block) -> Result<(), RpcCause> {
        let untrue = |requested: &dyn std::fmt::Display, got: &dyn std::fmt::Display| {
            Err(RpcCause::Untrue(format!(
                "requested block {requested}, got {got}"
            )))
        };
        match self {
            Self::Number(number) if block.number != number => untrue(&number, &block.number),
            Self::Hash(hash) if block.hash != hash => untrue(&hash, &block.hash),
            _ => Ok(()),
        }
    }
}

/// Values of the SystemConfig contract after an L1 block. Only `unsafe_signer` reads them, at
/// start, to check that the contract exists. Derivation follows the contract's logs instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemContract {
    /// Address that signs the blocks gossiped in the swarm (specs: rollup-node-p2p, block
    /// signatures).
    pub unsafe_block_signer: Address,
    pub gas_limit: u64,
}

/// A cloneable client of one or more endpoints of the same chain. Its requests are urgent unless
/// the client was made by [`L1Client::for_bulk`].
#[derive(Clone)]
pub struct L1Client {
    inner: Arc<L1Inner>,
    urgency: Urgency,
}

struct L1Inner {
    endpoints: Vec<L1Endpoint>,
    routes: Mutex<L1Routes>,
    gate: L1Gate,
    trust: bool,
    max_batch: usize,
    max_response_bytes: u32,
    timeout: Duration,
    /// The chain id that every endpoint must have; `None` disables the check.
    chain_id: Option<u64>,
    metrics: Option<RpcClientMetrics>,
    receipt_methods: Mutex<ReceiptMethods>,
}

struct L1Endpoint {
    transport: Transport,
    /// Chain id of this endpoint. Read before its first use, if there are several endpoints.
    chain_id: OnceCell<u64>,
}

impl L1Client {
    /// Creates the client without connecting. The error explains what is wrong with a URL.
    pub fn new(config: &L1Config) -> Result<Self, L1Error> {
        let urls = config
            .url
            .split(',')
            .map(str::trim)
            .filter(|url| !url.is_empty());
        let invalid = |url: &str, reason| L1Error {
            endpoint: crate::rollup::http::endpoint_of(url).into(),
            method: "connect",
            cause: RpcCause::Transport(reason),
        };
        let transports = urls
            .map(|url| Transport::new(url, config).map_err(|reason| invalid(url, reason)))
            .collect::<Result<Vec<_>, _>>()?;
        if transports.is_empty() || transports.len() > Rotation::MAX {
            let reason = format!(
                "--l1: {} endpoints, where 1 to {} are possible",
                transports.len(),
                Rotation::MAX
            );
            return Err(invalid("", reason));
        }
        let endpoint = |transport| L1Endpoint {
            transport,
            chain_id: OnceCell::new(),
        };
        Ok(Self {
            inner: Arc::new(L1Inner {
                routes: Mutex::new(L1Routes::new(transports.len())),
                endpoints: transports.into_iter().map(endpoint).collect(),
                gate: L1Gate::new(config, Instant::now()),
                trust: config.trust,
                max_batch: config.max_batch.max(1),
                max_response_bytes: config.max_response_bytes,
                timeout: config.timeout,
                chain_id: config.chain_id,
                metrics: config.metrics,
                receipt_methods: Mutex::new(ReceiptMethods::new(config.kind)),
            }),
            urgency: Urgency::Urgent,
        })
    }

    /// A client of the same endpoints with the same limits. Its requests yield to urgent ones.
    pub fn for_bulk(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            urgency: Urgency::Bulk,
        }
    }

    /// Name of the endpoint in use, without credentials, for messages.
    pub fn endpoint(&self) -> &str {
        let index = self.inner.routes.lock().first(self.urgency);
        self.inner.endpoints[index].transport.name()
    }

    /// The chain id of the endpoint in use. If there are several endpoints and all serve the wrong
    /// chain, the chain id of one of them.
    pub async fn chain_id(&self) -> Result<u64, L1Error> {
        match self.plain_call::<U64>("eth_chainId", json!([])).await {
            Err(L1Error {
                cause: RpcCause::WrongChain { chain_id, .. },
                ..
            }) if self.all_serve_wrong_chain() => Ok(chain_id),
            response => Ok(response?.to()),
        }
    }

    /// The block with a tag. `None` if L1 has no such block yet, as for `safe` and `finalized` of a
    /// young chain.
    pub async fn block(&self, tag: L1Tag) -> Result<Option<L1Block>, L1Error> {
        let call = RpcCall {
            method: BY_NUMBER,
            params: json!([tag.name(), false]),
        };
        self.request_one(call, |response| match response {
            Err(cause) if cause.is_unknown_block() => Ok(None),
            Err(cause) => Err(cause),
            Ok(block) => self.read_header(&block),
        })
        .await
    }

    /// The canonical block of this height; `None` above L1's head.
    pub async fn block_by_number(&self, number: u64) -> Result<Option<L1Block>, L1Error> {
        self.block_at(L1BlockAt::Number(number)).await
    }

    /// Whether this block is canonical at present.
    pub async fn status(&self, block: BlockId) -> Result<OriginStatus, L1Error> {
        Ok(match self.block_by_number(block.number).await? {
            Some(canonical) if canonical.hash == block.hash => OriginStatus::Canonical,
            Some(other) => OriginStatus::Orphaned {
                canonical: other.hash,
            },
            None => OriginStatus::Ahead,
        })
    }

    async fn block_at(&self, at: L1BlockAt) -> Result<Option<L1Block>, L1Error> {
        self.request_one(at.call(false), |response| {
            let block = self.read_header(&response?)?;
            block
                .map_or(Ok(()), |block| at.check(&block))
                .map(|()| block)
        })
        .await
    }

    fn read_header(&self, response: &RawValue) -> Result<Option<L1Block>, RpcCause> {
        // Parse into a `Value` first: serde would not name the first missing field of a flattened
        // header.
        let value: Option<Value> = read(response)?;
        value
            .map(|value| response::block(value, self.inner.trust))
            .transpose()
    }

    /// Subscribes to new heads at the endpoint in use. The headers are unverified until
    /// [`L1Client::read_new_head`]. `None` if the endpoint has no subscriptions, as over HTTP.
    async fn subscribe_heads(&self) -> Option<Result<Subscription<Value>, L1Error>> {
        let index = self.inner.routes.lock().first(self.urgency);
        let subscribe = async {
            if let Err(cause) = self.check_chain_id(index).await {
                return Some(Err(cause));
            }
            let endpoint = &self.inner.endpoints[index];
            endpoint.transport.subscribe_heads().await
        };
        let subscribed = subscribe.await?;
        Some(subscribed.map_err(|cause| self.error_of(index, SUBSCRIBE, cause)))
    }

    /// Verifies a header that a subscription delivered, like any other header.
    fn read_new_head(&self, header: Value) -> Result<L1Block, L1Error> {
        if let Some(metrics) = self.inner.metrics {
            metrics.on_notification(SUBSCRIPTION);
        }
        let block = response::block(header, self.inner.trust);
        block.map_err(|cause| self.error(SUBSCRIBE, cause))
    }

    /// A contract's storage slot after block `at`; zero if the slot is empty. Proven against the
    /// block's state root unless the endpoint is trusted.
    pub async fn storage_at(
        &self,
        contract: Address,
        slot: B256,
        at: &L1Block,
    ) -> Result<B256, L1Error> {
        if self.inner.trust {
            let params = json!([contract, slot, at_block(at.id())]);
            let value: U256 = self.plain_call("eth_getStorageAt", params).await?;
            return Ok(value.into());
        }
        let call = RpcCall {
            method: "eth_getProof",
            params: json!([contract, [slot], at.hash]),
        };
        let proven = self.request_one(call, |response| {
            let proof: EIP1186AccountProofResponse = read(&response?)?;
            proof::storage(&proof, contract, slot, at)
        });
        proven.await.map_err(|error| match error.cause {
            RpcCause::Refused { code, message } => L1Error {
                cause: RpcCause::NoProof { code, message },
                ..error
            },
            _ => error,
        })
    }

    /// The result of `eth_call` on the state after block `at`. Not verified.
    pub async fn eth_call(&self, to: Address, data: &[u8], at: BlockId) -> Result<Bytes, L1Error> {
        let request = json!({ "to": to, "data": Bytes::copy_from_slice(data) });
        self.plain_call("eth_call", json!([request, at_block(at)]))
            .await
    }

    /// The signer of unsafe blocks according to the SystemConfig contract after a block. Zero means
    /// that there is no signer.
    pub async fn unsafe_block_signer(
        &self,
        contract: Address,
        at: &L1Block,
    ) -> Result<Address, L1Error> {
        Ok(Address::from_word(
            self.storage_at(contract, UNSAFE_BLOCK_SIGNER_SLOT, at)
                .await?,
        ))
    }

    /// Reads values of the SystemConfig contract after a block.
    pub async fn system_contract(
        &self,
        address: Address,
        at: &L1Block,
    ) -> Result<SystemContract, L1Error> {
        let word = async |selector: [u8; 4]| {
            let response = self.eth_call(address, &selector, at.id()).await?;
            B256::try_from(&response[..]).map_err(|_| {
                let cause = format!(
                    "no SystemConfig contract at {address}: {} bytes where 32 were expected",
                    response.len()
                );
                self.error("eth_call", RpcCause::Malformed(cause))
            })
        };
        let unsafe_block_signer = self.unsafe_block_signer(address, at).await?;
        let gas_limit = U256::from_be_bytes(word(GAS_LIMIT_SELECTOR).await?.0);
        Ok(SystemContract {
            unsafe_block_signer,
            gas_limit: gas_limit.try_into().map_err(|_| {
                self.error(
                    "eth_call",
                    RpcCause::Untrue(format!("gas limit {gas_limit}")),
                )
            })?,
        })
    }
}

/// Parses the JSON of a response.
fn read<'a, T: serde::Deserialize<'a>>(response: &'a RawValue) -> Result<T, RpcCause> {
    serde_json::from_str(response.get()).map_err(RpcCause::malformed)
}

/// The block parameter by hash (EIP-1898): the endpoint responds for exactly this block or with an
/// error.
fn at_block(at: BlockId) -> Value {
    json!({ "blockHash": at.hash })
}
