//! A sequence of blocks in a file or a pipe: each block's length, then its wire encoding.

use alloy_primitives::Bytes;
use starling_proto::payload::{Payload, PayloadVersion};
use std::io::{Read, Write};

pub fn write(to: &mut impl Write, payload: &Payload) {
    let wire = payload.to_wire(PayloadVersion::V4);
    to.write_all(&(wire.len() as u32).to_be_bytes())
        .and_then(|()| to.write_all(&wire))
        .expect("the block is written");
}

/// Reads the next block; `None` at the end.
pub fn read(from: &mut impl Read) -> Option<Bytes> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut wire = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut wire).expect("a whole block");
    Some(wire.into())
}
