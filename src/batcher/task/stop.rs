//! RPC commands, and stopping the batcher.

use super::{BatcherPhase, BatcherTask};
use crate::batcher::handle::{BatcherCommand, BatcherCommandError, CommandReply};
use std::mem;

/// A stop in progress.
pub(super) struct StopOrder {
    /// Number of the block up to which L1 must confirm all blocks before the stop is done.
    pub through: u64,
    replies: Vec<CommandReply>,
}

impl BatcherTask {
    /// Executes a command. While the process is closing (`is_closing`), start commands are refused.
    pub(super) fn on_command(&mut self, command: BatcherCommand, is_closing: bool) {
        let is_stopped = self.phase == BatcherPhase::Stopped;
        // Ignore failed replies: the caller may have gone.
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

    /// Ends loading. The blocks that are already loaded are still posted.
    pub(super) fn begin_stop(&mut self, reply: Option<CommandReply>) {
        if self.phase == BatcherPhase::Stopped || self.stop.is_some() {
            return;
        }
        // Includes blocks that a reorg dropped: they are loaded again and posted before the stop is
        // done.
        let through = self.state_mut().map_or(0, |state| state.loaded_through());
        tracing::info!(through, "Stopping Batch Submitter");
        self.stop = Some(StopOrder {
            through,
            replies: reply.into_iter().collect(),
        });
        self.forget_fetches();
        self.may_publish = true;
    }

    /// Completes the stop if everything is posted, or nothing more can be: L2 ignores batches of an
    /// account that is not the batcher.
    pub(super) fn finish_stop(&mut self) {
        let (Some(stop), Some(state)) = (&self.stop, &self.state) else {
            return;
        };
        let is_done = match self.phase {
            _ if self.sender.is_foreign() => true,
            BatcherPhase::Running => state.is_posted_through(stop.through),
            // With blocks to post, loading must first continue up to `through`.
            BatcherPhase::Syncing(_) => stop.through == 0,
            BatcherPhase::Stopped => true,
        };
        if !is_done || self.in_flight > 0 {
            return;
        }
        if self.sender.is_foreign() {
            self.log_unposted();
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

    /// Logs the blocks that are not posted when the batcher ends without waiting for L1.
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
