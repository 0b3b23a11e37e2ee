//! The chain from which the batches are made: a separate core in this process builds L2 blocks with
//! attributes from L1 and user transactions that the test chooses.

use super::{
    l1::{L1Entry, MAX_FEE, sign_hash, signed},
    world::account,
};
use crate::{late::Store, net::Account};
use alloy_consensus::TxEip7702;
use alloy_eips::{eip2718::Encodable2718, eip7702::Authorization};
use alloy_primitives::{Address, Bytes, TxKind, U256};
use starling::{
    chain::ChainError,
    devnet::genesis::{L2_CHAIN_ID, MESSAGE_PASSER},
};
use starling_proto::{
    attributes::attributes,
    batch::SingularBatch,
    config::RollupConfig,
    fork::BlobSchedule,
    l1info::L2BlockRef,
    payload::Payload,
    span::{BatchContext, SpanBlock, SpanBuilder},
};
use std::sync::Arc;

/// The development account that delegates to a contract's code (EIP-7702).
const AUTHORITY: usize = 3;
/// Type byte of a deposit.
const DEPOSIT: u8 = 0x7e;

pub struct Author {
    pub rollup: RollupConfig,
    schedule: BlobSchedule,
    store: Store,
    runtime: tokio::runtime::Runtime,
    user: Account,
    /// The chain's blocks from genesis on, indexed by number.
    pub chain: Vec<Arc<Payload>>,
}

impl Author {
    pub fn new(genesis: &str, rollup: RollupConfig, schedule: BlobSchedule, user: Account) -> Self {
        let store = Store::new(genesis);
        let first = store.chain.view().payload(0).expect("a read");
        Self {
            rollup,
            schedule,
            store,
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
            user,
            chain: vec![first.expect("a genesis")],
        }
    }

    pub fn head(&self) -> &Arc<Payload> {
        self.chain.last().expect("a genesis")
    }

    fn reference(&self, block: &Payload) -> L2BlockRef {
        L2BlockRef::of(block, &self.rollup.genesis).expect("L1 attributes")
    }

    /// Number of the block's L1 origin.
    pub fn origin(&self, block: &Payload) -> u64 {
        self.reference(block).origin.number
    }

    /// Number of the next block's L1 origin by default: the next L1 block as soon as its time has
    /// come. `None` if L1 does not have that block yet.
    pub fn next_origin(&self, l1: &[Arc<L1Entry>]) -> Option<u64> {
        let time = self.head().timestamp() + self.rollup.block_time;
        let origin = self.origin(self.head());
        let next = l1.get(origin as usize + 1)?;
        Some(origin + u64::from(next.block.time <= time))
    }

    /// A transfer by the user account, with the account's next nonce on this chain.
    pub fn transfer(&self) -> Bytes {
        let users = self.chain.iter().flat_map(|block| user_part(block));
        self.transfer_with(users.count() as u64)
    }

    pub fn transfer_with(&self, nonce: u64) -> Bytes {
        let to = TxKind::Call(Address::repeat_byte(0x70));
        let value = U256::from(nonce + 1);
        let none = Bytes::new();
        self.user.sign(L2_CHAIN_ID, nonce, to, value, none, 21_000)
    }

    /// A type 4 transaction of the user account, by which another account delegates to a contract's
    /// code.
    pub fn set_code(&self) -> Bytes {
        let users = self.chain.iter().flat_map(|block| user_part(block));
        self.set_code_with(users.count() as u64)
    }

    pub fn set_code_with(&self, nonce: u64) -> Bytes {
        let authorization = Authorization {
            chain_id: U256::from(L2_CHAIN_ID),
            address: MESSAGE_PASSER,
            nonce: 0,
        };
        let hash = authorization.signature_hash();
        let signature = sign_hash(&account(AUTHORITY), hash);
        let tx = TxEip7702 {
            chain_id: L2_CHAIN_ID,
            nonce,
            gas_limit: 100_000,
            max_fee_per_gas: MAX_FEE,
            max_priority_fee_per_gas: 1_000_000,
            to: Address::repeat_byte(0x70),
            authorization_list: vec![authorization.into_signed(signature)],
            ..Default::default()
        };
        signed(&self.user, tx).encoded_2718().into()
    }

    /// Builds the block on the head with this L1 origin and these user transactions.
    pub fn build(&self, origin: &L1Entry, user: &[Bytes]) -> Result<Arc<Payload>, ChainError> {
        let head = self.head();
        let receipts = Some(origin.receipts.as_slice());
        let derived = attributes(&self.rollup, &self.schedule, head, &origin.block, receipts);
        let mut attributes = derived.expect("attributes").attributes;
        attributes.no_tx_pool = Some(true);
        let all = attributes.transactions.get_or_insert_default();
        all.extend_from_slice(user);
        let chain = &self.store.chain;
        self.runtime.block_on(async {
            let id = chain.start(head.hash, attributes).await?;
            Ok(chain.seal(id).await?.payload.clone())
        })
    }

    /// Builds the block with this L1 origin and these user transactions, and appends it to the
    /// chain.
    pub fn append(&mut self, origin: &L1Entry, user: &[Bytes]) {
        let block = self.build(origin, user).expect("a valid block");
        self.adopt(block);
    }

    /// Appends L2 blocks with these user transactions as long as their L1 origin is at most `epoch`.
    /// Returns the new blocks.
    pub fn extend_by(
        &mut self,
        l1: &[Arc<L1Entry>],
        epoch: u64,
        user: impl Fn(&Self) -> Vec<Bytes>,
    ) -> Vec<Arc<Payload>> {
        let first = self.chain.len();
        while let Some(origin) = self.next_origin(l1)
            && origin <= epoch
        {
            let user = user(self);
            self.append(&l1[origin as usize], &user);
        }
        self.chain[first..].to_vec()
    }

    fn adopt(&mut self, block: Arc<Payload>) {
        let choice = self.store.chain.forkchoice(block.hash, None, None);
        self.runtime.block_on(choice).expect("it can be the head");
        self.chain.push(block);
    }

    /// Drops all blocks above height `number`.
    pub fn rewind(&mut self, number: u64) {
        self.chain.truncate(number as usize + 1);
        let choice = self.store.chain.forkchoice(self.head().hash, None, None);
        self.runtime.block_on(choice).expect("it can be the head");
    }

    /// Drops all blocks from the first one on whose L1 origin is not on the L1 chain `l1`.
    pub fn rewind_to(&mut self, l1: &[Arc<L1Entry>]) {
        let is_canonical = |block: &Arc<Payload>| {
            let origin = self.reference(block).origin;
            let entry = l1.get(origin.number as usize);
            entry.is_some_and(|entry| entry.block.hash == origin.hash)
        };
        let keep = self.chain.iter().take_while(|block| is_canonical(block));
        let keep = keep.count() as u64;
        self.rewind(keep - 1);
    }

    /// Replaces the chain by another branch, whose blocks were all built here. The core follows
    /// when it builds the next block.
    pub fn switch_to(&mut self, chain: Vec<Arc<Payload>>) {
        self.chain = chain;
    }

    /// The singular batch of a block.
    pub fn singular(&self, block: &Payload) -> SingularBatch {
        let origin = self.reference(block).origin;
        SingularBatch {
            parent_hash: block.parent_hash(),
            epoch_number: origin.number,
            epoch_hash: origin.hash,
            timestamp: block.timestamp(),
            transactions: user_part(block).to_vec().into(),
        }
    }

    /// The encoded span batch of consecutive blocks; `change` may modify each block's content.
    pub fn span_with(
        &self,
        blocks: &[Arc<Payload>],
        change: impl Fn(usize, &mut SpanBlock),
    ) -> Vec<u8> {
        let mut span = SpanBuilder::new(BatchContext {
            genesis_time: self.rollup.genesis.l2_time,
            block_time: self.rollup.block_time,
            chain_id: L2_CHAIN_ID,
        });
        for (index, block) in blocks.iter().enumerate() {
            let reference = self.reference(block);
            let mut content = SpanBlock {
                epoch_number: reference.origin.number,
                timestamp: block.timestamp(),
                transactions: user_part(block).to_vec().into(),
            };
            change(index, &mut content);
            let begins_epoch = reference.sequence_number == 0;
            let (parent, epoch) = (block.parent_hash(), reference.origin.hash);
            span.push(&content, parent, epoch, begins_epoch)
                .expect("a span");
        }
        span.encode().expect("a block")
    }

    pub fn span(&self, blocks: &[Arc<Payload>]) -> Vec<u8> {
        self.span_with(blocks, |_, _| {})
    }
}

/// The transactions of a block that follow its deposits.
pub fn user_part(block: &Payload) -> &[Bytes] {
    let all = &block.transactions;
    let is_deposit = |raw: &&Bytes| raw.first() == Some(&DEPOSIT);
    let deposits = all.iter().take_while(is_deposit).count();
    &all[deposits..]
}
