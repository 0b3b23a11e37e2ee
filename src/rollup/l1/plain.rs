//! Calls whose answers this client does not check: for a party that has to believe its endpoint,
//! such as the sender of transactions.

use super::{L1Cause, L1Client, L1Error, RpcCall, read};
use serde::de::DeserializeOwned;
use serde_json::{Value, value::RawValue};

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
