//! Calls with unverified responses: calls to L1 by the transaction sender, which has to trust its
//! endpoint, and calls to L2, builders and supervisors by the batcher and the proposer.

use super::{BATCHER_HASH_SELECTOR, L1Client, L1Error, L1Response, RpcCall, RpcCause, read};
use alloy_primitives::{Address, B256, Bytes, U64};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

impl L1Client {
    /// Sends one call, to each endpoint once at most, until one succeeds.
    pub async fn plain_call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<T, L1Error> {
        self.request_one(RpcCall { method, params }, |response| read(&response?))
            .await
    }

    /// Number of the newest block.
    pub async fn head_number(&self) -> Result<u64, L1Error> {
        let head: U64 = self.plain_call("eth_blockNumber", json!([])).await?;
        Ok(head.to())
    }

    /// The batcher address that a SystemConfig contract has at L1's newest block.
    pub async fn batcher_of(&self, contract: Address) -> Result<Address, L1Error> {
        let request = json!({ "to": contract, "data": Bytes::from(BATCHER_HASH_SELECTOR) });
        let call = RpcCall {
            method: "eth_call",
            params: json!([request, "latest"]),
        };
        self.request_one(call, |response| {
            let word: Bytes = read(&response?)?;
            let word = B256::try_from(&word[..]).map_err(|_| {
                let bytes = word.len();
                RpcCause::Malformed(format!(
                    "no SystemConfig contract at {contract}: {bytes} bytes where 32 were expected"
                ))
            })?;
            Ok(Address::from_word(word))
        })
        .await
    }

    /// Publishes a transaction. The inner error is a refusal by a transaction pool. If its message
    /// `is_final`, it is returned at once, because a later endpoint that is unreachable would hide
    /// it. After any other refusal the next endpoint is tried.
    pub async fn publish(
        &self,
        raw: &Bytes,
        is_final: impl Fn(&str) -> bool,
    ) -> Result<Result<(), RpcCause>, L1Error> {
        let call = RpcCall {
            method: "eth_sendRawTransaction",
            params: json!([raw]),
        };
        let sent = self.request_one(call, |response| match response {
            Ok(_) => Ok(Ok(())),
            Err(RpcCause::Refused { code, message }) if is_final(&message) => {
                Ok(Err(RpcCause::Refused { code, message }))
            }
            Err(cause) => Err(cause),
        });
        match sent.await {
            Err(error) if error.cause.is_verdict() => Ok(Err(error.cause)),
            sent => sent,
        }
    }

    /// Sends several calls in one request and returns their responses in order. If the first call
    /// fails, the next endpoint is tried. Callers check the responses of the other calls.
    pub async fn plain_batch(&self, calls: &[RpcCall]) -> Result<Vec<L1Response>, L1Error> {
        self.request(calls, |responses| match responses.first() {
            Some(Err(cause)) => Err(cause.clone()),
            _ => Ok(responses),
        })
        .await
    }
}
