//! Chains of L2 blocks for the batcher's tests.

use super::sync_actions::SourceStatus;
use alloy_consensus::{Header, SignableTransaction, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256};
use op_alloy_consensus::TxDeposit;
use starling_proto::{
    channel::BatchContext,
    l1info::{L1BlockInfo, L1InfoFormat, L2BlockRef},
    payload::{BlockId, Payload},
};
use std::sync::Arc;

pub const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 901,
};
/// Number of L2 blocks per L1 origin.
const EPOCH: u64 = 6;
/// L1 origin of the genesis block.
pub const FIRST_ORIGIN: u64 = 10;

/// A chain from genesis on.
#[derive(Clone)]
pub struct L2 {
    blocks: Vec<Arc<Payload>>,
}

impl L2 {
    /// Creates a chain with blocks up to number `newest`.
    pub fn new(newest: u64) -> Self {
        let genesis = Payload::sealed(Header::default(), vec![]).into();
        let mut chain = Self {
            blocks: vec![genesis],
        };
        chain.extend(newest, 0);
        chain
    }

    /// Creates a chain of these blocks, the first of which must be genesis.
    pub fn of(blocks: Vec<Arc<Payload>>) -> Self {
        Self { blocks }
    }

    /// A different branch: the blocks of `chain` up to `common`, then other ones up to `newest`.
    pub fn fork(chain: &Self, common: u64, newest: u64) -> Self {
        let mut fork = chain.clone();
        fork.truncate(common);
        fork.extend(newest, chain.newest() + 1);
        fork
    }

    /// Removes the blocks above `newest`.
    pub fn truncate(&mut self, newest: u64) {
        self.blocks.truncate(newest as usize + 1);
    }

    pub fn newest(&self) -> u64 {
        self.blocks.len() as u64 - 1
    }

    /// Appends blocks up to number `newest`, whose contents depend on `salt`.
    pub fn extend(&mut self, newest: u64, salt: u64) {
        for number in self.newest() + 1..=newest {
            let parent = self.blocks[number as usize - 1].hash;
            self.blocks.push(block(number, parent, salt).into());
        }
    }

    pub fn payload(&self, number: u64) -> Arc<Payload> {
        self.blocks[number as usize].clone()
    }

    pub fn get(&self, number: u64) -> Option<&Arc<Payload>> {
        self.blocks.get(number as usize)
    }

    pub fn reference(&self, number: u64) -> L2BlockRef {
        Self::reference_of(&self.blocks[number as usize])
    }

    pub fn reference_of(block: &Payload) -> L2BlockRef {
        let (origin, sequence_number) = place(block.number());
        L2BlockRef {
            id: block.id(),
            parent_hash: block.parent_hash(),
            time: block.timestamp(),
            origin: l1(origin),
            sequence_number,
        }
    }
}

/// A status with safe head `safe`, unsafe head `newest`, and derivation up to L1 block
/// `current_l1`.
pub fn status(chain: &L2, safe: u64, newest: u64, current_l1: u64) -> SourceStatus {
    SourceStatus {
        current_l1,
        local_safe_l2: chain.reference(safe),
        unsafe_l2: chain.reference(newest),
    }
}

/// ID of an L1 block, made up from its number.
pub fn l1(number: u64) -> BlockId {
    BlockId {
        hash: keccak256(number.to_be_bytes()),
        number,
    }
}

/// L1 origin and sequence number of L2 block `number`.
fn place(number: u64) -> (u64, u64) {
    (FIRST_ORIGIN + number / EPOCH, number % EPOCH)
}

fn block(number: u64, parent_hash: B256, salt: u64) -> Payload {
    let (origin, sequence_number) = place(number);
    let mut transactions = vec![l1_info(origin, sequence_number)];
    // Makes blocks of the same number differ between branches.
    let random = keccak256([number.to_be_bytes(), salt.to_be_bytes()].concat())[0] % 3;
    let count = u64::from(random) + u64::from(salt > 0);
    let seeds = (0..count).map(|index| salt << 40 | number << 8 | index);
    transactions.extend(seeds.map(transaction));
    let header = Header {
        parent_hash,
        number,
        timestamp: CONTEXT.genesis_time + CONTEXT.block_time * number,
        // Not a real transactions root: the tests need only some commitment to the contents.
        transactions_root: keccak256(transactions.concat()),
        ..Header::default()
    };
    Payload::sealed(header, transactions)
}

fn l1_info(number: u64, sequence_number: u64) -> Bytes {
    let info = L1BlockInfo {
        format: L1InfoFormat::Bedrock,
        number,
        time: 0,
        base_fee: U256::from(7),
        hash: l1(number).hash,
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
    let deposit = TxDeposit {
        input: info.encode(),
        ..TxDeposit::default()
    };
    deposit.encoded_2718().into()
}

/// An incompressible transaction of some hundred bytes.
fn transaction(seed: u64) -> Bytes {
    let noise = |kind: u8| keccak256([&seed.to_be_bytes()[..], &[kind]].concat());
    let input: Vec<u8> = (0..noise(0)[0] % 8)
        .flat_map(|kind| noise(16 + kind))
        .collect();
    let transaction = TxLegacy {
        chain_id: Some(CONTEXT.chain_id),
        nonce: seed & 0xff,
        gas_price: 1_000_000_000,
        gas_limit: 100_000,
        to: TxKind::Call(Address::repeat_byte(3)),
        input: input.into(),
        ..TxLegacy::default()
    };
    let word = |kind| U256::from_be_bytes(noise(kind).0);
    let signature = Signature::new(word(1), word(2), noise(3)[0].is_multiple_of(2));
    transaction.into_signed(signature).encoded_2718().into()
}
