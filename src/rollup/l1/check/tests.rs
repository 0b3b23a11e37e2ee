//! Error messages for another L1, and endpoint lists that include an endpoint of another chain.

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

    // A pruned block is no error. An endpoint that fails may be checked again.
    rollup.genesis.l1.number = 1;
    check_chain(&client, &rollup).await.unwrap();
    l1.state
        .lock()
        .answers
        .insert("eth_chainId", Err((-32000, "busy".into())));
    assert!(!check_chain(&client, &rollup).await.unwrap_err().is_final());
}

/// An endpoint with this chain id. Its head is at the same height as those of other test endpoints.
async fn endpoint(chain_id: &str, salt: u8) -> (FakeL1, alloy_consensus::Header) {
    let l1 = FakeL1::start().await;
    let headers = chain(5, 100, 2, salt);
    l1.set(&headers);
    let answer = Ok(json!(chain_id));
    l1.state.lock().answers.insert("eth_chainId", answer);
    (l1, headers[1].clone())
}

fn client_of(endpoints: [&FakeL1; 2]) -> L1Client {
    let urls = endpoints.map(FakeL1::url);
    let config = L1Config {
        chain_id: Some(900),
        ..L1Config::new(urls.join(","))
    };
    L1Client::new(&config).unwrap()
}

fn broken(l1: &FakeL1) {
    let refused = Err((-32000, "broken".into()));
    let mut state = l1.state.lock();
    state.answers.insert("eth_getBlockByNumber", refused);
}

#[tokio::test]
async fn an_endpoint_of_another_chain_gets_no_call_in_any_place_of_the_list() {
    let (right, head) = endpoint("0x384", 1).await;
    let (wrong, _) = endpoint("0x1", 2).await;
    for endpoints in [[&wrong, &right], [&right, &wrong]] {
        let client = client_of(endpoints);
        for client in [client.clone(), client.for_bulk()] {
            let block = client.block_by_number(6).await.unwrap().unwrap();
            assert_eq!(block.hash, head.hash_slow());
        }
        assert_eq!(client.chain_id().await.unwrap(), 900);
    }
    // The chain id is also checked at a failover.
    let client = client_of([&right, &wrong]);
    client.block_by_number(6).await.unwrap();
    broken(&right);
    for _ in 0..2 {
        let error = client.block_by_number(6).await.unwrap_err();
        let message = error.to_string();
        let expected = [right.url(), wrong.url()].map(|url| format!("L1 at {url}"));
        assert!(
            expected.iter().any(|text| message.starts_with(text)),
            "{message}"
        );
    }
    assert_eq!(wrong.calls("eth_getBlockByNumber"), 0);
    assert_eq!(wrong.calls("eth_chainId"), 2, "once for each client");
}

#[tokio::test]
async fn endpoints_are_checked_at_start_and_a_list_of_wrong_ones_is_final() {
    let (right, _) = endpoint("0x384", 1).await;
    let (wrong, _) = endpoint("0x1", 2).await;
    let client = client_of([&right, &wrong]);
    client.check_endpoints().await;
    assert_eq!(wrong.calls("eth_chainId"), 1, "before it is needed");
    client.block_by_number(6).await.unwrap();
    assert_eq!(right.calls("eth_chainId"), 1);

    let (other, _) = endpoint("0x2", 3).await;
    let client = client_of([&wrong, &other]);
    client.block_by_number(6).await.unwrap_err();
    let rollup = RollupConfig {
        l1_chain_id: 900,
        ..Default::default()
    };
    let error = check_chain(&client, &rollup).await.unwrap_err();
    assert!(error.is_final(), "{error}");
    let sentence = "incorrect L1 RPC chain id ";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert_eq!(wrong.calls("eth_getBlockByNumber"), 0);
}
