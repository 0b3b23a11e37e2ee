//! Recording of the logs of simulated calls, also of transfers of value as if they were logs
//! (`traceTransfers` of `eth_simulateV1`).
//!
//! The numbers of logs count those of reverted inner calls too, as geth's do.

use alloy_primitives::{Address, B256, Log, U256, address, b256};

/// Sender of the logs that stand for transfers of value (ERC-7528).
const TRANSFER_ADDRESS: Address = address!("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
/// `Transfer(address,address,uint256)`, the event of ERC-20.
const TRANSFER_TOPIC: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A log with its number in its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedLog {
    pub number: usize,
    pub log: Log,
}

/// The logs of a transaction so far, by call frame.
#[derive(Clone, Debug, Default)]
pub(super) struct CallLogs {
    /// Whether transfers of value are recorded.
    transfers: bool,
    /// Number of the next log in its block.
    next: usize,
    frames: Vec<Vec<NumberedLog>>,
    /// The logs of the outermost frame, once it has ended.
    ended: Vec<NumberedLog>,
}

impl CallLogs {
    pub(super) fn new(transfers: bool) -> Self {
        Self {
            transfers,
            ..Self::default()
        }
    }

    /// The logs of the transaction that has ended; none if it failed.
    pub(super) fn take(&mut self) -> Vec<NumberedLog> {
        self.frames.clear();
        std::mem::take(&mut self.ended)
    }

    pub(super) fn enter(&mut self) {
        self.frames.push(Vec::new());
    }

    /// Ends the innermost frame; the logs of a failed one are dropped.
    pub(super) fn exit(&mut self, success: bool) {
        let logs = self.frames.pop().unwrap_or_default();
        if success {
            self.frames
                .last_mut()
                .unwrap_or(&mut self.ended)
                .extend(logs);
        }
    }

    pub(super) fn log(&mut self, log: Log) {
        let number = self.next;
        self.next += 1;
        if let Some(frame) = self.frames.last_mut() {
            frame.push(NumberedLog { number, log });
        }
    }

    pub(super) fn transfer(&mut self, from: Address, to: Address, value: U256) {
        if self.transfers && !value.is_zero() {
            let topics = vec![TRANSFER_TOPIC, from.into_word(), to.into_word()];
            let data = B256::from(value).into();
            self.log(Log::new_unchecked(TRANSFER_ADDRESS, topics, data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_the_logs_of_reverted_calls_and_transfers_are_logs_on_request() {
        let (from, to) = (Address::with_last_byte(1), Address::with_last_byte(2));
        let mut logs = CallLogs::new(true);
        logs.enter();
        logs.transfer(from, to, U256::from(5));
        logs.transfer(from, to, U256::ZERO);
        logs.enter();
        logs.log(Log::default());
        logs.exit(false);
        logs.log(Log::default());
        logs.exit(true);
        let taken = logs.take();
        let numbers: Vec<usize> = taken.iter().map(|log| log.number).collect();
        assert_eq!(numbers, [0, 2]);
        assert_eq!(taken[0].log.address, TRANSFER_ADDRESS);
        assert_eq!(taken[0].log.topics()[2], to.into_word());
        logs.enter();
        logs.log(Log::default());
        logs.exit(false);
        assert_eq!(logs.take(), []);
        let mut quiet = CallLogs::new(false);
        quiet.enter();
        quiet.transfer(from, to, U256::from(5));
        quiet.exit(true);
        assert_eq!(quiet.take(), []);
    }
}
