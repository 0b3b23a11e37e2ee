//! Serves `GET /metrics` to Prometheus, without authentication. The number of connections is
//! bounded, and each connection is closed after one response.

use super::{MetricsConfig, descriptions::describe_all};
use crate::version::VERSION;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::{convert::Infallible, io, net::SocketAddr, time::Duration};
use tokio::{net::TcpListener, task::JoinSet, time::interval, time::timeout};
use tokio_util::sync::CancellationToken;

/// Maximum number of connections served at once; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 16;
/// Timeout of a request and its response.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Interval of draining histograms, so that they do not grow while there are no requests.
const UPKEEP: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error(
        "the metrics server cannot listen on {address}: {error}; choose another --metrics.port"
    )]
    Listen { address: String, error: io::Error },
    #[error("metrics are recorded already in this process")]
    Twice,
}

/// Histogram buckets for durations in seconds: from CPU work to waiting for several blocks.
const SECONDS: [f64; 15] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Histogram buckets for peer scores, the same as in op-node.
const SCORES: [f64; 18] = [
    -100.0, -40.0, -20.0, -10.0, -5.0, -2.0, -1.0, -0.5, -0.05, 0.0, 0.05, 0.5, 1.0, 2.0, 5.0,
    10.0, 20.0, 40.0,
];

/// Histogram buckets for the depth of L1 reorgs in blocks, the same as in op-node.
const REORG_DEPTHS: [f64; 14] = [
    0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 20.5, 50.5, 100.5,
];

/// Histogram buckets for the ratio of a channel's compressed size to its uncompressed size (as in
/// op-batcher).
const COMPRESSION: [f64; 16] = [
    0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95,
];
/// Histogram buckets for bytes of data in a blob: multiples of a thirteenth of the maximum (as in
/// op-batcher).
const BLOB_BYTES: [f64; 14] = [
    0.0, 10_003.0, 20_006.0, 30_009.0, 40_012.0, 50_015.0, 60_018.0, 70_021.0, 80_024.0, 90_027.0,
    100_030.0, 110_033.0, 120_036.0, 130_039.0,
];
/// Histogram buckets for fees of L1 transactions, in gwei (as in op-service).
const FEES: [f64; 14] = [
    0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 800.0, 1_600.0,
];
/// Histogram buckets for the duration of a throttling update, in seconds (Prometheus' defaults).
const RESPONSES: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Histogram buckets for the cost of a channel, in gwei: from one blob on a quiet L1 to a tenth of
/// an ether.
const CHANNEL_COSTS: [f64; 11] = [1e2, 1e3, 5e3, 1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7, 1e8];
/// Histogram buckets for the used share of a channel's blobs.
const BLOB_FILL: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
/// Histogram buckets for the seconds until L1 has confirmed data: from one block to hours of
/// congestion.
const INCLUSION: [f64; 13] = [
    1.0, 2.0, 4.0, 8.0, 12.0, 24.0, 36.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0,
];

/// Histogram buckets for a block's build time minus the block time, in seconds (as in op-node).
const BUILDING_DIFFS: [f64; 22] = [
    -10.0, -5.0, -2.5, -1.0, -0.5, -0.25, -0.1, -0.05, -0.025, -0.01, -0.005, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Histogram buckets for HTTP response times, in milliseconds. op-node's buckets end at 10, since
/// they are meant for seconds.
const MILLISECONDS: [f64; 12] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 10_000.0,
];
/// Histogram buckets for sizes of HTTP responses, in bytes. op-node's buckets end at 10.
const BODY_BYTES: [f64; 8] = [64.0, 256.0, 1e3, 4e3, 16e3, 64e3, 1e6, 1e7];

/// Sets fixed buckets for histograms, so that they can be summed over several nodes.
fn with_buckets(builder: PrometheusBuilder) -> PrometheusBuilder {
    let named = |name: &str| Matcher::Full(format!("starling_batcher_{name}"));
    let bounds = [
        (Matcher::Suffix("_seconds".into()), &SECONDS[..]),
        (Matcher::Suffix("_peer_scores".into()), &SCORES[..]),
        (Matcher::Suffix("_l1_reorg_depth".into()), &REORG_DEPTHS[..]),
        (
            Matcher::Suffix("_channel_compr_ratio".into()),
            &COMPRESSION[..],
        ),
        (Matcher::Suffix("_blob_used_bytes".into()), &BLOB_BYTES[..]),
        (Matcher::Suffix("_tx_fee_histogram_gwei".into()), &FEES[..]),
        (Matcher::Suffix("_pid_response_time".into()), &RESPONSES[..]),
        (named("channel_cost_gwei"), &CHANNEL_COSTS[..]),
        (named("blob_fill_ratio"), &BLOB_FILL[..]),
        (named("inclusion_delay_seconds"), &INCLUSION[..]),
        (
            Matcher::Full("op_node_default_sequencer_building_diff_seconds".into()),
            &BUILDING_DIFFS[..],
        ),
        (
            Matcher::Suffix("_http_request_duration_ms".into()),
            &MILLISECONDS[..],
        ),
        (
            Matcher::Suffix("_http_response_size".into()),
            &BODY_BYTES[..],
        ),
    ];
    bounds
        .into_iter()
        .fold(builder, |builder, (names, bounds)| {
            builder
                .set_buckets_for_metric(names, bounds)
                .expect("there are bounds")
        })
}

/// A metrics server bound to its address. It records metrics from its creation on.
pub struct MetricsServer {
    listener: TcpListener,
    address: SocketAddr,
    handle: PrometheusHandle,
}

impl MetricsServer {
    pub async fn bind(config: &MetricsConfig) -> Result<Self, MetricsError> {
        let failed = |error| MetricsError::Listen {
            address: format!("{}:{}", config.addr, config.port),
            error,
        };
        let listener = TcpListener::bind((config.addr.as_str(), config.port))
            .await
            .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let handle = with_buckets(PrometheusBuilder::new())
            .install_recorder()
            .map_err(|_| MetricsError::Twice)?;
        describe_all();
        // Reported by every role from its start on, so that the page is never empty.
        metrics::gauge!("starling_info", "version" => VERSION).set(1.0);
        Ok(Self {
            listener,
            address,
            handle,
        })
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut upkeep = interval(UPKEEP);
        loop {
            tokio::select! {
                _ = token.cancelled() => return,
                _ = upkeep.tick() => self.handle.run_upkeep(),
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        let handle = self.handle.clone();
                        let service = service_fn(move |request| respond(request, handle.clone()));
                        let connection = hyper::server::conn::http1::Builder::new()
                            .timer(TokioTimer::new())
                            .keep_alive(false)
                            .serve_connection(TokioIo::new(stream), service);
                        connections.spawn(async move {
                            // Do not log a client that disconnects or times out.
                            let _ = timeout(TIME_LIMIT, connection).await;
                        });
                    }
                    // Wait after an error such as too many open files, instead of retrying in a
                    // busy loop.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    handle: PrometheusHandle,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, handle.render()),
        _ => (StatusCode::NOT_FOUND, "see /metrics\n".to_string()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let text = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, text);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn the_page_has_the_version_and_what_is_recorded_with_help_texts() -> anyhow::Result<()> {
        let config = MetricsConfig {
            addr: "127.0.0.1".into(),
            port: 0,
        };
        let server = MetricsServer::bind(&config).await?;
        let address = server.address();
        metrics::counter!("starling_persisted_blocks_total").increment(3);
        let token = CancellationToken::new();
        let serve = server.run(token.clone());
        let ask = async {
            let (metrics, other) = (get(address, "/metrics").await, get(address, "/").await);
            token.cancel();
            Ok::<_, io::Error>((metrics?, other?))
        };
        let (_, answers) = tokio::join!(serve, ask);
        let (metrics, other) = answers?;
        assert!(
            metrics.starts_with("HTTP/1.1 200")
                && metrics.contains("starling_persisted_blocks_total 3"),
            "{metrics}"
        );
        let info = format!("starling_info{{version=\"{VERSION}\"}} 1");
        assert!(metrics.contains(&info), "{metrics}");
        let help = "# HELP starling_persisted_blocks_total Blocks that were stored";
        assert!(metrics.contains(help), "{metrics}");
        assert!(other.starts_with("HTTP/1.1 404"), "{other}");

        let taken = MetricsConfig {
            addr: "127.0.0.1".into(),
            port: 0,
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let taken = MetricsConfig {
            port: listener.local_addr()?.port(),
            ..taken
        };
        assert!(matches!(
            MetricsServer::bind(&taken).await,
            Err(MetricsError::Listen { .. })
        ));
        Ok(())
    }
}
