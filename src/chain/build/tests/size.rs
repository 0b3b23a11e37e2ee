//! Tests of blocks that would be too large, on Ethereum from Osaka on (EIP-7934).

use super::*;
use crate::chain::execute::InvalidBlock;

/// Bytes of calldata of each large transaction.
const LARGE: usize = 100_000;
/// Number of large transactions that fit into 8 MiB.
const FITTING: u64 = 83;

fn osaka() -> Arc<ChainSpec> {
    let mut spec = ethereum();
    let Rules::Ethereum { forks, .. } = &mut spec.rules else {
        panic!("an Ethereum chain")
    };
    forks.osaka = Some(0);
    Arc::new(spec)
}

fn large(nonce: u64) -> (Recovered<ChainTx>, Bytes) {
    let tx = TxEip1559 {
        gas_limit: 1_100_000,
        input: vec![0; LARGE].into(),
        ..transfer(nonce)
    };
    sign(1, tx)
}

fn builder(
    spec: &Arc<ChainSpec>,
    ground: &Ground,
    forced: Vec<Bytes>,
) -> Result<BlockBuilder, BuildError> {
    let attributes = OpPayloadAttributes {
        gas_limit: Some(4 * GAS_LIMIT),
        ..attributes(spec, forced)
    };
    BlockBuilder::start(spec.clone(), ground.state(), attributes)
}

#[test]
fn a_block_takes_no_transaction_beyond_its_size() {
    let spec = osaka();
    let ground = ground(&spec);
    let mut builder = builder(&spec, &ground, vec![]).unwrap();
    for nonce in 0..FITTING {
        let (tx, raw) = large(nonce);
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes, "{nonce}");
    }
    let (tx, raw) = large(FITTING);
    let left_out = builder.add(&tx, &raw).unwrap();
    assert_eq!(left_out, Added::Skipped(TOO_LARGE.to_owned()));
    let (tx, raw) = sign(1, transfer(FITTING));
    assert_eq!(
        builder.add(&tx, &raw).unwrap(),
        Added::Yes,
        "a small one fits"
    );
    let payload = builder.finish().unwrap().payload.clone();
    spec.check_size(&payload).unwrap();

    let forced = (0..=FITTING).map(|nonce| large(nonce).1).collect();
    let refused = self::builder(&spec, &ground, forced).map(drop);
    let is_too_large = matches!(&refused, Err(BuildError::Forced { index, cause })
        if *index == FITTING as usize && cause == TOO_LARGE);
    assert!(is_too_large, "{refused:?}");
}

#[test]
fn a_block_that_is_too_large_is_invalid() {
    let spec = osaka();
    let ground = ground(&spec);
    let small = builder(&spec, &ground, vec![]).unwrap().finish().unwrap();
    let header = Header {
        gas_limit: GAS_LIMIT,
        ..small.payload.header.clone()
    };
    let judge = |bytes: usize| {
        let payload = Payload::sealed(header.clone(), vec![vec![0; bytes].into()]);
        validate(&spec, ground.state(), Arc::new(payload)).unwrap_err()
    };
    let error = judge(9 << 20);
    assert!(
        matches!(error, ValidateError::Invalid(InvalidBlock::Size(_))),
        "{error}"
    );
    let error = judge(1 << 20);
    assert!(
        !matches!(error, ValidateError::Invalid(InvalidBlock::Size(_))),
        "{error}"
    );
}
