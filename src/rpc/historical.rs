//! History before Bedrock (`--rollup.historicalrpc`): requests about blocks below this node's first
//! block are forwarded to another node, with op-geth's errors.
//!
//! A request that names a block by number is forwarded if the block is below our first block. A
//! request that names a block or a transaction by hash is forwarded if neither our chain nor our
//! pool has it. Responses are checked: a block must have the requested hash or number and the right
//! hash of its header, and a transaction must have the requested hash. The other node may hang or
//! send wrong data: a request ends after the timeout, at most [`CONCURRENT`] requests are in
//! flight, and a response has at most [`MAX_RESPONSE`] bytes.

use super::{
    block_tag::{BlockMembers, BlockTag},
    error::{NO_HISTORY, Reply, RpcError},
    forward::{ForwardClient, ForwardError},
    json::read,
    log_filter::{LogQuery, LogRange},
    params::{Arg, Args},
};
use alloy_primitives::{B256, Bytes, U64, keccak256};
use serde_json::{Map, Value, value::RawValue};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Maximum requests to the other node in flight. A further request fails at once.
const CONCURRENT: usize = 128;
/// Maximum bytes of a response.
const MAX_RESPONSE: usize = 64 << 20;

/// The parameter that decides which node serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HistoricalSubject {
    /// A block in the parameter with this index. The method needs the block's state.
    State(usize),
    /// A block in the parameter with this index. The method reads only the block.
    Block(usize),
    /// The hash of a block in the first parameter.
    BlockHash,
    /// The hash of a transaction in the first parameter.
    Transaction,
    /// A filter of logs in the first parameter.
    Logs,
}

fn subject(method: &str) -> Option<HistoricalSubject> {
    Some(match method {
        "eth_getBlockByNumber"
        | "eth_getHeaderByNumber"
        | "eth_getBlockReceipts"
        | "eth_getBlockTransactionCountByNumber"
        | "eth_getUncleCountByBlockNumber"
        | "eth_getUncleByBlockNumberAndIndex"
        | "eth_getTransactionByBlockNumberAndIndex"
        | "eth_getRawTransactionByBlockNumberAndIndex" => HistoricalSubject::Block(0),
        "debug_traceBlockByNumber" => HistoricalSubject::State(0),
        "eth_getBalance"
        | "eth_getCode"
        | "eth_getTransactionCount"
        | "eth_call"
        | "eth_estimateGas"
        | "eth_createAccessList"
        | "debug_traceCall" => HistoricalSubject::State(1),
        "eth_getStorageAt" | "eth_getProof" => HistoricalSubject::State(2),
        "eth_getBlockByHash"
        | "eth_getHeaderByHash"
        | "eth_getBlockTransactionCountByHash"
        | "eth_getUncleCountByBlockHash"
        | "eth_getUncleByBlockHashAndIndex"
        | "eth_getTransactionByBlockHashAndIndex"
        | "eth_getRawTransactionByBlockHashAndIndex"
        | "debug_traceBlockByHash" => HistoricalSubject::BlockHash,
        "eth_getTransactionByHash"
        | "eth_getRawTransactionByHash"
        | "eth_getTransactionReceipt"
        | "debug_traceTransaction" => HistoricalSubject::Transaction,
        "eth_getLogs" => HistoricalSubject::Logs,
        _ => return None,
    })
}

/// The block or transaction that a request names, read from its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A block by number.
    Number(u64),
    BlockHash(B256),
    Transaction(B256),
}

fn number(json: &str) -> Option<u64> {
    match BlockTag::from_json(json).ok()? {
        BlockTag::Number(number) => Some(number),
        _ => None,
    }
}

/// A block by number or hash, plain or in an EIP-1898 object. `None` for a tag, which names one of
/// our blocks.
fn block(json: &str) -> Option<Asked> {
    if let Ok(members) = read::<BlockMembers<'_>>(json) {
        return match (members.block_number, members.block_hash) {
            (Some(tag), None) => number(tag.get()).map(Asked::Number),
            (None, Some(hash)) => B256::from_json(hash.get()).ok().map(Asked::BlockHash),
            _ => None,
        };
    }
    match B256::from_json(json) {
        Ok(hash) => Some(Asked::BlockHash(hash)),
        Err(_) => number(json).map(Asked::Number),
    }
}

impl HistoricalSubject {
    /// The block or transaction that the request names. `None` if the request is malformed, or
    /// names one of our blocks by a tag.
    fn read(self, args: &Args) -> Option<Asked> {
        match self {
            Self::State(index) | Self::Block(index) => block(args.get(index)?),
            Self::BlockHash => B256::from_json(args.get(0)?).ok().map(Asked::BlockHash),
            Self::Transaction => B256::from_json(args.get(0)?).ok().map(Asked::Transaction),
            Self::Logs => {
                match LogQuery::from_json(args.get(0)?).ok()?.blocks {
                    LogRange::Hash(hash) => Some(Asked::BlockHash(hash)),
                    // A range is forwarded if its end is below our first block. This node alone
                    // serves a range that reaches our blocks.
                    LogRange::Range(_, BlockTag::Number(end)) => Some(Asked::Number(end)),
                    LogRange::Range(..) => None,
                }
            }
        }
    }
}

/// Access to the history before the first block here.
pub struct Historical {
    /// Number of the first block here.
    first: u64,
    /// The node with the older history; `None` if none is configured.
    remote: Option<HistoricalRpc>,
}

/// The node with the older history.
struct HistoricalRpc {
    client: ForwardClient,
    permits: Arc<Semaphore>,
}

/// The reason why the other node has returned no usable response.
#[derive(Debug, thiserror::Error)]
enum HistoricalError {
    #[error("too many requests are in flight")]
    Busy,
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error("the answer is not about what was asked for: {0}")]
    Mismatch(&'static str),
}

impl Historical {
    /// The history before block `first`, from the node at `url`. The error is a sentence.
    pub fn new(first: u64, url: Option<&str>, timeout: Duration) -> Result<Self, String> {
        let build = |url: &str| {
            Ok::<_, String>(HistoricalRpc {
                client: ForwardClient::new(url, MAX_RESPONSE, timeout)?,
                permits: Arc::new(Semaphore::new(CONCURRENT)),
            })
        };
        Ok(Self {
            first,
            remote: url.map(build).transpose()?,
        })
    }

    /// Whether a method may be about history on the other node.
    pub(super) fn concerns(&self, method: &str) -> bool {
        subject(method).is_some()
    }

    /// The reply to a request for history that this node does not have; `None` if this node has to
    /// execute the request. `is_known` returns whether this node knows a hash.
    pub(super) async fn forward(
        &self,
        method: &str,
        args: &Args,
        is_known: impl AsyncFnOnce(Asked) -> bool,
    ) -> Option<Reply> {
        let subject = subject(method)?;
        let asked = subject.read(args)?;
        match (asked, &self.remote) {
            (Asked::Number(number), _) if number >= self.first => None,
            (Asked::Number(_), None) => matches!(subject, HistoricalSubject::State(_)).then(|| {
                Err(RpcError::new(
                    NO_HISTORY,
                    "no historical RPC is available for this historical (pre-bedrock) execution request",
                ))
            }),
            (Asked::Number(_), Some(remote)) => {
                let answer = remote.ask(method, args, asked, self.first).await;
                Some(answer.map_err(|error| {
                    RpcError::server(format!("historical backend error: {error}"))
                }))
            }
            (Asked::BlockHash(_) | Asked::Transaction(_), None) => None,
            (Asked::BlockHash(_) | Asked::Transaction(_), Some(remote)) => {
                if is_known(asked).await {
                    return None;
                }
                // Clients often request unknown hashes, such as those of transactions to come. If
                // the other node has no result either, our own result counts.
                match remote.ask(method, args, asked, self.first).await {
                    Ok(answer) if answer.get() == "null" => None,
                    Ok(answer) => Some(Ok(answer)),
                    Err(error) => {
                        tracing::debug!(method, %error, "the historical RPC gave no answer");
                        None
                    }
                }
            }
        }
    }
}

impl HistoricalRpc {
    async fn ask(
        &self,
        method: &str,
        args: &Args,
        asked: Asked,
        first: u64,
    ) -> Result<Box<RawValue>, HistoricalError> {
        let permit = self.permits.try_acquire();
        let _permit = permit.map_err(|_| HistoricalError::Busy)?;
        let answer = self.client.request(method, &args.to_json()).await?;
        check(method, &answer, asked, first).map_err(HistoricalError::Mismatch)?;
        Ok(answer)
    }
}

/// Compares a response with the request, as far as the response names its block or transaction.
fn check(method: &str, answer: &RawValue, asked: Asked, first: u64) -> Result<(), &'static str> {
    if answer.get() == "null" {
        return Ok(());
    }
    match method {
        "eth_getBlockByNumber"
        | "eth_getHeaderByNumber"
        | "eth_getBlockByHash"
        | "eth_getHeaderByHash" => check_block(answer, asked, first),
        "eth_getTransactionByHash" => check_transaction(answer, "hash", asked, first),
        "eth_getTransactionReceipt" => check_transaction(answer, "transactionHash", asked, first),
        "eth_getRawTransactionByHash" => {
            let raw = Bytes::from_json(answer.get()).map_err(|_| "it is no bytes")?;
            let same = raw.is_empty() || asked == Asked::Transaction(keccak256(&raw));
            same.then_some(()).ok_or("the transaction has another hash")
        }
        _ => Ok(()),
    }
}

/// Checks that a block has the hash of its header, is before Bedrock, and is the requested block.
fn check_block(answer: &RawValue, asked: Asked, first: u64) -> Result<(), &'static str> {
    let header: alloy_rpc_types_eth::Header = read(answer.get()).map_err(|_| "it is no block")?;
    if header.inner.hash_slow() != header.hash {
        return Err("the block's hash is not that of its header");
    }
    if header.inner.number >= first {
        return Err("the block is not before Bedrock");
    }
    let same = match asked {
        Asked::Number(number) => header.inner.number == number,
        Asked::BlockHash(hash) => header.hash == hash,
        Asked::Transaction(_) => false,
    };
    same.then_some(()).ok_or("it is another block")
}

fn check_transaction(
    answer: &RawValue,
    member: &str,
    asked: Asked,
    first: u64,
) -> Result<(), &'static str> {
    let object: Map<String, Value> = read(answer.get()).map_err(|_| "it is no transaction")?;
    let hash = object.get(member).and_then(Value::as_str);
    let hash = hash.and_then(|hash| hash.parse().ok());
    if hash.map(Asked::Transaction) != Some(asked) {
        return Err("it is another transaction");
    }
    let number = object.get("blockNumber").and_then(Value::as_str);
    let number = number.and_then(|number| number.parse::<U64>().ok());
    // A transaction that is still pending on the other node has no block number. It passes, since
    // there is no number to check.
    let before = number.is_none_or(|number| number.to::<u64>() < first);
    before
        .then_some(())
        .ok_or("its block is not before Bedrock")
}
