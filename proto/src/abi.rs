//! The part of Solidity's ABI that L1 logs and L1 attributes use: big-endian words of 32 bytes,
//! read strictly.

use alloy_primitives::{Address, B256, U256};
use thiserror::Error;

/// A mismatch between ABI data and the expected layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum AbiError {
    #[error("{len} bytes end before word {index}")]
    Short { len: usize, index: usize },
    #[error("word {index} does not fit its type")]
    Padding { index: usize },
}

/// Reads 32-byte words by their index.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub &'a [u8]);

impl Words<'_> {
    pub fn b256(self, index: usize) -> Result<B256, AbiError> {
        let start = index.saturating_mul(32);
        let word = self.0.get(start..start.saturating_add(32));
        word.map(B256::from_slice).ok_or(AbiError::Short {
            len: self.0.len(),
            index,
        })
    }

    pub fn u256(self, index: usize) -> Result<U256, AbiError> {
        Ok(self.b256(index)?.into())
    }

    pub fn u64(self, index: usize) -> Result<u64, AbiError> {
        self.u256(index)?
            .try_into()
            .map_err(|_| AbiError::Padding { index })
    }

    pub fn u16(self, index: usize) -> Result<u16, AbiError> {
        self.u256(index)?
            .try_into()
            .map_err(|_| AbiError::Padding { index })
    }

    pub fn address(self, index: usize) -> Result<Address, AbiError> {
        let word = self.b256(index)?;
        if word[..12] != [0; 12] {
            return Err(AbiError::Padding { index });
        }
        Ok(Address::from_word(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_word_and_a_wide_value_are_errors() {
        let words = Words(&[0xff; 63]);
        assert_eq!(words.u64(0), Err(AbiError::Padding { index: 0 }));
        assert_eq!(words.u16(0), Err(AbiError::Padding { index: 0 }));
        assert_eq!(words.address(0), Err(AbiError::Padding { index: 0 }));
        assert_eq!(words.u256(0), Ok(U256::MAX));
        assert_eq!(words.u256(1), Err(AbiError::Short { len: 63, index: 1 }));
        assert_eq!(
            words.u256(usize::MAX),
            Err(AbiError::Short {
                len: 63,
                index: usize::MAX
            })
        );
    }
}
