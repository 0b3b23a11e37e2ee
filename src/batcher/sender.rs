//! Whether the key's account is the batcher that SystemConfig names on L1. Pure.
//!
//! L2 ignores batches of every other account, so posting them would cost ether for nothing. Posting
//! is held while L1's last response names another account. A read that fails holds nothing, since
//! an endpoint may be unable to tell. The owner of the contract may change the address at any time,
//! so it is read again with each L1 block.

use alloy_primitives::Address;

/// Relation of the key's account to SystemConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStanding {
    /// The first read has not ended.
    Unread,
    /// L1 has not named the batcher yet.
    Unknown,
    /// The account is the batcher.
    Own,
    /// The batcher is this other account.
    Foreign(Address),
}

/// Reads of the batcher's address, and their result.
#[derive(Debug)]
pub struct SenderCheck {
    account: Address,
    standing: KeyStanding,
    /// Number of L1's newest block when the read in flight began; `None` if there is none.
    reading: Option<u64>,
    /// Number of L1's newest block when the last successful read began.
    read_at: Option<u64>,
}

impl SenderCheck {
    /// A check of this account, without a read so far.
    pub fn new(account: Address) -> Self {
        Self {
            account,
            standing: KeyStanding::Unread,
            reading: None,
            read_at: None,
        }
    }

    /// Whether to read the address now that `l1_head` is L1's newest block; if so, the read begins.
    pub fn begins(&mut self, l1_head: u64) -> bool {
        let is_due = self.reading.is_none() && self.read_at != Some(l1_head);
        if is_due {
            self.reading = Some(l1_head);
        }
        is_due
    }

    /// Ends a read that failed.
    pub fn on_failure(&mut self) {
        self.reading = None;
        if self.standing == KeyStanding::Unread {
            self.standing = KeyStanding::Unknown;
        }
    }

    /// Ends a read: SystemConfig names `batcher`. Returns the standing before.
    pub fn on_read(&mut self, batcher: Address) -> KeyStanding {
        self.read_at = self.reading.take();
        let standing = if batcher == self.account {
            KeyStanding::Own
        } else {
            KeyStanding::Foreign(batcher)
        };
        std::mem::replace(&mut self.standing, standing)
    }

    /// Relation of the account to SystemConfig, by the last read.
    pub fn standing(&self) -> KeyStanding {
        self.standing
    }

    /// Whether data may be handed to the transaction manager.
    pub fn may_post(&self) -> bool {
        matches!(self.standing, KeyStanding::Unknown | KeyStanding::Own)
    }

    /// Whether another account is the batcher.
    pub fn is_foreign(&self) -> bool {
        matches!(self.standing, KeyStanding::Foreign(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Address = Address::repeat_byte(1);
    const OTHER: Address = Address::repeat_byte(2);

    #[test]
    fn the_address_is_read_once_for_each_l1_block() {
        let mut check = SenderCheck::new(OWN);
        assert!(check.begins(5) && !check.begins(5) && !check.begins(6));
        check.on_read(OWN);
        assert!(!check.begins(5));
        assert!(check.begins(6));
        check.on_failure();
        assert!(check.begins(6), "a failure is no answer");
    }

    #[test]
    fn posting_is_held_while_the_last_answer_names_another_account() {
        let mut check = SenderCheck::new(OWN);
        assert!(!check.may_post(), "before the first read has ended");
        check.on_failure();
        assert!(check.may_post(), "L1 cannot tell");
        assert_eq!(check.on_read(OTHER), KeyStanding::Unknown);
        assert!(!check.may_post() && check.is_foreign());
        check.on_failure();
        assert!(!check.may_post(), "the last answer holds");
        assert_eq!(check.on_read(OWN), KeyStanding::Foreign(OTHER));
        assert!(check.may_post());
        check.on_failure();
        assert!(check.may_post());
    }
}
