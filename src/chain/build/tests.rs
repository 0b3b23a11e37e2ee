mod attributes;
mod hostile;
mod size;

use super::*;
use crate::chain::{
    evm::tests::{
        Alloc, CHAIN, GAS_LIMIT, Ground, TIME, address_of, deposit, deposited, ethereum, fixture,
        l1_attributes, op, scheduled, sign, transfer,
    },
    execute::{ValidateError, validate},
    rules::MESSAGE_PASSER,
    view::View,
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip7702};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, bytes};
use alloy_rpc_types_engine::PayloadAttributes;
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use starling_proto::fork::ForkSchedule;

/// The L1 attributes deposit, which must be a block's first transaction.
fn first() -> Bytes {
    deposited(l1_attributes(0)).1
}

/// Attributes as a driver sends them for a block at `TIME + 2`.
fn attributes(spec: &ChainSpec, transactions: Vec<Bytes>) -> OpPayloadAttributes {
    attributes_at(spec, TIME + 2, transactions)
}

fn attributes_at(
    spec: &ChainSpec,
    timestamp: u64,
    transactions: Vec<Bytes>,
) -> OpPayloadAttributes {
    let active = spec.at(timestamp);
    OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp,
            prev_randao: B256::repeat_byte(3),
            suggested_fee_recipient: Address::repeat_byte(0xfe),
            withdrawals: active.shanghai.then(Vec::new),
            parent_beacon_block_root: active.cancun.then_some(B256::repeat_byte(4)),
            ..Default::default()
        },
        transactions: Some(transactions),
        no_tx_pool: None,
        gas_limit: active.op.map(|_| GAS_LIMIT / 2),
        eip_1559_params: active.is_op(Fork::Holocene).then_some(B64::ZERO),
        min_base_fee: active.is_op(Fork::Jovian).then_some(500),
    }
}

/// A ground whose header is a valid parent under `spec`, with funds for key 1.
fn ground(spec: &ChainSpec) -> Ground {
    let extra_data = ExtraData::encode(spec, TIME, Eip1559Params::default(), 0).unwrap();
    let passer = Alloc::code(bytes!("43 5f 55 00")).slot(1, U256::from(7));
    Ground::with_header(
        [(address_of(1), Alloc::ether(10)), (MESSAGE_PASSER, passer)],
        Header {
            extra_data,
            ..Default::default()
        },
    )
}

fn specs() -> impl Iterator<Item = ChainSpec> {
    Fork::ALL.into_iter().map(op).chain([ethereum()])
}

/// A block with a deposit (on OP) and two pool transactions. One of these calls
/// `L2ToL1MessagePasser`.
fn build(spec: &ChainSpec, ground: &Ground) -> ExecutedBlock {
    let forced = spec.is_optimism().then(first).into_iter().collect();
    let spec = Arc::new(spec.clone());
    let mut builder =
        BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced)).unwrap();
    let before = builder.execution.gas_used();
    let call = sign(
        1,
        TxEip1559 {
            gas_limit: 100_000,
            to: MESSAGE_PASSER.into(),
            value: U256::ZERO,
            ..transfer(1)
        },
    );
    for (tx, raw) in [sign(1, transfer(0)), call] {
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes);
    }
    assert_eq!(
        builder.fees(),
        U256::from(10 * (builder.execution.gas_used() - before))
    );
    builder.finish().unwrap()
}

#[test]
fn what_is_built_is_valid() {
    for spec in specs() {
        let ground = ground(&spec);
        let built = build(&spec, &ground);
        let judged = validate(&spec, ground.state(), built.payload.clone())
            .unwrap_or_else(|error| panic!("{:?}: {error}", spec.rules));
        assert_eq!(judged.overlay, built.overlay);
        assert_eq!(judged.receipts, built.receipts);
        assert_eq!(judged.senders, built.senders);
        let header = &built.payload.header;
        let active = spec.at(TIME + 2);
        assert_eq!(
            header.gas_limit,
            if active.op.is_some() {
                GAS_LIMIT / 2
            } else {
                GAS_LIMIT
            }
        );
        assert_eq!(header.beneficiary, Address::repeat_byte(0xfe));
        assert_eq!(header.mix_hash, B256::repeat_byte(3));
        assert_eq!(
            header.parent_beacon_block_root,
            active.cancun.then_some(B256::repeat_byte(4))
        );
        if active.is_op(Fork::Jovian) {
            assert_eq!(
                header.extra_data,
                bytes!("01 000000fa 00000006 00000000000001f4")
            );
        }
        let passer = header
            .withdrawals_root
            .is_some_and(|root| root != EMPTY_ROOT_HASH);
        assert_eq!(passer, active.is_op(Fork::Isthmus));
    }
}

#[test]
fn a_chain_walks_through_every_fork() {
    // One fork every four seconds from Regolith on, with a block time of two seconds: each fork has
    // a block that activates it and one block after.
    let times = Fork::ALL
        .into_iter()
        .enumerate()
        .map(|(index, fork)| (fork, Some(TIME + 4 * index as u64)));
    let spec = Arc::new(scheduled(ForkSchedule::from_times(times)));
    let ground = ground(&op(Fork::Bedrock));
    let mut blocks = Vec::new();
    let mut header = ground.header.clone();
    for nonce in 0..24 {
        let view = View::new(ground.store.snapshot().unwrap(), blocks.clone(), None, None).unwrap();
        let state = Arc::new(view).state();
        let timestamp = header.timestamp + 2;
        let forced = vec![first()];
        let mut attributes = attributes_at(&spec, timestamp, forced);
        attributes.gas_limit = Some(GAS_LIMIT + nonce);
        let mut builder = BlockBuilder::start(spec.clone(), &state, attributes).unwrap();
        let (tx, raw) = sign(
            1,
            TxEip1559 {
                gas_limit: 100_000,
                to: MESSAGE_PASSER.into(),
                ..transfer(nonce)
            },
        );
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes);
        let built = builder.finish().unwrap();
        let judged = validate(&spec, &state, built.payload.clone())
            .unwrap_or_else(|error| panic!("{timestamp}: {error}"));
        assert_eq!(judged.overlay, built.overlay);
        // The header decodes to the same header: no optional field is present without those before
        // it.
        let read = <Header as alloy_rlp::Decodable>::decode(
            &mut alloy_rlp::encode(&built.payload.header).as_slice(),
        )
        .unwrap();
        assert_eq!(read, built.payload.header);
        header = read;
        blocks.push(Arc::new(built));
    }
    assert_eq!(spec.at(header.timestamp).op, Some(Fork::Karst));
}

#[test]
fn every_result_in_the_header_is_compared() {
    let spec = op(Fork::Jovian);
    let ground = ground(&spec);
    let built = build(&spec, &ground);
    let judge = |change: fn(&mut Header)| {
        let mut header = built.payload.header.clone();
        change(&mut header);
        let payload = Payload::sealed(header, built.payload.transactions.clone());
        match validate(&spec, ground.state(), Arc::new(payload)) {
            Err(ValidateError::Invalid(invalid)) => invalid,
            other => panic!("{other:?}"),
        }
    };
    use InvalidBlock as I;
    assert!(matches!(judge(|h| h.gas_used += 1), I::GasUsed { have, want } if have == want + 1));
    assert!(matches!(
        judge(|h| h.blob_gas_used = Some(1)),
        I::BlobGasUsed {
            have: Some(1),
            want: Some(0)
        }
    ));
    assert!(matches!(
        judge(|h| h.receipts_root.0[0] ^= 1),
        I::ReceiptsRoot { .. }
    ));
    assert!(matches!(judge(|h| h.logs_bloom.0[0] ^= 1), I::LogsBloom));
    assert!(matches!(
        judge(|h| h.state_root.0[0] ^= 1),
        I::StateRoot { .. }
    ));
    assert!(matches!(
        judge(|h| h.withdrawals_root = Some(EMPTY_ROOT_HASH)),
        I::WithdrawalsRoot { .. }
    ));
    let absent = I::BlobGasUsed {
        have: Some(1),
        want: None,
    }
    .to_string();
    assert_eq!(absent, "blob gas used is 1, want none");
    assert!(matches!(
        judge(|h| h.transactions_root.0[0] ^= 1),
        I::TransactionsRoot { .. }
    ));
    assert!(matches!(
        judge(|h| h.base_fee_per_gas = Some(0)),
        I::Header(_)
    ));
}

#[test]
fn an_invalid_transaction_makes_a_block_invalid() {
    let spec = op(Fork::Jovian);
    let ground = ground(&spec);
    let built = build(&spec, &ground);
    let mut transactions = built.payload.transactions.clone();
    transactions.swap(1, 2);
    let header = Header {
        transactions_root: ordered_trie_root_encoded(&transactions),
        ..built.payload.header.clone()
    };
    let error = validate(
        &spec,
        ground.state(),
        Arc::new(Payload::sealed(header, transactions)),
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            ValidateError::Invalid(InvalidBlock::Transaction { index: 1, .. })
        ),
        "{error}"
    );
}

#[test]
fn pool_transactions_that_do_not_fit_are_left_out() {
    let spec = Arc::new(op(Fork::Jovian));
    let ground = ground(&spec);
    let attributes = OpPayloadAttributes {
        gas_limit: Some(80_000),
        ..attributes(&spec, vec![first()])
    };
    let mut builder = BlockBuilder::start(spec.clone(), ground.state(), attributes).unwrap();
    let left = builder.gas_left();
    assert!((42_000..63_000).contains(&left), "{left}");
    let mut add = |(tx, raw): (Recovered<ChainTx>, Bytes)| builder.add(&tx, &raw).unwrap();
    assert!(matches!(add(sign(1, transfer(1))), Added::Skipped(_)));
    assert!(matches!(
        add(sign(
            1,
            TxEip1559 {
                gas_limit: left + 1,
                ..transfer(0)
            }
        )),
        Added::Skipped(_)
    ));
    assert!(matches!(
        add(sign(
            1,
            TxEip1559 {
                max_fee_per_gas: 10,
                ..transfer(0)
            }
        )),
        Added::Skipped(_)
    ));
    assert!(matches!(
        add(deposited(deposit(Address::ZERO, 21_000))),
        Added::Skipped(_)
    ));
    assert_eq!(add(sign(1, transfer(0))), Added::Yes);
    assert_eq!(add(sign(1, transfer(1))), Added::Yes);
    assert_eq!(add(sign(1, transfer(2))), Added::Full);
    let block = builder.finish().unwrap();
    assert_eq!(block.payload.transactions.len(), 3);
    validate(&spec, ground.state(), block.payload).unwrap();
}
