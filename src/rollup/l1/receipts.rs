//! The methods to fetch the receipts of a block (`--l1.rpckind`): chooses the method and parses its
//! response. Pure.
//!
//! With every method, the whole list of receipts is checked against the header's root. Fields
//! outside that root, such as indexes and hashes, are not used, so they need no check.

use super::{
    RpcCause, read,
    response::{self, L1Receipt},
    transport::RpcCall,
};
use alloy_primitives::{B256, Bytes, U64};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use starling_proto::attributes::{L1Block, ReceiptLogs};
use std::{
    str::FromStr,
    time::{Duration, Instant},
};

/// Time for which an unsupported method is not tried again. The endpoints behind a load balancer
/// may differ.
const METHOD_RETRY: Duration = Duration::from_secs(60);

/// The kind of an endpoint (`--l1.rpckind`), which decides how receipts are fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RpcKind {
    Alchemy,
    QuickNode,
    Infura,
    Parity,
    Nethermind,
    DebugGeth,
    Erigon,
    /// Fetches receipts one by one, in batches of calls.
    Basic,
    /// Tries every method until the endpoint supports one.
    Any,
    /// Uses `eth_getBlockReceipts`, or fetches receipts one by one.
    #[default]
    Standard,
}

impl FromStr for RpcKind {
    type Err = ();

    /// Parses a value of `--l1.rpckind`.
    fn from_str(name: &str) -> Result<Self, ()> {
        Ok(match name {
            "alchemy" => Self::Alchemy,
            "quicknode" => Self::QuickNode,
            "infura" => Self::Infura,
            "parity" => Self::Parity,
            "nethermind" => Self::Nethermind,
            "debug_geth" => Self::DebugGeth,
            "erigon" => Self::Erigon,
            "basic" => Self::Basic,
            "any" => Self::Any,
            "standard" => Self::Standard,
            _ => return Err(()),
        })
    }
}

/// A method that returns receipts. The variants are in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReceiptMethod {
    Alchemy,
    Raw,
    Erigon,
    Block,
    Parity,
    /// One call for each transaction; every endpoint supports it.
    EachTransaction,
}

impl RpcKind {
    /// The methods that endpoints of this kind may have, in the order of preference.
    fn methods(self) -> &'static [ReceiptMethod] {
        use ReceiptMethod::*;
        match self {
            Self::Alchemy => &[Alchemy, Block, EachTransaction],
            Self::QuickNode => &[Raw, Block, EachTransaction],
            Self::Infura | Self::Standard => &[Block, EachTransaction],
            Self::Parity | Self::Nethermind => &[Parity, EachTransaction],
            Self::DebugGeth => &[Raw, EachTransaction],
            Self::Erigon => &[Erigon, EachTransaction],
            Self::Basic => &[EachTransaction],
            Self::Any => &[Alchemy, Raw, Erigon, Block, Parity, EachTransaction],
        }
    }

    /// Number of transactions of a block from which on a method is cheaper than single receipts.
    /// Only the two providers that charge by method have such a minimum (prices as in op-node).
    fn least_transactions(self, method: ReceiptMethod) -> usize {
        match (self, method) {
            (Self::Alchemy, ReceiptMethod::Alchemy) => 17,
            (Self::Alchemy, ReceiptMethod::Block) => 34,
            (Self::QuickNode, ReceiptMethod::Block) => 30,
            _ => 0,
        }
    }
}

/// The methods in use: those of the endpoint's kind, except those that the endpoint does not
/// support. The exceptions are dropped after [`METHOD_RETRY`].
#[derive(Clone, Debug)]
pub(super) struct ReceiptMethods {
    kind: RpcKind,
    lacking: Vec<ReceiptMethod>,
    /// Time at which the first method was added to the empty list `lacking`.
    since: Option<Instant>,
}

impl ReceiptMethods {
    pub(super) fn new(kind: RpcKind) -> Self {
        Self {
            kind,
            lacking: Vec::new(),
            since: None,
        }
    }

    /// The method for a block of `transactions` transactions.
    pub(super) fn choose(&mut self, transactions: usize, now: Instant) -> ReceiptMethod {
        let is_old = |since| now.saturating_duration_since(since) >= METHOD_RETRY;
        if self.since.is_some_and(is_old) {
            self.lacking.clear();
            self.since = None;
        }
        let fits = |method: &&ReceiptMethod| {
            transactions >= self.kind.least_transactions(**method) && !self.lacking.contains(method)
        };
        let chosen = self.kind.methods().iter().find(fits);
        chosen.copied().unwrap_or(ReceiptMethod::EachTransaction)
    }

    /// Records that the endpoint does not support the method.
    pub(super) fn mark_lacking(&mut self, method: ReceiptMethod, now: Instant) {
        if !self.lacking.contains(&method) {
            self.lacking.push(method);
        }
        self.since.get_or_insert(now);
    }
}

impl ReceiptMethod {
    /// The calls that fetch the receipts of a block with these transactions.
    pub(super) fn calls(self, block: &L1Block, transactions: &[B256]) -> Vec<RpcCall> {
        let one = |method, params| vec![RpcCall { method, params }];
        match self {
            Self::Alchemy => one(
                "alchemy_getTransactionReceipts",
                json!([{ "blockHash": block.hash }]),
            ),
            Self::Raw => one("debug_getRawReceipts", json!([block.hash])),
            Self::Erigon => one("erigon_getBlockReceiptsByBlockHash", json!([block.hash])),
            Self::Block => one("eth_getBlockReceipts", json!([block.hash])),
            Self::Parity => one("parity_getBlockReceipts", json!([U64::from(block.number)])),
            Self::EachTransaction => transactions
                .iter()
                .map(|hash| RpcCall {
                    method: "eth_getTransactionReceipt",
                    params: json!([hash]),
                })
                .collect(),
        }
    }

    /// Parses the response of a method that returns all receipts of a block in one call, and checks
    /// the receipts against the header.
    pub(super) fn read(
        self,
        response: &RawValue,
        block: &L1Block,
    ) -> Result<Vec<ReceiptLogs>, RpcCause> {
        let missing = || RpcCause::Missing(block.hash);
        match self {
            Self::Raw => {
                let raw: Option<Vec<Bytes>> = read(response)?;
                response::raw_receipts(&raw.ok_or_else(missing)?, block)
            }
            Self::Alchemy => {
                let list: Option<AlchemyReceipts> = read(response)?;
                let receipts = list.and_then(|list| list.receipts).ok_or_else(missing)?;
                response::receipts(receipts, block)
            }
            _ => {
                let receipts: Option<Vec<L1Receipt>> = read(response)?;
                response::receipts(receipts.ok_or_else(missing)?, block)
            }
        }
    }
}

/// The response to `alchemy_getTransactionReceipts`.
#[derive(Deserialize)]
struct AlchemyReceipts {
    receipts: Option<Vec<L1Receipt>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReceiptMethod::*;

    #[test]
    fn each_kind_has_its_methods_and_falls_back() {
        for (kind, order) in [
            ("alchemy", &[Alchemy, Block, EachTransaction][..]),
            ("quicknode", &[Raw, Block, EachTransaction]),
            ("infura", &[Block, EachTransaction]),
            ("parity", &[Parity, EachTransaction]),
            ("nethermind", &[Parity, EachTransaction]),
            ("debug_geth", &[Raw, EachTransaction]),
            ("erigon", &[Erigon, EachTransaction]),
            ("basic", &[EachTransaction]),
            (
                "any",
                &[Alchemy, Raw, Erigon, Block, Parity, EachTransaction],
            ),
            ("standard", &[Block, EachTransaction]),
        ] {
            let now = Instant::now();
            let mut methods = ReceiptMethods::new(kind.parse().unwrap());
            for expected in order {
                let chosen = methods.choose(usize::MAX, now);
                assert_eq!(chosen, *expected, "{kind}");
                methods.mark_lacking(chosen, now);
            }
            assert_eq!(
                methods.choose(usize::MAX, now),
                EachTransaction,
                "always there"
            );
            assert_eq!(
                methods.choose(usize::MAX, now + METHOD_RETRY),
                order[0],
                "forgotten"
            );
        }
        assert_eq!("geth".parse::<RpcKind>(), Err(()));
    }

    #[test]
    fn small_blocks_are_fetched_the_cheap_way() {
        let now = Instant::now();
        let mut alchemy = ReceiptMethods::new(RpcKind::Alchemy);
        assert_eq!(alchemy.choose(16, now), EachTransaction);
        assert_eq!(alchemy.choose(17, now), Alchemy);
        alchemy.mark_lacking(Alchemy, now);
        assert_eq!(alchemy.choose(33, now), EachTransaction);
        assert_eq!(alchemy.choose(34, now), Block);
        let mut quicknode = ReceiptMethods::new(RpcKind::QuickNode);
        assert_eq!(quicknode.choose(1, now), Raw);
        quicknode.mark_lacking(Raw, now);
        assert_eq!(quicknode.choose(29, now), EachTransaction);
        assert_eq!(quicknode.choose(30, now), Block);
    }
}
