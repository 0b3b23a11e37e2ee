//! Gas estimates.

use super::*;

#[test]
fn estimates_are_enough_and_not_much_more() {
    let (writer, passer, loops, reverts) = (
        Address::repeat_byte(1),
        Address::repeat_byte(2),
        Address::repeat_byte(3),
        Address::repeat_byte(4),
    );
    // Writes 40 slots. Calls the writer with all gas and reverts if that fails.
    let write: Vec<u8> = (0..40).flat_map(|slot| [0x43, 0x60, slot, 0x55]).collect();
    let pass = bytes!(
        "5f 5f 5f 5f 5f 73 0101010101010101010101010101010101010101 5a f1 6022 57 5f 5f fd 5b 00"
    );
    let ground = Ground::with_header(
        [
            (writer, Alloc::code(write)),
            (passer, Alloc::code(pass)),
            (loops, Alloc::code(bytes!("5b 5f 56"))),
            (reverts, Alloc::code(bytes!("5f 5f fd"))),
            (
                address_of(1),
                Alloc {
                    balance: U256::from(30_000_000),
                    ..Default::default()
                },
            ),
        ],
        Header {
            number: 5,
            ..Default::default()
        },
    );
    let jovian = op(Fork::Jovian);
    let estimate = |spec: &ChainSpec, input: &CallInput| {
        estimate_gas(
            spec,
            ground.state(),
            &ground.header,
            input,
            &Overrides::default(),
        )
    };
    let succeeds = |input: &CallInput, gas| {
        let input = CallInput {
            gas: Some(gas),
            ..input.clone()
        };
        call(
            &jovian,
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .is_ok_and(|it| it.status == CallStatus::Success)
    };
    let plain = CallInput {
        to: Some(Address::repeat_byte(8)),
        ..Default::default()
    };
    assert_eq!(estimate(&jovian, &plain).unwrap(), 21_000);
    for to in [writer, passer] {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        let gas = estimate(&jovian, &input).unwrap();
        assert!(succeeds(&input, gas), "{gas}");
        assert!(!succeeds(&input, gas - gas * 16 / 1000), "{gas}");
    }
    let input = |to| CallInput {
        to: Some(to),
        ..Default::default()
    };
    assert_eq!(
        estimate(&jovian, &input(loops)).unwrap_err().to_string(),
        "gas required exceeds allowance (50000000)"
    );
    assert!(matches!(
        estimate(&jovian, &input(reverts)),
        Err(EstimateError::Reverted { .. })
    ));
    // From Karst no transaction may ask for more than 2^24; a call may.
    let karst = op(Fork::Karst);
    assert_eq!(
        estimate(&karst, &input(loops)).unwrap_err().to_string(),
        "gas required exceeds allowance (16777216)"
    );
    let looping = call(
        &karst,
        ground.state(),
        &ground.header,
        &input(loops),
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(looping.gas_used, RPC_GAS_CAP);
    // The balance bounds it: 30,000,000 wei at 1,000 wei per gas.
    let poor = CallInput {
        from: address_of(1),
        gas_price: Some(1_000),
        ..input(loops)
    };
    assert_eq!(
        estimate(&jovian, &poor).unwrap_err().to_string(),
        "gas required exceeds allowance (30000)"
    );
}
