//! The sentences for another L1.

use super::{
    super::{
        L1Config,
        fake::{FakeL1, chain},
    },
    *,
};
use serde_json::json;
use starling_proto::payload::BlockId;

#[tokio::test]
async fn another_chain_and_another_genesis_are_named() {
    let l1 = FakeL1::start().await;
    let headers = chain(5, 100, 2, 1);
    l1.set(&headers);
    let say = |chain_id| {
        l1.state
            .lock()
            .answers
            .insert("eth_chainId", Ok(json!(chain_id)))
    };
    let client = L1Client::new(&L1Config::new(l1.url())).unwrap();
    let mut rollup = RollupConfig {
        l1_chain_id: 900,
        ..Default::default()
    };
    rollup.genesis.l1 = BlockId {
        hash: headers[0].hash_slow(),
        number: 5,
    };
    say("0x1");
    let error = check_chain(&client, &rollup).await.unwrap_err();
    assert!(error.is_final());
    let sentence = "incorrect L1 RPC chain id 1, expected 900: ";
    assert!(error.to_string().starts_with(sentence), "{error}");
    say("0x384");
    check_chain(&client, &rollup).await.unwrap();

    rollup.genesis.l1.hash = B256::repeat_byte(1);
    let error = check_chain(&client, &rollup).await.unwrap_err();
    assert!(error.is_final());
    let sentence = format!(
        "incorrect L1 genesis block hash {}, expected 0x0101",
        headers[0].hash_slow()
    );
    assert!(error.to_string().starts_with(&sentence), "{error}");

    // A block that is pruned is no error; an endpoint that fails may be asked again.
    rollup.genesis.l1.number = 1;
    check_chain(&client, &rollup).await.unwrap();
    l1.state
        .lock()
        .answers
        .insert("eth_chainId", Err((-32000, "busy".into())));
    assert!(!check_chain(&client, &rollup).await.unwrap_err().is_final());
}
