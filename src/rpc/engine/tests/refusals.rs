//! Error codes and texts of refused fork choices and attributes.

use super::*;

#[tokio::test]
async fn refusals_have_the_codes_of_the_engine_api() {
    let server = Server::new();
    let hash = server
        .ask("eth_getBlockByNumber", json!(["0x0", false]))
        .await["hash"]
        .clone();
    let zero = B256::ZERO;
    let state = json!({ "headBlockHash": hash, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let time = crate::chain::tests::GENESIS_TIME + 2;
    let without = |name: &str| {
        let mut attributes = attributes(time);
        attributes.as_object_mut().unwrap().remove(name);
        attributes
    };
    let with = |name: &str, value: Value| {
        let mut attributes = attributes(time);
        attributes[name] = value;
        attributes
    };
    let invalid = "Invalid payload attributes";
    for (version, attributes, code, message, detail) in [
        (
            1,
            attributes(time),
            -32602,
            "Invalid parameters",
            "withdrawals and beacon root not supported in V1",
        ),
        (
            2,
            attributes(time),
            -38003,
            invalid,
            "unexpected beacon root",
        ),
        (
            2,
            without("parentBeaconBlockRoot"),
            -38005,
            "Unsupported fork",
            "fcuV2 must",
        ),
        (
            3,
            without("withdrawals"),
            -38003,
            invalid,
            "missing withdrawals",
        ),
        (
            3,
            without("parentBeaconBlockRoot"),
            -38003,
            invalid,
            "missing beacon root",
        ),
        (
            3,
            without("gasLimit"),
            -38003,
            invalid,
            "gasLimit is missing",
        ),
        (
            3,
            without("eip1559Params"),
            -38003,
            invalid,
            "eip1559Params is missing",
        ),
        (
            3,
            without("minBaseFee"),
            -38003,
            invalid,
            "minBaseFee is missing",
        ),
        (
            3,
            with("eip1559Params", json!("0x0000000000000001")),
            -38003,
            invalid,
            "denominator",
        ),
        (
            3,
            with("eip1559Params", json!("0x00")),
            -38003,
            invalid,
            "want 8",
        ),
        (
            3,
            with("transactions", json!([])),
            -38003,
            invalid,
            "missing L1 attributes deposit transaction",
        ),
        (
            3,
            with("transactions", json!(["0x02c0"])),
            -38003,
            invalid,
            "transaction 0 is not valid",
        ),
        (
            3,
            with("transactions", json!(["0x7d"])),
            -38003,
            invalid,
            "transaction 0 is not valid",
        ),
        (
            3,
            with("timestamp", json!("0x1")),
            -38003,
            invalid,
            "timestamp",
        ),
    ] {
        let method = format!("engine_forkchoiceUpdatedV{version}");
        let refusal = server.refusal(&method, json!([state, attributes])).await;
        assert_eq!(
            (refusal.0, refusal.1.as_str()),
            (code, message),
            "{refusal:?}"
        );
        assert!(refusal.2.contains(detail), "{refusal:?}");
    }
    let lost = json!({ "headBlockHash": hash, "safeBlockHash": B256::repeat_byte(1), "finalizedBlockHash": zero });
    let refusal = server
        .refusal("engine_forkchoiceUpdatedV3", json!([lost]))
        .await;
    assert_eq!(
        refusal,
        (
            -38002,
            "Invalid forkchoice state".into(),
            "safe block not available in database".into()
        )
    );
    let none = json!({ "headBlockHash": zero, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let answer = server
        .ask("engine_forkchoiceUpdatedV3", json!([none]))
        .await;
    assert_eq!(
        answer["payloadStatus"],
        json!({ "status": "INVALID", "latestValidHash": null, "validationError": null })
    );

    let hashes = vec![zero; 1025];
    assert_eq!(
        server
            .refusal("engine_getPayloadBodiesByHashV1", json!([hashes]))
            .await
            .0,
        -38004
    );
    assert_eq!(
        server
            .refusal("engine_getPayloadBodiesByRangeV1", json!(["0x1", "0x401"]))
            .await
            .0,
        -38004
    );
    for range in [json!(["0x0", "0x1"]), json!(["0x1", "0x0"]), json!(["0x1"])] {
        assert_eq!(
            server
                .refusal("engine_getPayloadBodiesByRangeV1", range)
                .await
                .0,
            -32602
        );
    }
}

#[tokio::test]
async fn heads_move_before_attributes_are_refused() {
    for (name, wrong) in [
        ("eip1559Params", json!("0x00")),
        ("transactions", json!(["0x7d"])),
        ("timestamp", json!("0x1")),
    ] {
        let server = Server::new();
        let hash = server
            .ask("eth_getBlockByNumber", json!(["0x0", false]))
            .await["hash"]
            .clone();
        let state = json!({ "headBlockHash": hash, "safeBlockHash": hash, "finalizedBlockHash": B256::ZERO });
        let mut attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
        attributes[name] = wrong;
        assert_eq!(
            server
                .refusal("engine_forkchoiceUpdatedV3", json!([state, attributes]))
                .await
                .0,
            -38003
        );
        assert_eq!(
            server
                .ask("eth_getBlockByNumber", json!(["safe", false]))
                .await["hash"],
            hash,
            "{name}"
        );
    }
}
