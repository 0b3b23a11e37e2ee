//! EVM rules of single forks.

use super::*;
use revm::precompile::bn254;

/// Whether a call to the pairing precompile with `size` zero bytes and all gas succeeds.
fn pairing(spec: &ChainSpec, size: usize) -> CallStatus {
    let ground = Ground::new([]);
    let input = CallInput {
        to: Some(bn254::pair::ADDRESS),
        data: vec![0; size].into(),
        ..Default::default()
    };
    call(
        spec,
        ground.state(),
        &ground.header,
        &input,
        &Overrides::default(),
    )
    .unwrap()
    .status
}

#[test]
fn the_pairing_precompile_takes_what_its_fork_allows() {
    // Only whole pairs are valid input: Jovian's limit is no multiple of 192, Karst's is 300 pairs.
    assert_eq!(pairing(&op(Fork::Karst), 57_600), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Karst), 57_792), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Karst), 57_601), CallStatus::Success);
    assert_eq!(pairing(&op(Fork::Jovian), 57_792), CallStatus::Success);
    assert_eq!(pairing(&op(Fork::Jovian), 81_984), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Jovian), 82_176), CallStatus::Success);
}

#[test]
fn karst_brings_osakas_evm() {
    let clz = Address::repeat_byte(1);
    // Code that returns CLZ of 1.
    let ground = Ground::new([(clz, Alloc::code(bytes!("60 01 1e 5f 52 60 20 5f f3")))]);
    let ask = |fork, to| {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(fork),
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap()
    };
    let precompile = |number: u64| Address::from_word(B256::from(U256::from(number)));
    assert_eq!(
        U256::from_be_slice(&ask(Fork::Karst, clz).output),
        U256::from(255)
    );
    assert!(matches!(ask(Fork::Jovian, clz).status, CallStatus::Halt(_)));
    // Prices of MODEXP and P256VERIFY without input.
    for (fork, modexp, p256) in [(Fork::Jovian, 200, 3_450), (Fork::Karst, 500, 6_900)] {
        assert_eq!(
            ask(fork, precompile(5)).gas_used,
            21_000 + modexp,
            "{fork:?}"
        );
        assert_eq!(
            ask(fork, precompile(0x100)).gas_used,
            21_000 + p256,
            "{fork:?}"
        );
    }
    // Before Fjord there is no precompile at 0x100.
    assert_eq!(ask(Fork::Ecotone, precompile(0x100)).gas_used, 21_000);
}

#[test]
fn blob_base_fee_is_one_on_op() {
    // Code that returns BLOBBASEFEE.
    let code = bytes!("4a 5f 52 60 20 5f f3");
    let at = Address::repeat_byte(1);
    let ground = Ground::new([(at, Alloc::code(code))]);
    let input = CallInput {
        to: Some(at),
        ..Default::default()
    };
    for spec in [op(Fork::Ecotone), op(Fork::Karst), ethereum()] {
        let outcome = call(
            &spec,
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap();
        assert_eq!(U256::from_be_slice(&outcome.output), U256::ONE);
    }
}
