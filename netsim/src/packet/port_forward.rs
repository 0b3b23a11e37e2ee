//! TCP port forwarding from loopback into a host's namespace, past all links: a controller reads what
//! a host serves, also while the host's links carry nothing.

use super::network::PacketHost;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// Largest number of connections through one forwarded port at a time. Further ones wait in the backlog.
const CONNECTIONS: usize = 256;

/// Pause after the listener has failed: the process is out of files.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// Opens a port that leads to a port at the loopback address of a host, until `token` is cancelled.
pub(super) async fn open(
    host: Arc<PacketHost>,
    port: u16,
    token: &CancellationToken,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let serving = serve(listener, host, port, token.clone());
    tokio::spawn(token.clone().run_until_cancelled_owned(serving));
    Ok(address)
}

async fn serve(listener: TcpListener, host: Arc<PacketHost>, port: u16, token: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let Ok((near, _)) = listener.accept().await else {
            sleep(LISTEN_PAUSE).await;
            continue;
        };
        let connection = carry(near, host.clone(), port);
        let ended = token.clone().run_until_cancelled_owned(connection);
        tokio::spawn(async move {
            ended.await;
            drop(permit);
        });
    }
}

/// Carries one connection. A host that does not accept it closes it.
async fn carry(mut near: TcpStream, host: Arc<PacketHost>, port: u16) {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(mut far) = host.dial(target).await {
        let _ = copy_bidirectional(&mut near, &mut far).await;
    }
}
