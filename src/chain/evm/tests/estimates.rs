//! Gas estimates.

use super::*;

/// Contract that writes 40 slots.
const WRITER: Address = Address::repeat_byte(1);
/// Contract that calls the writer with all gas and reverts if the writer fails.
const PASSER: Address = Address::repeat_byte(2);
/// Contract that loops until the gas is used up.
const LOOPS: Address = Address::repeat_byte(3);
const REVERTS: Address = Address::repeat_byte(4);

/// A state with these contracts, and an account with 30,000,000 wei.
fn contracts() -> Ground {
    let write: Vec<u8> = (0..40).flat_map(|slot| [0x43, 0x60, slot, 0x55]).collect();
    let pass = bytes!(
        "5f 5f 5f 5f 5f 73 0101010101010101010101010101010101010101 5a f1 6022 57 5f 5f fd 5b 00"
    );
    Ground::with_header(
        [
            (WRITER, Alloc::code(write)),
            (PASSER, Alloc::code(pass)),
            (LOOPS, Alloc::code(bytes!("5b 5f 56"))),
            (REVERTS, Alloc::code(bytes!("5f 5f fd"))),
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
    )
}

fn input(to: Address) -> CallInput {
    CallInput {
        to: Some(to),
        ..Default::default()
    }
}

fn estimate(ground: &Ground, fork: Fork, input: &CallInput) -> Result<u64, EstimateError> {
    let overrides = Overrides::default();
    estimate_gas(&op(fork), ground.state(), &ground.header, input, &overrides)
}

fn outcome(ground: &Ground, fork: Fork, input: &CallInput) -> Result<CallOutcome, CallError> {
    let overrides = Overrides::default();
    call(&op(fork), ground.state(), &ground.header, input, &overrides)
}

#[test]
fn estimates_are_enough_and_not_much_more() {
    let ground = contracts();
    let plain = input(Address::repeat_byte(8));
    assert_eq!(estimate(&ground, Fork::Jovian, &plain).unwrap(), 21_000);
    let succeeds = |input: &CallInput, gas| {
        let input = CallInput {
            gas: Some(gas),
            ..input.clone()
        };
        outcome(&ground, Fork::Jovian, &input)
            .is_ok_and(|outcome| outcome.status == CallStatus::Success)
    };
    for to in [WRITER, PASSER] {
        let input = input(to);
        let gas = estimate(&ground, Fork::Jovian, &input).unwrap();
        assert!(succeeds(&input, gas), "{gas}");
        assert!(!succeeds(&input, gas - gas * 16 / 1000), "{gas}");
    }
}

#[test]
fn estimates_are_bounded_by_the_cap_the_fork_and_the_balance() {
    let ground = contracts();
    let refusal = |fork, input: &CallInput| estimate(&ground, fork, input).unwrap_err().to_string();
    assert_eq!(
        refusal(Fork::Jovian, &input(LOOPS)),
        "gas required exceeds allowance (50000000)"
    );
    // From Karst on a transaction may have at most 2^24 gas; a call may have more.
    assert_eq!(
        refusal(Fork::Karst, &input(LOOPS)),
        "gas required exceeds allowance (16777216)"
    );
    let looping = outcome(&ground, Fork::Karst, &input(LOOPS)).unwrap();
    assert_eq!(looping.gas_used, RPC_GAS_CAP);
    // The balance bounds the gas: 30,000,000 wei at 1,000 wei per gas.
    let poor = CallInput {
        from: address_of(1),
        gas_price: Some(1_000),
        ..input(LOOPS)
    };
    assert_eq!(
        refusal(Fork::Jovian, &poor),
        "gas required exceeds allowance (30000)"
    );
}

#[test]
fn a_call_that_reverts_has_no_estimate() {
    assert!(matches!(
        estimate(&contracts(), Fork::Jovian, &input(REVERTS)),
        Err(EstimateError::Reverted { .. })
    ));
}
