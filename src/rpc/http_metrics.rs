//! Metrics of HTTP requests on the rollup node's endpoint, under op-node's names (op-service: HTTP
//! recorder).

use http::{Method, StatusCode};
use metrics::{Gauge, counter, gauge, histogram};
use std::time::Instant;

/// Recorder of an endpoint's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpMetrics;

/// A request in flight.
pub struct HttpInFlight {
    method: &'static str,
    began: Instant,
    in_flight: Gauge,
}

impl HttpMetrics {
    /// Records that a request has arrived.
    pub fn on_request(self, method: &Method) -> HttpInFlight {
        let method = label(method);
        counter!("op_node_default_http_requests_count_total", "method" => method).increment(1);
        let in_flight = gauge!("op_node_default_http_inflight_requests_count", "method" => method);
        in_flight.increment(1.0);
        HttpInFlight {
            method,
            began: Instant::now(),
            in_flight,
        }
    }
}

impl HttpInFlight {
    /// Records that the response is ready. `size` is the length of its body in bytes, if it is
    /// known.
    pub fn on_response(self, status: StatusCode, size: Option<u64>) {
        let code = status.as_u16().to_string();
        let labels = [("method", self.method.to_owned()), ("response_code", code)];
        let took = self.began.elapsed();
        counter!("op_node_default_http_responses_count_total", &labels).increment(1);
        histogram!("op_node_default_http_request_duration_ms", &labels)
            .record(took.as_millis() as f64);
        histogram!("op_node_default_http_request_latency_seconds", &labels)
            .record(took.as_secs_f64());
        if let Some(size) = size {
            histogram!("op_node_default_http_response_size", &labels).record(size as f64);
        }
    }
}

impl Drop for HttpInFlight {
    /// Also called if the client has disconnected before the response was ready.
    fn drop(&mut self) {
        self.in_flight.decrement(1.0);
    }
}

/// The label of a method. Each label is a time series and clients can send any name, so unknown
/// names share one label.
fn label(method: &Method) -> &'static str {
    let known = [
        Method::GET,
        Method::POST,
        Method::OPTIONS,
        Method::HEAD,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::CONNECT,
        Method::TRACE,
    ];
    let names = [
        "GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE",
    ];
    let at = known.iter().position(|known| known == method);
    at.map_or("<unknown>", |at| names[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[test]
    fn requests_are_counted_by_known_methods_and_in_flight_until_they_end() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let answered = HttpMetrics.on_request(&Method::POST);
            answered.on_response(StatusCode::OK, Some(12));
            drop(HttpMetrics.on_request(&Method::POST));
            let invented = Method::from_bytes(b"EVIL").unwrap();
            std::mem::forget(HttpMetrics.on_request(&invented));
        });
        let text = recorder.handle().render();
        for line in [
            "requests_count_total{method=\"POST\"} 2",
            "requests_count_total{method=\"<unknown>\"} 1",
            "inflight_requests_count{method=\"POST\"} 0",
            "inflight_requests_count{method=\"<unknown>\"} 1",
            "responses_count_total{method=\"POST\",response_code=\"200\"} 1",
            "response_size_sum{method=\"POST\",response_code=\"200\"} 12",
        ] {
            let line = format!("op_node_default_http_{line}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
