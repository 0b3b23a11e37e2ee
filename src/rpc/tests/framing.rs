//! JSON-RPC framing, through HTTP.

use super::*;

fn error(id: &str, code: i32, message: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#)
}

fn echo(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"toy_echo","params":["hi"]}}"#)
}

fn echoed(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"hi"}}"#)
}

#[tokio::test]
async fn ids_are_echoed_byte_for_byte() {
    let server = Server::plain().await;
    for id in [
        "1",
        "-1",
        "1.50",
        "1e3",
        "\"a\\u0062\"",
        "null",
        "18446744073709551616",
    ] {
        assert_eq!(server.post(&echo(id)).await, echoed(id));
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let server = Server::plain().await;
    for (body, response) in [
        ("{", error("null", -32700, "parse error")),
        ("hello", error("null", -32700, "parse error")),
        ("[1,", error("null", -32700, "parse error")),
        ("1", error("null", -32600, "invalid request")),
        ("null", error("null", -32600, "invalid request")),
        ("{}", error("null", -32600, "invalid request")),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"toy_echo","params":["hi"]}"#,
            error("1", -32600, "invalid request"),
        ),
        (
            r#"{"id":1,"method":"toy_echo","params":["hi"]}"#,
            error("1", -32600, "invalid request"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1}"#,
            error("1", -32600, "invalid request"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            error("1", -32600, "invalid request"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"toy_echo"}"#,
            error("null", -32600, "invalid request"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":[1],"method":"toy_echo"}"#,
            error("null", -32600, "invalid request"),
        ),
    ] {
        assert_eq!(server.post(body).await, response, "{body}");
    }
    assert_eq!(server.post("  ").await, "");
}

#[tokio::test]
async fn methods_and_arguments_that_do_not_exist_are_refused() {
    let server = Server::plain().await;
    for (body, response) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"foo_bar"}"#,
            error(
                "1",
                -32601,
                "the method foo_bar does not exist/is not available",
            ),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":{}}"#,
            error("1", -32602, "non-array args"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo"}"#,
            error("1", -32602, "missing value for required argument 0"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["count"]}"#,
            error("1", -32601, "notifications not supported"),
        ),
    ] {
        assert_eq!(server.post(body).await, response, "{body}");
    }
}

/// Requests with millions of values, or with endless nesting, are refused without being stored or
/// parsed recursively.
#[tokio::test]
async fn large_and_deep_requests_are_refused() {
    let server = Server::plain().await;
    let many = "1,".repeat(2_000_000) + "1";
    assert_eq!(
        server.post(&format!("[{many}]")).await,
        format!("[{}]", error("null", -32600, "batch too large"))
    );
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"rpc_modules","params":[{many}]}}"#);
    assert_eq!(
        server.post(&call).await,
        error(
            "1",
            -32601,
            "the method rpc_modules does not exist/is not available"
        )
    );
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":[{}]}}"#,
        "[".repeat(1_000_000) + &"]".repeat(1_000_000)
    );
    assert!(server.post(&deep).await.contains("-32602"));
}

#[tokio::test]
async fn errors_carry_code_message_and_data() {
    let server = Server::plain().await;
    let response = server
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"toy_fail"}"#)
        .await;
    let error = r#"{"code":3,"message":"execution reverted \"so\"","data":"0x12"}"#;
    assert_eq!(
        response,
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)
    );
}

#[tokio::test]
async fn a_crash_is_an_error_and_not_the_end() {
    let server = Server::plain().await;
    let response = server
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"toy_crash"}"#)
        .await;
    assert_eq!(response, error("1", -32603, "method handler crashed"));
    assert_eq!(server.post(&echo("2")).await, echoed("2"));
}

#[tokio::test]
async fn a_notification_has_no_answer() {
    let server = Server::plain().await;
    assert_eq!(
        server
            .post(r#"{"jsonrpc":"2.0","method":"toy_echo","params":["hi"]}"#)
            .await,
        ""
    );
    let batch = format!(
        r#"[{},{{"jsonrpc":"2.0","method":"toy_echo"}},{}]"#,
        echo("1"),
        echo("2")
    );
    assert_eq!(
        server.post(&batch).await,
        format!("[{},{}]", echoed("1"), echoed("2"))
    );
    assert_eq!(
        server
            .post(r#"[{"jsonrpc":"2.0","method":"toy_echo"}]"#)
            .await,
        ""
    );
}

#[tokio::test]
async fn batches_have_edges() {
    let server = Server::plain().await;
    assert_eq!(
        server.post("[]").await,
        error("null", -32600, "empty batch")
    );
    assert_eq!(
        server.post("[1]").await,
        format!("[{}]", error("null", -32600, "invalid request"))
    );
    let many = |n: usize| format!("[{}]", vec![echo("9"); n].join(","));
    assert_eq!(
        server.post(&many(1000)).await,
        format!("[{}]", vec![echoed("9"); 1000].join(","))
    );
    assert_eq!(
        server.post(&many(1001)).await,
        format!("[{}]", error("9", -32600, "batch too large"))
    );
}

#[tokio::test]
async fn a_batch_stops_growing() {
    let server = Server::plain().await;
    let big =
        |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"toy_big","params":[13000000]}}"#);
    let response = server
        .post(&format!("[{},{},{},{}]", big(1), big(2), big(3), echo("4")))
        .await;
    let text = "x".repeat(13_000_000);
    let done = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{text}"}}"#);
    let refused = |id: &str| error(id, -32003, "response too large");
    assert!(
        response
            == format!(
                "[{},{},{},{}]",
                done(1),
                done(2),
                refused("3"),
                refused("4")
            )
    );
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_told_so() {
    let limits = ServerLimits {
        write: Duration::from_millis(100),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let sleep = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"toy_sleep"}}"#);
    let late = |id: &str| error(id, -32002, "request timed out");
    assert_eq!(server.post(&sleep("1")).await, late("1"));
    let batch = format!("[{},{},{}]", echo("1"), sleep("2"), echo("3"));
    assert_eq!(
        server.post(&batch).await,
        format!("[{},{},{}]", echoed("1"), late("2"), late("3"))
    );
}

#[tokio::test]
async fn batches_are_as_large_as_the_operator_says() {
    let limits = ServerLimits {
        batch: 2,
        batch_response: 10,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let many = |n: usize| format!("[{}]", vec![echo("9"); n].join(","));
    assert_eq!(
        server.post(&many(2)).await,
        format!("[{},{}]", echoed("9"), echoed("9"))
    );
    assert_eq!(
        server.post(&many(3)).await,
        format!("[{}]", error("9", -32600, "batch too large"))
    );
    let big = r#"{"jsonrpc":"2.0","id":1,"method":"toy_big","params":[9]}"#;
    let response = server.post(&format!("[{big},{}]", echo("2"))).await;
    assert!(
        response.ends_with(&format!("{}]", error("2", -32003, "response too large"))),
        "{response}"
    );
}

#[tokio::test]
async fn answers_that_nobody_takes_leave_no_room_for_large_ones() {
    let limits = ServerLimits {
        response_memory: 40_000_000,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let big = r#"{"jsonrpc":"2.0","id":1,"method":"toy_big","params":[24000000]}"#;
    // The response is larger than the socket's buffers, so its memory is held until the reader
    // takes it.
    let mut reader = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    reader
        .write_all(
            format!(
                "{POST}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{big}",
                big.len()
            )
            .as_bytes(),
        )
        .await
        .unwrap();
    let mut first = [0; 12];
    reader.read_exact(&mut first).await.unwrap();
    let full = error(
        "1",
        -32003,
        "response too large: too many answers wait for their readers",
    );
    assert_eq!(server.post(big).await, full);
    // After the refusal, no further call of a batch is executed. Small responses are still sent.
    let refused = error(
        "2",
        -32003,
        "response too large: too many answers wait for their readers",
    );
    assert_eq!(
        server.post(&format!("[{big},{}]", echo("2"))).await,
        format!("[{full},{refused}]")
    );
    assert_eq!(server.post(&echo("3")).await, echoed("3"));
    assert!(read_all(&mut reader, Duration::from_secs(60)).await.len() > 24_000_000);
    drop(reader);
    while server.post(big).await == full {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_echoed_is_bounded_and_counted() {
    let limits = ServerLimits {
        response_memory: 100_000,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let call = |id: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":"{}","method":"toy_echo","params":["hi"]}}"#,
            "i".repeat(id)
        )
    };
    let invalid =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request"}}"#;
    assert!(
        server
            .post(&call(1022))
            .await
            .ends_with(r#""result":"hi"}"#)
    );
    assert_eq!(server.post(&call(1023)).await, invalid);
    let unknown = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#,
        "m".repeat(1_000_000)
    );
    assert!(server.post(&unknown).await.len() < 300);
    let unknown = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{}_subscribe"}}"#,
        "m".repeat(1_000_000)
    );
    assert!(server.post(&unknown).await.len() < 300);
    // Many small results add up to a large response.
    let batch = |count| format!("[{}]", vec![call(1000); count].join(","));
    assert!(
        server
            .post(&batch(50))
            .await
            .matches(r#""result":"hi""#)
            .count()
            == 50
    );
    let response = server.post(&batch(150)).await;
    assert!(
        response.contains(r#""code":-32003"#) && response.len() < 300,
        "{} bytes",
        response.len()
    );
}

/// Answers of op-geth v1.101702.3.
#[tokio::test]
async fn members_of_a_request_are_known_in_any_case() {
    let server = Server::plain().await;
    let batch = r#"[{"JSONRPC":"2.0","Id":1,"Method":"toy_echo","PARAMS":["hi"]},
        {"jsonrpc":"2.0","id":2,"method":"x","METHOD":"toy_echo","Params":["hi"]}]"#;
    let both = format!("[{},{}]", echoed("1"), echoed("2"));
    assert_eq!(server.post(batch).await, both);
    let request = r#"{"JSONRPC":"2.0","ID":1,"METHOD":"toy_echo","PARAMS":["hi"]}"#;
    assert_eq!(server.post(request).await, echoed("1"));
    let repeated = r#"{"jsonrpc":"2.0","id":1,"ID":null,"method":"toy_echo","params":["hi"]}"#;
    assert_eq!(server.post(repeated).await, echoed("null"));
}
