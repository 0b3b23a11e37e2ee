//! The end of a WebSocket: its close frame (RFC 6455, section 7.4), which gives the client the
//! reason.

use crate::rpc::subscription::SubscriptionEnd;
use soketto::{
    BoxedError, Storage,
    base::{Header, OpCode},
    extension::{Extension, Param},
};

/// Maximum bytes of the reason in a close frame: a control frame has 125 bytes, two of which are
/// the code.
const MAX_REASON: usize = 123;

/// Code and reason of a close frame.
pub struct CloseFrame {
    code: u16,
    reason: String,
}

impl CloseFrame {
    /// The frame for a session that ended because of `end`; an `end` of `None` means that no
    /// subscription ended the session.
    pub fn of(end: Option<&SubscriptionEnd>) -> Self {
        let code = match end {
            None => 1000,
            // The close codes are "policy violation", "internal error" and "try again later".
            Some(SubscriptionEnd::Slow(_)) => 1008,
            Some(SubscriptionEnd::Failed(_)) => 1011,
            Some(SubscriptionEnd::Overloaded) => 1013,
        };
        let mut reason = end.map(SubscriptionEnd::to_string).unwrap_or_default();
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        Self { code, reason }
    }

    /// The payload of the frame.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.code.to_be_bytes(), self.reason.as_bytes()].concat()
    }
}

/// Turns each binary message into a close frame. The socket library can only close with code 1000
/// and without a reason, and JSON-RPC has no binary messages. The extension is never negotiated, so
/// it changes nothing else.
#[derive(Debug)]
pub struct CloseFrames;

impl Extension for CloseFrames {
    fn is_enabled(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        "close-frames"
    }

    fn params(&self) -> &[Param<'_>] {
        &[]
    }

    fn configure(&mut self, _: &[Param<'_>]) -> Result<(), BoxedError> {
        Ok(())
    }

    fn encode(&mut self, header: &mut Header, _: &mut Storage<'_>) -> Result<(), BoxedError> {
        if header.opcode() == OpCode::Binary {
            header.set_opcode(OpCode::Close);
        }
        Ok(())
    }

    fn decode(&mut self, _: &mut Header, _: &mut Vec<u8>) -> Result<(), BoxedError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_fits_into_a_control_frame_and_stays_text() {
        let end = SubscriptionEnd::Failed(format!("a{}", "é".repeat(100)));
        let bytes = CloseFrame::of(Some(&end)).bytes();
        assert_eq!((&bytes[..2], bytes.len()), (&[0x03, 0xf3][..], 125));
        assert!(std::str::from_utf8(&bytes[2..]).is_ok());
        assert_eq!(CloseFrame::of(None).bytes(), [0x03, 0xe8]);
    }
}
