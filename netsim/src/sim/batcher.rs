//! The batcher of a world: the production channel manager puts the sequencer's blocks into channels,
//! and the production transaction manager ([`sends`]) brings their frames to L1. The loop around
//! them does what their tasks do: it reports heads, loads blocks, and reports outcomes.

mod sends;

use super::{
    chain::NodeChain,
    context::{BLOCK_TIME, CHAIN_ID, GENESIS_TIME, SimContext},
    l1::SimL1,
    plan::DerivationPlan,
    planted::PlantedBug,
    rollup::WINDOW,
};
use alloy_primitives::B256;
use rand::Rng;
use sends::BatcherSends;
use starling::machines::{
    BatcherNotice, BatcherRules, BatcherState, ChannelPlan, Insertion, NextTx, PublishContext,
    SourceStatus, TxClass,
};
use starling_proto::{
    channel::{BatchContext, ChannelCompression},
    derive::CHANNEL_TIMEOUT_GRANITE,
    encoder::{BatchFormat, ChannelTimes, CompressorKind, EncoderSettings},
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
};
use std::sync::Arc;

/// L1 blocks by which a channel closes before one of its limits.
const MARGIN: u64 = 4;
/// Largest number of transactions in flight. Each takes two minutes until it is confirmed.
const IN_FLIGHT: usize = 64;
/// Bytes of block bodies in memory from which on only the next block to encode is loaded.
const BODY_BUDGET: usize = 100_000;

/// The block with its L1 attributes alone, as a batcher with that bug reads it.
fn without_transactions(block: &Payload) -> Arc<Payload> {
    let mut block = block.clone();
    block.transactions.truncate(1);
    Arc::new(block)
}

fn rules(plan: &DerivationPlan, context: &SimContext) -> BatcherRules {
    let channels = |class| ChannelPlan {
        class,
        settings: EncoderSettings {
            format: BatchFormat::Singular,
            kind: CompressorKind::Ratio(0.6),
            compression: ChannelCompression::Zlib,
            max_frame_size: plan.frame_size,
            target_frames: plan.target_frames,
        },
    };
    let duration = plan.channel_duration;
    BatcherRules {
        calldata: channels(TxClass::Calldata),
        blobs: channels(TxClass::Blob),
        first_class: TxClass::Calldata,
        times: ChannelTimes::new(duration, CHANNEL_TIMEOUT_GRANITE, WINDOW, MARGIN)
            .expect("the margin is below the timeout"),
        context: BatchContext {
            genesis_time: GENESIS_TIME,
            block_time: BLOCK_TIME,
            chain_id: CHAIN_ID,
        },
        forks: context.forks(),
        genesis_l1: 0,
        body_budget: BODY_BUDGET,
    }
}

/// The batcher's machines.
pub struct SimBatcher {
    state: BatcherState,
    sends: BatcherSends,
}

impl SimBatcher {
    pub fn new(plan: &DerivationPlan, context: &mut SimContext) -> Self {
        let seed: B256 = context.dice.random::<[u8; 32]>().into();
        Self {
            state: BatcherState::new(rules(plan, context), seed),
            sends: BatcherSends::new(context.instant()),
        }
    }

    /// Does the work that is due. `chain` is that of the sequencer's node, which has derived up to
    /// the L1 block `current_l1`. `None` while the node is down.
    pub fn step(
        &mut self,
        node: usize,
        source: Option<(&NodeChain, u64)>,
        context: &mut SimContext,
    ) {
        if let Some((chain, current_l1)) = source
            && let Some(status) = status(chain, current_l1, context)
        {
            // A status that is behind an earlier one is ignored, as in production.
            let _ = self.state.on_status(&status);
            self.load(chain, context);
        }
        self.publish(node, context);
        self.sends.tick(context);
        self.report(node, context);
    }

    /// Loads the blocks that are wanted.
    fn load(&mut self, chain: &NodeChain, context: &SimContext) {
        let mut after = None;
        while let Some(number) = self.state.wanted(after, u64::MAX) {
            let Some(block) = chain.at(number) else {
                return;
            };
            let is_emptied =
                context.has_bug(PlantedBug::BatchWithoutTransactions) && number.is_multiple_of(10);
            let block = if is_emptied {
                without_transactions(&block)
            } else {
                block
            };
            if self.state.on_block(block) == Insertion::Reorg {
                return self.state.on_reorg();
            }
            after = Some(number);
        }
    }

    /// Hands the frames that are ready to the transaction manager.
    fn publish(&mut self, node: usize, context: &mut SimContext) {
        let mut publish = PublishContext {
            l1_head: SimL1::head(context.now),
            is_loading: false,
            close_through: None,
            canonical: None,
        };
        while context.l1.reachable && self.sends.pending() < IN_FLIGHT {
            match self.state.next_tx(&publish) {
                NextTx::Send(tx) => {
                    let text = format_args!("posts frame {:?} of {}", tx.range, tx.channel);
                    context.history.note(context.now, node, text);
                    let data = tx.items.into_iter().next().unwrap_or_default();
                    self.sends.submit(tx.number, data, context);
                }
                NextTx::NeedsOrigin(origin) => publish.canonical = Some(origin),
                NextTx::NeedsClass => self.state.set_class(TxClass::Calldata),
                NextTx::Nothing => break,
            }
        }
    }

    /// Reports the outcomes of transactions, and what the machines say about themselves.
    fn report(&mut self, node: usize, context: &mut SimContext) {
        for (number, outcome) in self.sends.take_outcomes(node, context) {
            match outcome {
                Some(l1_block) => self.state.on_confirmed(number, l1_block),
                None => self.state.on_failed(number),
            }
        }
        for notice in self.state.take_notices() {
            match notice {
                BatcherNotice::Cleared(cause) => {
                    let text = format_args!("posts again: {cause}");
                    context.history.note(context.now, node, text);
                }
                BatcherNotice::NotEncoded(error) => {
                    let detail = format!("a block is not encoded: {error}");
                    context.checks.fail(context.now, node, "batcher", detail);
                }
                _ => {}
            }
        }
    }
}

/// The status that the sequencer's node reports.
fn status(chain: &NodeChain, current_l1: u64, context: &SimContext) -> Option<SourceStatus> {
    let config = &context.rollup.as_ref()?.config;
    let heads = chain.heads();
    let read = |id: BlockId| L2BlockRef::of(&*chain.get(&id.hash)?, &config.genesis).ok();
    let is_confused = context.has_bug(PlantedBug::SafeHeadConfused);
    let safe = if is_confused { heads.head } else { heads.safe };
    Some(SourceStatus {
        current_l1,
        local_safe_l2: read(safe)?,
        unsafe_l2: read(heads.head)?,
    })
}
