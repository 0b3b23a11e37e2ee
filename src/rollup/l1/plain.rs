//! Calls whose responses this client does not check: of L1 by the sender of transactions, which has to
//! believe its endpoint, and of L2, builders and supervisors by batcher and proposer.

use super::{L1Client, L1Error, L1Response, RpcCall, read};
use serde::de::DeserializeOwned;
use serde_json::Value;

impl L1Client {
    /// One call. Fails like every call: after each endpoint was tried once.
    pub async fn plain_call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<T, L1Error> {
        self.request_one(RpcCall { method, params }, |response| read(&response?))
            .await
    }

    /// Several calls in one request to one endpoint, answered in their order. The first must
    /// succeed; callers judge the others.
    pub async fn plain_batch(&self, calls: &[RpcCall]) -> Result<Vec<L1Response>, L1Error> {
        self.request(calls, |responses| match responses.first() {
            Some(Err(cause)) => Err(cause.clone()),
            _ => Ok(responses),
        })
        .await
    }
}
