//! Metrics of calls to L1.

use super::*;
use crate::rollup::rpc_calls::RpcClientMetrics;
use metrics_exporter_prometheus::PrometheusBuilder;

/// Each call of a batch counts with its own outcome. Calls of other programs do not count.
#[tokio::test]
async fn calls_of_a_rollup_node_are_recorded_one_by_one() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let l1 = FakeL1::start().await;
    l1.set(&chain(5, 100, 2, 1));
    let client = |metrics| {
        let config = L1Config {
            metrics,
            ..L1Config::new(l1.url())
        };
        L1Client::new(&config).unwrap()
    };
    let other = client(None);
    other.block_by_number(5).await.unwrap();
    assert!(!recorder.handle().render().contains("rpc_client"));
    let node = client(Some(RpcClientMetrics::L1));
    let calls = [5, 6].map(|number| L1BlockAt::Number(number).call(false));
    let answers = node.send(0, &calls, 1 << 20).await.unwrap();
    assert_eq!(answers.len(), 2);
    let refused = Err((-32000, "down".to_owned()));
    l1.state.lock().answers.insert("eth_chainId", refused);
    assert!(node.chain_id().await.is_err());
    let text = recorder.handle().render();
    for line in [
        "requests_total{rpc=\"l1\",method=\"eth_getBlockByNumber\"} 2",
        "responses_total{rpc=\"l1\",method=\"eth_getBlockByNumber\",error=\"<nil>\"} 2",
        "params_size_total{rpc=\"l1\",method=\"eth_getBlockByNumber\"} 26",
        "requests_total{rpc=\"l1\",method=\"eth_chainId\"} 1",
        "responses_total{rpc=\"l1\",method=\"eth_chainId\",error=\"rpc_-32000\"} 1",
    ] {
        let line = format!("op_node_default_rpc_client_{line}");
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}
