//! Common parts of the clients of JSON-RPC over HTTP: names of endpoints and of failures.

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

/// An error with its causes: connection refused, an untrusted certificate and the like stand at the
/// end of the chain.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
