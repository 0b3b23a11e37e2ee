//! The threads that carry the links of a network, on either backend. The controller's readings of
//! nodes have other threads, so that they do not delay packets, and so that the cost of links can be
//! measured.

use super::usage;
use parking_lot::Mutex;
use std::{io, sync::Arc, time::Duration};
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

/// Number of threads. A lab is meant for a machine that its nodes fill.
const THREADS: usize = 2;

/// A runtime for links. What is created within [`Self::enter`] runs on its threads.
pub struct LinkThreads {
    /// Taken when this value is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    /// The kernel's ids of all threads that were started.
    ids: Arc<Mutex<Vec<i32>>>,
}

impl LinkThreads {
    pub fn start() -> io::Result<Self> {
        let ids = Arc::<Mutex<Vec<i32>>>::default();
        let started = ids.clone();
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("links")
            .enable_all()
            .on_thread_start(move || started.lock().push(nix::unistd::gettid().as_raw()))
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            ids,
        })
    }

    /// Makes this runtime the current one until the guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Processor time of the threads so far.
    pub fn used(&self) -> Duration {
        let ids = self.ids.lock();
        ids.iter().filter_map(|id| usage::thread_time(*id)).sum()
    }
}

impl Drop for LinkThreads {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which tokio forbids within another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyLink, LinkConditions, LinkEnd};
    use std::{net::Ipv4Addr, time::Instant};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    #[tokio::test]
    async fn the_time_of_links_is_apart_from_that_of_other_tasks() {
        let threads = LinkThreads::start().unwrap();
        let link = {
            let _context = threads.enter();
            FaultyLink::new(1, LinkConditions::CLEAR).unwrap()
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = listener.local_addr().unwrap();
        // This is outside of the guard, as the lab's later addresses are.
        let address = link.tcp(LinkEnd::Far, target).await.unwrap();
        let before = threads.used();
        let busy = Instant::now();
        while busy.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let own = threads.used() - before;
        assert!(own < Duration::from_millis(100), "{own:?} without traffic");
        let sending = tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&vec![7; 64 << 20]).await.unwrap();
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        sending.await.unwrap();
        assert_eq!(received.len(), 64 << 20);
        let carrying = threads.used() - before - own;
        assert!(
            carrying > Duration::from_millis(2),
            "{carrying:?} for 64 MiB"
        );
        drop(link);
    }
}
