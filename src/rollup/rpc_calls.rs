//! Metrics of JSON-RPC calls under op-node's names: calls that the node makes, and calls that it
//! serves. Method names and error codes from outside become labels only if this build knows them,
//! so that another party cannot create any number of time series.

use metrics::{counter, histogram};
use std::time::{Duration, Instant};

/// Label of a method or an error that this build does not know (op-service).
const UNKNOWN: &str = "<unknown>";

/// Error codes that are used as labels: those of JSON-RPC, EIP-1474 and the Engine API, 3
/// (reverted) and 429 (rate limit).
const CODES: [std::ops::RangeInclusive<i64>; 5] = [
    3..=3,
    429..=429,
    -32_020..=-32_000,
    -32_700..=-32_600,
    -38_010..=-38_001,
];

/// The outcome of a call, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    /// Success, with the size of the result in bytes.
    Result(usize),
    /// A JSON-RPC error with this code.
    Refused(i64),
    /// An HTTP status that is not a success.
    Status(u16),
    /// No response, or a response that cannot be parsed.
    Failed,
}

impl RpcOutcome {
    fn label(self) -> String {
        match self {
            Self::Result(_) => "<nil>".into(),
            Self::Refused(code) if CODES.iter().any(|known| known.contains(&code)) => {
                format!("rpc_{code}")
            }
            Self::Status(status @ 100..=599) => format!("http_{status}"),
            _ => UNKNOWN.into(),
        }
    }
}

/// Metrics of the calls to one kind of endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcClientMetrics {
    rpc: &'static str,
}

impl RpcClientMetrics {
    /// Metrics of calls to L1.
    pub const L1: Self = Self { rpc: "l1" };
    /// Metrics of calls to the execution client.
    pub const ENGINE: Self = Self { rpc: "engine-api" };

    /// Records a call that is sent. `params` is the size of the parameters in bytes.
    pub fn on_call(self, method: &'static str, params: usize) {
        let labels = [("rpc", self.rpc), ("method", method)];
        counter!("op_node_default_rpc_client_requests_total", &labels).increment(1);
        counter!("op_node_default_rpc_client_params_size_total", &labels).increment(params as u64);
    }

    /// Records the end of a call. `took` is the duration of the request that contained the call.
    pub fn on_end(self, method: &'static str, took: Duration, outcome: RpcOutcome) {
        let labels = [("rpc", self.rpc), ("method", method)];
        histogram!(
            "op_node_default_rpc_client_request_duration_seconds",
            &labels
        )
        .record(took.as_secs_f64());
        counter!("op_node_default_rpc_client_responses_total", "rpc" => self.rpc, "method" => method, "error" => outcome.label())
            .increment(1);
        if let RpcOutcome::Result(size) = outcome {
            counter!("op_node_default_rpc_client_results_size_total", &labels)
                .increment(size as u64);
        }
    }

    /// Records an event of a subscription.
    pub fn on_notification(self, method: &'static str) {
        let labels = [("rpc", self.rpc), ("method", method)];
        counter!(
            "op_node_default_rpc_client_notifications_received_total",
            &labels
        )
        .increment(1);
    }
}

/// Metrics of the calls that the rollup node's endpoint serves.
#[derive(Clone, Copy, Debug, Default)]
pub struct RpcServerMetrics;

/// A call that is being served; records its end.
#[derive(Debug)]
pub struct ServedCall {
    method: &'static str,
    began: Instant,
}

impl RpcServerMetrics {
    /// Records a call that has arrived. `method` is `None` for an unknown method; `params` is the
    /// size of the parameters in bytes.
    pub fn on_call(self, method: Option<&'static str>, params: usize) -> ServedCall {
        let method = method.unwrap_or(UNKNOWN);
        let labels = labels_of(method);
        counter!("op_node_default_rpc_server_requests_total", &labels).increment(1);
        counter!("op_node_default_rpc_server_params_size_total", &labels).increment(params as u64);
        ServedCall {
            method,
            began: Instant::now(),
        }
    }
}

impl ServedCall {
    pub fn on_end(self, outcome: RpcOutcome) {
        let labels = labels_of(self.method);
        histogram!(
            "op_node_default_rpc_server_request_duration_seconds",
            &labels
        )
        .record(self.began.elapsed().as_secs_f64());
        counter!("op_node_default_rpc_server_responses_total", "rpc" => "main", "method" => self.method, "error" => outcome.label())
            .increment(1);
        if let RpcOutcome::Result(size) = outcome {
            counter!("op_node_default_rpc_server_results_size_total", &labels)
                .increment(size as u64);
        }
    }
}

/// The metric labels of a call to the rollup node's endpoint.
fn labels_of(method: &'static str) -> [(&'static str, &'static str); 2] {
    [("rpc", "main"), ("method", method)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[test]
    fn calls_are_counted_by_method_and_outcome() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let took = Duration::from_millis(30);
            for outcome in [
                RpcOutcome::Result(20),
                RpcOutcome::Refused(-32_601),
                RpcOutcome::Status(503),
                RpcOutcome::Failed,
            ] {
                RpcClientMetrics::L1.on_call("eth_chainId", 2);
                RpcClientMetrics::L1.on_end("eth_chainId", took, outcome);
            }
            RpcServerMetrics
                .on_call(None, 7)
                .on_end(RpcOutcome::Refused(-32_601));
        });
        let text = recorder.handle().render();
        let client = "{rpc=\"l1\",method=\"eth_chainId\"}";
        let response = |error: &str| {
            format!(
                "client_responses_total{{rpc=\"l1\",method=\"eth_chainId\",error=\"{error}\"}} 1"
            )
        };
        for line in [
            format!("client_requests_total{client} 4"),
            format!("client_params_size_total{client} 8"),
            format!("client_results_size_total{client} 20"),
            response("<nil>"),
            response("rpc_-32601"),
            response("http_503"),
            response("<unknown>"),
            "server_requests_total{rpc=\"main\",method=\"<unknown>\"} 1".into(),
            "server_params_size_total{rpc=\"main\",method=\"<unknown>\"} 7".into(),
        ] {
            let line = format!("op_node_default_rpc_{line}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    /// An endpoint that invents an error code for each response creates no new time series.
    #[test]
    fn error_codes_that_nobody_defines_share_a_label() {
        for code in [0, 7, -1, -39_000, i64::MIN, i64::MAX] {
            assert_eq!(RpcOutcome::Refused(code).label(), UNKNOWN);
        }
        assert_eq!(RpcOutcome::Refused(-38_005).label(), "rpc_-38005");
        assert_eq!(RpcOutcome::Status(999).label(), UNKNOWN);
    }
}
