//! Commands of the RPC, and the stop.

use super::{BatcherPhase, BatcherTask};
use crate::batcher::handle::{BatcherCommand, BatcherCommandError, CommandReply};
use std::mem;

/// A stop that is not done.
pub(super) struct StopOrder {
    /// The stop is done when L1 has confirmed all blocks up to this one.
    pub through: u64,
    replies: Vec<CommandReply>,
}

impl BatcherTask {
    /// Handles a command. A process that is ending does not start again.
    pub(super) fn on_command(&mut self, command: BatcherCommand, is_closing: bool) {
        let is_stopped = self.phase == BatcherPhase::Stopped;
        // A caller may have gone.
        match command {
            BatcherCommand::Start(reply) if is_stopped && !is_closing => {
                self.run_switch.set(true);
                self.start();
                let _ = reply.send(Ok(()));
            }
            BatcherCommand::Start(reply) => {
                let _ = reply.send(Err(BatcherCommandError::Running));
            }
            BatcherCommand::Stop(reply) if !is_stopped && self.stop.is_none() => {
                self.run_switch.set(false);
                self.begin_stop(Some(reply));
            }
            BatcherCommand::Flush(reply) if !is_stopped && self.stop.is_none() => {
                tracing::info!("Flushing Batch Submitter");
                let newest = self.state_mut().map(|state| state.newest());
                self.flush_through = self.flush_through.max(newest);
                self.may_publish = true;
                let _ = reply.send(Ok(()));
            }
            BatcherCommand::Stop(reply) | BatcherCommand::Flush(reply) => {
                let _ = reply.send(Err(BatcherCommandError::NotRunning));
            }
        }
    }

    /// Ends loading; what is loaded is posted.
    pub(super) fn begin_stop(&mut self, reply: Option<CommandReply>) {
        if self.phase == BatcherPhase::Stopped || self.stop.is_some() {
            return;
        }
        // Blocks that a reorg dropped are loaded and posted again first.
        let through = self.state_mut().map_or(0, |state| state.loaded_through());
        tracing::info!(through, "Stopping Batch Submitter");
        self.stop = Some(StopOrder {
            through,
            replies: reply.into_iter().collect(),
        });
        self.forget_fetches();
        self.may_publish = true;
    }

    /// Ends the stop if everything is posted.
    pub(super) fn finish_stop(&mut self) {
        let (Some(stop), Some(state)) = (&self.stop, &self.state) else {
            return;
        };
        let is_posted = match self.phase {
            BatcherPhase::Running => state.is_posted_through(stop.through),
            // Otherwise loading goes on up to there.
            BatcherPhase::Syncing(_) => stop.through == 0,
            BatcherPhase::Stopped => true,
        };
        if !is_posted || self.in_flight > 0 {
            return;
        }
        self.phase = BatcherPhase::Stopped;
        self.flush_through = None;
        self.forget_fetches();
        tracing::info!("Batch Submitter stopped");
        let replies = self.stop.as_mut().map(|stop| mem::take(&mut stop.replies));
        self.stop = None;
        for reply in replies.into_iter().flatten() {
            let _ = reply.send(Ok(()));
        }
    }

    /// Logs the blocks that are not posted when the batcher ends without waiting.
    pub(super) fn log_unposted(&self) {
        if self.phase == BatcherPhase::Stopped {
            return;
        }
        let unposted = self.state.as_ref().and_then(|state| state.unposted());
        if let Some((first, last)) = unposted {
            let safe = self.safe.map_or(0, |safe| safe.id.number);
            let first = first.max(safe + 1);
            let in_flight = self.in_flight;
            tracing::warn!(
                first,
                last,
                in_flight,
                "Batch Submitter ended before these L2 blocks were confirmed on L1; they are posted after the next start"
            );
        }
    }
}
