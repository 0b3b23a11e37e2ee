//! The blocks that an execution client has above its own head. Pure.
//!
//! A client that was killed reports the newest block whose state is on its disk as its head. op-geth
//! still has later blocks, marks them canonical, and answers VALID for them without executing them,
//! so it stays at that head. It executes them again, with all their ancestors, once a fork choice
//! names one that is not marked. A [`twin`] of the lowest block moves the marks.

use starling_proto::payload::Payload;

/// A search for the highest block that the client has: the steps double upward from its head, then
/// the search bisects.
#[derive(Debug)]
pub(super) struct HeldSearch {
    /// The highest number with a block.
    has: u64,
    /// The lowest number without a block, once one is known.
    lacks: Option<u64>,
    stride: u64,
}

impl HeldSearch {
    /// Searches upward from a number with a block.
    pub(super) fn new(has: u64) -> Self {
        Self {
            has,
            lacks: None,
            stride: 1,
        }
    }

    /// The next number to look for, or the result.
    pub(super) fn next_check(&self) -> Result<u64, u64> {
        match self.lacks {
            None => Ok(self.has.saturating_add(self.stride)),
            Some(lacks) if lacks - self.has > 1 => Ok(self.has + (lacks - self.has) / 2),
            Some(_) => Err(self.has),
        }
    }

    /// Records whether the client has a block of this number.
    pub(super) fn record(&mut self, number: u64, is_there: bool) {
        if is_there {
            self.has = number;
            self.stride = self.stride.saturating_mul(2);
        } else {
            self.lacks = Some(number);
        }
    }
}

/// A block that differs from `block` in its gas limit alone, so that it has the same state, unless
/// one of its transactions reads the gas limit.
pub(super) fn twin(block: &Payload) -> Payload {
    let mut header = block.header.clone();
    header.gas_limit = header.gas_limit.saturating_add(1);
    Payload::sealed(header, block.transactions.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_block_of_the_client_is_found_in_few_steps() {
        for (from, highest) in [(0, 1), (0, 2), (5, 5), (1, 500), (70, 4_096), (3, 100_000)] {
            let (mut search, mut checks) = (HeldSearch::new(from), 0);
            let found = loop {
                match search.next_check() {
                    Ok(number) => search.record(number, number <= highest),
                    Err(found) => break found,
                }
                checks += 1;
            };
            assert_eq!(found, highest);
            assert!(checks <= 40, "{checks} for {highest}");
        }
    }
}
