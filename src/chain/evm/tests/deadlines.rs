//! Deadlines of simulated calls.

use super::*;
use crate::chain::memory_only;

/// The hash of a megabyte of memory.
const HASH: Bytes = bytes!("62100000 5f 20 50");

/// Codes that run for long or for as long as they have gas, each by other instructions: jumps in a
/// loop, hashes in a loop and without one, powers, creations that fail, calls of each kind to itself
/// twice over.
fn endless() -> [(&'static str, Bytes); 9] {
    [
        ("hashes without a loop", HASH.repeat(3_000).into()),
        ("powers", bytes!("5f 19 5f 19 0a 50").repeat(60_000).into()),
        // Creates a contract of 48 KiB, whose code reverts, at one address again and again.
        (
            "creations",
            bytes!("62 5f5ffd 60e8 1b 5f 52 5b 5f 61c000 5f 5f f5 50 6009 56"),
        ),
        ("jumps", bytes!("5b 5f 56")),
        ("hashes", bytes!("5b 62100000 5f 20 50 5f 56")),
        (
            "calls",
            bytes!("5f 5f 5f 5f 5f 30 5a f1 5f 5f 5f 5f 5f 30 5a f1"),
        ),
        (
            "static calls",
            bytes!("5f 5f 5f 5f 30 5a fa 5f 5f 5f 5f 30 5a fa"),
        ),
        (
            "delegate calls",
            bytes!("5f 5f 5f 5f 30 5a f4 5f 5f 5f 5f 30 5a f4"),
        ),
        (
            "code calls",
            bytes!("5f 5f 5f 5f 5f 30 5a f2 5f 5f 5f 5f 5f 30 5a f2"),
        ),
    ]
}

#[test]
fn a_question_ends_with_its_time_whatever_gas_is_left() {
    let target = Address::repeat_byte(0x44);
    for spec in [op(Fork::Jovian), ethereum()] {
        for (name, code) in endless() {
            let ground = Ground::new([(target, Alloc::code(code))]);
            let input = CallInput {
                to: Some(target),
                gas: Some(1 << 50),
                ..Default::default()
            };
            let overrides = Overrides::default();
            let ask = |limit| CallRequest {
                gas_cap: 1 << 50,
                ..asking(
                    &spec,
                    ground.state(),
                    &ground.header,
                    &input,
                    &overrides,
                    limit,
                )
            };
            let aborted =
                |error: CallError| matches!(error, CallError::State(StateError::Aborted(_)));
            let error = super::super::call(ask(Duration::from_millis(20))).unwrap_err();
            assert_eq!(
                error.to_string(),
                "execution aborted (timeout = 20ms)",
                "{name}"
            );
            assert!(aborted(error));
            assert!(
                aborted(
                    super::super::create_access_list(ask(Duration::from_millis(20))).unwrap_err()
                ),
                "{name}"
            );
            match super::super::estimate_gas(CallRequest {
                spec: &op(Fork::Jovian),
                ..ask(Duration::from_millis(20))
            }) {
                Err(EstimateError::Call(error)) => assert!(aborted(error), "{name}"),
                other => panic!("{name}: {other:?}"),
            }
            // A call is aborted too once nobody waits for its result.
            let left = ask(LONG);
            let waiting = left.deadline.cancel_on_drop();
            std::thread::scope(|scope| {
                let running = scope.spawn(|| super::super::call(left));
                drop(waiting);
                assert!(aborted(running.join().unwrap().unwrap_err()), "{name}");
            });
        }
    }
}

#[test]
fn reads_of_the_state_end_with_the_time_too() {
    let ground = Ground::new([]);
    let deadline = Deadline::after(LONG);
    let mut source = deadline::StateReader::new(ground.state().into(), Some(deadline.clone()));
    let mut read = || -> [bool; 4] {
        [
            source.basic(Address::ZERO).is_ok(),
            source.code_by_hash(KECCAK256_EMPTY).is_ok(),
            source.storage(Address::ZERO, U256::ZERO).is_ok(),
            source.block_hash(0).is_ok(),
        ]
    };
    assert_eq!(read(), [true; 4]);
    drop(deadline.cancel_on_drop());
    assert_eq!(read(), [false; 4]);
}

/// Code that calls the precompile at this address with an empty input.
fn calls_precompile(address: u8) -> Bytes {
    [
        &bytes!("5f 5f 5f 5f 60")[..],
        &[address],
        &bytes!("5a fa 00")[..],
    ]
    .concat()
    .into()
}

/// Whether a call of this code ends where work must be short, with all its rows in memory.
fn is_done_at_once(code: Bytes) -> bool {
    let (target, spec) = (Address::repeat_byte(0x44), op(Fork::Jovian));
    let ground = Ground::new([(target, Alloc::code(code))]);
    let input = CallInput {
        to: Some(target),
        ..Default::default()
    };
    let overrides = Overrides::default();
    let ask = |state| {
        let header = &ground.header;
        super::super::call(asking(&spec, state, header, &input, &overrides, LONG))
    };
    // Reads all rows, so that they are in memory afterwards.
    ask(ground.state()).expect("a result");
    let state = ground.state();
    memory_only::attempt(|| ask(state)).is_some()
}

#[test]
fn slow_precompiles_are_not_called_where_work_must_be_short() {
    for quick in 1..=4 {
        assert!(is_done_at_once(calls_precompile(quick)), "{quick}");
    }
    for slow in 5..=0x11 {
        assert!(!is_done_at_once(calls_precompile(slow)), "{slow}");
    }
    assert!(!is_slow_precompile(&Address::repeat_byte(0x44)));
    let p256 = Address::from_word(U256::from(0x100).into());
    assert!(is_slow_precompile(&p256));
}

#[test]
fn much_data_are_not_hashed_where_work_must_be_short() {
    assert!(!is_done_at_once(HASH));
    assert!(is_done_at_once(bytes!("61ffff 5f 20 50")));
}
