//! Random chains on several forks, in singular and span batches, compressed with zlib and brotli.

use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use kona_genesis::RollupConfig;
use kona_protocol::{BlockInfo, Channel};
use starling_proto::{
    batch::SingularBatch,
    channel::{BatchContext, ChannelCompression, ChannelWriter},
    fork::Fork,
    frame::{self, ChannelId, Frame},
    span::{SpanBlock, SpanBuilder},
};

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_700_000_000,
    block_time: 2,
    chain_id: 901,
};
/// Random chains for each combination of fork, kind of batch and compression.
const CHAINS: u64 = 40;

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number of any length up to 64 bits.
    fn number(&mut self) -> u64 {
        self.draw() >> self.below(64)
    }

    /// A number of any length up to 256 bits.
    fn word(&mut self) -> U256 {
        let limbs = [self.draw(), self.draw(), self.draw(), self.draw()];
        U256::from_limbs(limbs) >> self.below(256)
    }

    fn hash(&mut self) -> B256 {
        U256::from_limbs([self.draw(), self.draw(), self.draw(), self.draw()]).into()
    }

    fn address(&mut self) -> Address {
        Address::from_word(self.hash())
    }

    fn bytes(&mut self, longest: u64) -> Bytes {
        (0..self.below(longest + 1)).map(|_| self.draw() as u8).collect()
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

    fn target(&mut self) -> TxKind {
        if self.chance() {
            TxKind::Call(self.address())
        } else {
            TxKind::Create
        }
    }

    fn signed<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(
        &mut self,
        transaction: T,
    ) -> Bytes {
        let mut out = Vec::new();
        transaction.eip2718_encode(&self.signature(), &mut out);
        out.into()
    }

    /// A transaction of type 0, 1, 2 or, if the fork has it, 4.
    fn transaction(&mut self, fork: Fork) -> Bytes {
        let chain_id = CONTEXT.chain_id;
        let (nonce, gas_limit) = (self.number(), self.number());
        let (fee, tip) = (u128::from(self.number()), u128::from(self.number()));
        let (to, value, input) = (self.target(), self.word(), self.bytes(200));
        let access_list = self.access_list();
        match self.below(if fork >= Fork::Isthmus { 5 } else { 4 }) {
            kind @ (0 | 1) => self.signed(TxLegacy {
                chain_id: (kind == 1).then_some(chain_id),
                nonce,
                gas_price: fee,
                gas_limit,
                to,
                value,
                input,
            }),
            2 => self.signed(TxEip2930 {
                chain_id,
                nonce,
                gas_price: fee,
                gas_limit,
                to,
                value,
                access_list,
                input,
            }),
            3 => self.signed(TxEip1559 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: fee,
                max_priority_fee_per_gas: tip,
                to,
                value,
                access_list,
                input,
            }),
            _ => {
                let authorization_list = (0..self.below(3))
                    .map(|_| {
                        let authorization = Authorization {
                            chain_id: self.word(),
                            address: self.address(),
                            nonce: self.number(),
                        };
                        authorization.into_signed(self.signature())
                    })
                    .collect();
                let to = self.address();
                self.signed(TxEip7702 {
                    chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: fee,
                    max_priority_fee_per_gas: tip,
                    to,
                    value,
                    access_list,
                    authorization_list,
                    input,
                })
            }
        }
    }

    /// Consecutive blocks, up to twenty.
    fn chain(&mut self, fork: Fork) -> Vec<SingularBatch> {
        let mut epoch_number = 100 + self.below(1 << 40);
        let start = CONTEXT.genesis_time + CONTEXT.block_time * self.below(1 << 30);
        (0..1 + self.below(20))
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
}

fn span(blocks: &[SingularBatch], begins_epoch: bool) -> Vec<u8> {
    let mut builder = SpanBuilder::new(CONTEXT);
    for block in blocks {
        let columns = SpanBlock {
            epoch_number: block.epoch_number,
            timestamp: block.timestamp,
            transactions: block.transactions.clone(),
        };
        let pushed = builder.push(&columns, block.parent_hash, block.epoch_hash, begins_epoch);
        pushed.expect("a consecutive block");
    }
    builder.encode().expect("a block")
}

/// The data items of a channel: frames of at most `size` bytes, some of them in one item.
fn items(
    numbers: &mut Numbers,
    batches: &[Vec<u8>],
    compression: ChannelCompression,
    fork: Fork,
) -> Vec<Vec<u8>> {
    let id = ChannelId::from_slice(&numbers.hash()[..16]);
    let size = 24 + numbers.below(2_000) as usize;
    let mut writer = ChannelWriter::new(id, compression, fork >= Fork::Fjord).expect("a channel");
    for batch in batches {
        writer.add(batch).expect("a small batch");
    }
    writer.close().expect("an open channel");
    let mut frames: Vec<Frame> = Vec::new();
    while let Some(frame) = writer.next_frame(size).expect("few frames") {
        frames.push(frame);
    }
    let together = 1 + numbers.below(4) as usize;
    frames.chunks(together).map(frame::encode).collect()
}

/// The other implementation's configuration of the same chain.
fn rollup(fork: Fork) -> RollupConfig {
    let mut rollup = RollupConfig {
        block_time: CONTEXT.block_time,
        l2_chain_id: CONTEXT.chain_id.into(),
        ..RollupConfig::default()
    };
    rollup.genesis.l2_time = CONTEXT.genesis_time;
    let since = |first: Fork| (fork >= first).then_some(0);
    rollup.hardforks.regolith_time = since(Fork::Regolith);
    rollup.hardforks.canyon_time = since(Fork::Canyon);
    rollup.hardforks.delta_time = since(Fork::Delta);
    rollup.hardforks.ecotone_time = since(Fork::Ecotone);
    rollup.hardforks.fjord_time = since(Fork::Fjord);
    rollup.hardforks.granite_time = since(Fork::Granite);
    rollup.hardforks.holocene_time = since(Fork::Holocene);
    rollup.hardforks.isthmus_time = since(Fork::Isthmus);
    rollup
}

/// The batches that the other implementation reads from data items.
fn decode(items: &[Vec<u8>], fork: Fork) -> Vec<kona_protocol::Batch> {
    let frames = items.iter().flat_map(|item| {
        kona_protocol::Frame::parse_frames(item).expect("an item of frames")
    });
    let mut channel: Option<Channel> = None;
    let opened = BlockInfo::default();
    for frame in frames {
        let channel = channel.get_or_insert_with(|| Channel::new(frame.id, opened));
        channel.add_frame(frame, opened).expect("a frame of the channel");
    }
    let channel = channel.filter(Channel::is_ready).expect("a complete channel");
    let data = channel.frame_data().expect("all frames");
    let limit = if fork >= Fork::Fjord { 100_000_000 } else { 10_000_000 };
    let rollup = rollup(fork);
    let mut reader = kona_protocol::BatchReader::new(data, limit);
    std::iter::from_fn(|| reader.next_batch(&rollup)).collect()
}

fn assert_singular(found: &[kona_protocol::Batch], chain: &[SingularBatch]) {
    assert_eq!(found.len(), chain.len());
    for (found, block) in found.iter().zip(chain) {
        let kona_protocol::Batch::Single(found) = found else {
            panic!("{found:?}");
        };
        assert_eq!(found.parent_hash, block.parent_hash);
        assert_eq!(found.epoch_num, block.epoch_number);
        assert_eq!(found.epoch_hash, block.epoch_hash);
        assert_eq!(found.timestamp, block.timestamp);
        assert_eq!(found.transactions, block.transactions);
    }
}

fn assert_span(found: &kona_protocol::Batch, chain: &[SingularBatch]) {
    let kona_protocol::Batch::Span(found) = found else {
        panic!("{found:?}");
    };
    let (first, last) = (&chain[0], &chain[chain.len() - 1]);
    assert!(found.check_parent_hash(first.parent_hash));
    assert!(found.check_origin_hash(last.epoch_hash));
    assert_eq!(found.batches.len(), chain.len());
    for (found, block) in found.batches.iter().zip(chain) {
        assert_eq!(found.epoch_num, block.epoch_number);
        assert_eq!(found.timestamp, block.timestamp);
        assert_eq!(found.transactions, block.transactions);
    }
}

fn compressions(fork: Fork) -> impl Iterator<Item = ChannelCompression> {
    let all = [
        ChannelCompression::Zlib,
        ChannelCompression::Brotli9,
        ChannelCompression::Brotli10,
        ChannelCompression::Brotli11,
    ];
    let fits = move |one: &ChannelCompression| fork >= Fork::Fjord || !one.needs_fjord();
    all.into_iter().filter(fits)
}

#[test]
fn singular_batches_decode_to_the_same() {
    let mut numbers = Numbers(1);
    for fork in Fork::ALL {
        for compression in compressions(fork) {
            for _ in 0..CHAINS {
                let chain = numbers.chain(fork);
                let batches: Vec<_> = chain.iter().map(SingularBatch::encode).collect();
                let items = items(&mut numbers, &batches, compression, fork);
                assert_singular(&decode(&items, fork), &chain);
            }
        }
    }
}

#[test]
fn span_batches_decode_to_the_same() {
    let mut numbers = Numbers(2);
    for fork in Fork::ALL.into_iter().filter(|fork| *fork >= Fork::Delta) {
        for compression in compressions(fork) {
            for _ in 0..CHAINS {
                let chains = [numbers.chain(fork), numbers.chain(fork)];
                let batches = chains.each_ref().map(|chain| span(chain, numbers.chance()));
                let items = items(&mut numbers, &batches, compression, fork);
                let found = decode(&items, fork);
                assert_eq!(found.len(), 2);
                for (found, chain) in found.iter().zip(&chains) {
                    assert_span(found, chain);
                }
            }
        }
    }
}
