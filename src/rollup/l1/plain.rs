//! Calls whose answers this client does not check: for a party that has to believe its endpoint,
//! such as the sender of transactions.

use super::{BATCHER_HASH_SELECTOR, L1Cause, L1Client, L1Error, RpcCall, read};
use alloy_primitives::{Address, B256, Bytes, U64};
use serde::de::DeserializeOwned;
use serde_json::{Value, json, value::RawValue};

/// A method and its parameters, an array.
pub type PlainCall = (&'static str, Value);
/// A result as its JSON text, or the endpoint's error.
pub type PlainReply = Result<Box<RawValue>, L1Cause>;

impl L1Client {
    /// One call. Fails like every call: after each endpoint was tried once.
    pub async fn plain_call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<T, L1Error> {
        self.request_one(RpcCall { method, params }, |answer| read(&answer?))
            .await
    }

    /// Number of the newest block.
    pub async fn head_number(&self) -> Result<u64, L1Error> {
        let head: U64 = self.plain_call("eth_blockNumber", json!([])).await?;
        Ok(head.to())
    }

    /// The batcher that a SystemConfig contract names now.
    pub async fn batcher_of(&self, contract: Address) -> Result<Address, L1Error> {
        let request = json!({ "to": contract, "data": Bytes::from(BATCHER_HASH_SELECTOR) });
        let call = RpcCall {
            method: "eth_call",
            params: json!([request, "latest"]),
        };
        self.request_one(call, |answer| {
            let word: Bytes = read(&answer?)?;
            let word = B256::try_from(&word[..]).map_err(|_| {
                let bytes = word.len();
                L1Cause::Malformed(format!(
                    "no SystemConfig contract at {contract}: {bytes} bytes where 32 were expected"
                ))
            })?;
            Ok(Address::from_word(word))
        })
        .await
    }

    /// Publishes a transaction. The inner error is a pool's refusal, which is the answer: it depends
    /// on what that pool has, and a later endpoint that is away would hide it.
    pub async fn publish(&self, raw: &Bytes) -> Result<Result<(), L1Cause>, L1Error> {
        let call = RpcCall {
            method: "eth_sendRawTransaction",
            params: json!([raw]),
        };
        self.request_one(call, |answer| match answer {
            Ok(_) => Ok(Ok(())),
            Err(cause) if cause.is_verdict() => Ok(Err(cause)),
            Err(cause) => Err(cause),
        })
        .await
    }

    /// Several calls in one request to one endpoint, answered in their order. The first must
    /// succeed; callers judge the others.
    pub async fn plain_batch(&self, calls: &[PlainCall]) -> Result<Vec<PlainReply>, L1Error> {
        let calls = calls.iter().map(|(method, params)| RpcCall {
            method,
            params: params.clone(),
        });
        let calls: Vec<RpcCall> = calls.collect();
        self.request(&calls, |answers| match answers.first() {
            Some(Err(cause)) => Err(cause.clone()),
            _ => Ok(answers),
        })
        .await
    }
}
