//! Fees of L1 transactions: initial fees, fees of replacements, and the limits of both. Pure.
//! Amounts are in wei; arithmetic saturates.
//!
//! The fee cap has room for twice the base fee, so a transaction stays includable while the base
//! fee doubles. A replacement raises every cap at least by the minimum that transaction pools
//! require (geth: 10 %, with blobs 100 %), and to the current suggestion if that is higher. A
//! replacement is refused if one of its caps exceeds a multiple of the current suggestion
//! (`--fee-limit-multiplier`). Caps below `--txmgr.fee-limit-threshold` are exempt. Another
//! exception is a transaction that offers less than L1's current prices, since it could not be
//! mined, and all later ones would wait for it. (op-service does not make this exception.)

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// Wei of one gwei.
pub const GWEI: u128 = 1_000_000_000;
/// Minimum gas of a transaction, without its data.
pub const INTRINSIC_GAS: u64 = 21_000;
/// Minimum blob fee cap that we offer (geth's pool requires 1 gwei).
pub const MIN_BLOB_FEE: u128 = GWEI;
/// Minimum cap of a replacement in percent of the old cap (geth's legacy pool).
const BUMP_PERCENT: u128 = 110;
/// Minimum cap of a replacement in percent of the old cap, with blobs (geth's blob pool).
const BLOB_BUMP_PERCENT: u128 = 200;
/// Multiple of the base fee, and of the blob base fee, for which the caps have room.
const HEADROOM: u128 = 2;

/// Fee limits that the operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeeRules {
    /// Minimum tip (`--txmgr.min-tip-cap`); a lower suggestion is raised to it.
    pub min_tip: u128,
    /// Maximum tip (`--txmgr.max-tip-cap`); a higher suggestion is an error. `None` means no limit.
    pub max_tip: Option<u128>,
    /// Minimum base fee (`--txmgr.min-basefee`); a lower suggestion is raised to it.
    pub min_base_fee: u128,
    /// Maximum base fee (`--txmgr.max-basefee`); a higher one is an error. `None` means no limit.
    pub max_base_fee: Option<u128>,
    /// Minimum blob fee cap; only the RPC changes it.
    pub min_blob_fee: u128,
    /// Maximum cap of a replacement as a multiple of the current suggestion
    /// (`--fee-limit-multiplier`).
    pub limit_multiplier: u64,
    /// Caps below this threshold are not limited (`--txmgr.fee-limit-threshold`).
    pub limit_threshold: u128,
}

/// Current fees on L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Fees {
    /// `eth_maxPriorityFeePerGas`.
    pub tip: u128,
    /// Base fee of the newest block.
    pub base_fee: u128,
    /// `eth_blobBaseFee`; `None` while L1 has no blobs.
    pub blob_base_fee: Option<u128>,
    /// Tip for blob transactions, from recent ones ([`BlobTips`]); if `None`, `tip` applies.
    pub blob_tip: Option<u128>,
}

/// Fees within the limits of [`FeeRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeSuggestion {
    pub tip: u128,
    /// Tip for a blob transaction.
    pub blob_tip: u128,
    pub base_fee: u128,
    pub blob_base_fee: Option<u128>,
}

/// Whether a transaction carries its data as calldata (EIP-1559) or in blobs (EIP-4844). op-batcher
/// calls this the DA type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxClass {
    /// Data as calldata, in a type 2 transaction (EIP-1559).
    Calldata,
    /// Data in blobs, in a type 3 transaction (EIP-4844).
    Blob,
}

impl TxClass {
    /// The other class. An L1 pool accepts only one class at a time from the same account.
    pub fn other(self) -> Self {
        match self {
            Self::Calldata => Self::Blob,
            Self::Blob => Self::Calldata,
        }
    }

    /// Transaction type of this class (EIP-2718).
    pub fn tx_type(self) -> u8 {
        match self {
            Self::Calldata => 2,
            Self::Blob => 3,
        }
    }
}

/// Fee fields of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeCaps {
    /// `maxPriorityFeePerGas`, at most `fee`.
    pub tip: u128,
    /// `maxFeePerGas`.
    pub fee: u128,
    /// `maxFeePerBlobGas`; `None` for a transaction without blobs.
    pub blob_fee: Option<u128>,
}

/// The reason why a fee is refused. Errors that op-batcher has too begin with its texts, so that
/// existing alerts keep working.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeeError {
    #[error("tip is too high: {tip}, cap:{max} (--txmgr.max-tip-cap)")]
    Tip { tip: u128, max: u128 },
    #[error("blob tip cap is too high: {tip}, cap:{max} (--txmgr.max-tip-cap)")]
    BlobTip { tip: u128, max: u128 },
    #[error("baseFee is too high: {base_fee}, cap:{max} (--txmgr.max-basefee)")]
    BaseFee { base_fee: u128, max: u128 },
    #[error("L1 has no blob base fee: it takes no blob transactions yet")]
    NoBlobs,
    #[error(
        "bumped {name} {value} is over {multiplier}x multiple of the suggested value (--fee-limit-multiplier)"
    )]
    Limit {
        /// The refused field: `tip cap`, `fee cap` or `blob fee`.
        name: &'static str,
        value: u128,
        multiplier: u64,
    },
}

impl FeeRules {
    /// Raises L1's fees to the configured minimums. Fails if a fee exceeds its maximum.
    pub fn suggest(&self, l1: &L1Fees) -> Result<FeeSuggestion, FeeError> {
        let tip = l1.tip.max(self.min_tip);
        // A tip measured from recent blob transactions need not be raised to the minimum.
        let blob_tip = l1.blob_tip.unwrap_or(tip);
        let base_fee = l1.base_fee.max(self.min_base_fee);
        if let Some(max) = self.max_tip {
            if tip > max {
                return Err(FeeError::Tip { tip, max });
            }
            if blob_tip > max {
                return Err(FeeError::BlobTip { tip: blob_tip, max });
            }
        }
        match self.max_base_fee.filter(|max| base_fee > *max) {
            Some(max) => Err(FeeError::BaseFee { base_fee, max }),
            None => Ok(FeeSuggestion {
                tip,
                blob_tip,
                base_fee,
                blob_base_fee: l1.blob_base_fee,
            }),
        }
    }

    /// Caps of a transaction that replaces no other.
    pub fn first(&self, class: TxClass, now: &FeeSuggestion) -> Result<FeeCaps, FeeError> {
        let (tip, blob_fee) = match class {
            TxClass::Calldata => (now.tip, None),
            TxClass::Blob => {
                let base = now.blob_base_fee.ok_or(FeeError::NoBlobs)?;
                (now.blob_tip, Some(self.blob_fee_cap(base)))
            }
        };
        Ok(FeeCaps {
            tip,
            fee: fee_cap(now.base_fee, tip),
            blob_fee,
        })
    }

    /// Caps of a transaction of `class` that replaces one with the caps `old` in L1's pools. The
    /// two transactions may be of different classes.
    pub fn bump(
        &self,
        class: TxClass,
        old: &FeeCaps,
        now: &FeeSuggestion,
    ) -> Result<FeeCaps, FeeError> {
        let fresh = self.first(class, now)?;
        let percent = if old.blob_fee.is_some() || class == TxClass::Blob {
            BLOB_BUMP_PERCENT
        } else {
            BUMP_PERCENT
        };
        let tip = fresh.tip.max(raised(old.tip, percent));
        let least = raised(old.fee, percent);
        let fee = if fresh.fee < least {
            least
        } else {
            // Add the raised tip to the fee cap, so that the room for the base fee stays the same.
            fee_cap(now.base_fee, tip)
        };
        let blob_fee = fresh.blob_fee.map(|fresh| {
            let least = old.blob_fee.map_or(0, |old| raised(old, percent));
            fresh.max(least)
        });
        let bumped = FeeCaps { tip, fee, blob_fee };
        if !is_below_price(old, now) {
            self.check_limits(&bumped, &fresh, now)?;
        }
        Ok(bumped)
    }

    fn check_limits(
        &self,
        bumped: &FeeCaps,
        fresh: &FeeCaps,
        now: &FeeSuggestion,
    ) -> Result<(), FeeError> {
        let multiplier = u128::from(self.limit_multiplier);
        let max_tip = fresh.tip.saturating_mul(multiplier);
        let max_fee = fee_cap(now.base_fee.saturating_mul(multiplier), max_tip);
        let max_blob_fee = fresh.blob_fee.unwrap_or(0).saturating_mul(multiplier);
        let limits = [
            ("tip cap", bumped.tip, max_tip),
            ("fee cap", bumped.fee, max_fee),
            ("blob fee", bumped.blob_fee.unwrap_or(0), max_blob_fee),
        ];
        let over = limits
            .into_iter()
            .find(|(_, value, max)| *value >= self.limit_threshold && value > max);
        match over {
            Some((name, value, _)) => Err(FeeError::Limit {
                name,
                value,
                multiplier: self.limit_multiplier,
            }),
            None => Ok(()),
        }
    }

    /// Blob fee cap to offer at this blob base fee.
    fn blob_fee_cap(&self, blob_base_fee: u128) -> u128 {
        blob_base_fee
            .saturating_mul(HEADROOM)
            .max(self.min_blob_fee)
    }
}

/// Whether L1's current prices are above these caps, so that no block can include the transaction.
fn is_below_price(caps: &FeeCaps, now: &FeeSuggestion) -> bool {
    let blob = caps.blob_fee.zip(now.blob_base_fee);
    caps.fee < now.base_fee || blob.is_some_and(|(cap, price)| cap < price)
}

/// Fee cap to offer at this base fee and tip.
fn fee_cap(base_fee: u128, tip: u128) -> u128 {
    base_fee.saturating_mul(HEADROOM).saturating_add(tip)
}

/// `percent` of the cap `old`, rounded up, and at least `old` + 1 wei: pools refuse an equal cap.
fn raised(old: u128, percent: u128) -> u128 {
    let whole = (old / 100).saturating_mul(percent);
    let part = (old % 100 * percent).div_ceil(100);
    whole.saturating_add(part).max(old.saturating_add(1))
}

/// Tips that blob transactions paid in the newest L1 blocks (`--txmgr.blob-tip-cap-dynamic`).
#[derive(Clone, Debug)]
pub struct BlobTips {
    /// Number of newest blocks to read (`--txmgr.blob-tip-cap-range`).
    range: u64,
    /// Percentile of the tips, 1 to 100 (`--txmgr.blob-tip-cap-percentile`).
    percentile: u8,
    /// Tips by block number, for at most `range` blocks.
    blocks: BTreeMap<u64, Vec<u128>>,
}

impl BlobTips {
    /// `range` must be at least 1, `percentile` from 1 to 100.
    pub fn new(range: u64, percentile: u8) -> Self {
        Self {
            range: range.max(1),
            percentile: percentile.clamp(1, 100),
            blocks: BTreeMap::new(),
        }
    }

    /// Numbers of the blocks to read when `head` is the newest block, oldest first. The newest
    /// block is always read again, since a reorg may have replaced it.
    pub fn missing(&self, head: u64) -> Vec<u64> {
        let oldest = head.saturating_sub(self.range - 1);
        (oldest..=head)
            .filter(|number| *number == head || !self.blocks.contains_key(number))
            .collect()
    }

    /// Records the tips paid by a block's blob transactions, computed from `caps` and the block's
    /// `base_fee`. Drops blocks above `number` and blocks out of range.
    pub fn add(&mut self, number: u64, base_fee: u128, caps: impl IntoIterator<Item = FeeCaps>) {
        let paid = caps.into_iter().map(|caps| {
            let above_base = caps.fee.saturating_sub(base_fee);
            caps.tip.min(above_base)
        });
        self.blocks.insert(number, paid.collect());
        let oldest = number.saturating_sub(self.range - 1);
        self.blocks
            .retain(|known, _| (oldest..=number).contains(known));
    }

    /// Tip at the percentile; `None` if no blob transaction was recorded.
    pub fn suggest(&self) -> Option<u128> {
        let mut tips: Vec<u128> = self.blocks.values().flatten().copied().collect();
        tips.sort_unstable();
        let last = tips.len().checked_sub(1)?;
        tips.get(last * usize::from(self.percentile) / 100).copied()
    }
}
