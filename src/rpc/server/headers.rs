//! The HTTP rules on headers: content types, hosts, CORS and origins, as in geth. Pure.

use http::{HeaderMap, HeaderValue, Method, Request, header};

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_LENGTH)?.parse().ok()
}

pub fn is_json(headers: &HeaderMap) -> bool {
    let media_type = text(headers, header::CONTENT_TYPE)
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    [
        "application/json",
        "application/json-rpc",
        "application/jsonrequest",
    ]
    .iter()
    .any(|accepted| media_type.eq_ignore_ascii_case(accepted))
}

/// Whether a client accepts responses in gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = text(headers, header::ACCEPT_ENCODING).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case("gzip")
            && weight
                .trim()
                .parse::<f32>()
                .is_ok_and(|weight| weight > 0.0)
    })
}

/// Whether requests to `path` are served (geth's `--http.rpcprefix`): every path that begins with
/// the prefix or, without a prefix, only `/`.
pub fn path_served(prefix: &str, path: &str) -> bool {
    if prefix.is_empty() {
        path == "/"
    } else {
        path.starts_with(prefix)
    }
}

/// A path that may end in a key: whether the path is served, and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPath<'a> {
    pub served: bool,
    pub key: Option<&'a str>,
}

/// Splits the key off a path. Without a prefix, the rest of the path must be `/`. With a prefix,
/// the rest must be exactly the prefix, since every longer path ends in a key.
pub fn key_path<'a>(prefix: &str, path: &'a str) -> KeyPath<'a> {
    let rest = path.strip_prefix(prefix.trim_end_matches('/'));
    let key = rest.and_then(|rest| match rest {
        "" => Some(rest),
        rest => rest.strip_prefix('/'),
    });
    let key = key.filter(|key| !key.contains('/'));
    KeyPath {
        served: key.is_some(),
        key: key.filter(|key| !key.is_empty()),
    }
}

/// The token of `Authorization: Bearer`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = text(headers, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The host name in a `Host` header, without the port, and without the brackets of IPv6.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

/// Whether the `Host` header is allowed, as a defence against DNS rebinding. A name must be listed
/// in `vhosts`; an IP address is always allowed, because it cannot be rebound.
pub fn host_allowed(vhosts: &[String], headers: &HeaderMap) -> bool {
    let host = text(headers, header::HOST).unwrap_or_default();
    let name = host_name(host);
    name.is_empty()
        || name.parse::<std::net::IpAddr>().is_ok()
        || vhosts
            .iter()
            .any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(name))
}

/// Whether a web page sent the request. Browsers add `Origin` to every request of a page, except
/// to a `GET` of its own server.
pub fn is_of_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
}

/// Whether the request is a browser's CORS preflight.
pub fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The CORS headers for a browser's request from an allowed origin; `None` if CORS does not apply
/// to the request.
pub fn cors_headers<B>(allowed: &[String], request: &Request<B>) -> Option<HeaderMap> {
    let origin = request.headers().get(header::ORIGIN)?;
    let any = allowed.iter().any(|pattern| pattern == "*");
    let name = origin.to_str().ok()?;
    if !any && !allowed.iter().any(|pattern| matches_pattern(pattern, name)) {
        return None;
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let origin = if any {
        HeaderValue::from_static("*")
    } else {
        origin.clone()
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if is_preflight(request) {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("POST, GET"),
        );
        let wanted = request
            .headers()
            .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
            .cloned();
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            wanted.unwrap_or(HeaderValue::from_static("*")),
        );
        headers.insert(
            header::ACCESS_CONTROL_MAX_AGE,
            HeaderValue::from_static("600"),
        );
    }
    Some(headers)
}

/// Whether an origin matches a pattern with at most one `*`.
fn matches_pattern(pattern: &str, origin: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(origin),
        Some((start, end)) => {
            origin.len() >= start.len() + end.len()
                && origin.starts_with(start)
                && origin.ends_with(end)
        }
    }
}

/// Whether a WebSocket handshake from its origin is allowed (`--ws.origins`). A rule may name a
/// scheme, a host and a port; an absent part matches anything. Programs other than browsers send no
/// origin and are allowed.
pub fn origin_allowed(rules: &[String], headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Some(origin) = origin.to_str().ok().map(split_origin) else {
        return false;
    };
    let allowed = |rule: &str| {
        let (scheme, host, port) = split_origin(rule);
        let same = |rule: &str, value: &str| rule.is_empty() || rule.eq_ignore_ascii_case(value);
        rule == "*" || (same(scheme, origin.0) && same(host, origin.1) && same(port, origin.2))
    };
    match rules
        .iter()
        .map(|rule| rule.trim())
        .filter(|rule| !rule.is_empty())
        .collect::<Vec<_>>()
    {
        rules if rules.is_empty() => allowed("http://localhost"),
        rules => rules.into_iter().any(allowed),
    }
}

/// Scheme, host and port of an origin; absent parts are empty.
fn split_origin(origin: &str) -> (&str, &str, &str) {
    let (scheme, rest) = origin.split_once("://").unwrap_or(("", origin));
    let rest = rest.trim_end_matches('/');
    let host = host_name(rest);
    let port = rest
        .rsplit_once(':')
        .map_or("", |(_, port)| if port.contains(']') { "" } else { port });
    (scheme, host, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_where_it_is_named_with_a_weight_above_zero() {
        let accepts = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            accepts_gzip(&headers)
        };
        assert!(accepts("gzip") && accepts("deflate, GZIP;q=0.5, br"));
        assert!(!accepts("deflate") && !accepts("gzip;q=0") && !accepts("xgzip"));
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn paths_are_served_by_their_prefix() {
        assert!(path_served("", "/") && !path_served("", "/rpc"));
        assert!(path_served("/rpc", "/rpc") && path_served("/rpc", "/rpc/v1"));
        assert!(!path_served("/rpc", "/") && path_served("/", "/any"));
    }

    #[test]
    fn a_path_ends_in_at_most_one_key() {
        let split = |prefix: &str, path: &'static str| {
            let path = key_path(prefix, path);
            path.served.then_some(path.key)
        };
        assert_eq!(split("", "/"), Some(None));
        assert_eq!(split("", "/abc"), Some(Some("abc")));
        assert_eq!(split("", "/abc/def"), None);
        assert_eq!(split("/rpc", "/rpc"), Some(None));
        assert_eq!(split("/rpc", "/rpc/"), Some(None));
        assert_eq!(split("/rpc", "/rpc/abc"), Some(Some("abc")));
        assert_eq!(split("/rpc", "/rpcabc"), None);
        assert_eq!(split("/rpc", "/other/abc"), None);
    }
}
