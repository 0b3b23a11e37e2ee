//! Keys and budgets over HTTP and WebSocket.

use super::*;
use crate::rpc::access::Access;

const LIMITS: &str = r#"
[[key]]
name = "greedy"
key = "greedy-greedy-greedy"
per-second = 1
burst = 3

[[key]]
name = "other"
key = "other-other-other"
"#;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;

async fn server() -> Server {
    let access = Access::parse(LIMITS).expect("a file of limits");
    Server::start(Setup {
        access: Some(Arc::new(access)),
        ..Setup::default()
    })
    .await
}

fn head(path: &str, more: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json{more}")
}

#[tokio::test]
async fn the_key_is_a_bearer_token_or_the_last_part_of_the_path() {
    let server = server().await;
    let bearer = "\r\nauthorization: Bearer other-other-other";
    for (path, more, status) in [
        ("/other-other-other", "", 200),
        ("/", bearer, 200),
        ("/wrong-wrong-wrong", bearer, 200),
        ("/", "", 401),
        ("/wrong-wrong-wrong", "", 401),
        ("/", "\r\nauthorization: Bearer wrong", 401),
        ("/", "\r\nauthorization: Basic other-other-other", 401),
        ("/rpc/other-other-other", "", 404),
    ] {
        let (got, response) = server.http(&head(path, more), CALL).await;
        assert_eq!(got, status, "{path} {more}: {response}");
        assert_eq!(response.contains("\"hi\""), status == 200, "{response}");
    }
}

#[tokio::test]
async fn a_greedy_key_is_told_how_long_to_wait_while_another_is_served() {
    let server = server().await;
    let batch = format!("[{}]", [CALL; 5].join(","));
    let (_, response) = server
        .http(&head("/greedy-greedy-greedy", ""), &batch)
        .await;
    assert_eq!(response.matches("\"hi\"").count(), 3, "{response}");
    assert_eq!(response.matches("-32005").count(), 2, "{response}");
    assert!(
        response.contains(r#""data":{"retryAfterMs":"#),
        "{response}"
    );
    let (_, response) = server.http(&head("/other-other-other", ""), &batch).await;
    assert_eq!(response.matches("\"hi\"").count(), 5, "{response}");
}

#[tokio::test]
async fn a_websocket_keeps_the_key_of_its_handshake() {
    let server = server().await;
    let upgrade = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    let ask = async |path: &str| {
        let mut socket = TcpStream::connect(server.addrs.ws.unwrap()).await.unwrap();
        socket.write_all(upgrade(path).as_bytes()).await.unwrap();
        read_all(&mut socket, Duration::from_millis(500)).await
    };
    assert!(ask("/").await.starts_with("HTTP/1.1 401"));
    assert!(ask("/wrong").await.starts_with("HTTP/1.1 401"));
    assert!(ask("/other-other-other").await.starts_with("HTTP/1.1 101"));
}
