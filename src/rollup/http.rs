//! HTTP client for L1 and the beacon API, bounded in size and time. Endpoint names and errors
//! contain no credentials.
//!
//! [`rate`] and [`rotation`] decide when a request is sent, and to which endpoint; both are pure.
//! [`HttpTarget`] sends one request per call, without retries or redirects, and reads responses in
//! gzip.

#[cfg(test)]
pub(crate) mod fake;
mod gzip;
pub mod rate;
pub mod rotation;
#[cfg(test)]
mod tests;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls_platform_verifier::ConfigVerifierExt;
use std::{sync::Arc, time::Duration};

/// Longest pause that a `Retry-After` header can cause, so that a wrong header does not exclude an
/// endpoint for good.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Largest number of characters kept of an error text, which may quote a response.
const MAX_EXCERPT: usize = 200;

/// Scheme, host and port of a URL: paths and user names may be credentials.
pub fn endpoint_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if scheme.is_empty() {
        host.to_owned()
    } else {
        format!("{scheme}://{host}")
    }
}

/// The text of an error and of all its causes. The real reason, such as a refused connection or an
/// untrusted certificate, is at the end of the chain.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// The beginning of the error text of a decoder or a connection. Such texts may quote the response
/// and are logged, and the endpoint chooses the response's length.
pub fn excerpt(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    match text.char_indices().nth(MAX_EXCERPT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The reason why a body is not the expected JSON, from the decoder's error.
pub fn json_error(body: &[u8], error: serde_json::Error) -> String {
    match body.trim_ascii_start().first() {
        Some(b'<') => "a web page where JSON was expected".into(),
        None => "an empty response".into(),
        Some(_) => excerpt(error),
    }
}

/// A response. The caller checks its status and body.
#[derive(Clone, Debug)]
pub struct HttpReply {
    pub status: StatusCode,
    /// Pause that the endpoint demands (`Retry-After`), at most an hour.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

/// The reason why a request got no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpFault {
    #[error("no response within {0:?}: the endpoint or the link to it is too slow")]
    Timeout(Duration),
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Broken(String),
}

/// One server, with the headers sent in every request. Connections are kept and reused.
pub struct HttpTarget {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// The URL without user name, password and trailing slash.
    base: String,
    name: Arc<str>,
    headers: HeaderMap,
}

impl HttpTarget {
    /// Creates the target without connecting. User name and password of the URL become an
    /// `Authorization` header. The error explains what is wrong with the URL without quoting it.
    pub fn new(url: &str, mut headers: HeaderMap) -> Result<Self, String> {
        let (scheme, rest) = url
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
            .ok_or("not a URL that begins with http:// or https://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority
            .rsplit_once('@')
            .map_or((None, authority), |(user, host)| (Some(user), host));
        let base = format!("{scheme}://{host}{path}");
        let valid = base
            .parse::<http::Uri>()
            .is_ok_and(|uri| uri.host().is_some());
        if !valid || path.contains('#') {
            return Err("not a valid URL".into());
        }
        if let Some(user) = user {
            let encoded = BASE64_STANDARD.encode(percent_decoded(user));
            let mut value = HeaderValue::from_str(&format!("Basic {encoded}"))
                .map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.entry(header::AUTHORIZATION).or_insert(value);
        }
        Ok(Self {
            client: client(),
            base: base.trim_end_matches('/').to_owned(),
            name: endpoint_of(url).into(),
            headers,
        })
    }

    /// Scheme, host and port of the server.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Sends JSON in a POST request to the base URL.
    pub async fn post(
        &self,
        body: Vec<u8>,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        self.post_with(HeaderMap::new(), body, max_bytes, timeout)
            .await
    }

    /// Sends JSON in a POST request to the base URL, with headers that replace those of the target.
    pub async fn post_with(
        &self,
        headers: HeaderMap,
        body: Vec<u8>,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        let mut request = http::Request::new(Full::new(body.into()));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(headers);
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        self.send(request, &self.base, max_bytes, timeout).await
    }

    /// Sends a GET request for JSON at `path` below the base URL. `path` begins with a slash and
    /// may have a query.
    pub async fn get(
        &self,
        path: &str,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        let url = match self.base.split_once('?') {
            Some((base, query)) => {
                let separator = if path.contains('?') { '&' } else { '?' };
                format!("{}{path}{separator}{query}", base.trim_end_matches('/'))
            }
            None => format!("{}{path}", self.base),
        };
        let mut request = http::Request::new(Full::new(Bytes::new()));
        *request.headers_mut() = self.headers.clone();
        self.send(request, &url, max_bytes, timeout).await
    }

    async fn send(
        &self,
        mut request: http::Request<Full<Bytes>>,
        url: &str,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        let broken = |error: &dyn std::error::Error| HttpFault::Broken(causes(error));
        *request.uri_mut() = url
            .parse()
            .map_err(|error: http::uri::InvalidUri| broken(&error))?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::ACCEPT, json);
        let gzip = HeaderValue::from_static("gzip");
        request.headers_mut().insert(header::ACCEPT_ENCODING, gzip);
        let exchange = async {
            let response = self.client.request(request).await;
            let (parts, body) = response.map_err(|error| broken(&error))?.into_parts();
            let body = Limited::new(body, max_bytes).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    HttpFault::TooLarge(max_bytes)
                } else {
                    broken(&*error)
                }
            })?;
            let body = match gzip::unpacked(&parts.headers, body.to_bytes(), max_bytes).await {
                // The status of a failure counts, whatever its body is.
                Err(_) if !parts.status.is_success() => Bytes::new(),
                body => body?,
            };
            let retry_after = parts.headers.get(header::RETRY_AFTER);
            Ok(HttpReply {
                status: parts.status,
                retry_after: retry_after.and_then(|value| {
                    retry_after_of(value.to_str().ok()?, crate::clock::unix_now())
                }),
                body,
            })
        };
        tokio::time::timeout(timeout, exchange)
            .await
            .unwrap_or(Err(HttpFault::Timeout(timeout)))
    }
}

/// Makes ring the process's TLS provider unless one is installed already. The features of our
/// dependencies do not determine the provider.
pub fn choose_tls_provider() {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn client() -> Client<HttpsConnector<HttpConnector>, Full<Bytes>> {
    choose_tls_provider();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(rustls::ClientConfig::with_platform_verifier())
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// The text with each `%xx` replaced by the byte with that hex code.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escape = after.get(..2).filter(|_| *first == b'%');
        let decoded = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    bytes
}

/// The value of `Retry-After` (RFC 9110, 10.2.3), seconds or a date, as a duration from `unix_now`
/// (Unix seconds).
fn retry_after_of(value: &str, unix_now: u64) -> Option<Duration> {
    let seconds = match value.trim().parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => http_date(value.trim())?.saturating_sub(unix_now),
    };
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// Unix seconds of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut words = text.split_ascii_whitespace().skip(1);
    let day: u64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|known| *known == name)? as u64;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (
        clock.next()?.ok()?,
        clock.next()?.ok()?,
        clock.next()?.ok()?,
    );
    if !(1970..10_000).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // Years begin in March here, so that the leap day is the last one.
    let (month, year) = if month < 2 {
        (month + 10, year - 1)
    } else {
        (month - 2, year)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // Convert days since 1 March of the year 0 into days since 1 January 1970.
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}
