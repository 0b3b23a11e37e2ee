//! The `opstack` entry of a node record (ENR), which names the node's chain (specs:
//! rollup-node-p2p, consensus layer structure).
//!
//! The entry is one RLP byte string of two unsigned LEB128 numbers: chain id and version. Bytes
//! after these two numbers are reserved for later versions and ignored.

use alloy_rlp::{Encodable, Header};

/// Key of the entry in a node record.
pub const KEY: &str = "opstack";

/// The only version defined so far.
pub const VERSION: u64 = 0;

/// Largest size of one LEB128 number, in bytes.
const VARINT: usize = 10;

/// Value of the `opstack` entry in a node record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpStack {
    /// L2 chain id.
    pub chain_id: u64,
    /// Version of the entry: [`VERSION`], or one that this node does not know.
    pub version: u64,
}

impl OpStack {
    /// The entry for a chain, at [`VERSION`].
    pub fn new(chain_id: u64) -> Self {
        Self {
            chain_id,
            version: VERSION,
        }
    }

    /// Encodes the entry's value as RLP.
    pub fn to_rlp(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 * VARINT);
        put_varint(&mut bytes, self.chain_id);
        put_varint(&mut bytes, self.version);
        let mut rlp = Vec::with_capacity(bytes.len() + 1);
        bytes.as_slice().encode(&mut rlp);
        rlp
    }

    /// Decodes the entry's value; `None` unless it is a byte string that begins with two numbers of
    /// at most 64 bits.
    pub fn from_rlp(mut rlp: &[u8]) -> Option<Self> {
        let mut bytes = Header::decode_bytes(&mut rlp, false).ok()?;
        Some(Self {
            chain_id: take_varint(&mut bytes)?,
            version: take_varint(&mut bytes)?,
        })
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for place in 0..VARINT {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let low = u64::from(byte & 0x7f);
        value |= low
            .checked_shl(7 * place as u32)
            .filter(|shifted| shifted >> (7 * place) == low)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_network() {
        let Some(text) = starling_testkit::fixture_text("p2p-wire/opstack-enr-value.json") else {
            return;
        };
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let vectors = json["vectors"].as_array().expect("vectors");
        assert!(vectors.len() > 5);
        for vector in vectors {
            let entry = OpStack {
                chain_id: vector["chain_id"].as_u64().expect("a chain id"),
                version: vector["version"].as_u64().expect("a version"),
            };
            let rlp = hex::decode(vector["rlp"].as_str().expect("hex")).expect("hex");
            assert_eq!(entry.to_rlp(), rlp);
            assert_eq!(OpStack::from_rlp(&rlp), Some(entry));
        }
    }

    #[test]
    fn what_follows_is_ignored_and_what_is_short_or_too_large_refused() {
        assert_eq!(
            OpStack::from_rlp(&[0x84, 0x0a, 0x00, 0xff, 0xff]),
            Some(OpStack::new(10))
        );
        let too_large = [&[0x8b][..], &[0xff; 9], &[0x02, 0x00]].concat();
        let endless = [&[0x8c][..], &[0xff; 12]].concat();
        for bad in [
            &[][..],
            &[0x0a],
            &[0x80],
            &[0x82, 0x0a],
            &[0x82, 0x8a, 0x80],
            &[0xc2, 0x0a, 0x00],
            &too_large,
            &endless,
        ] {
            assert_eq!(OpStack::from_rlp(bad), None, "{bad:02x?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_entry_comes_back(chain_id: u64, version: u64, noise: Vec<u8>) {
            let entry = OpStack { chain_id, version };
            assert_eq!(OpStack::from_rlp(&entry.to_rlp()), Some(entry));
            let _ = OpStack::from_rlp(&noise);
        }
    }
}
