//! The beacon client: reads blobs of L1 blocks over the beacon API, from a consensus client or from
//! an archive that serves the same API.
//!
//! Blobs of an endpoint are untrusted: a blob counts only if its KZG commitment has the versioned
//! hash that an L1 transaction names. Recomputing the commitment of a blob takes some 20 ms of one
//! core, on the processor pool. Endpoints without `/blobs` get requests for blob sidecars, whose
//! proofs are cheaper to check.
//!
//! A call tries each endpoint once. Callers repeat and pace their calls. A request to an endpoint
//! costs at most [`BeaconConfig::timeout`] and `MAX_BLOBS_RESPONSE` bytes.

mod blobs;
mod clock;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;

pub use clock::SlotClock;

use crate::{
    rollup::http::{
        HttpFault, HttpReply, HttpTarget, json_error,
        rotation::{Attempts, EndpointFault, NextAttempt, Rotation, Tried},
    },
    secret::Secret,
};
use alloy_eips::eip4844::Blob;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use starling_proto::derive::BlobRef;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::OnceCell;

const VERSION: &str = "/eth/v1/node/version";

/// Attempts of the health check at start (op-node: 5), and the pause after the first attempt. The
/// pause doubles after each further attempt.
const HEALTH_TRIES: u32 = 5;
const HEALTH_PAUSE: Duration = Duration::from_millis(500);

/// Largest response without blobs, in bytes. `config/spec` has some hundred settings.
const MAX_RESPONSE: usize = 1 << 20;
/// Largest number of blobs accepted for a block, to bound memory. The protocol's own limit depends
/// on L1's blob schedule.
const MAX_BLOBS: usize = 128;
/// Largest response with blobs, in bytes. A blob has 131,072 bytes, or 262,144 hex digits. A
/// sidecar also has a commitment, proofs and a header. An endpoint may send more blobs than were
/// requested.
const MAX_BLOBS_RESPONSE: usize = MAX_BLOBS * (2 * 131_072 + 8 * 1024);

/// Endpoints of the beacon API, and options of the requests to them.
#[derive(Clone, Debug)]
pub struct BeaconConfig {
    /// The main endpoint (`--l1.beacon`), then the fallbacks (`--l1.beacon-fallbacks`).
    pub addresses: Vec<BeaconAddress>,
    /// Whether to request all sidecars of a slot and select the needed ones here
    /// (`--l1.beacon.fetch-all-sidecars`).
    pub fetch_all_sidecars: bool,
    /// Seconds per slot. Zero uses the slot time that the endpoint reports
    /// (`--l1.beacon.slot-duration-override`).
    pub seconds_per_slot: u64,
    /// Whether to start even if the health check fails (`--l1.beacon.ignore`).
    pub ignore_health: bool,
    /// Timeout of one request.
    pub timeout: Duration,
}

/// A URL of the beacon API, and the header of the requests to it. The header is a credential of this
/// endpoint, so no other endpoint gets it.
#[derive(Clone, Debug)]
pub struct BeaconAddress {
    /// URL with `http://` or `https://`. Its path is kept, credentials are allowed.
    pub url: Secret,
    /// One header, `X-Key: Value` (`--l1.beacon-header`, `--l1.beacon-fallback-header`).
    pub header: Option<Secret>,
}

impl BeaconAddress {
    pub fn new(url: Secret) -> Self {
        Self { url, header: None }
    }
}

impl BeaconConfig {
    pub fn new(urls: Vec<Secret>) -> Self {
        Self {
            addresses: urls.into_iter().map(BeaconAddress::new).collect(),
            fetch_all_sidecars: false,
            seconds_per_slot: 0,
            ignore_health: false,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A failed request, with its endpoint and path.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{cause}", place(endpoint, path))]
pub struct BeaconError {
    /// Scheme, host and port of the endpoint: paths and user names may be credentials. Empty for an
    /// error of the configuration.
    pub endpoint: Arc<str>,
    /// Path of the request below the endpoint's URL, without its query. Empty if no request was
    /// sent.
    pub path: String,
    pub cause: BeaconCause,
}

/// The endpoint and the path of a request, with which an error message begins.
fn place(endpoint: &str, path: &str) -> String {
    let separator = if path.is_empty() { "" } else { ": " };
    match endpoint {
        "" => String::new(),
        _ => format!("beacon API at {endpoint}{separator}{path}: "),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeaconCause {
    /// The configuration is invalid. The text names the option.
    #[error("{0}")]
    Config(String),
    /// No usable response: the connection failed, the timeout passed, or the response is too large.
    #[error("{0}")]
    Transport(String),
    /// The HTTP status is neither a success nor 404.
    #[error("HTTP status {code}")]
    Status {
        code: u16,
        /// Pause that the endpoint demands before the next request.
        retry_after: Option<Duration>,
    },
    /// The endpoint's remaining cool-down is too long to wait for.
    #[error("no request for another {} s: the endpoint reported a rate limit or a server error (HTTP 429 or 5xx)", .0.as_secs())]
    CoolingDown(Duration),
    /// HTTP status 404: the endpoint does not have the slot, or has pruned its blobs.
    #[error(
        "HTTP status 404: it does not have these blobs; name an archive of blobs with --l1.beacon-fallbacks if they have expired"
    )]
    NotFound,
    /// HTTP status 404 on a path that every Beacon API serves: the URL is not a Beacon API's.
    #[error(
        "HTTP status 404: check that the URL is that of the beacon API of an L1 consensus client or of an archive of blobs (--l1.beacon, --l1.beacon-fallbacks)"
    )]
    NoBeaconApi,
    /// The response does not have the form that the Beacon API defines.
    #[error("malformed response: {0}")]
    Malformed(String),
    /// The response contradicts the request: blobs are missing, or have other versioned hashes.
    #[error("untrue response: {0}")]
    Untrue(String),
    /// The block is older than the beacon chain's first slot.
    #[error(
        "block time {time} is before the genesis time {genesis} of the beacon chain, which is another L1's: give beacon APIs of the \
         rollup's L1 only (--l1.beacon, --l1.beacon-fallbacks)"
    )]
    BeforeGenesis { time: u64, genesis: u64 },
}

impl From<HttpFault> for BeaconCause {
    fn from(fault: HttpFault) -> Self {
        Self::Transport(match fault {
            HttpFault::Broken(text) => text,
            fault => fault.to_string(),
        })
    }
}

impl BeaconCause {
    /// Whether the failure may mean that the endpoint does not serve this path.
    fn may_lack_the_path(&self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::NoBeaconApi | Self::Status { code: 405, .. }
        )
    }

    /// The fault that the failure counts as in the choice of endpoints; `None` if it starts no
    /// cool-down.
    fn fault(&self) -> Option<EndpointFault> {
        match self {
            Self::Status { code, retry_after } => {
                Some(EndpointFault::of_status(*code, *retry_after))
            }
            Self::Transport(_)
            | Self::Malformed(_)
            | Self::Untrue(_)
            | Self::BeforeGenesis { .. } => Some(EndpointFault::Broken),
            _ => None,
        }
    }
}

/// A cloneable client of one or more endpoints of the same beacon chain.
#[derive(Clone)]
pub struct BeaconClient {
    inner: Arc<BeaconInner>,
}

struct BeaconInner {
    endpoints: Vec<BeaconEndpoint>,
    rotation: Mutex<Rotation>,
    seconds_per_slot: u64,
    fetch_all_sidecars: bool,
    ignore_health: bool,
    timeout: Duration,
}

struct BeaconEndpoint {
    http: HttpTarget,
    /// Genesis and slot time that this endpoint reports, read before its first use.
    clock: OnceCell<SlotClock>,
    /// The endpoint serves sidecars only: `/blobs` is not requested again until a request for
    /// sidecars fails with 404 or 405.
    has_only_sidecars: AtomicBool,
}

impl BeaconClient {
    /// Creates the client without connecting. The error names the invalid option.
    pub fn new(config: &BeaconConfig) -> Result<Self, BeaconError> {
        let invalid = |reason: String| BeaconError {
            endpoint: "".into(),
            path: String::new(),
            cause: BeaconCause::Config(reason),
        };
        let endpoint = |address: &BeaconAddress| {
            let headers = headers(address.header.as_ref());
            let headers = headers.map_err(|reason| invalid(reason.into()))?;
            let http = HttpTarget::new(address.url.expose(), headers);
            Ok(BeaconEndpoint {
                http: http.map_err(|reason| invalid(format!("--l1.beacon: {reason}")))?,
                clock: OnceCell::new(),
                has_only_sidecars: AtomicBool::new(false),
            })
        };
        let endpoints = config
            .addresses
            .iter()
            .map(endpoint)
            .collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() || endpoints.len() > Rotation::MAX {
            let count = endpoints.len();
            let most = Rotation::MAX;
            return Err(invalid(format!(
                "--l1.beacon: {count} endpoints, where 1 to {most} are possible"
            )));
        }
        Ok(Self {
            inner: Arc::new(BeaconInner {
                rotation: Mutex::new(Rotation::new(endpoints.len())),
                endpoints,
                seconds_per_slot: config.seconds_per_slot,
                fetch_all_sidecars: config.fetch_all_sidecars,
                ignore_health: config.ignore_health,
                timeout: config.timeout,
            }),
        })
    }

    /// Requests the version of the main endpoint and logs it. A failed request is repeated a few
    /// times. With [`BeaconConfig::ignore_health`] the last failure is only logged.
    pub async fn check_health(&self) -> Result<(), BeaconError> {
        #[derive(Deserialize)]
        struct BeaconVersion {
            version: String,
        }
        let mut pause = HEALTH_PAUSE;
        let mut attempt = 1;
        let error = loop {
            match self.get::<BeaconVersion>(0, VERSION).await {
                Ok(BeaconVersion { version }) => {
                    let version: String = version.chars().take(100).collect();
                    tracing::info!(endpoint = %self.inner.endpoints[0].http.name(), version, "the beacon API answers");
                    return Ok(());
                }
                Err(error) if attempt == HEALTH_TRIES => break error,
                Err(error) => {
                    tracing::warn!(attempt, %error, "the beacon API fails its health check");
                }
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
            pause *= 2;
        };
        if self.inner.ignore_health {
            tracing::warn!(%error, "the beacon API fails its health check; starting all the same (--l1.beacon.ignore)");
            return Ok(());
        }
        Err(error)
    }

    /// The blobs of an L1 block at `block_time` (Unix seconds), in the order of `wanted`, each
    /// checked against its versioned hash.
    ///
    /// Fails with [`BeaconCause::NotFound`] if an endpoint responded with HTTP status 404 and no
    /// other endpoint returned the blobs.
    pub async fn blobs(
        &self,
        block_time: u64,
        wanted: &[BlobRef],
    ) -> Result<Vec<Box<Blob>>, BeaconError> {
        if wanted.is_empty() {
            return Ok(vec![]);
        }
        let wanted: Arc<[BlobRef]> = wanted.into();
        self.try_each(|index| {
            let wanted = wanted.clone();
            async move { self.blobs_from(index, block_time, &wanted).await }.boxed()
        })
        .await
    }

    /// Reads blobs from one endpoint: from `/blobs`, or from its sidecars if it does not serve
    /// `/blobs`.
    async fn blobs_from(
        &self,
        index: usize,
        block_time: u64,
        wanted: &[BlobRef],
    ) -> Result<Vec<Box<Blob>>, BeaconError> {
        let slot = self.slot_at(index, block_time).await?;
        let endpoint = &self.inner.endpoints[index];
        let only_sidecars = endpoint.has_only_sidecars.load(Ordering::Relaxed);
        if !only_sidecars && !self.inner.fetch_all_sidecars {
            let path = blobs::blobs_path(slot, wanted);
            match self.fetch(index, &path, MAX_BLOBS_RESPONSE).await {
                // 404 may mean an unknown path or an unknown slot; the request for sidecars shows
                // which.
                Err(error) if error.cause.may_lack_the_path() => {}
                response => {
                    let found = checked(response?, wanted, blobs::match_blobs).await;
                    return found.map_err(|cause| self.error(index, &path, cause));
                }
            }
        }
        let path = if self.inner.fetch_all_sidecars {
            blobs::all_sidecars_path(slot)
        } else {
            blobs::sidecars_path(slot, wanted)
        };
        let response = self.fetch(index, &path, MAX_BLOBS_RESPONSE).await;
        if matches!(&response, Err(error) if error.cause.may_lack_the_path()) {
            // The endpoint may have been updated to a version that serves `/blobs` instead of
            // sidecars.
            endpoint.has_only_sidecars.store(false, Ordering::Relaxed);
        }
        let found = checked(response?, wanted, blobs::match_sidecars).await;
        let found = found.map_err(|cause| self.error(index, &path, cause))?;
        endpoint.has_only_sidecars.store(true, Ordering::Relaxed);
        Ok(found)
    }

    /// Calls `request` for one endpoint after the other until one succeeds, and from now on tries
    /// that endpoint first. If all fail, the error is `NotFound` if any endpoint returned it,
    /// otherwise the error of the last endpoint.
    async fn try_each<'a, T>(
        &'a self,
        request: impl Fn(usize) -> BoxFuture<'a, Result<T, BeaconError>> + Send + Sync,
    ) -> Result<T, BeaconError> {
        let mut attempts = Attempts::new(Tried::default(), self.inner.timeout);
        let mut failure: Option<BeaconError> = None;
        loop {
            let now = Instant::now();
            let pick = |tried| self.inner.rotation.lock().pick(tried, now);
            let pick = match attempts.next_attempt(pick) {
                NextAttempt::Send(pick) => pick,
                NextAttempt::CoolingDown(pick) => {
                    let cooling = BeaconCause::CoolingDown(pick.wait);
                    failure.get_or_insert_with(|| self.error(pick.index, "", cooling));
                    break;
                }
                NextAttempt::Exhausted => break,
            };
            tokio::time::sleep(pick.wait).await;
            let error = match request(pick.index).await {
                Ok(value) => {
                    self.inner.rotation.lock().succeeded(pick.index);
                    return Ok(value);
                }
                Err(error) => error,
            };
            if let Some(fault) = error.cause.fault() {
                let mut rotation = self.inner.rotation.lock();
                rotation.failed(pick.index, fault, Instant::now());
            }
            if self.inner.endpoints.len() > 1 {
                tracing::debug!(%error, "a beacon endpoint failed; the next one is tried");
            }
            if !matches!(&failure, Some(known) if known.cause == BeaconCause::NotFound) {
                failure = Some(error);
            }
        }
        let none = || BeaconCause::Transport("no endpoint".into());
        Err(failure.unwrap_or_else(|| self.error(0, "", none())))
    }

    /// The `data` of a small response, without blobs.
    async fn get<T: DeserializeOwned>(&self, index: usize, path: &str) -> Result<T, BeaconError> {
        let fetched = self.fetch(index, path, MAX_RESPONSE).await;
        fetched.map_err(|error| match error.cause {
            BeaconCause::NotFound => self.error(index, path, BeaconCause::NoBeaconApi),
            _ => error,
        })
    }

    /// The `data` of a response of at most `max_bytes`.
    async fn fetch<T: DeserializeOwned>(
        &self,
        index: usize,
        path: &str,
        max_bytes: usize,
    ) -> Result<T, BeaconError> {
        let http = &self.inner.endpoints[index].http;
        let reply = http.get(path, max_bytes, self.inner.timeout).await;
        let data = reply
            .map_err(BeaconCause::from)
            .and_then(|reply| data(&reply));
        data.map_err(|cause| self.error(index, path, cause))
    }

    fn error(&self, index: usize, path: &str, cause: BeaconCause) -> BeaconError {
        BeaconError {
            endpoint: self.inner.endpoints[index].http.name().clone(),
            path: path.split('?').next().unwrap_or_default().to_owned(),
            cause,
        }
    }
}

/// Checks the blobs of a response against the wanted ones, and returns them in the wanted order.
type BlobCheck<T> = fn(Vec<T>, &[BlobRef]) -> Result<Vec<Box<Blob>>, BeaconCause>;

/// Runs a check of blobs on a blocking thread, which spreads the work over the processor pool (20
/// ms of a core for each blob from `/blobs`).
async fn checked<T: Send + 'static>(
    response: Vec<T>,
    wanted: &[BlobRef],
    check: BlobCheck<T>,
) -> Result<Vec<Box<Blob>>, BeaconCause> {
    let wanted = wanted.to_vec();
    let checked = tokio::task::spawn_blocking(move || check(response, &wanted)).await;
    checked.unwrap_or_else(|error| Err(BeaconCause::Transport(error.to_string())))
}

/// The `data` of a response; an unsuccessful HTTP status is an error.
fn data<T: DeserializeOwned>(reply: &HttpReply) -> Result<T, BeaconCause> {
    #[derive(Deserialize)]
    struct BeaconResponse<T> {
        data: T,
    }
    match reply.status {
        StatusCode::NOT_FOUND => return Err(BeaconCause::NotFound),
        status if !status.is_success() => {
            return Err(BeaconCause::Status {
                code: status.as_u16(),
                retry_after: reply.retry_after,
            });
        }
        _ => {}
    }
    let response: Result<BeaconResponse<T>, _> = serde_json::from_slice(&reply.body);
    let malformed = |error| BeaconCause::Malformed(json_error(&reply.body, error));
    response.map(|response| response.data).map_err(malformed)
}

/// A number in quotes, as the Beacon API encodes numbers.
struct Quoted(u64);

impl<'de> Deserialize<'de> for Quoted {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// The headers of every request to an endpoint. An error never contains the header's value.
fn headers(header: Option<&Secret>) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    if let Some(header) = header {
        const FORM: &str = "--l1.beacon-header and --l1.beacon-fallback-header take headers of the form 'X-Key: Value'";
        let (name, value) = header.expose().split_once(": ").ok_or(FORM)?;
        let name: HeaderName = name.trim().parse().map_err(|_| FORM)?;
        let mut value: HeaderValue = value.trim().parse().map_err(|_| FORM)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
