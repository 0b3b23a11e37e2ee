//! Sends the client's requests: chooses the endpoint, limits the size of the response, and splits a
//! list of calls into requests. Called by every method of [`L1Client`]. Bounded by `L1Gate`'s
//! permits, by the size limit of a response, and by one attempt at each endpoint.

use super::{
    L1Client, L1Error, RpcCause,
    gate::{USUAL_RESPONSE, Urgency},
    transport::{L1Response, RpcCall},
};
use crate::rollup::{
    http::rotation::{Attempts, NextAttempt},
    rpc_calls::RpcOutcome,
};
use serde_json::value::RawValue;
use std::{ops::Range, time::Instant};

/// Responses to a list of calls.
#[derive(Debug)]
pub(super) struct L1Responses<T> {
    /// Responses to the first calls, up to the first failure.
    pub responses: Vec<T>,
    /// Total size of the JSON of these responses in bytes.
    pub json_bytes: usize,
    /// The error of the first call that failed; `None` if every call has a response.
    pub failure: Option<L1Error>,
}

impl L1Client {
    pub(super) async fn request_one<T>(
        &self,
        call: RpcCall,
        read: impl Fn(L1Response) -> Result<T, RpcCause>,
    ) -> Result<T, L1Error> {
        self.request(&[call], |responses| {
            let only = responses.into_iter().next();
            read(only.unwrap_or_else(|| Err(RpcCause::Malformed("an empty response".into()))))
        })
        .await
    }

    /// Sends any number of calls in requests of at most one batch, one after the other. `read`
    /// parses the responses one by one. If a batch fails, perhaps because its response is too
    /// large, later batches are half as large. If only later calls of a batch are refused, the
    /// responses before them are kept. Ends at the first call that fails even in a request of its
    /// own.
    pub(super) async fn request_each<T>(
        &self,
        calls: &[RpcCall],
        read: impl Fn(usize, &RawValue) -> Result<T, RpcCause>,
    ) -> L1Responses<T> {
        let mut found = L1Responses {
            responses: Vec::with_capacity(calls.len()),
            json_bytes: 0,
            failure: None,
        };
        let mut parts = CallParts {
            first: 0,
            calls: calls.len(),
            most: self.inner.max_batch,
        };
        while let Some(part) = parts.next() {
            let response = self.request(&calls[part.clone()], |responses| {
                first_responses(responses, |offset, response| {
                    read(part.start + offset, response)
                })
            });
            match response.await {
                Ok(first) => {
                    parts.came(first.responses.len());
                    found.responses.extend(first.responses);
                    found.json_bytes += first.json_bytes;
                }
                Err(error) if part.len() > 1 && error.cause.may_be_size() => {
                    parts.failed(&part);
                }
                Err(error) => {
                    found.failure = Some(error);
                    break;
                }
            }
        }
        found
    }

    /// Sends the calls in one request, to one endpoint after the other until `read` accepts the
    /// responses. If all fail, the error is a verdict on the call ([`RpcCause::is_verdict`]) if an
    /// endpoint returned one, otherwise the error of the last endpoint. An unsupported method, or a
    /// batch with a response that is too large, is not tried at further endpoints.
    pub(super) async fn request<T>(
        &self,
        calls: &[RpcCall],
        read: impl Fn(Vec<L1Response>) -> Result<T, RpcCause>,
    ) -> Result<T, L1Error> {
        let method = calls.first().map_or("", |call| call.method);
        let mut attempts = Attempts::new(self.wrong_chain_endpoints(), self.inner.timeout);
        let mut failure: Option<L1Error> = None;
        loop {
            let now = Instant::now();
            let pick = |tried| self.inner.routes.lock().pick(self.urgency, tried, now);
            let pick = match attempts.next_attempt(pick) {
                NextAttempt::Send(pick) => pick,
                NextAttempt::CoolingDown(pick) => {
                    let cooling = RpcCause::CoolingDown(pick.wait);
                    failure.get_or_insert(self.error_of(pick.index, method, cooling));
                    break;
                }
                NextAttempt::Exhausted => break,
            };
            tokio::time::sleep(pick.wait).await;
            let cause = match self.exchange(pick.index, calls).await.and_then(&read) {
                Ok(value) => {
                    let mut routes = self.inner.routes.lock();
                    routes.succeeded(self.urgency, pick.index);
                    return Ok(value);
                }
                Err(cause) => cause,
            };
            // No cool-down for a response that is too large: the caller sends the batch again in
            // halves.
            let is_halved = calls.len() > 1 && matches!(cause, RpcCause::TooLarge(_));
            if cause.is_unsupported() || is_halved {
                return Err(self.error_of(pick.index, method, cause));
            }
            self.blame(pick.index, &cause);
            let error = self.error_of(pick.index, method, cause);
            if self.inner.endpoints.len() > 1 {
                tracing::debug!(%error, "an L1 endpoint failed; the next one is tried");
            }
            let is_judged = |known: &L1Error| known.cause.is_verdict();
            if error.cause.is_verdict() || !failure.as_ref().is_some_and(is_judged) {
                failure = Some(error);
            }
        }
        let none = || RpcCause::Transport("no endpoint".into());
        Err(failure.unwrap_or_else(|| self.error(method, none())))
    }

    /// Starts the cool-down of an endpoint, if the failure is the endpoint's fault.
    fn blame(&self, index: usize, cause: &RpcCause) {
        if let Some(fault) = cause.fault() {
            let mut routes = self.inner.routes.lock();
            routes.failed(self.urgency, index, fault, Instant::now());
        }
    }

    /// The error for responses that turn out to be wrong only together. Starts the cool-down of the
    /// endpoint in use.
    pub(super) fn blamed(&self, method: &'static str, cause: RpcCause) -> L1Error {
        let index = self.inner.routes.lock().first(self.urgency);
        self.blame(index, &cause);
        self.error_of(index, method, cause)
    }

    async fn exchange(&self, index: usize, calls: &[RpcCall]) -> Result<Vec<L1Response>, RpcCause> {
        self.check_chain_id(index).await?;
        let most = self.inner.max_response_bytes;
        if self.urgency == Urgency::Urgent {
            return self.send(index, calls, most).await;
        }
        match self.send(index, calls, USUAL_RESPONSE.min(most)).await {
            // A single call cannot be split: repeat it with the larger limit of an urgent request.
            Err(RpcCause::TooLarge(_)) if calls.len() == 1 && USUAL_RESPONSE < most => {
                let permit = self.inner.gate.enter_large().await;
                let _permit = permit.map_err(|error| RpcCause::Transport(error.to_string()))?;
                self.send(index, calls, most).await
            }
            responses => responses,
        }
    }

    /// Sends a request to one endpoint once the gate admits it.
    pub(super) async fn send(
        &self,
        index: usize,
        calls: &[RpcCall],
        max_response_bytes: u32,
    ) -> Result<Vec<L1Response>, RpcCause> {
        let permit = self.inner.gate.enter(self.urgency, calls.len()).await;
        let _permit = permit.map_err(|error| RpcCause::Transport(error.to_string()))?;
        let started = Instant::now();
        let endpoint = &self.inner.endpoints[index];
        let Some(metrics) = self.inner.metrics else {
            return endpoint.transport.send(calls, max_response_bytes).await;
        };
        for call in calls {
            metrics.on_call(call.method, call.params.to_string().len());
        }
        let responses = endpoint.transport.send(calls, max_response_bytes).await;
        let took = started.elapsed();
        let method = calls.first().map_or("", |call| call.method);
        metrics::histogram!("op_node_default_l1_request_seconds", "request" => method)
            .record(took.as_secs_f64());
        for (at, call) in calls.iter().enumerate() {
            let outcome = responses.as_ref().map(|responses| responses.get(at));
            metrics.on_end(call.method, took, outcome_of(outcome));
        }
        responses
    }

    /// An error of the endpoint that is in use.
    pub(super) fn error(&self, method: &'static str, cause: RpcCause) -> L1Error {
        let index = self.inner.routes.lock().first(self.urgency);
        self.error_of(index, method, cause)
    }

    pub(super) fn error_of(&self, index: usize, method: &'static str, cause: RpcCause) -> L1Error {
        L1Error {
            endpoint: self.inner.endpoints[index].transport.name().clone(),
            method,
            cause,
        }
    }
}

/// The outcome of one call in a request, for metrics.
fn outcome_of(response: Result<Option<&L1Response>, &RpcCause>) -> RpcOutcome {
    let cause = match response {
        Ok(Some(Ok(result))) => return RpcOutcome::Result(result.get().len()),
        Ok(Some(Err(cause))) | Err(cause) => cause,
        Ok(None) => return RpcOutcome::Failed,
    };
    match cause {
        RpcCause::Refused { code, .. } => RpcOutcome::Refused((*code).into()),
        RpcCause::Status { code, .. } => RpcOutcome::Status(*code),
        _ => RpcOutcome::Failed,
    }
}

/// Parses the responses before the first refusal. Fails if the first response is a refusal.
fn first_responses<T>(
    responses: Vec<L1Response>,
    read: impl Fn(usize, &RawValue) -> Result<T, RpcCause>,
) -> Result<L1Responses<T>, RpcCause> {
    let mut found = L1Responses {
        responses: Vec::with_capacity(responses.len()),
        json_bytes: 0,
        failure: None,
    };
    for (offset, response) in responses.into_iter().enumerate() {
        let response = match response {
            Err(_) if offset > 0 => break,
            response => response?,
        };
        found.json_bytes += response.get().len();
        found.responses.push(read(offset, &response)?);
    }
    if found.responses.is_empty() {
        return Err(RpcCause::Malformed("an empty response".into()));
    }
    Ok(found)
}

/// Splits a list of calls into parts that are sent one after the other. Pure.
#[derive(Debug)]
struct CallParts {
    /// Position of the first call without a response.
    first: usize,
    calls: usize,
    /// Largest number of calls in one part.
    most: usize,
}

impl CallParts {
    fn next(&self) -> Option<Range<usize>> {
        let end = self.calls.min(self.first + self.most);
        (self.first < end).then_some(self.first..end)
    }

    /// Records that the first `count` calls of a part have responses.
    fn came(&mut self, count: usize) {
        self.first += count;
    }

    /// Records that a part of several calls failed as a whole: later parts have at most half as
    /// many calls.
    fn failed(&mut self, part: &Range<usize>) {
        self.most = part.len().div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every call gets one response, in order, whatever size of batch an endpoint accepts. No
        /// call with a response is sent again.
        #[test]
        fn parts_shrink_until_they_fit(
            sizes in proptest::collection::vec(1usize..100, 0..100),
            max_batch in 1usize..30,
            limit in 100usize..300,
            refuses_items: bool,
        ) {
            let mut parts = CallParts { first: 0, calls: sizes.len(), most: max_batch };
            let (mut came, mut requests) = (0, 0);
            while let Some(part) = parts.next() {
                prop_assert_eq!(part.start, came);
                prop_assert!(part.len() <= max_batch);
                requests += 1;
                let mut bytes = 0;
                let fitting = sizes[part.clone()].iter().take_while(|size| {
                    bytes += **size;
                    bytes <= limit
                });
                let fitting = fitting.count();
                if fitting == part.len() || refuses_items {
                    came += fitting;
                    parts.came(fitting);
                } else {
                    parts.failed(&part);
                }
            }
            prop_assert_eq!(came, sizes.len());
            prop_assert!(requests <= sizes.len() + 5, "at most five halvings of 29");
        }
    }
}
