//! Tells a verdict on a block from an execution client's report about itself. Pure.
//!
//! Clients report their own faults with the answers for invalid blocks: op-geth answers -38003 for
//! attributes on a parent whose state it has lost, and INVALID for a payload while it shuts down.

/// Parts of refusals that are about the client: a state that it has lost, pruned or not fetched
/// yet, an end of the process, and an earlier refusal whose reason is not repeated.
const ABOUT_CLIENT: [&str; 10] = [
    "missing trie node",
    "missing parent",
    "missing block",
    "is not available",
    "state unavailable",
    "layer stale",
    "no state found",
    "is stopped",
    "is interrupted",
    "links to previously rejected block",
];

/// Whether the reason of a refusal is about the execution client itself, so that it says nothing of
/// the block.
pub(super) fn is_about_client(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ABOUT_CLIENT.iter().any(|part| reason.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_state_is_told_from_an_invalid_block() {
        // Answers of op-geth v1.101702.3.
        for reason in [
            "Invalid payload attributes: missing trie node 37cf (path ) state 0x37cf is not available",
            "Invalid payload attributes: missing trie node e6ec (path ) layer stale",
            "commit aborted due to earlier error: missing trie node b25f (owner 6c9d) (path )",
            "historical state is not available",
            "required historical state unavailable (reexec=128)",
            "missing parent",
            "blockchain is stopped",
            "insertion is interrupted",
            "links to previously rejected block",
        ] {
            assert!(is_about_client(reason), "{reason}");
        }
        for reason in [
            "Invalid payload attributes: transaction 1 is not valid: typed transaction too short",
            "invalid merkle root (remote: 12 local: 13)",
            "failed to force-include tx: 0x12 type: 2 sender: 0x34 nonce: 5, err: nonce too high",
            "invalid timestamp",
        ] {
            assert!(!is_about_client(reason), "{reason}");
        }
    }
}
