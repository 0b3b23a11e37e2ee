//! Tests of URLs, credentials and `Retry-After`.

use super::*;

#[test]
fn endpoints_are_named_without_credentials() {
    for (url, name) in [
        (
            "http://user:secret@host:8545/v3/key?token=x",
            "http://host:8545",
        ),
        ("https://host", "https://host"),
        ("wss://a@b@host/key", "wss://host"),
        ("host/key", "host"),
    ] {
        assert_eq!(endpoint_of(url), name);
    }
}

#[test]
fn a_long_error_is_cut_between_characters() {
    assert_eq!(excerpt("short"), "short");
    let exact = "ä".repeat(MAX_EXCERPT);
    assert_eq!(excerpt(&exact), exact);
    assert_eq!(excerpt(format!("{exact}ä")), format!("{exact}…"));
}

#[test]
fn a_user_name_becomes_a_header_and_leaves_the_url() {
    let url = "http://us%65r:p%40ss@host:1/base/?key=1";
    let endpoint = HttpTarget::new(url, HeaderMap::new()).unwrap();
    assert_eq!(endpoint.base, "http://host:1/base/?key=1");
    let expected = format!("Basic {}", BASE64_STANDARD.encode("user:p@ss"));
    assert_eq!(endpoint.headers[header::AUTHORIZATION], expected);
    assert!(
        !format!("{:?}", endpoint.headers).contains(&expected),
        "marked as sensitive"
    );
    assert_eq!(percent_decoded("%zz%4"), b"%zz%4");
    for url in [
        "ftp://host",
        "http://",
        "http://a b",
        "http:///path",
        "",
        "http://host/#x",
    ] {
        let error = HttpTarget::new(url, HeaderMap::new())
            .map(drop)
            .unwrap_err();
        assert!(url.is_empty() || !error.contains(url), "{error}");
    }
}

#[test]
fn retry_after_is_read_in_both_forms() {
    let seconds = |value, now| retry_after_of(value, now).map(|rest| rest.as_secs());
    assert_eq!(seconds("7", 0), Some(7));
    assert_eq!(seconds("99999999", 0), Some(3600), "at most an hour");
    // The example of RFC 9110, and dates around leap days.
    assert_eq!(
        http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
        Some(784_111_777)
    );
    assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(
        http_date("Thu, 29 Feb 2024 23:59:59 GMT"),
        Some(1_709_251_199)
    );
    assert_eq!(
        http_date("Fri, 01 Mar 2024 00:00:00 GMT"),
        Some(1_709_251_200)
    );
    assert_eq!(
        seconds("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770),
        Some(7)
    );
    assert_eq!(
        seconds("Sun, 06 Nov 1994 08:49:37 GMT", 1_800_000_000),
        Some(0)
    );
    for nonsense in [
        "",
        "soon",
        "-1",
        "Sun, 99 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1 08:49:37 GMT",
    ] {
        assert_eq!(seconds(nonsense, 0), None, "{nonsense}");
    }
}
