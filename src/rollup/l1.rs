//! The L1 client: what the rollup needs of an L1 node, over JSON-RPC, believing as little as
//! possible.
//!
//! A header's hash is recomputed and contract storage is proven against its state root, unless the
//! endpoint is trusted; receipts are always checked against the header's root. One attempt per
//! call: retries and their pace belong to the caller. An endpoint can overload us only up to
//! [`L1Config`]'s limits on response size, time and concurrency.

mod answer;
#[cfg(test)]
pub(crate) mod fake;
mod follow;
mod proof;
#[cfg(test)]
mod tests;

pub use follow::{FollowedL1, L1Heads, follow_heads};
pub use starling_proto::attributes::L1Block;

use crate::rollup::http::{causes, endpoint_of};
use alloy_primitives::{Address, B256, Bytes, U64, U256, b256};
use alloy_rpc_types_eth::EIP1186AccountProofResponse;
use jsonrpsee::{
    core::{client::ClientT, params::BatchRequestBuilder, traits::ToRpcParams},
    http_client::HttpClient,
    rpc_params,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use starling_proto::{attributes::ReceiptLogs, payload::BlockId};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// `keccak256("systemconfig.unsafeblocksigner")`, without the usual minus one (specs:
/// system-config).
pub const UNSAFE_BLOCK_SIGNER_SLOT: B256 =
    b256!("0x65a7ed542fb37fe237fdfbdd70b31598523fe5b32879e307bae27a0bd9581c08");

/// `gasLimit()` of the SystemConfig contract.
const GAS_LIMIT_SELECTOR: [u8; 4] = [0xf6, 0x80, 0x16, 0xb7];
/// `batcherHash()` of the SystemConfig contract.
const BATCHER_HASH_SELECTOR: [u8; 4] = [0xe8, 0x1b, 0x2c, 0x6d];

/// How long an unsupported method stays forgotten: endpoints behind a balancer differ.
const METHOD_RETRY: Duration = Duration::from_secs(60);

/// Characters kept of an endpoint's error message.
const MAX_MESSAGE: usize = 500;

/// How to reach L1.
#[derive(Clone, Debug)]
pub struct L1Config {
    /// `http://` or `https://`, credentials allowed.
    pub url: String,
    /// Trust header hashes and contract storage instead of verifying them (`--l1.trustrpc`).
    pub trust: bool,
    /// For one request.
    pub timeout: Duration,
    /// Requests in flight (`--l1.max-concurrency`).
    pub max_concurrency: usize,
    /// Calls in one batch (`--l1.rpc-max-batch-size`).
    pub max_batch: usize,
    /// Bytes of one answer.
    pub max_answer: u32,
}

impl L1Config {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: false,
            timeout: Duration::from_secs(10),
            max_concurrency: 10,
            max_batch: 20,
            max_answer: 64 << 20,
        }
    }
}

/// A call that failed, and where.
#[derive(Clone, Debug, thiserror::Error)]
#[error("L1 at {endpoint}: {method}: {cause}")]
pub struct L1Error {
    /// Scheme, host and port: paths and user names may be credentials.
    pub endpoint: Arc<str>,
    pub method: &'static str,
    pub cause: L1Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum L1Cause {
    /// The endpoint did not answer, or not in time.
    #[error("{0}")]
    Transport(String),
    /// The endpoint answered with a JSON-RPC error.
    #[error("error {code}: {message}")]
    Refused { code: i32, message: String },
    /// The endpoint does not prove contract storage.
    #[error(
        "error {code}: {message}: the contract's storage cannot be proven; give an endpoint that serves eth_getProof with --l1, or believe \
         this one with --l1.trustrpc"
    )]
    NoProof { code: i32, message: String },
    /// The answer does not have the form it should have.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// The answer contradicts itself or what was asked.
    #[error("untrue answer: {0}")]
    Untrue(String),
    /// A block that should be there is not there.
    #[error("no block {0}")]
    Missing(B256),
}

/// A block tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    Latest,
    Safe,
    Finalized,
}

impl Tag {
    fn name(self) -> &'static str {
        match self {
            Tag::Latest => "latest",
            Tag::Safe => "safe",
            Tag::Finalized => "finalized",
        }
    }
}

/// The SystemConfig contract's values at some L1 block. Derivation follows its logs instead; this
/// is read at start, as a check that the contract is there, and for the one value that no
/// log-follower keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemContract {
    /// Signs the blocks of the swarm (facts: gossip, expected signer).
    pub unsafe_block_signer: Address,
    pub batcher: Address,
    pub gas_limit: u64,
}

/// A cloneable client of one endpoint.
#[derive(Clone)]
pub struct L1Client {
    inner: Arc<L1Inner>,
}

struct L1Inner {
    http: HttpClient,
    endpoint: Arc<str>,
    trust: bool,
    max_batch: usize,
    permits: Semaphore,
    /// When the endpoint last said that it has no `eth_getBlockReceipts`.
    no_block_receipts: Mutex<Option<Instant>>,
}

impl L1Client {
    /// Does not connect yet. The error says what is wrong with the URL.
    pub fn new(config: &L1Config) -> Result<Self, L1Error> {
        let endpoint: Arc<str> = endpoint_of(&config.url).into();
        let http = HttpClient::builder()
            .request_timeout(config.timeout)
            .max_response_size(config.max_answer)
            .build(&config.url)
            .map_err(|e| L1Error {
                endpoint: endpoint.clone(),
                method: "connect",
                cause: L1Cause::Transport(e.to_string()),
            })?;
        let permits = Semaphore::new(config.max_concurrency.max(1));
        let (trust, max_batch) = (config.trust, config.max_batch.max(1));
        Ok(Self {
            inner: Arc::new(L1Inner {
                http,
                endpoint,
                trust,
                max_batch,
                permits,
                no_block_receipts: Mutex::new(None),
            }),
        })
    }

    /// The endpoint without credentials, for messages.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    pub async fn chain_id(&self) -> Result<u64, L1Error> {
        Ok(self.call::<U64>("eth_chainId", rpc_params![]).await?.to())
    }

    /// The block under a tag; `None` if L1 has none yet (`safe` and `finalized` of a young chain).
    pub async fn block(&self, tag: Tag) -> Result<Option<L1Block>, L1Error> {
        match self
            .header("eth_getBlockByNumber", rpc_params![tag.name(), false])
            .await
        {
            // geth: "safe block not found", "finalized block not found".
            Err(L1Error {
                cause: L1Cause::Refused { message, .. },
                ..
            }) if message.contains("not found") => Ok(None),
            other => other,
        }
    }

    /// The canonical block of this height, `None` above the head.
    pub async fn block_by_number(&self, number: u64) -> Result<Option<L1Block>, L1Error> {
        const METHOD: &str = "eth_getBlockByNumber";
        let block = self
            .header(METHOD, rpc_params![U64::from(number), false])
            .await?;
        match block {
            Some(block) if block.number != number => Err(self.untrue(
                METHOD,
                format!("asked for block {number}, got {}", block.number),
            )),
            block => Ok(block),
        }
    }

    /// A block on any branch that the endpoint knows.
    pub async fn block_by_hash(&self, hash: B256) -> Result<Option<L1Block>, L1Error> {
        const METHOD: &str = "eth_getBlockByHash";
        let block = self.header(METHOD, rpc_params![hash, false]).await?;
        match block {
            Some(block) if block.hash != hash => Err(self.untrue(
                METHOD,
                format!("asked for block {hash}, got {}", block.hash),
            )),
            block => Ok(block),
        }
    }

    /// For every transaction of a block, in order, whether it succeeded and its logs; checked
    /// against `block.receipts_root`.
    pub async fn receipts(&self, block: &L1Block) -> Result<Vec<ReceiptLogs>, L1Error> {
        if block.receipts_root == alloy_consensus::constants::EMPTY_RECEIPTS {
            return Ok(vec![]);
        }
        if !self.lacks_block_receipts() {
            const METHOD: &str = "eth_getBlockReceipts";
            match self
                .call::<Option<Vec<answer::L1Receipt>>>(METHOD, rpc_params![block.hash])
                .await
            {
                Ok(Some(receipts)) => return self.checked(METHOD, receipts, block),
                Ok(None) => return Err(self.error(METHOD, L1Cause::Missing(block.hash))),
                Err(error) if !error.is_unsupported() => return Err(error),
                Err(_) => *self.inner.no_block_receipts.lock() = Some(Instant::now()),
            }
        }
        const METHOD: &str = "eth_getTransactionReceipt";
        let receipts = self.receipts_one_by_one(METHOD, block).await?;
        self.checked(METHOD, receipts, block)
    }

    /// A storage slot of a contract after a block, proven against the block's state root unless the
    /// endpoint is trusted. Zero if the slot is empty.
    pub async fn storage_at(
        &self,
        contract: Address,
        slot: B256,
        at: &L1Block,
    ) -> Result<B256, L1Error> {
        if self.inner.trust {
            let value: U256 = self
                .call(
                    "eth_getStorageAt",
                    rpc_params![contract, slot, at_block(at.id())],
                )
                .await?;
            return Ok(value.into());
        }
        const METHOD: &str = "eth_getProof";
        let answer = self
            .call::<EIP1186AccountProofResponse>(METHOD, rpc_params![contract, [slot], at.hash])
            .await;
        let proof = answer.map_err(|error| match error.cause {
            L1Cause::Refused { code, message } => {
                self.error(METHOD, L1Cause::NoProof { code, message })
            }
            cause => self.error(METHOD, cause),
        })?;
        proof::storage(&proof, contract, slot, at).map_err(|cause| self.error(METHOD, cause))
    }

    /// The result of a call on the state after a block.
    pub async fn eth_call(&self, to: Address, data: &[u8], at: BlockId) -> Result<Bytes, L1Error> {
        let request = serde_json::json!({ "to": to, "data": Bytes::copy_from_slice(data) });
        self.call("eth_call", rpc_params![request, at_block(at)])
            .await
    }

    /// The signer of unsafe blocks that the SystemConfig contract names after a block; zero is no
    /// signer.
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

    /// Reads the SystemConfig contract after a block.
    pub async fn system_contract(
        &self,
        address: Address,
        at: &L1Block,
    ) -> Result<SystemContract, L1Error> {
        let word = async |selector: [u8; 4]| {
            let answer = self.eth_call(address, &selector, at.id()).await?;
            B256::try_from(&answer[..]).map_err(|_| {
                let cause = format!(
                    "no SystemConfig contract at {address}: {} bytes where 32 were expected",
                    answer.len()
                );
                self.error("eth_call", L1Cause::Malformed(cause))
            })
        };
        let unsafe_block_signer = self.unsafe_block_signer(address, at).await?;
        let gas_limit = U256::from_be_bytes(word(GAS_LIMIT_SELECTOR).await?.0);
        Ok(SystemContract {
            unsafe_block_signer,
            batcher: Address::from_word(word(BATCHER_HASH_SELECTOR).await?),
            gas_limit: gas_limit
                .try_into()
                .map_err(|_| self.untrue("eth_call", format!("gas limit {gas_limit}")))?,
        })
    }

    async fn header<P: ToRpcParams + Send>(
        &self,
        method: &'static str,
        params: P,
    ) -> Result<Option<L1Block>, L1Error> {
        // Checked by hand below: serde would report the first missing field of a flattened header
        // without its name.
        let Some(value) = self
            .call::<Option<serde_json::Value>>(method, params)
            .await?
        else {
            return Ok(None);
        };
        answer::block(value, self.inner.trust)
            .map(Some)
            .map_err(|cause| self.error(method, cause))
    }

    async fn receipts_one_by_one(
        &self,
        method: &'static str,
        block: &L1Block,
    ) -> Result<Vec<answer::L1Receipt>, L1Error> {
        const BLOCK: &str = "eth_getBlockByHash";
        let hashes: Option<answer::TransactionHashes> =
            self.call(BLOCK, rpc_params![block.hash, false]).await?;
        let hashes = hashes
            .ok_or_else(|| self.error(BLOCK, L1Cause::Missing(block.hash)))?
            .transactions;
        let mut receipts = Vec::with_capacity(hashes.len());
        for chunk in hashes.chunks(self.inner.max_batch) {
            let mut batch = BatchRequestBuilder::new();
            for hash in chunk {
                batch
                    .insert(method, rpc_params![hash])
                    .map_err(|e| self.error(method, L1Cause::Malformed(e.to_string())))?;
            }
            let _permit = self.permit(method).await?;
            let answers = self
                .inner
                .http
                .batch_request::<Option<answer::L1Receipt>>(batch)
                .await;
            for answer in answers.map_err(|e| self.failure(method, e))?.into_iter() {
                let receipt = answer.map_err(|e| self.refused(method, &e))?;
                receipts.push(receipt.ok_or_else(|| {
                    self.untrue(
                        method,
                        format!("a transaction of block {} has no receipt", block.hash),
                    )
                })?);
            }
        }
        Ok(receipts)
    }

    fn checked(
        &self,
        method: &'static str,
        receipts: Vec<answer::L1Receipt>,
        block: &L1Block,
    ) -> Result<Vec<ReceiptLogs>, L1Error> {
        answer::receipts(receipts, block).map_err(|cause| self.error(method, cause))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl ToRpcParams + Send,
    ) -> Result<T, L1Error> {
        let _permit = self.permit(method).await?;
        self.inner
            .http
            .request(method, params)
            .await
            .map_err(|e| self.failure(method, e))
    }

    async fn permit(
        &self,
        method: &'static str,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, L1Error> {
        self.inner
            .permits
            .acquire()
            .await
            .map_err(|e| self.error(method, L1Cause::Transport(e.to_string())))
    }

    fn lacks_block_receipts(&self) -> bool {
        self.inner
            .no_block_receipts
            .lock()
            .is_some_and(|since| since.elapsed() < METHOD_RETRY)
    }

    fn failure(&self, method: &'static str, error: jsonrpsee::core::ClientError) -> L1Error {
        use jsonrpsee::core::ClientError;
        match error {
            ClientError::Call(refusal) => self.refused(method, &refusal),
            ClientError::ParseError(error) => {
                self.error(method, L1Cause::Malformed(error.to_string()))
            }
            ClientError::RequestTimeout => {
                self.error(method, L1Cause::Transport("no answer in time".into()))
            }
            ClientError::Transport(error) => {
                self.error(method, L1Cause::Transport(causes(&*error)))
            }
            error => self.error(method, L1Cause::Transport(error.to_string())),
        }
    }

    fn refused(
        &self,
        method: &'static str,
        refusal: &jsonrpsee::types::ErrorObject<'_>,
    ) -> L1Error {
        // The message goes into logs, and the endpoint chooses its length.
        let message = refusal.message().chars().take(MAX_MESSAGE).collect();
        self.error(
            method,
            L1Cause::Refused {
                code: refusal.code(),
                message,
            },
        )
    }

    fn untrue(&self, method: &'static str, what: String) -> L1Error {
        self.error(method, L1Cause::Untrue(what))
    }

    fn error(&self, method: &'static str, cause: L1Cause) -> L1Error {
        L1Error {
            endpoint: self.inner.endpoint.clone(),
            method,
            cause,
        }
    }
}

impl L1Error {
    /// Whether the endpoint does not know the method (facts: receipt methods).
    fn is_unsupported(&self) -> bool {
        let L1Cause::Refused { code, message } = &self.cause else {
            return false;
        };
        let message = message.to_lowercase();
        matches!(code, -32601 | -32004)
            || [
                "not found",
                "not supported",
                "unsupported",
                "does not exist",
                "not available",
            ]
            .iter()
            .any(|text| message.contains("method") && message.contains(text))
    }
}

/// EIP-1898, by hash: the answer belongs to this block or there is none.
fn at_block(at: BlockId) -> serde_json::Value {
    serde_json::json!({ "blockHash": at.hash })
}
