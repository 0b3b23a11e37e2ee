//! One TCP link with conditions that can change while it carries traffic.
//!
//! A node dials the link's address instead of its peer's. A cut link does not close connections: it
//! stops forwarding bytes, like a pulled cable.

use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// Conditions of the link, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Delay of every piece of data, one way.
    pub latency: Duration,
    /// Stops forwarding while set.
    pub cut: bool,
}

/// A proxy on loopback in front of one address. Ends when dropped.
pub struct FaultyLink {
    address: SocketAddr,
    conditions: watch::Sender<Conditions>,
    token: CancellationToken,
}

impl FaultyLink {
    /// Listens on a free port and forwards every connection to `target`.
    pub async fn to(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (conditions, watched) = watch::channel(Conditions::default());
        let token = CancellationToken::new();
        let stop = token.clone();
        tokio::spawn(async move {
            while let Some(Ok((near, _))) = stop.run_until_cancelled(listener.accept()).await {
                tokio::spawn(stop.clone().run_until_cancelled_owned(carry(
                    near,
                    target,
                    watched.clone(),
                )));
            }
        });
        Ok(Self {
            address,
            conditions,
            token,
        })
    }

    /// Address to dial.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, conditions: Conditions) {
        self.conditions.send_replace(conditions);
    }
}

impl Drop for FaultyLink {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

async fn carry(near: TcpStream, target: SocketAddr, conditions: watch::Receiver<Conditions>) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    let there = one_way(near_read, far_write, conditions.clone());
    let back = one_way(far_read, near_write, conditions);
    let _ = tokio::join!(there, back);
}

async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut conditions: watch::Receiver<Conditions>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut buffer).await?;
        let latency = conditions.borrow().latency;
        tokio::time::sleep(latency).await;
        if conditions.wait_for(|c| !c.cut).await.is_err() {
            return Ok(());
        }
        if n == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..n]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        address
    }

    #[tokio::test]
    async fn a_cut_link_is_silent_and_loses_nothing() {
        let link = FaultyLink::to(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(link.address()).await.unwrap();
        let mut answer = [0; 4];
        stream.write_all(b"ping").await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ping");

        link.set(Conditions {
            cut: true,
            ..Default::default()
        });
        stream.write_all(b"pong").await.unwrap();
        let silent =
            tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await;
        assert!(silent.is_err(), "bytes passed a cut link");

        link.set(Conditions::default());
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"pong");

        // The end of a connection has to pass the link, too.
        link.set(Conditions {
            cut: true,
            ..Default::default()
        });
        stream.shutdown().await.unwrap();
        let silent =
            tokio::time::timeout(Duration::from_millis(200), stream.read(&mut answer)).await;
        assert!(silent.is_err(), "the end passed a cut link");
        link.set(Conditions::default());
        assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    }
}
