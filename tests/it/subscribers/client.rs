//! A WebSocket client whose connection can be cut at any moment.

use serde_json::{Value, json};
use soketto::{
    Incoming, Receiver, Sender,
    connection::CloseReason,
    handshake::{Client, ServerResponse},
};
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// A connection to the node. Dropping it sends no close frame.
pub struct Socket {
    sender: Sender<Compat<TcpStream>>,
    receiver: Receiver<Compat<TcpStream>>,
    pub local: SocketAddr,
}

impl Socket {
    /// Connects to the node. With `resets`, dropping the connection causes a TCP reset.
    pub async fn connect(address: SocketAddr, resets: bool) -> Self {
        let socket = TcpStream::connect(address).await.expect("a connection");
        socket.set_nodelay(true).expect("an option");
        if resets {
            socket.set_zero_linger().expect("an option");
        }
        let local = socket.local_addr().expect("an address");
        let mut client = Client::new(socket.compat(), "localhost", "/");
        let response = client.handshake().await.expect("a handshake");
        assert!(
            matches!(response, ServerResponse::Accepted { .. }),
            "{response:?}"
        );
        let (sender, receiver) = client.into_builder().finish();
        Self {
            sender,
            receiver,
            local,
        }
    }

    /// Sends a request to subscribe.
    pub async fn subscribe(&mut self, id: u64, params: Value) {
        let request =
            json!({ "jsonrpc": "2.0", "id": id, "method": "eth_subscribe", "params": params });
        let sent = async {
            self.sender.send_text(request.to_string()).await?;
            self.sender.flush().await
        };
        sent.await.expect("the node reads");
    }

    /// The next message, or the reason why the connection ended.
    pub async fn next(&mut self) -> Result<String, String> {
        let mut message = Vec::new();
        loop {
            match self.receiver.receive(&mut message).await {
                Ok(Incoming::Data(_)) => {
                    return String::from_utf8(message).map_err(|error| error.to_string());
                }
                Ok(Incoming::Pong(_)) => {}
                Ok(Incoming::Closed(reason)) => return Err(format!("{reason:?}")),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The reason in the node's close frame; messages before it are skipped.
    pub async fn close_reason(&mut self) -> CloseReason {
        loop {
            let mut message = Vec::new();
            let incoming = self.receiver.receive(&mut message).await;
            if let Incoming::Closed(reason) = incoming.expect("a whole message") {
                return reason;
            }
        }
    }
}
