//! The bounds on work that all endpoints share: permits of reads and of heavy calls, memory of
//! events and filters, and the size of results.

use super::{
    error::{RpcError, crashed},
    heavy::Heavy,
    memory::KIB,
};
use crate::chain::evm::RPC_GAS_CAP;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Reads in flight per processor core. A read takes microseconds, and most reads do not wait for
/// the disk: more at once would only compete with the executor.
const READS: usize = 4;
/// Default timeout of a heavy call, including the wait for a permit (geth's `--rpc.evmtimeout`).
pub const HEAVY_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a tracing call, including the wait for a permit. HTTP ends a request earlier unless
/// its response is already being sent.
const TRACE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time that a client has to take the next chunk of a trace (256 KiB). Meanwhile the trace is one
/// of the few started tracing calls.
const READER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a trace that is kept in memory until it is sent.
const TRACE_BYTES: usize = 64 << 20;

/// The bounds on work that all endpoints share.
pub struct Bounds {
    pub(super) reads: Arc<Semaphore>,
    /// Permits of calls that are attempted on the tasks of their connections. Half of the workers
    /// remain for other tasks, such as the Engine API's.
    pub(super) brief_calls: Semaphore,
    pub(super) heavy: Heavy,
    /// Free memory for events that wait for their subscribers, in KiB (one permit each).
    pub(super) events: Arc<Semaphore>,
    /// Free memory for `traceChain` events, in KiB. It is taken before an event is made, and
    /// released when the event has been sent.
    pub(super) chain_traces: Arc<Semaphore>,
    /// Free memory for filters, in KiB.
    pub(super) filters: Arc<Semaphore>,
    /// Free memory for reported logs, in KiB. Filters and subscriptions keep them, to report them
    /// as removed after a reorg. Logs that are not kept are read from the receipts of the abandoned
    /// blocks instead.
    pub(super) reported_logs: Arc<Semaphore>,
    /// Permit of the one call at a time that writes traces to files.
    pub(super) trace_files: Arc<Semaphore>,
    /// Timeout of a heavy call (`--rpc.evmtimeout`).
    pub timeout: Duration,
    /// Maximum gas of one EVM execution (`--rpc.gascap`).
    pub gas_cap: u64,
    /// Timeout of a tracing call.
    pub trace_timeout: Duration,
    /// Time that a client has to take the next chunk of a trace.
    pub reader_timeout: Duration,
    /// Maximum bytes of a trace that is kept in memory.
    pub trace_bytes: usize,
    /// Maximum blocks between the first and the last block of a `trace_filter`
    /// (`--rpc.max-trace-filter-blocks`).
    pub trace_blocks: u64,
    pub sync_timeouts: SyncTimeouts,
    pub gas_oracle: GasOracle,
    pub logs: LogLimits,
    /// Maximum bytes of pool transactions in one response. As hexadecimal digits they take twice as
    /// many.
    pub transactions: usize,
}

/// Number of processor cores, at least two.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2))
}

/// New permits of methods that read blocks or state.
pub(super) fn read_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(READS * cores()))
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            reads: read_permits(),
            brief_calls: Semaphore::new(cores() / 2),
            heavy: Heavy::new(cores()),
            events: Arc::new(Semaphore::new(64 << 10)),
            chain_traces: Arc::new(Semaphore::new(2 * TRACE_BYTES / KIB)),
            filters: Arc::new(Semaphore::new(32 << 10)),
            reported_logs: Arc::new(Semaphore::new(32 << 10)),
            trace_files: Arc::new(Semaphore::new(1)),
            timeout: HEAVY_TIMEOUT,
            gas_cap: RPC_GAS_CAP,
            trace_timeout: TRACE_TIMEOUT,
            reader_timeout: READER_TIMEOUT,
            trace_bytes: TRACE_BYTES,
            trace_blocks: 100,
            sync_timeouts: SyncTimeouts::default(),
            gas_oracle: GasOracle::default(),
            logs: LogLimits::default(),
            transactions: 10_000_000,
        }
    }
}

/// Timeouts of `eth_sendRawTransactionSync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncTimeouts {
    /// Timeout of a call that sets none (`--rpc.txsync.defaulttimeout`).
    pub default: Duration,
    /// Longest timeout that a call can request (`--rpc.txsync.maxtimeout`).
    pub most: Duration,
}

impl Default for SyncTimeouts {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(20),
            most: Duration::from_secs(60),
        }
    }
}

impl SyncTimeouts {
    /// The timeout of a call that requests `millis` milliseconds.
    pub fn of(self, millis: Option<u64>) -> Duration {
        match millis {
            None | Some(0) => self.default,
            Some(millis) => Duration::from_millis(millis).min(self.most),
        }
    }
}

/// Settings of the suggested tip (`--gpo.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasOracle {
    /// Number of recent blocks whose tips are used, on Ethereum.
    pub blocks: u64,
    /// Percentile of the recent tips that is suggested, on Ethereum.
    pub percentile: u64,
    /// Highest suggestion, in wei.
    pub most: u128,
    /// Lowest tip that counts on Ethereum, in wei; lower tips are ignored.
    pub ignored: u128,
    /// Lowest suggestion, in wei, on OP chains.
    pub least: u128,
}

impl GasOracle {
    /// Largest allowed value of `blocks`, because a suggestion on Ethereum reads that many blocks.
    pub const MAX_BLOCKS: u64 = 1024;
}

impl Default for GasOracle {
    fn default() -> Self {
        Self {
            blocks: 20,
            percentile: 60,
            most: 500_000_000_000,
            ignored: 2,
            least: 1_000_000,
        }
    }
}

/// Limits on one `eth_getLogs` query and its result.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Maximum addresses in a query, and maximum topics in each position (`--rpc.logquerylimit`).
    pub query: usize,
    /// Maximum blocks in one range.
    pub blocks: u64,
    /// Maximum logs in one result; a range of a single block is not limited.
    pub logs: usize,
    /// Maximum bytes of topics and data in one result; a range of a single block is not limited. As
    /// JSON, topics and data take more than twice as many bytes.
    pub bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            query: 1000,
            blocks: 100_000,
            logs: 20_000,
            bytes: 10_000_000,
        }
    }
}

/// Runs `function` on the blocking pool once it has a permit. The function keeps its permit until
/// it returns, even if its caller is gone.
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

    #[test]
    fn calls_wait_as_long_as_they_ask_up_to_the_most() {
        let timeouts = SyncTimeouts::default();
        let seconds = Duration::from_secs;
        assert_eq!(timeouts.of(None), seconds(20));
        assert_eq!(timeouts.of(Some(0)), seconds(20));
        assert_eq!(timeouts.of(Some(1_500)), Duration::from_millis(1_500));
        assert_eq!(timeouts.of(Some(u64::MAX)), seconds(60));
    }
}
