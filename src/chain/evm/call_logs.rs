//! Records the logs of simulated calls, and on request transfers of value as if they were logs
//! (`traceTransfers` of `eth_simulateV1`).
//!
//! The numbering of logs also counts the logs of reverted inner calls, as geth's does.

use alloy_primitives::{Address, B256, Log, U256, address, b256};

/// Address of the logs that represent transfers of value (ERC-7528).
const TRANSFER_ADDRESS: Address = address!("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
/// `Transfer(address,address,uint256)`, the event of ERC-20.
const TRANSFER_TOPIC: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A log with its index in its block. Logs of reverted calls are counted too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedLog {
    pub number: usize,
    pub log: Log,
}

/// The logs of a transaction so far, by call frame.
#[derive(Clone, Debug, Default)]
pub(super) struct CallLogs {
    /// Whether transfers of value are recorded as logs.
    transfers: bool,
    /// Index in its block of the next log.
    next: usize,
    frames: Vec<Vec<NumberedLog>>,
    /// The logs of the outermost frame, once that frame has ended.
    ended: Vec<NumberedLog>,
}

impl CallLogs {
    pub(super) fn new(transfers: bool) -> Self {
        Self {
            transfers,
            ..Self::default()
        }
    }

    /// Takes the logs of the transaction that has ended; none if it failed.
    pub(super) fn take(&mut self) -> Vec<NumberedLog> {
        self.frames.clear();
        std::mem::take(&mut self.ended)
    }

    pub(super) fn enter(&mut self) {
        self.frames.push(Vec::new());
    }

    /// Ends the innermost frame. If the frame failed, its logs are dropped.
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
