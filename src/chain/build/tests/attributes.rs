//! Attributes from which no block can be built.

use super::*;

#[test]
fn an_invalid_forced_transaction_is_an_error_with_its_index() {
    let spec = Arc::new(op(Fork::Jovian));
    let ground = ground(&spec);
    let good = first();
    for bad in [
        bytes!("03c0"),
        bytes!("7dc0"),
        sign(1, transfer(5)).1,
        sign(2, transfer(0)).1,
    ] {
        let forced = vec![good.clone(), sign(1, transfer(0)).1, bad];
        match BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced))
            .map(|_| ())
        {
            Err(BuildError::Forced { index: 2, cause }) => assert!(!cause.is_empty()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn attributes_must_fit_their_fork() {
    let start = |spec: &ChainSpec, change: fn(&mut OpPayloadAttributes)| {
        let ground = ground(spec);
        let mut attributes = attributes(spec, Vec::new());
        change(&mut attributes);
        BlockBuilder::start(Arc::new(spec.clone()), ground.state(), attributes).map(|_| ())
    };
    let (granite, holocene, jovian) = (op(Fork::Granite), op(Fork::Holocene), op(Fork::Jovian));
    use BuildError as E;
    assert!(matches!(
        start(&jovian, |a| a.payload_attributes.timestamp = TIME),
        Err(E::Timestamp {
            have: TIME,
            parent: TIME
        })
    ));
    assert!(matches!(
        start(&jovian, |a| a.gas_limit = None),
        Err(E::Missing("gasLimit"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.eip_1559_params = None),
        Err(E::Missing("eip1559Params"))
    ));
    assert!(matches!(
        start(&granite, |a| a.eip_1559_params = Some(B64::ZERO)),
        Err(E::Unexpected("eip1559Params"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.min_base_fee = None),
        Err(E::Missing("minBaseFee"))
    ));
    assert!(matches!(
        start(&holocene, |a| a.min_base_fee = Some(0)),
        Err(E::Unexpected("minBaseFee"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.eip_1559_params =
            Some(B64::with_last_byte(1))),
        Err(E::ExtraData(_))
    ));
    let no_root: fn(&mut OpPayloadAttributes) =
        |a| a.payload_attributes.parent_beacon_block_root = None;
    assert!(matches!(
        start(&jovian, no_root),
        Err(E::Missing("parentBeaconBlockRoot"))
    ));
    let withdrawal: fn(&mut OpPayloadAttributes) =
        |a| a.payload_attributes.withdrawals = Some(vec![Default::default()]);
    assert!(matches!(start(&jovian, withdrawal), Err(E::Withdrawals(1))));
}

#[test]
fn attributes_without_l1_attributes_are_refused_from_jovian_on() {
    for fork in Fork::ALL {
        let spec = Arc::new(op(fork));
        let ground = ground(&spec);
        let start =
            |forced| BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced));
        let user = sign(1, transfer(0)).1;
        if fork < Fork::Jovian {
            start(vec![]).unwrap();
            start(vec![user]).unwrap();
            continue;
        }
        let text = "missing L1 attributes deposit transaction";
        assert!(
            matches!(start(vec![]).map(|_| ()), Err(BuildError::Attributes(error)) if error.to_string() == text)
        );
        assert!(
            matches!(start(vec![user]).map(|_| ()), Err(BuildError::Forced { index: 0, cause }) if cause == text)
        );
        // A received block without the L1 attributes is invalid too.
        let built = start(vec![first()]).unwrap().finish().unwrap();
        let header = Header {
            transactions_root: EMPTY_ROOT_HASH,
            ..built.payload.header.clone()
        };
        let judged = validate(
            &spec,
            ground.state(),
            Arc::new(Payload::sealed(header, vec![])),
        )
        .map(|_| ());
        assert!(
            matches!(
                judged,
                Err(ValidateError::Invalid(InvalidBlock::Attributes(_)))
            ),
            "{judged:?}"
        );
    }
}

/// The vectors without extra data: attributes from which no extra data can be computed.
#[test]
fn attributes_without_extra_data_are_refused_as_the_vectors_say() {
    let Some(file) = fixture("engine/extra-data.json") else {
        return;
    };
    let refused: Vec<_> = file["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|vector| vector["error"].is_string())
        .collect();
    assert_eq!(refused.len(), 2);
    for vector in refused {
        let spec = op(if vector["fork"] == "jovian" {
            Fork::Jovian
        } else {
            Fork::Holocene
        });
        let ground = ground(&spec);
        let attributes = OpPayloadAttributes {
            eip_1559_params: Some(vector["eip1559Params"].as_str().unwrap().parse().unwrap()),
            min_base_fee: vector["minBaseFee"].as_u64(),
            ..attributes(&spec, Vec::new())
        };
        let error = BlockBuilder::start(Arc::new(spec), ground.state(), attributes)
            .map(|_| ())
            .unwrap_err();
        let as_the_vector_says = match vector["error"].as_str().unwrap() {
            "minBaseFee required" => matches!(error, BuildError::Missing("minBaseFee")),
            "minBaseFee must be absent" => matches!(error, BuildError::Unexpected("minBaseFee")),
            other => panic!("{other}"),
        };
        assert!(as_the_vector_says, "{vector}: {error}");
    }
}
