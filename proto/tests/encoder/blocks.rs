//! Chains of L2 blocks for the encoder. Shared by its tests and its bench.

use alloy_consensus::{Header, SignableTransaction, TxEip1559, transaction::RlpEcdsaEncodableTx};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256};
use op_alloy_consensus::TxDeposit;
use starling_proto::{
    batch::Batch,
    channel::{BatchContext, BatchReader},
    l1info::{DEPOSITOR, L1_BLOCK, L1BlockInfo, L1InfoFormat},
    payload::{BlockId, Payload},
};

/// The content of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockPlan {
    /// Whether the block's L1 origin is the child of its parent's L1 origin.
    pub advances: bool,
    /// Transactions without deposits.
    pub transactions: Vec<Bytes>,
}

/// Consecutive blocks from number 1 on. The first has L1 origin 10, or 11 if it advances. Each
/// block begins with the L1 attributes and a second deposit.
pub fn chain(context: BatchContext, plans: impl IntoIterator<Item = BlockPlan>) -> Vec<Payload> {
    endless_chain(context, plans).collect()
}

/// Like [`chain`], as an iterator that builds one block at a time.
pub fn endless_chain(
    context: BatchContext,
    plans: impl IntoIterator<Item = BlockPlan>,
) -> impl Iterator<Item = Payload> {
    let (mut parent, mut epoch, mut sequence) = (B256::repeat_byte(7), 10, 3);
    (1..).zip(plans).map(move |(number, plan)| {
        sequence = if plan.advances { 0 } else { sequence + 1 };
        epoch += u64::from(plan.advances);
        let deposits = [
            l1_info(epoch, sequence),
            deposit(Bytes::from_static(b"user")),
        ];
        let header = Header {
            parent_hash: parent,
            number,
            timestamp: context.genesis_time + context.block_time * number,
            ..Header::default()
        };
        let transactions = deposits.into_iter().chain(plan.transactions).collect();
        let block = Payload::sealed(header, transactions);
        parent = block.hash;
        block
    })
}

/// Number and hash of an L1 block.
pub fn origin(number: u64) -> BlockId {
    BlockId {
        hash: keccak256(number.to_be_bytes()),
        number,
    }
}

fn l1_info(number: u64, sequence_number: u64) -> Bytes {
    let info = L1BlockInfo {
        format: L1InfoFormat::Ecotone,
        number,
        time: 0,
        base_fee: U256::from(7),
        hash: origin(number).hash,
        sequence_number,
        batcher_addr: Address::ZERO,
        overhead: B256::ZERO,
        scalar: B256::ZERO,
        base_fee_scalar: 0,
        blob_base_fee_scalar: 0,
        blob_base_fee: U256::ZERO,
        operator_fee_scalar: 0,
        operator_fee_constant: 0,
        da_footprint_gas_scalar: 0,
    };
    deposit(info.encode())
}

fn deposit(input: Bytes) -> Bytes {
    let deposit = TxDeposit {
        from: DEPOSITOR,
        to: L1_BLOCK.into(),
        input,
        ..TxDeposit::default()
    };
    deposit.encoded_2718().into()
}

/// 32 incompressible bytes, determined by `seed` and `kind`.
pub fn noise(seed: u64, kind: u8) -> B256 {
    keccak256([&seed.to_be_bytes()[..], &[kind]].concat())
}

fn signature(seed: u64) -> Signature {
    let word = |kind| U256::from_be_bytes(noise(seed, kind).0);
    Signature::new(word(1), word(2), noise(seed, 3)[0].is_multiple_of(2))
}

/// Signs a transaction with a random signature and encodes it (EIP-2718).
pub fn encoded<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(
    transaction: &T,
    seed: u64,
) -> Bytes {
    let mut out = Vec::new();
    transaction.eip2718_encode(&signature(seed), &mut out);
    out.into()
}

/// A token transfer: one of ten tokens, one of a hundred recipients, and an amount of a few bytes.
/// Compression roughly halves its size.
pub fn transfer(context: BatchContext, seed: u64) -> Bytes {
    let random = noise(seed, 0);
    let receiver = noise(u64::from(random[0] % 100), 4);
    let amount = U256::from(u32::from_be_bytes([0, random[1], random[2], random[3]]));
    let input = [
        &[0xa9, 0x05, 0x9c, 0xbb][..],
        &Address::from_slice(&receiver[12..]).into_word()[..],
        &amount.to_be_bytes::<32>(),
    ];
    let transaction = TxEip1559 {
        chain_id: context.chain_id,
        nonce: u64::from(random[4]),
        gas_limit: 60_000 + u64::from(random[5] % 8) * 1_000,
        max_fee_per_gas: 1_000_000_000 + u128::from(random[6]) * 1_000,
        max_priority_fee_per_gas: 1_000_000,
        to: TxKind::Call(Address::from_slice(
            &noise(u64::from(random[7] % 10), 5)[12..],
        )),
        input: input.concat().into(),
        ..TxEip1559::default()
    };
    encoded(&transaction, seed)
}

/// A chain with `count` transfers in each block, and a new L1 origin at every sixth block.
pub fn transfers(context: BatchContext, blocks: u64, count: u64) -> Vec<Payload> {
    let plan = |number: u64| BlockPlan {
        advances: number.is_multiple_of(6),
        transactions: (0..count)
            .map(|index| transfer(context, number << 16 | index))
            .collect(),
    };
    chain(context, (0..blocks).map(plan))
}

/// Blocks of OP Mainnet, rebuilt from the span batch that its batcher posted.
pub struct RecordedChannel {
    pub context: BatchContext,
    pub blocks: Vec<Payload>,
    /// The channel as compressed with zlib by the batcher.
    pub channel: Vec<u8>,
}

/// Reads the recorded channel; `None`, recorded as a skip, if the fixtures are absent.
pub fn recorded() -> Option<RecordedChannel> {
    let name = "derivation/channels/zlib-channel-1.4MB-spanbatch.hex";
    let text = starling_testkit::fixture_text(name)?;
    let channel = hex::decode(text.trim().trim_start_matches("0x")).expect("hex");
    let context = BatchContext {
        genesis_time: 1_686_789_347,
        block_time: 2,
        chain_id: 10,
    };
    let mut reader = BatchReader::new(channel.clone(), context, true).expect("a channel");
    let Some(Ok(Batch::Span(span))) = reader.next_batch() else {
        panic!("no span batch");
    };
    let mut epoch = span.first.epoch_number;
    let plans = span.blocks.map(|block| {
        let advances = block.epoch_number > epoch;
        epoch = block.epoch_number;
        BlockPlan {
            advances,
            transactions: block.transactions.iter().collect(),
        }
    });
    Some(RecordedChannel {
        context,
        blocks: chain(context, plans),
        channel,
    })
}
