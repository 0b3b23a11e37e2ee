//! Messages for wallets: geth's wording of revm's errors.

use alloy_primitives::U256;
use revm::context_interface::result::{HaltReason, OutOfGasError};

/// Selector of Solidity's `Error(string)`.
const ERROR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// Selector of Solidity's `Panic(uint256)`.
const PANIC: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

/// geth's message for a revert: `execution reverted`, followed by the reason if the output is
/// Solidity's `Error` or `Panic`.
pub fn revert_text(output: &[u8]) -> String {
    match revert_reason(output) {
        Some(reason) => format!("execution reverted: {reason}"),
        None => "execution reverted".to_owned(),
    }
}

/// The reason in a revert's output; `None` unless the output is Solidity's `Error` or `Panic`.
pub(super) fn revert_reason(output: &[u8]) -> Option<String> {
    let (selector, data) = output.split_first_chunk::<4>()?;
    match *selector {
        ERROR => {
            let word = |at: usize| -> Option<usize> {
                U256::from_be_slice(data.get(at..at.checked_add(32)?)?)
                    .try_into()
                    .ok()
            };
            let start = word(0)?;
            let length = word(start)?;
            let text = start.checked_add(32)?;
            Some(String::from_utf8_lossy(data.get(text..text.checked_add(length)?)?).into_owned())
        }
        PANIC => {
            let code = U256::try_from_be_slice(data.get(..32)?)?;
            Some(match u64::try_from(code) {
                Ok(0x00) => "generic panic".into(),
                Ok(0x01) => "assert(false)".into(),
                Ok(0x11) => "arithmetic underflow or overflow".into(),
                Ok(0x12) => "division or modulo by zero".into(),
                Ok(0x21) => "enum overflow".into(),
                Ok(0x22) => "invalid encoded storage byte array accessed".into(),
                Ok(0x31) => "out-of-bounds array access; popping on an empty array".into(),
                Ok(0x32) => "out-of-bounds access of an array or bytesN".into(),
                Ok(0x41) => "out of memory".into(),
                Ok(0x51) => "uninitialized function".into(),
                _ => format!("unknown panic code: {code:#x}"),
            })
        }
        _ => None,
    }
}

pub(super) fn halt_text(reason: &HaltReason) -> String {
    let text = match reason {
        HaltReason::OutOfGas(OutOfGasError::MemoryLimit | OutOfGasError::InvalidOperand) => {
            "gas uint64 overflow"
        }
        HaltReason::OutOfGas(_) => "out of gas",
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => "invalid opcode",
        HaltReason::InvalidFEOpcode => "invalid opcode: INVALID",
        HaltReason::InvalidJump => "invalid jump destination",
        HaltReason::StackUnderflow => "stack underflow",
        HaltReason::StackOverflow => "stack limit reached 1024",
        HaltReason::OutOfOffset => "return data out of bounds",
        HaltReason::CreateCollision => "contract address collision",
        HaltReason::NonceOverflow => "nonce uint64 overflow",
        HaltReason::CreateContractSizeLimit => "max code size exceeded",
        HaltReason::CreateContractStartingWithEF => "invalid code: must not begin with 0xef",
        HaltReason::CreateInitCodeSizeLimit => "max initcode size exceeded",
        HaltReason::StateChangeDuringStaticCall | HaltReason::CallNotAllowedInsideStatic => {
            "write protection"
        }
        HaltReason::OutOfFunds => "insufficient balance for transfer",
        HaltReason::CallTooDeep => "max call depth exceeded",
        other => return other.to_string(),
    };
    text.to_owned()
}
