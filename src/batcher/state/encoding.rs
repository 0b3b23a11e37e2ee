//! Encodes blocks into the open channel, and closes the channel when it is due.

use super::{BatcherNotice, BatcherState, ClosedChannel, PublishContext};
use crate::{batcher::channels::QueuedChannel, txmgr::fees::TxClass};
use alloy_primitives::keccak256;
use starling_proto::{
    encoder::{ChannelDeadline, CloseReason, EncoderError},
    fork::Fork,
    frame::ChannelId,
    payload::Payload,
};

impl BatcherState {
    /// Adds blocks to channels until one closes or no body is left. Then closes the open channel if
    /// it is due.
    pub(super) fn encode(&mut self, context: &PublishContext) {
        let filled = self.fill();
        let closed = self.close_in_time(context);
        for error in [filled, closed].into_iter().filter_map(Result::err) {
            let is_open = self
                .channels
                .back()
                .is_some_and(|last| last.closed().is_none());
            if is_open && matches!(error, EncoderError::Write(_)) {
                self.drop_channels(self.channels.len() - 1);
            }
            self.notices.push(BatcherNotice::NotEncoded(error));
        }
    }

    fn fill(&mut self) -> Result<(), EncoderError> {
        loop {
            let number = self.next_block();
            let Some(time) = self.held.body(number).map(Payload::timestamp) else {
                return Ok(());
            };
            if self
                .channels
                .back()
                .is_none_or(|last| last.closed().is_some())
            {
                let channel = self.open(time)?;
                self.channels.push_back(channel);
            }
            let (Some(body), Some(channel)) = (self.held.body(number), self.channels.back_mut())
            else {
                return Ok(());
            };
            let added = channel.add(body);
            if channel.span().is_none() {
                self.channels.pop_back();
                return added;
            }
            added?;
            if self.next_block() > number {
                self.held.drop_body(number);
            }
            if self.note_closed() {
                return Ok(());
            }
        }
    }

    fn open(&mut self, timestamp: u64) -> Result<QueuedChannel, EncoderError> {
        let rules = &self.rules;
        let plan = match self.class {
            TxClass::Calldata => &rules.calldata,
            TxClass::Blob => &rules.blobs,
        };
        self.channels_made += 1;
        let name = keccak256([&self.seed[..], &self.channels_made.to_be_bytes()].concat());
        let id = ChannelId::from_slice(&name[..16]);
        let fjord = rules.forks.is_active(Fork::Fjord, timestamp);
        let deadline = ChannelDeadline::new(rules.times, self.last_origin);
        let channel = QueuedChannel::new(id, plan, rules.context, fjord, deadline)?;
        let class = self.class;
        self.notices
            .push(BatcherNotice::ChannelOpened { id, class });
        Ok(channel)
    }

    /// Closes the open channel if its deadline has come or a flush or stop waits for its blocks.
    fn close_in_time(&mut self, context: &PublishContext) -> Result<(), EncoderError> {
        let next = self.next_block();
        let Some(channel) = self.channels.back_mut() else {
            return Ok(());
        };
        let Some(span) = channel.span().filter(|_| channel.closed().is_none()) else {
            return Ok(());
        };
        if !context.is_loading {
            channel.close_if_due(context.l1_head)?;
        }
        let is_awaited = |through: u64| next > through && span.first.id.number <= through;
        if channel.closed().is_none() && context.close_through.is_some_and(is_awaited) {
            channel.close(CloseReason::Terminated)?;
        }
        self.note_closed();
        Ok(())
    }

    /// Adds a notice if the newest channel is closed, and returns whether it is.
    fn note_closed(&mut self) -> bool {
        let Some(channel) = self.channels.back() else {
            return false;
        };
        let Some(reason) = channel.closed() else {
            return false;
        };
        self.notices
            .push(BatcherNotice::ChannelClosed(ClosedChannel {
                id: channel.id(),
                class: channel.class(),
                reason,
                span: channel.span(),
                sizes: channel.sizes(),
            }));
        true
    }
}
