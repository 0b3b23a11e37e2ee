//! Failed steps and op-node's metric that counts them.

use super::{
    super::{SequencerConfig, tests::World},
    *,
};
use metrics_exporter_prometheus::PrometheusBuilder;

#[tokio::test(flavor = "multi_thread")]
async fn invalid_blocks_count_as_sequencing_errors_and_failures_of_l1_do_not() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let recorder = PrometheusBuilder::new().build_recorder();
    let (mut sequencer, _handle) = metrics::with_local_recorder(&recorder, || {
        world.sequencer(&chain, SequencerConfig::default())
    });
    let invalid = || SequencerError::Core(ChainError::Build("a deposit fails".into()).into());
    for error in [invalid(), SequencerError::Slow, invalid()] {
        sequencer.fail(error).await.unwrap();
    }
    let text = recorder.handle().render();
    let count = "op_node_default_sequencing_errors_total 2";
    assert!(text.lines().any(|line| line == count), "{text}");
}
