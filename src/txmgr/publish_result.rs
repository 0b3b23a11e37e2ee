//! Classifies an L1 node's response to a published transaction by its message: geth's pools, which
//! other nodes imitate, have no error codes for the cases.

/// Classified response of an L1 node to a published transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishResult {
    /// The pool has accepted the transaction.
    Accepted,
    /// The transaction already was in the pool or in a block.
    AlreadyKnown,
    /// The nonce is below the account's next nonce.
    NonceTooLow,
    /// Transactions with lower nonces are missing from the pool.
    NonceTooHigh(String),
    /// The fees are too low for the pool, or too low to replace the pool's transaction with this
    /// nonce.
    Underpriced(String),
    /// The pool has transactions of the account of the other class.
    AlreadyReserved,
    /// Any other error of the node.
    Refused(String),
    /// There was no response: the node may or may not have the transaction.
    Unreachable(String),
}

impl PublishResult {
    /// Classifies a JSON-RPC error message. A message that contains one of the `custom` texts means
    /// that the transaction is published (`--txmgr.already-published-custom-errs`).
    pub fn of_error(message: &str, custom: &[String]) -> Self {
        let is_custom = |text: &String| !text.is_empty() && message.contains(text.as_str());
        if custom.iter().any(is_custom) {
            return Self::Accepted;
        }
        let lower = message.to_lowercase();
        let has = |text| lower.contains(text);
        if has("already known") || has("already imported") {
            Self::AlreadyKnown
        } else if has("nonce too low") {
            Self::NonceTooLow
        } else if has("address already reserved") {
            Self::AlreadyReserved
        } else if has("underpriced") || has("gas price below minimum") {
            Self::Underpriced(message.to_owned())
        } else if has("nonce too high") || has("gapped nonce") {
            Self::NonceTooHigh(message.to_owned())
        } else {
            Self::Refused(message.to_owned())
        }
    }

    /// Whether the result depends only on the account's nonces and the fees, so that another node
    /// would likely respond in the same way. Errors such as a full pool or a node's own fee limit
    /// are not final.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Accepted
            | Self::AlreadyKnown
            | Self::NonceTooLow
            | Self::Underpriced(_)
            | Self::AlreadyReserved => true,
            Self::NonceTooHigh(_) | Self::Refused(_) | Self::Unreachable(_) => false,
        }
    }

    /// Message for the log; `None` if the transaction is in the pool.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Accepted | Self::AlreadyKnown => None,
            Self::NonceTooLow => Some("nonce too low".into()),
            Self::AlreadyReserved => Some("address already reserved".into()),
            Self::NonceTooHigh(text)
            | Self::Underpriced(text)
            | Self::Refused(text)
            | Self::Unreachable(text) => Some(text.clone()),
        }
    }

    /// Label in the metric `tx_publish_error_count` (op-service).
    pub fn label(&self) -> &'static str {
        match self {
            Self::Accepted => "",
            Self::AlreadyKnown => "tx_already_known",
            Self::NonceTooLow => "nonce_too_low",
            Self::NonceTooHigh(_) => "nonce_too_high",
            Self::Underpriced(text) if text.contains("replacement") => "tx_replacement_underpriced",
            Self::Underpriced(_) => "tx_underpriced",
            Self::AlreadyReserved => "pending_tx_of_incompatible_type",
            Self::Refused(_) | Self::Unreachable(_) => "unknown_error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error messages of geth's and nethermind's pools, and of our own.
    #[test]
    fn the_texts_of_pools_are_told_apart() {
        let underpriced = |text: &str| PublishResult::Underpriced(text.to_owned());
        for (text, expected, label) in [
            (
                "already known",
                PublishResult::AlreadyKnown,
                "tx_already_known",
            ),
            (
                "nonce too low: next nonce 5, tx nonce 4",
                PublishResult::NonceTooLow,
                "nonce_too_low",
            ),
            (
                "address already reserved",
                PublishResult::AlreadyReserved,
                "pending_tx_of_incompatible_type",
            ),
            (
                "replacement transaction underpriced: new tx gas fee cap 1 < 2 queued + 100% replacement penalty",
                underpriced(
                    "replacement transaction underpriced: new tx gas fee cap 1 < 2 queued + 100% replacement penalty",
                ),
                "tx_replacement_underpriced",
            ),
            (
                "transaction underpriced: gas tip cap 0, minimum needed 1",
                underpriced("transaction underpriced: gas tip cap 0, minimum needed 1"),
                "tx_underpriced",
            ),
            (
                "transaction gas price below minimum: gas tip cap 0, minimum needed 1",
                underpriced("transaction gas price below minimum: gas tip cap 0, minimum needed 1"),
                "tx_underpriced",
            ),
            (
                "nonce too high: tx nonce 2, gapped nonce 0",
                PublishResult::NonceTooHigh("nonce too high: tx nonce 2, gapped nonce 0".into()),
                "nonce_too_high",
            ),
            (
                "insufficient funds for gas * price + value",
                PublishResult::Refused("insufficient funds for gas * price + value".into()),
                "unknown_error",
            ),
        ] {
            let answer = PublishResult::of_error(text, &[]);
            assert_eq!((&answer, answer.label()), (&expected, label), "{text}");
        }
    }

    #[test]
    fn a_text_of_the_operator_means_published() {
        let custom = ["Already in the mempool".to_owned(), String::new()];
        let answer = |text| PublishResult::of_error(text, &custom);
        assert_eq!(
            answer("oops: Already in the mempool!"),
            PublishResult::Accepted
        );
        assert!(matches!(
            answer("something else"),
            PublishResult::Refused(_)
        ));
    }
}
