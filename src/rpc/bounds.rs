//! The bounds on work that all endpoints share: permits of reads and of heavy calls, memory of events
//! and filters, and the size of answers.

use super::{
    error::{RpcError, crashed},
    heavy::Heavy,
};
use crate::chain::evm::RPC_GAS_CAP;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Reads in flight for each core. A read takes microseconds, and most of them do not wait for the
/// disk: more at once would only compete with the executor.
const READS: usize = 4;
/// Default timeout of a heavy call, waiting included (geth's `--rpc.evmtimeout`).
pub const HEAVY_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a tracing call, waiting included. HTTP ends a request earlier unless its answer is
/// already being sent.
const TRACE_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a trace that is kept in memory until it is sent.
const TRACE_BYTES: usize = 64 << 20;

/// The bounds on work that all endpoints share.
pub struct Bounds {
    pub(super) reads: Arc<Semaphore>,
    pub(super) heavy: Heavy,
    /// KiB of events that wait for their subscribers.
    pub(super) events: Arc<Semaphore>,
    /// KiB of filters and of the logs they hold.
    pub(super) filters: Arc<Semaphore>,
    /// Timeout of a heavy call (`--rpc.evmtimeout`).
    pub timeout: Duration,
    /// Gas of one run of the EVM (`--rpc.gascap`).
    pub gas_cap: u64,
    /// Timeout of a tracing call.
    pub trace_timeout: Duration,
    /// Bytes of a trace that is kept in memory.
    pub trace_bytes: usize,
    pub logs: LogLimits,
    /// Bytes of the pool's transactions in one answer, which holds them as hexadecimal digits.
    pub transactions: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            reads: Arc::new(Semaphore::new(READS * cores.max(2))),
            heavy: Heavy::new(cores.max(2)),
            events: Arc::new(Semaphore::new(64 << 10)),
            filters: Arc::new(Semaphore::new(64 << 10)),
            timeout: HEAVY_TIMEOUT,
            gas_cap: RPC_GAS_CAP,
            trace_timeout: TRACE_TIMEOUT,
            trace_bytes: TRACE_BYTES,
            logs: LogLimits::default(),
            transactions: 10_000_000,
        }
    }
}

/// Limits on one answer of `eth_getLogs`.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Blocks in one range.
    pub blocks: u64,
    /// Logs; a range of a single block is not limited.
    pub logs: usize,
    /// Bytes of topics and data; a range of a single block is not limited. As JSON they are more
    /// than twice as many.
    pub bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            blocks: 100_000,
            logs: 20_000,
            bytes: 10_000_000,
        }
    }
}

/// Runs a function on the blocking pool once there is a permit for it. The function keeps its permit
/// until it returns, even if its caller is gone.
pub async fn blocking<T: Send + 'static>(
    name: &'static str,
    permits: Arc<Semaphore>,
    function: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let Ok(permit) = permits.acquire_owned().await else {
        return Err(RpcError::server("the server is stopping"));
    };
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        function()
    });
    work.await.unwrap_or_else(|_| Err(crashed(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::error::reply;

    #[tokio::test]
    async fn a_crash_on_the_blocking_pool_is_an_error() {
        let permits = Arc::new(Semaphore::new(1));
        let error = blocking::<()>("toy", permits.clone(), || panic!("a toy that breaks"))
            .await
            .unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (-32603, "method handler crashed")
        );
        assert_eq!(permits.available_permits(), 1);
        assert_eq!(
            blocking("toy", permits, || reply(2)).await.unwrap().get(),
            "2"
        );
    }
}
