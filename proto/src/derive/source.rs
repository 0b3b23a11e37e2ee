//! The front of the pipeline: L1 traversal, retrieval of batcher data, frames, channels and their
//! batches. Each part pulls from the part before it.

use super::{
    BlobRef, DropReason, InboxTransaction, L1Input, Need, PushError, RelevantLogs,
    channels::{BankRead, ChannelMux},
    frames::FrameQueue,
    stage::{Pause, Pull, StageContext},
};
use crate::{
    attributes::L1Block,
    batch::Batch,
    blob,
    channel::{BatchReader, ChannelData, MAX_RLP_BYTES_FJORD},
    fork::Fork,
    frame::Frame,
    system_config::SystemConfig,
};
use alloy_primitives::{Address, Bytes};
use std::collections::VecDeque;

/// All stages from an L1 block to a batch.
#[derive(Debug)]
pub(super) struct BatchSource {
    /// The L1 block that is being read: the origin of the whole pipeline.
    origin: L1Block,
    /// Logs of the origin. The batch stage takes them once.
    logs: RelevantLogs,
    /// The system configuration as of the origin; only the batcher address is used.
    config: SystemConfig,
    data: VecDeque<DataItem>,
    /// Blobs among `data` that are still to be fetched.
    wanted: Vec<BlobRef>,
    frames: FrameQueue,
    channels: ChannelMux,
    reader: Option<BatchReader>,
}

/// A piece of the batcher's data in the origin.
#[derive(Debug)]
enum DataItem {
    Bytes(Bytes),
    /// A blob that is still to be fetched.
    Blob,
}

impl BatchSource {
    /// Starts at L1 block `base`. `config` already includes the effects of that block's logs.
    pub fn new(cx: &mut StageContext, base: L1Input, config: SystemConfig) -> Self {
        let holocene = cx.rollup.l1_active(Fork::Holocene, &base.block);
        let mut source = Self {
            origin: base.block,
            logs: base.logs,
            config,
            data: VecDeque::new(),
            wanted: Vec::new(),
            frames: FrameQueue::default(),
            channels: ChannelMux::new(holocene),
            reader: None,
        };
        source.open(cx, base.inbox);
        source
    }

    pub fn batcher(&self) -> Address {
        self.config.batcher_addr
    }

    pub fn origin(&self) -> &L1Block {
        &self.origin
    }

    /// Takes the logs of the origin; empty after the first call.
    pub fn take_logs(&mut self) -> RelevantLogs {
        std::mem::take(&mut self.logs)
    }

    /// Moves on to the child of the origin, after all frames of the origin are taken. The first L1
    /// block in Holocene drops open channels. If several forks activate in that block, op-node
    /// handles only the lowest of them and may keep the pre-Holocene stages; we do not.
    pub fn advance(&mut self, cx: &mut StageContext, next: L1Input) {
        let rollup = &cx.rollup;
        let enters_holocene =
            rollup
                .forks
                .activates(Fork::Holocene, self.origin.time, next.block.time);
        let ecotone = rollup.l1_active(Fork::Ecotone, &next.block);
        for log in next.logs.config_logs(rollup) {
            if self.config.apply_log(log, ecotone).is_err() {
                cx.drops.add(DropReason::ConfigLog);
            }
        }
        self.origin = next.block;
        self.logs = next.logs;
        if enters_holocene {
            self.channels = ChannelMux::new(true);
        }
        self.open(cx, next.inbox);
    }

    /// Selects the batcher's transactions. From Ecotone on, a blob transaction contributes its
    /// blobs and not its calldata.
    fn open(&mut self, cx: &mut StageContext, inbox: Vec<InboxTransaction>) {
        let ecotone = cx.rollup.l1_active(Fork::Ecotone, &self.origin);
        for transaction in inbox {
            if transaction.sender != self.config.batcher_addr {
                cx.drops.add(DropReason::Sender);
            } else if ecotone && !transaction.blobs.is_empty() {
                let blobs = transaction.blobs.iter().map(|_| DataItem::Blob);
                self.data.extend(blobs);
                self.wanted.extend(transaction.blobs);
            } else {
                self.data.push_back(DataItem::Bytes(transaction.calldata));
            }
        }
    }

    /// Receives the blobs that [`Need::Blobs`] requested.
    pub fn push_blobs(&mut self, cx: &mut StageContext, blobs: &[Bytes]) -> Result<(), PushError> {
        if blobs.len() != self.wanted.len() {
            return Err(PushError::Other {
                wanted: format!("{} blobs", self.wanted.len()),
                got: blobs.len().to_string(),
            });
        }
        self.wanted.clear();
        let mut blobs = blobs.iter();
        for item in std::mem::take(&mut self.data) {
            match item {
                DataItem::Bytes(_) => self.data.push_back(item),
                DataItem::Blob => match blobs.next().map(|blob| blob::decode(blob)) {
                    Some(Ok(data)) => self.data.push_back(DataItem::Bytes(data)),
                    _ => cx.drops.add(DropReason::Blob),
                },
            }
        }
        Ok(())
    }

    /// Whether blobs of the origin are still to be fetched ([`Need::Blobs`]).
    pub fn wants_blobs(&self) -> bool {
        !self.wanted.is_empty()
    }

    fn next_frame(&mut self, cx: &mut StageContext) -> Pull<Frame> {
        if let Some(frame) = self.frames.pop() {
            return Ok(frame);
        }
        if self.wants_blobs() {
            return Err(Need::Blobs {
                block: self.origin,
                blobs: self.wanted.clone(),
            }
            .into());
        }
        let Some(DataItem::Bytes(item)) = self.data.pop_front() else {
            return Err(Pause::End);
        };
        let holocene = cx.rollup.l1_active(Fork::Holocene, &self.origin);
        self.frames.load(&item, holocene, &mut cx.drops);
        self.frames.pop().ok_or(Pause::More)
    }

    /// Returns the data of the next complete channel. A call consumes at most one frame.
    fn next_channel(&mut self, cx: &mut StageContext) -> Pull<ChannelData> {
        let (origin, rollup) = (self.origin, cx.rollup.clone());
        let timeout = rollup.channel_timeout_at(origin.time);
        match &mut self.channels {
            ChannelMux::Bank(bank) => {
                let canyon = rollup.l1_active(Fork::Canyon, &origin);
                match bank.read(origin.number, timeout, canyon, &mut cx.drops) {
                    BankRead::Channel(data) => {
                        cx.reads.head_channels += 1;
                        return Ok(data);
                    }
                    BankRead::TimedOut => return Err(Pause::More),
                    BankRead::Nothing => {}
                }
            }
            ChannelMux::Assembler(assembler) => {
                assembler.expire(origin.number, timeout, &mut cx.drops);
            }
        }
        let frame = self.next_frame(cx)?;
        cx.reads.frames += 1;
        match &mut self.channels {
            ChannelMux::Bank(bank) => {
                let limit = rollup.channel_bank_limit(&origin);
                cx.reads.head_channels += u64::from(bank.is_empty());
                bank.ingest(&frame, origin.number, timeout, limit, &mut cx.drops);
                Err(Pause::More)
            }
            ChannelMux::Assembler(assembler) => {
                cx.reads.head_channels += u64::from(frame.number == 0);
                // The limit MAX_RLP_BYTES_PER_CHANNEL applies to compressed bytes here, too. The
                // assembler is only used from Holocene on, so Fjord's value always applies.
                assembler
                    .ingest(&frame, origin.number, MAX_RLP_BYTES_FJORD, &mut cx.drops)
                    .ok_or(Pause::More)
            }
        }
    }

    /// Returns the next batch that decodes.
    pub fn next_batch(&mut self, cx: &mut StageContext) -> Pull<Batch> {
        let Some(reader) = &mut self.reader else {
            let data = self.next_channel(cx)?;
            let fjord = cx.rollup.l1_active(Fork::Fjord, &self.origin);
            let bytes = data.len() as u64;
            self.reader = BatchReader::new(data, cx.rollup.batch_context(), fjord).ok();
            if self.reader.is_some() {
                cx.reads.channel_bytes += bytes;
            } else {
                cx.drops.add(DropReason::Channel);
            }
            return Err(Pause::More);
        };
        match reader.next_batch() {
            Some(Ok(Batch::Span(_))) if !cx.rollup.l1_active(Fork::Delta, &self.origin) => {
                cx.drops.add(DropReason::SpanBeforeDelta);
            }
            Some(Ok(batch)) => {
                match batch {
                    Batch::Singular(_) => cx.reads.singular_batches += 1,
                    Batch::Span(_) => cx.reads.span_batches += 1,
                }
                return Ok(batch);
            }
            Some(Err(error)) if error.skips_only_this_batch() => {
                cx.drops.add(DropReason::BatchFormat)
            }
            Some(Err(_)) => {
                cx.drops.add(DropReason::Channel);
                self.reader = None;
            }
            None => self.reader = None,
        }
        Err(Pause::More)
    }

    /// Drops the channel that is being read (Holocene). There is no partly received channel to
    /// drop, because frames are taken only while no channel is being read.
    pub fn flush(&mut self, cx: &mut StageContext) {
        let dropped = self.reader.take().is_some();
        cx.drops
            .add_many(DropReason::ChannelFlushed, dropped.into());
    }
}
