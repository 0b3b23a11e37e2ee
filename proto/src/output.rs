//! Output roots: the commitment to an L2 block that a proposer posts on L1 (specs: proposals, L2
//! output commitment).

use alloy_primitives::{B256, keccak256};

/// Output root (version 0) of a block: from its state root, the storage root of the message passer
/// contract (`0x4200…0016`; from Isthmus on the header's withdrawals root) and the block hash.
pub fn output_root(state_root: B256, message_passer_storage_root: B256, block_hash: B256) -> B256 {
    const VERSION_0: B256 = B256::ZERO;
    keccak256(
        [
            VERSION_0,
            state_root,
            message_passer_storage_root,
            block_hash,
        ]
        .concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;

    #[test]
    fn hashes_version_state_storage_block_in_this_order() {
        let root = output_root(
            B256::with_last_byte(1),
            B256::with_last_byte(2),
            B256::with_last_byte(3),
        );
        let mut preimage = [0u8; 128];
        (preimage[63], preimage[95], preimage[127]) = (1, 2, 3);
        assert_eq!(root, keccak256(preimage));
        // keccak of 128 zero bytes.
        let zero = b256!("012893657d8eb2efad4de0a91bcd0e39ad9837745dec3ea923737ea803fc8e3d");
        assert_eq!(output_root(B256::ZERO, B256::ZERO, B256::ZERO), zero);
    }
}
