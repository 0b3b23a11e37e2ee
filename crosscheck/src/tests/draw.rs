//! Random transactions, blocks and batches.

use super::{CONTEXT, Draft, Kind};
use alloy_consensus::{
    TxEip1559, TxEip2930, TxEip7702, TxLegacy, transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use starling_proto::{batch::SingularBatch, fork::Fork};

const CHAIN_ID: u64 = CONTEXT.chain_id;

/// The random number generator SplitMix64.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A random number with a random length of up to 64 bits.
    fn number(&mut self) -> u64 {
        self.draw() >> self.below(64)
    }

    /// A random number with a random length of up to 128 bits.
    fn fee(&mut self) -> u128 {
        let number = u128::from(self.draw()) << 64 | u128::from(self.draw());
        number >> self.below(128)
    }

    /// A random number with a random length of up to 256 bits.
    fn word(&mut self) -> U256 {
        U256::from_be_bytes(self.hash().0) >> self.below(256)
    }

    pub fn hash(&mut self) -> B256 {
        let limbs = [self.draw(), self.draw(), self.draw(), self.draw()];
        U256::from_limbs(limbs).into()
    }

    fn address(&mut self) -> Address {
        Address::from_word(self.hash())
    }

    /// Call data of up to 400 bytes: one byte repeated, or random bytes.
    fn input(&mut self) -> Bytes {
        let len = self.below(401) as usize;
        if self.chance() {
            vec![self.draw() as u8; len].into()
        } else {
            (0..len).map(|_| self.draw() as u8).collect()
        }
    }

    fn target(&mut self) -> TxKind {
        if self.chance() {
            TxKind::Call(self.address())
        } else {
            TxKind::Create
        }
    }

    fn signature(&mut self) -> Signature {
        Signature::new(self.word(), self.word(), self.chance())
    }

    fn access_list(&mut self) -> AccessList {
        let items = (0..self.below(3)).map(|_| AccessListItem {
            address: self.address(),
            storage_keys: (0..self.below(3)).map(|_| self.hash()).collect(),
        });
        AccessList(items.collect())
    }

    fn authorization(&mut self) -> SignedAuthorization {
        let authorization = Authorization {
            chain_id: self.word(),
            address: self.address(),
            nonce: self.number(),
        };
        authorization.into_signed(self.signature())
    }

    fn signed(&mut self, transaction: impl RlpEcdsaEncodableTx) -> Bytes {
        let mut out = Vec::new();
        transaction.eip2718_encode(&self.signature(), &mut out);
        out.into()
    }

    fn legacy(&mut self, is_protected: bool) -> Bytes {
        let transaction = TxLegacy {
            chain_id: is_protected.then_some(CHAIN_ID),
            nonce: self.number(),
            gas_price: self.fee(),
            gas_limit: self.number(),
            to: self.target(),
            value: self.word(),
            input: self.input(),
        };
        self.signed(transaction)
    }

    fn with_access_list(&mut self) -> Bytes {
        let transaction = TxEip2930 {
            chain_id: CHAIN_ID,
            nonce: self.number(),
            gas_price: self.fee(),
            gas_limit: self.number(),
            to: self.target(),
            value: self.word(),
            access_list: self.access_list(),
            input: self.input(),
        };
        self.signed(transaction)
    }

    fn dynamic_fee(&mut self) -> Bytes {
        let transaction = TxEip1559 {
            chain_id: CHAIN_ID,
            nonce: self.number(),
            gas_limit: self.number(),
            max_fee_per_gas: self.fee(),
            max_priority_fee_per_gas: self.fee(),
            to: self.target(),
            value: self.word(),
            access_list: self.access_list(),
            input: self.input(),
        };
        self.signed(transaction)
    }

    fn set_code(&mut self) -> Bytes {
        let transaction = TxEip7702 {
            chain_id: CHAIN_ID,
            nonce: self.number(),
            gas_limit: self.number(),
            max_fee_per_gas: self.fee(),
            max_priority_fee_per_gas: self.fee(),
            to: self.address(),
            value: self.word(),
            access_list: self.access_list(),
            authorization_list: (0..self.below(3)).map(|_| self.authorization()).collect(),
            input: self.input(),
        };
        self.signed(transaction)
    }

    /// A transaction of a random type that batches may have in this fork.
    fn transaction(&mut self, fork: Fork) -> Bytes {
        let kinds = if fork >= Fork::Isthmus { 5 } else { 4 };
        match self.below(kinds) {
            0 => self.legacy(false),
            1 => self.legacy(true),
            2 => self.with_access_list(),
            3 => self.dynamic_fee(),
            _ => self.set_code(),
        }
    }

    /// The batches of up to twenty consecutive blocks.
    fn chain(&mut self, fork: Fork) -> Vec<SingularBatch> {
        let mut epoch_number = 100 + self.below(1 << 40);
        let start = CONTEXT.genesis_time + CONTEXT.block_time * self.below(1 << 30);
        let blocks = 1 + self.below(20);
        (0..blocks)
            .map(|index| {
                epoch_number += self.below(2);
                SingularBatch {
                    parent_hash: self.hash(),
                    epoch_number,
                    epoch_hash: self.hash(),
                    timestamp: start + CONTEXT.block_time * index,
                    transactions: (0..self.below(6)).map(|_| self.transaction(fork)).collect(),
                }
            })
            .collect()
    }

    /// The batches of up to three separate chains of blocks.
    pub fn drafts(&mut self, kind: Kind, fork: Fork) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for _ in 0..1 + self.below(3) {
            let blocks = self.chain(fork);
            let is_span = match kind {
                Kind::Singular => false,
                Kind::Span => true,
                Kind::Mixed => self.chance(),
            };
            if is_span {
                let begins_epoch = self.chance();
                drafts.push(Draft::Span {
                    blocks,
                    begins_epoch,
                });
            } else {
                drafts.extend(blocks.into_iter().map(Draft::Singular));
            }
        }
        drafts
    }
}
