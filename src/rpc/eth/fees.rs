//! Gas prices: the suggested tip and the fee history, both computed as in geth.

use super::{
    block_arg::{BlockArg, BlockTag},
    shape::effective_gas_price,
};
use crate::{
    chain::{evm::Deadline, receipt::Receipt, rules::ChainSpec, view::View},
    rpc::{
        bounds::GasOracle,
        context::RpcContext,
        decoded::DecodedBlock,
        error::{Reply, RpcError, reply},
        params::{Args, Count, List},
    },
};
use alloy_consensus::Header;
use alloy_primitives::{U64, U128};
use serde::Serialize;

/// Suggested tip in wei on Ethereum while recent blocks have no transactions.
const START_TIP: u128 = 1_000_000;
/// Number of lowest tips of a block that count for a suggestion on Ethereum.
const TIPS_OF_BLOCK: usize = 3;
/// Maximum blocks in one fee history.
const MAX_BLOCKS: u64 = 1024;
/// Maximum percentiles in one fee history.
const MAX_PERCENTILES: usize = 100;

pub fn max_priority_fee_per_gas(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(U128::from(suggested_tip(context, &context.view())?))
}

/// `eth_gasPrice`: the suggested tip plus the head's base fee.
pub fn gas_price(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let view = context.view();
    let base_fee = view.header().base_fee_per_gas.unwrap_or(0);
    reply(U128::from(
        suggested_tip(context, &view)? + u128::from(base_fee),
    ))
}

/// `eth_baseFee`: the base fee of the next block.
pub fn base_fee(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let view = context.view();
    reply(U64::from(next_base_fee(context, view.header())?))
}

/// The base fee of a block that comes one second after `header`. geth assumes one second, whatever
/// the block time.
fn next_base_fee(context: &RpcContext, header: &Header) -> Result<u64, RpcError> {
    let next = context
        .chain
        .spec
        .next_base_fee(header, header.timestamp.saturating_add(1));
    next.map_err(|error| RpcError::server(error.to_string()))
}

/// `eth_blobBaseFee`: null if the head has no blob fields.
pub fn blob_base_fee(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let header = context.view().header().clone();
    reply(context.chain.spec.blob_base_fee(&header).map(U128::from))
}

/// The tip that geth suggests on this kind of chain, OP or Ethereum.
pub(super) fn suggested_tip(context: &RpcContext, view: &View) -> Result<u128, RpcError> {
    if context.chain.spec.is_optimism() {
        suggested_on_optimism(context, view)
    } else {
        suggested_on_ethereum(context, view)
    }
}

/// geth's rule for OP chains: the minimum, as long as the newest block had room for one more
/// transaction as large as its largest. Without that room, the median tip of the block plus a
/// tenth.
fn suggested_on_optimism(context: &RpcContext, view: &View) -> Result<u128, RpcError> {
    let GasOracle { least, most, .. } = context.bounds.gas_oracle;
    let Some(block) = context.blocks.load(view, view.head().number)? else {
        return Ok(least);
    };
    let header = &block.payload.header;
    let largest = gas_used(&block.receipts).max().unwrap_or(0);
    if largest > header.gas_limit || header.gas_used.saturating_add(largest) <= header.gas_limit {
        return Ok(least);
    }
    let mut tips = tips(&block);
    tips.sort_unstable();
    let Some(median) = tips.get(tips.len() / 2) else {
        return Ok(least);
    };
    Ok(median.saturating_add(median / 10).max(least).min(most))
}

/// geth's rule for Ethereum: a percentile of the lowest tips in recent blocks.
fn suggested_on_ethereum(context: &RpcContext, view: &View) -> Result<u128, RpcError> {
    let oracle = context.bounds.gas_oracle;
    let head = view.head().number;
    let mut found = Vec::new();
    for number in (head.saturating_sub(oracle.blocks - 1)..=head).rev() {
        let Some(block) = context.blocks.load(view, number)? else {
            break;
        };
        let mut tips = tips(&block);
        tips.retain(|tip| *tip >= oracle.ignored);
        tips.sort_unstable();
        found.extend(tips.into_iter().take(TIPS_OF_BLOCK));
    }
    found.sort_unstable();
    let at = found.len().saturating_sub(1) * oracle.percentile as usize / 100;
    Ok(found.get(at).copied().unwrap_or(START_TIP).min(oracle.most))
}

/// Gas that each transaction used.
fn gas_used(receipts: &[Receipt]) -> impl Iterator<Item = u64> + '_ {
    receipts.iter().scan(0, |before, receipt| {
        let gas = receipt.cumulative_gas_used.saturating_sub(*before);
        *before = receipt.cumulative_gas_used;
        Some(gas)
    })
}

/// Tips that the block's transactions paid, in wei per gas; deposits pay none.
fn tips(block: &DecodedBlock) -> Vec<u128> {
    let base_fee = block.payload.header.base_fee_per_gas;
    let tip = |tx| effective_gas_price(tx, base_fee).saturating_sub(base_fee.unwrap_or(0).into());
    block.transactions.iter().map(tip).collect()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FeeHistory {
    oldest_block: U64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reward: Vec<Vec<U128>>,
    /// Base fees of the blocks, followed by the base fee of the next block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    base_fee_per_gas: Vec<U64>,
    gas_used_ratio: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    base_fee_per_blob_gas: Vec<U128>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blob_gas_used_ratio: Vec<f64>,
}

pub fn fee_history(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(3)?;
    let (Count(count), newest): (Count, BlockTag) = (args.required()?, args.required()?);
    let percentiles = args
        .optional::<List<f64>>()?
        .map(|List(list)| list)
        .unwrap_or_default();
    if count == 0 {
        return reply(FeeHistory::from(0));
    }
    check_percentiles(&percentiles)?;
    let (view, spec) = (context.view(), &context.chain.spec);
    let head = view.head().number;
    let newest = newest.number(context, &view)?;
    if newest > head {
        return Err(RpcError::server(format!(
            "request beyond head block: requested {newest}, head {head}"
        )));
    }
    let genesis = BlockArg::Tag(BlockTag::Earliest)
        .number(context, &view)?
        .unwrap_or(0);
    let oldest = oldest(count, newest, genesis);
    let mut history = FeeHistory::from(oldest);
    for number in oldest..=newest {
        deadline.check()?;
        let header = view
            .header_of(number)?
            .ok_or_else(|| RpcError::server("header not found"))?;
        history
            .base_fee_per_gas
            .push(U64::from(header.base_fee_per_gas.unwrap_or(0)));
        history
            .gas_used_ratio
            .get_or_insert_default()
            .push(header.gas_used as f64 / header.gas_limit as f64);
        history
            .base_fee_per_blob_gas
            .push(blob_base_fee_or_zero(spec, &header));
        history
            .blob_gas_used_ratio
            .push(blob_gas_used_ratio(spec, &header));
        if !percentiles.is_empty() {
            let block = context
                .blocks
                .load(&view, number)?
                .ok_or_else(|| RpcError::server("header not found"))?;
            history.reward.push(rewards(&block, &percentiles)?);
        }
        if number == newest {
            history
                .base_fee_per_gas
                .push(U64::from(next_base_fee(context, &header)?));
            history
                .base_fee_per_blob_gas
                .push(next_blob_base_fee(spec, header));
        }
    }
    reply(history)
}

impl FeeHistory {
    /// A history that begins with block `oldest` and has no entries yet.
    fn from(oldest: u64) -> Self {
        Self {
            oldest_block: U64::from(oldest),
            reward: vec![],
            base_fee_per_gas: vec![],
            gas_used_ratio: None,
            base_fee_per_blob_gas: vec![],
            blob_gas_used_ratio: vec![],
        }
    }
}

/// The first block of a history that ends with `newest`. `count` is reduced to the limit and to the
/// blocks that exist.
fn oldest(count: u64, newest: u64, genesis: u64) -> u64 {
    newest + 1
        - count
            .min(MAX_BLOCKS)
            .min(newest.saturating_sub(genesis) + 1)
}

/// The blob base fee of a block, in wei per blob gas; zero for a block without blob fields.
fn blob_base_fee_or_zero(spec: &ChainSpec, header: &Header) -> U128 {
    U128::from(spec.blob_base_fee(header).unwrap_or(0))
}

/// The blob base fee of the block after `header`, by the rules at the time of `header` (as in
/// geth).
fn next_blob_base_fee(spec: &ChainSpec, header: Header) -> U128 {
    let excess = header
        .excess_blob_gas
        .map(|_| spec.excess_blob_gas(&header, header.timestamp));
    let next = Header {
        excess_blob_gas: excess,
        ..header
    };
    blob_base_fee_or_zero(spec, &next)
}

/// The part of a block's maximum blob gas that its transactions use. Zero on OP chains: from Jovian
/// on, their header field counts data of another kind.
fn blob_gas_used_ratio(spec: &ChainSpec, header: &Header) -> f64 {
    let params = spec.blob_params(header.timestamp);
    params.map_or(0.0, |params| {
        header.blob_gas_used.unwrap_or(0) as f64 / params.max_blob_gas_per_block() as f64
    })
}

fn check_percentiles(percentiles: &[f64]) -> Result<(), RpcError> {
    let invalid = |detail: String| {
        Err(RpcError::server(format!(
            "invalid reward percentile: {detail}"
        )))
    };
    if percentiles.len() > MAX_PERCENTILES {
        return invalid(format!("over the query limit {MAX_PERCENTILES}"));
    }
    if let Some(wrong) = percentiles.iter().find(|p| !(0.0..=100.0).contains(*p)) {
        return invalid(format!("{wrong:.6}"));
    }
    match percentiles
        .windows(2)
        .enumerate()
        .find(|(_, pair)| pair[1] <= pair[0])
    {
        Some((i, pair)) => invalid(format!("#{i}:{:.6} >= #{}:{:.6}", pair[0], i + 1, pair[1])),
        None => Ok(()),
    }
}

/// The tips at the given percentiles of the block's gas.
fn rewards(block: &DecodedBlock, percentiles: &[f64]) -> Result<Vec<U128>, RpcError> {
    let mut paid: Vec<(u128, u64)> = tips(block)
        .into_iter()
        .zip(gas_used(&block.receipts))
        .collect();
    paid.sort_by_key(|(tip, _)| *tip);
    Ok(at_percentiles(
        &paid,
        block.payload.header.gas_used,
        percentiles,
    ))
}

/// The tip at each percentile of `total` gas. `paid` lists the tip and the gas of each transaction,
/// lowest tip first.
fn at_percentiles(paid: &[(u128, u64)], total: u64, percentiles: &[f64]) -> Vec<U128> {
    let Some((_, first)) = paid.first() else {
        return vec![U128::ZERO; percentiles.len()];
    };
    let (mut index, mut sum) = (0, *first);
    let mut rewards = Vec::with_capacity(percentiles.len());
    for percentile in percentiles {
        let threshold = (total as f64 * percentile / 100.0) as u64;
        while sum < threshold && index + 1 < paid.len() {
            index += 1;
            sum += paid[index].1;
        }
        rewards.push(U128::from(paid[index].0));
    }
    rewards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_checked_in_geths_words() {
        let refused = |list: &[f64]| check_percentiles(list).unwrap_err().message;
        assert_eq!(
            refused(&[0.0; 101]),
            "invalid reward percentile: over the query limit 100"
        );
        assert_eq!(refused(&[101.0]), "invalid reward percentile: 101.000000");
        assert_eq!(refused(&[f64::NAN]), "invalid reward percentile: NaN");
        assert_eq!(
            refused(&[20.0, 10.0]),
            "invalid reward percentile: #0:20.000000 >= #1:10.000000"
        );
        check_percentiles(&[0.0, 50.0, 100.0]).unwrap();
    }

    #[test]
    fn a_history_is_of_1024_blocks_at_most() {
        assert_eq!(oldest(1, 5_000, 0), 5_000);
        assert_eq!(oldest(1_024, 5_000, 0), 3_977);
        assert_eq!(oldest(u64::MAX, 5_000, 0), 3_977);
        assert_eq!(oldest(u64::MAX, 5_000, 4_990), 4_990);
        assert_eq!(oldest(7, 0, 0), 0);
    }

    #[test]
    fn rewards_follow_the_gas() {
        let paid = [(1, 100), (5, 100), (9, 200)];
        let rewards = at_percentiles(&paid, 400, &[0.0, 25.0, 26.0, 50.0, 51.0, 100.0]);
        assert_eq!(
            rewards,
            [1, 1, 5, 5, 9, 9].map(|tip| U128::from(tip as u64))
        );
        assert_eq!(at_percentiles(&[], 0, &[1.0]), [U128::ZERO]);
    }
}
