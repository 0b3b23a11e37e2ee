//! The messages between a script tracer and the process that runs the script, each preceded by its
//! length.
//!
//! The tracer sends a message, and the process ends its work on the message with one reply, for
//! example [`FromScript::Done`] or [`FromScript::Failed`]. Before this reply the process may
//! request reads of the EVM. Only one message is outstanding at a time.

use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Largest message in bytes. A script's result is one message.
pub const MAX_MESSAGE: usize = 32 << 20;
/// Number of words from the top of the stack that are sent with each step.
pub const TOP_WORDS: usize = 16;

/// A message to the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToScript {
    /// Loads a new script, for one transaction.
    Load {
        code: String,
        /// Options as JSON.
        config: String,
        precompiles: Vec<Address>,
    },
    /// The frame to which the following instructions belong.
    Contract(ScriptContract),
    Step(ScriptStep),
    /// The last instruction has failed, with this error.
    Fault(String),
    Enter(ScriptFrame),
    Exit(ScriptExit),
    Result(Box<ScriptTransaction>),
    /// The reply to a [`FromScript::Ask`].
    Reply(Bytes),
}

/// A message from the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromScript {
    Loaded(ScriptHooks),
    Done,
    /// The result of the script as JSON.
    Result(String),
    Failed(String),
    Ask(ScriptQuestion),
}

/// The optional functions that a script has besides `result`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptHooks {
    pub step: bool,
    pub frames: bool,
}

/// A read of the EVM by a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScriptQuestion {
    /// A word of the stack, by its index from the top.
    Stack(usize),
    /// A range of memory as it was before the instruction, with zeros beyond the end of memory.
    Memory {
        offset: usize,
        length: usize,
    },
    Balance(Address),
    Nonce(Address),
    Code(Address),
    Storage {
        address: Address,
        slot: B256,
    },
    /// Whether the account exists, as one byte.
    Exists(Address),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptContract {
    pub caller: Address,
    pub address: Address,
    pub value: U256,
    pub input: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptStep {
    pub pc: usize,
    pub op: u8,
    pub gas: u64,
    pub cost: u64,
    pub depth: usize,
    pub refund: u64,
    pub memory: usize,
    pub stack: usize,
    /// The topmost words of the stack, the top first.
    pub top: Vec<U256>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptFrame {
    pub kind: String,
    pub from: Address,
    pub to: Address,
    pub input: Bytes,
    pub gas: u64,
    pub value: Option<U256>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptExit {
    pub gas_used: u64,
    pub output: Bytes,
    pub error: Option<String>,
}

/// The transaction, as passed to the script's `result` function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptTransaction {
    #[serde(rename = "type")]
    pub kind: String,
    pub from: Address,
    pub to: Address,
    pub input: Bytes,
    pub value: String,
    pub gas: u64,
    pub gas_used: u64,
    pub gas_price: String,
    pub block: u64,
    pub coinbase: Address,
    pub output: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_hash: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_hash: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_index: Option<usize>,
}

/// Writes a message, preceded by its length.
pub fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes()[..], &text].concat())
}

/// Reads messages, and keeps the bytes of an incomplete one between calls.
#[derive(Default)]
pub struct MessageReader {
    bytes: Vec<u8>,
}

impl MessageReader {
    /// Reads the next message; `None` at the end of the stream. Errors of the stream are returned,
    /// including timeouts: the bytes read so far are kept for the next call.
    pub fn read<T: DeserializeOwned>(&mut self, stream: &mut impl Read) -> io::Result<Option<T>> {
        let mut part = [0; 16 << 10];
        loop {
            if let Some(length) = self.bytes.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MAX_MESSAGE {
                    return Err(io::Error::from(io::ErrorKind::FileTooLarge));
                }
                if let Some(text) = self.bytes.get(4..4 + length) {
                    let message = serde_json::from_slice(text)?;
                    self.bytes.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            match stream.read(&mut part)? {
                0 => return Ok(None),
                count => self.bytes.extend_from_slice(&part[..count]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_parts() {
        let step = ToScript::Step(ScriptStep {
            pc: 7,
            top: vec![U256::from(9)],
            ..ScriptStep::default()
        });
        let mut text = Vec::new();
        write_message(&mut text, &step).unwrap();
        write_message(&mut text, &ToScript::Fault("x".to_owned())).unwrap();
        let mut reader = MessageReader::default();
        let (first, rest) = text.split_at(3);
        assert_eq!(reader.read::<ToScript>(&mut &*first).unwrap(), None);
        let mut rest = rest;
        assert_eq!(reader.read(&mut rest).unwrap(), Some(step));
        let fault = reader.read::<ToScript>(&mut rest).unwrap();
        assert_eq!(fault, Some(ToScript::Fault("x".to_owned())));
        assert_eq!(reader.read::<ToScript>(&mut rest).unwrap(), None);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let mut reader = MessageReader::default();
        let text = u32::MAX.to_le_bytes();
        assert!(reader.read::<ToScript>(&mut &text[..]).is_err());
    }
}
