//! The chain as a hostile peer sees it: the newest gossiped blocks, and forged blocks made from
//! them. Pure.

use alloy_primitives::U256;
use starling_proto::{
    config::RollupConfig,
    gossip::{self, PayloadFlag},
    payload::{Payload, PayloadVersion, WirePayload},
    sign::{self, SIGNATURE_LEN, SecretKey},
};
use std::collections::BTreeMap;

/// Number of blocks that are kept.
const BLOCKS: usize = 256;

/// Blocks that were gossiped since the peer connected.
pub struct SeenChain {
    pub rollup: RollupConfig,
    blocks: BTreeMap<u64, Payload>,
    /// Number of blocks forged for publication, so that no two are equal.
    forged_count: u64,
}

impl SeenChain {
    pub fn new(rollup: RollupConfig) -> Self {
        Self {
            rollup,
            blocks: BTreeMap::new(),
            forged_count: 0,
        }
    }

    /// The topics of blocks, of all versions.
    pub fn topics(&self) -> [String; PayloadVersion::ALL.len()] {
        PayloadVersion::ALL.map(|version| gossip::topic(self.rollup.l2_chain_id, version))
    }

    /// The version of a topic; `None` for a topic of others.
    pub fn version(&self, topic: &str) -> Option<PayloadVersion> {
        let all = self.topics();
        let at = all.iter().position(|other| other == topic)?;
        Some(PayloadVersion::ALL[at])
    }

    /// Takes a gossiped message. Messages that are no block are ignored.
    pub fn add(&mut self, topic: &str, data: &[u8]) {
        let unpacked = gossip::decompress(data);
        let Some(version) = self.version(topic) else {
            return;
        };
        let Some(wire) = unpacked.bytes.get(SIGNATURE_LEN..) else {
            return;
        };
        let is_block = unpacked.flag == PayloadFlag::Decompressed;
        let payload = WirePayload::decode(version, wire).ok();
        let payload = payload.and_then(|wire| wire.into_payload().ok());
        if let Some(payload) = payload.filter(|_| is_block) {
            self.blocks.insert(payload.number(), payload);
        }
        if self.blocks.len() > BLOCKS {
            self.blocks.pop_first();
        }
    }

    /// The highest block that was seen.
    pub fn newest(&self) -> Option<&Payload> {
        self.blocks.last_key_value().map(|(_, block)| block)
    }

    /// A block of this number that is valid by itself and not on the chain; `None` while no block
    /// was seen.
    pub fn forged_block(&self, number: u64) -> Option<Payload> {
        let seen = self.blocks.get(&number).or_else(|| self.newest())?;
        let mut header = seen.header.clone();
        header.number = number;
        header.gas_used ^= 1;
        Some(Payload::sealed(header, seen.transactions.clone()))
    }

    /// A gossip message with a new block of the present time that `key` has signed, and the
    /// version of its topic; `None` while no block was seen.
    pub fn signed_by(&mut self, key: &SecretKey) -> Option<ForgedMessage> {
        let newest = self.newest()?;
        let (mut header, version) = (newest.header.clone(), newest.version());
        let transactions = newest.transactions.clone();
        self.forged_count += 1;
        header.mix_hash = U256::from(self.forged_count).into();
        let wire = Payload::sealed(header, transactions).to_wire(version);
        let signature = sign::sign(key, self.rollup.l2_chain_id, &wire);
        let data = gossip::encode_message(&signature, &wire).ok()?;
        Some(ForgedMessage { version, data })
    }
}

/// A message to publish.
pub struct ForgedMessage {
    pub version: PayloadVersion,
    pub data: Vec<u8>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use alloy_consensus::Header;
    use alloy_primitives::{B256, b256};
    use starling_proto::fork::{Fork, ForkSchedule};

    pub fn key(byte: u8) -> SecretKey {
        SecretKey::from_slice(&[byte; 32]).unwrap()
    }

    /// A chain of which one block of version 4 was gossiped.
    pub fn seen(number: u64) -> SeenChain {
        let header = Header {
            number,
            transactions_root: alloy_consensus::constants::EMPTY_ROOT_HASH,
            base_fee_per_gas: Some(7),
            withdrawals_root: Some(B256::repeat_byte(3)),
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(B256::repeat_byte(4)),
            requests_hash: Some(b256!(
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            )),
            ..Default::default()
        };
        let wire = Payload::sealed(header, Vec::new()).to_wire(PayloadVersion::V4);
        let rollup = RollupConfig {
            l2_chain_id: 901,
            forks: ForkSchedule::from_genesis(Fork::Jovian),
            ..Default::default()
        };
        let mut chain = SeenChain::new(rollup);
        let message = gossip::encode_message(&sign::sign(&key(1), 901, &wire), &wire).unwrap();
        chain.add(&gossip::topic(901, PayloadVersion::V4), &message);
        chain
    }

    #[test]
    fn forged_blocks_have_the_number_and_another_hash() {
        let chain = seen(7);
        let newest = chain.newest().expect("the block is seen");
        for number in [5, 7, 9] {
            let forged = chain.forged_block(number).unwrap();
            assert_eq!(forged.number(), number);
            assert_eq!(forged.hash, forged.header.hash_slow());
            assert_ne!(forged.hash, newest.hash);
        }
    }

    #[test]
    fn signed_messages_are_blocks_of_the_other_key_and_never_equal() {
        let mut chain = seen(7);
        let [one, other] = [(); 2].map(|()| chain.signed_by(&key(2)).unwrap());
        assert_ne!(one.data, other.data);
        let bytes = gossip::decompress(&one.data).bytes;
        let (signature, wire) = bytes.split_first_chunk::<SIGNATURE_LEN>().unwrap();
        let signer = sign::recover(signature, 901, wire).unwrap();
        assert_eq!(signer, sign::address(&key(2)));
        let block = WirePayload::decode(one.version, wire).unwrap();
        assert_eq!(block.into_payload().unwrap().number(), 7);
    }

    #[test]
    fn messages_that_are_no_block_are_ignored() {
        let mut chain = seen(7);
        chain.add(&gossip::topic(901, PayloadVersion::V4), &[0xff; 90]);
        chain.add("/another/topic", &[0; 90]);
        assert_eq!(chain.newest().map(Payload::number), Some(7));
    }
}
