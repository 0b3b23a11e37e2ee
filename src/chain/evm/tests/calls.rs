//! Simulated calls: fees, results, overrides.

use super::*;

/// A state in which one account has an ether. Calls run under Jovian's rules.
struct CallGround(Ground);

impl CallGround {
    fn new() -> Self {
        Self(Ground::new([(address_of(1), Alloc::ether(1))]))
    }

    fn ask(&self, input: CallInput) -> Result<CallOutcome, CallError> {
        let overrides = Overrides::default();
        let header = &self.0.header;
        call(
            &op(Fork::Jovian),
            self.0.state(),
            header,
            &input,
            &overrides,
        )
    }

    fn refusal(&self, input: CallInput) -> CallRefusal {
        match self.ask(input) {
            Err(CallError::Refused { refusal, .. }) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

fn ether() -> U256 {
    U256::from(10).pow(U256::from(18))
}

/// A call to an account without code.
fn plain_call() -> CallInput {
    CallInput {
        to: Some(Address::repeat_byte(9)),
        ..Default::default()
    }
}

#[test]
fn a_call_without_a_price_costs_nothing_but_its_value() {
    let ground = CallGround::new();
    assert_eq!(ground.ask(plain_call()).unwrap().gas_used, 21_000);
    let ether = ether();
    // The sender must have the value, even without a gas price.
    let text = ground
        .ask(CallInput {
            value: ether,
            ..plain_call()
        })
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        format!(
            "err: insufficient funds for gas * price + value: address {ZERO} have 0 want {ether} (supplied gas 50000000)"
        )
    );
    let funded = CallInput {
        from: address_of(1),
        value: ether,
        ..plain_call()
    };
    assert!(ground.ask(funded).is_ok());
}

/// With a gas price, the base fee and the sender's funds for the gas are checked.
#[test]
fn a_call_with_a_price_is_checked_like_a_transaction() {
    let ground = CallGround::new();
    let priced = CallInput {
        from: address_of(1),
        gas: Some(30_000),
        gas_price: Some(999),
        ..plain_call()
    };
    assert!(matches!(
        ground.refusal(priced.clone()),
        CallRefusal::FeeBelowBase {
            fee: 999,
            base_fee: 1_000,
            ..
        }
    ));
    let enough = CallInput {
        gas_price: Some(1_000),
        ..priced.clone()
    };
    assert!(ground.ask(enough.clone()).is_ok());
    let broke = CallInput {
        value: ether(),
        ..enough
    };
    assert!(matches!(ground.refusal(broke), CallRefusal::Funds { .. }));
    let both = CallInput {
        max_fee_per_gas: Some(1),
        ..priced.clone()
    };
    assert_eq!(
        ground.ask(both).unwrap_err().to_string(),
        "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified"
    );
    let tip = CallInput {
        gas_price: None,
        max_fee_per_gas: Some(2_000),
        max_priority_fee_per_gas: Some(2_001),
        ..priced
    };
    assert!(matches!(
        ground.refusal(tip),
        CallRefusal::TipAboveFee { .. }
    ));
}

#[test]
fn a_call_needs_the_intrinsic_gas_and_the_floor_of_its_data() {
    let ground = CallGround::new();
    let scarce = CallInput {
        gas: Some(20_999),
        ..plain_call()
    };
    assert!(matches!(
        ground.refusal(scarce),
        CallRefusal::IntrinsicGas {
            have: 20_999,
            want: 21_000
        }
    ));
    // Four tokens for each non-zero byte, ten gas for each token (EIP-7623).
    let floor = CallInput {
        gas: Some(21_170),
        data: bytes!("ffffffffff"),
        ..plain_call()
    };
    assert!(matches!(
        ground.refusal(floor),
        CallRefusal::FloorGas {
            have: 21_170,
            want: 21_200
        }
    ));
}

#[test]
fn a_call_ends_in_geths_words() {
    let at = |byte| Address::repeat_byte(byte);
    // Four codes: REVERT with the first 32 bytes of memory, INVALID, an endless loop, and one that
    // returns BASEFEE.
    let ground = Ground::new([
        (at(1), Alloc::code(bytes!("60 20 5f fd"))),
        (at(2), Alloc::code(bytes!("fe"))),
        (at(3), Alloc::code(bytes!("5b 5f 56"))),
        (at(4), Alloc::code(bytes!("48 5f 52 60 20 5f f3"))),
    ]);
    let ask = |to| {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(Fork::Jovian),
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap()
    };
    let reverted = ask(at(1));
    assert_eq!(
        reverted.status,
        CallStatus::Revert("execution reverted".into())
    );
    assert_eq!(reverted.output.len(), 32);
    assert_eq!(
        ask(at(2)).status,
        CallStatus::Halt("invalid opcode: INVALID".into())
    );
    assert_eq!(ask(at(3)).status, CallStatus::Halt("out of gas".into()));
    assert_eq!(ask(at(3)).gas_used, RPC_GAS_CAP);
    // BASEFEE returns zero in a call without a gas price.
    assert_eq!(ask(at(4)).output, Bytes::from(B256::ZERO));
}

#[test]
fn reverts_carry_solidity_reasons() {
    let error = bytes!(
        "08c379a0 0000000000000000000000000000000000000000000000000000000000000020"
        "0000000000000000000000000000000000000000000000000000000000000005 68656c6c6f000000000000000000000000000000000000000000000000000000"
    );
    assert_eq!(revert_text(&error), "execution reverted: hello");
    let panic = [
        &bytes!("4e487b71")[..],
        &U256::from(0x11).to_be_bytes::<32>(),
    ]
    .concat();
    assert_eq!(
        revert_text(&panic),
        "execution reverted: arithmetic underflow or overflow"
    );
    assert_eq!(revert_text(&[]), "execution reverted");
    // Truncated data, in which lengths exceed the data.
    for end in 0..error.len() {
        revert_text(&error[..end]);
    }
    revert_text(&[&bytes!("08c379a0")[..], &[0xff; 64]].concat());
    revert_text(
        &[
            &bytes!("08c379a0")[..],
            &U256::from(usize::MAX).to_be_bytes::<32>(),
            &[0xff; 64],
        ]
        .concat(),
    );
}

#[test]
fn overrides_change_what_a_call_sees() {
    let (contract, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
    // Code that returns slot 0.
    let code = bytes!("5f 54 5f 52 60 20 5f f3");
    let ground = Ground::new([(
        contract,
        Alloc::code(code.clone())
            .slot(0, U256::from(5))
            .slot(1, U256::from(6)),
    )]);
    let ask = |to, state: serde_json::Value| {
        let overrides = Overrides {
            state: serde_json::from_value(state).unwrap(),
            block: Default::default(),
        };
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(Fork::Jovian),
            ground.state(),
            &ground.header,
            &input,
            &overrides,
        )
        .map(|it| U256::from_be_slice(&it.output))
    };
    let word = |n: u64| B256::from(U256::from(n));
    assert_eq!(ask(contract, serde_json::json!({})).unwrap(), U256::from(5));
    let diff = |n| serde_json::json!({ contract.to_string(): { "stateDiff": { word(n).to_string(): word(9) } } });
    assert_eq!(ask(contract, diff(0)).unwrap(), U256::from(9));
    assert_eq!(ask(contract, diff(1)).unwrap(), U256::from(5));
    let replaced =
        serde_json::json!({ contract.to_string(): { "state": { word(1).to_string(): word(9) } } });
    assert_eq!(ask(contract, replaced).unwrap(), U256::ZERO);
    let copied = serde_json::json!({ other.to_string(): { "code": code, "stateDiff": { word(0).to_string(): word(3) } } });
    assert_eq!(ask(other, copied).unwrap(), U256::from(3));
    let both = serde_json::json!({ contract.to_string(): { "state": {}, "stateDiff": {} } });
    assert_eq!(
        ask(contract, both).unwrap_err().to_string(),
        format!("account {contract} has both 'state' and 'stateDiff'")
    );
    // The overrides of earlier calls are not persisted.
    assert_eq!(ask(contract, serde_json::json!({})).unwrap(), U256::from(5));
}

#[test]
fn block_hashes_are_those_of_the_branch() {
    // Code that returns BLOCKHASH of 0 and of 7.
    let at = Address::repeat_byte(1);
    let ground = Ground::new([(
        at,
        Alloc::code(bytes!("5f 40 5f 52 60 07 40 60 20 52 60 40 5f f3")),
    )]);
    let block = Header {
        number: 9,
        ..ground.header.clone()
    };
    let input = CallInput {
        to: Some(at),
        ..Default::default()
    };
    let outcome = call(
        &op(Fork::Jovian),
        ground.state(),
        &block,
        &input,
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(&outcome.output[..32], ground.header.hash_slow().as_slice());
    assert_eq!(&outcome.output[32..], B256::ZERO.as_slice());
}
