//! Checks at L1 before data is posted: data that L2 would ignore costs ether for nothing. The loop
//! of [`BatcherTask`] calls these functions; one request per L1 block.

use super::{BatcherEvent, BatcherPhase, BatcherTask, publish::ORIGIN_GONE};
use crate::{
    batcher::sender::KeyStanding,
    rollup::l1::{L1Client, L1Error, RpcCause},
};
use alloy_primitives::{Address, B256, U64};
use futures::FutureExt;
use serde::Deserialize;
use serde_json::json;
use starling_proto::payload::BlockId;
use std::time::Instant;

// Warning messages. Each one is also logged when its cause is over.
const NO_SENDER: &str =
    "L1 does not say the batcher of SystemConfig, so the key was not checked against it";
const NOT_BATCHER: &str = "the key's account is not the batcher of SystemConfig: L2 ignores its batches, so nothing is posted \
     until SystemConfig names it; give the key of the batcher";

/// Hash of L1's block of this number; `None` if there is none.
async fn hash_at(l1: &L1Client, number: u64) -> Result<Option<B256>, L1Error> {
    #[derive(Deserialize)]
    struct HashJson {
        hash: B256,
    }
    let params = json!([U64::from(number), false]);
    let block: Option<HashJson> = l1.plain_call("eth_getBlockByNumber", params).await?;
    Ok(block.map(|block| block.hash))
}

impl BatcherTask {
    /// Requests the batcher address from the SystemConfig contract, once for each L1 block.
    pub(super) fn read_sender(&mut self) {
        if !self.sender.begins(self.l1_head) {
            return;
        }
        let (l1, contract) = (self.l1.clone(), self.rollup.l1_system_config_address);
        let read = async move { BatcherEvent::Sender(l1.batcher_of(contract).await) };
        self.events.push(read.boxed());
    }

    pub(super) fn on_sender(&mut self, batcher: Result<Address, L1Error>) {
        let could_post = self.sender.may_post();
        match batcher {
            Ok(batcher) => {
                let before = self.sender.on_read(batcher);
                self.note_success(NO_SENDER);
                self.note_standing(before);
            }
            Err(error) => {
                self.sender.on_failure();
                // If L1 is unreachable, the poll reports that.
                if matches!(
                    error.cause,
                    RpcCause::Refused { .. } | RpcCause::Malformed(_)
                ) {
                    self.warn(NO_SENDER, error.to_string());
                }
            }
        }
        self.may_publish |= !could_post;
    }

    /// Requests the hash that L1 has at the height of a channel's L1 origin. After a reorg of L1 the
    /// execution client may serve blocks of the old chain until the rollup node has rewound it.
    pub(super) fn read_origin(&mut self, origin: BlockId) {
        self.is_reading_l1 = true;
        let l1 = self.l1.clone();
        let read = async move {
            let hash = hash_at(&l1, origin.number).await;
            BatcherEvent::Origin(origin, hash)
        };
        self.events.push(read.boxed());
    }

    /// Drops all blocks if L1 has another block at the height of this L1 origin. Otherwise posting
    /// goes on: the endpoint may be behind or away.
    pub(super) fn on_origin(&mut self, origin: BlockId, hash: Result<Option<B256>, L1Error>) {
        self.is_reading_l1 = false;
        let is_gone = hash.is_ok_and(|hash| hash.is_some_and(|hash| hash != origin.hash));
        if !is_gone {
            self.canonical = Some(origin);
            return self.note_success(ORIGIN_GONE);
        }
        // A batcher that was stopped meanwhile stays stopped.
        if self.phase == BatcherPhase::Running
            && let Some(state) = self.state_mut()
        {
            state.on_origin_gone(origin);
            self.note_changes();
        }
    }

    /// Logs whether the key's account is the batcher, if that has changed or is to be repeated.
    fn note_standing(&mut self, before: KeyStanding) {
        let (account, now) = (self.txs.address(), Instant::now());
        let standing = self.sender.standing();
        match standing {
            KeyStanding::Foreign(batcher) => {
                let is_due = self.causes.note_failure(NOT_BATCHER, "", now);
                if is_due || standing != before {
                    tracing::error!(%account, %batcher, "{NOT_BATCHER}");
                }
            }
            KeyStanding::Own => {
                self.causes.note_success(NOT_BATCHER, now);
                if matches!(before, KeyStanding::Foreign(_)) {
                    tracing::info!(%account, "SystemConfig names the key's account as batcher: posting resumes");
                }
            }
            KeyStanding::Unread | KeyStanding::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests;
