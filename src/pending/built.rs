//! A pending block of the pool's transactions, like the one that a sequencer would build now.
//!
//! The block has the L1 attributes of the head, with the next sequence number in the epoch. It is
//! built at most once per [`KEPT`] for a head. Transactions of the pool that do not start to run
//! within [`BUILD`] are left out.

use crate::chain::{
    build::{BlockBuilder, BuildError},
    evm::StateError,
    pool::Pool,
    rules::{ChainSpec, ExtraData, Rules},
    view::{ReadError, View},
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B64, B256, Bytes};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_consensus::OpTxEnvelope;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use parking_lot::Mutex;
use starling_proto::{
    attributes::is_upgrade_block,
    deposit::l1_info_source_hash,
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoFormat},
    payload::{Payload, decode_transaction},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time for which a built block is served as `pending`, unless the head moves.
pub const KEPT: Duration = Duration::from_secs(2);
/// Time after which no more pool transactions are added to a block.
const BUILD: Duration = Duration::from_millis(250);
/// Assumed block time in seconds if the chain has only its genesis block.
const BLOCK_TIME: u64 = 2;

/// The pending block that was built last, shared by all requests.
#[derive(Default)]
pub struct BuiltPending(Mutex<Option<LastBuilt>>);

struct LastBuilt {
    /// Hash of the head on which the block was built.
    parent: B256,
    at: Instant,
    /// The view with the pending block; `None` if no block can be built on that head.
    view: Option<Arc<View>>,
}

/// The reason why there is no pending block.
#[derive(Debug, thiserror::Error)]
enum PendingError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the head has no L1 attributes to continue, or the next block activates a fork")]
    NoAttributes,
}

impl BuiltPending {
    /// The view with a pending block on this head. While one request builds the block, all others
    /// wait.
    pub fn on(
        &self,
        spec: &Arc<ChainSpec>,
        pool: &Pool,
        head: &Arc<View>,
        now: Instant,
    ) -> Option<Arc<View>> {
        let parent = head.head().hash;
        let mut last = self.0.lock();
        if let Some(built) = last.as_ref()
            && built.parent == parent
            && now.saturating_duration_since(built.at) < KEPT
        {
            return built.view.clone();
        }
        let view = match build(spec, pool, head, now + BUILD) {
            Ok(view) => Some(Arc::new(view)),
            Err(error) => {
                tracing::debug!(%error, head = %head.head(), "there is no pending block");
                None
            }
        };
        *last = Some(LastBuilt {
            parent,
            at: now,
            view: view.clone(),
        });
        view
    }
}

fn build(
    spec: &Arc<ChainSpec>,
    pool: &Pool,
    head: &Arc<View>,
    until: Instant,
) -> Result<View, PendingError> {
    let number = head.head().number;
    let payload = head.payload(number)?.ok_or(PendingError::NoAttributes)?;
    let before = match number.checked_sub(1) {
        Some(number) => head.header_of(number)?,
        None => None,
    };
    let interval = before.map_or(BLOCK_TIME, |before| {
        payload.timestamp().saturating_sub(before.timestamp)
    });
    let attributes = attributes(spec, &payload, payload.timestamp().saturating_add(interval));
    let attributes = attributes.ok_or(PendingError::NoAttributes)?;
    let mut builder = BlockBuilder::start(spec.clone(), head.state(), attributes)?;
    for tx in pool.best(builder.base_fee()) {
        if Instant::now() >= until {
            break;
        }
        if builder.meets(tx.conditional.as_deref())?.is_none() {
            builder.add(&tx.tx, &tx.raw)?;
        }
    }
    let block = builder.finish()?;
    Ok(head.clone().with_pending(Arc::new(block))?)
}

/// The attributes of a block at `time` on `head`. `None` if the head has no L1 attributes to
/// continue, or if the block activates a fork, whose upgrade transactions only the rollup node
/// creates.
fn attributes(spec: &ChainSpec, head: &Payload, time: u64) -> Option<OpPayloadAttributes> {
    let header = &head.header;
    let standard = PayloadAttributes {
        timestamp: time,
        prev_randao: header.mix_hash,
        suggested_fee_recipient: header.beneficiary,
        withdrawals: header.withdrawals_root.map(|_| Vec::new()),
        parent_beacon_block_root: header.parent_beacon_block_root,
        ..Default::default()
    };
    let Rules::Optimism { forks, .. } = &spec.rules else {
        return Some(OpPayloadAttributes {
            payload_attributes: standard,
            ..Default::default()
        });
    };
    if is_upgrade_block(forks, header.timestamp, time) {
        return None;
    }
    let format = L1InfoFormat::at(forks, time, header.timestamp);
    let FeeAttributes {
        eip_1559_params,
        min_base_fee,
    } = FeeAttributes::of(spec, &header.extra_data, time)?;
    Some(OpPayloadAttributes {
        payload_attributes: standard,
        transactions: Some(vec![next_attributes(head, format)?]),
        gas_limit: Some(header.gas_limit),
        eip_1559_params,
        min_base_fee,
        ..Default::default()
    })
}

/// The attributes from which a block's extra data is computed.
pub(super) struct FeeAttributes {
    pub eip_1559_params: Option<B64>,
    pub min_base_fee: Option<u64>,
}

impl FeeAttributes {
    /// Reads the attributes from `extra_data`, for a block at `time`; `None` if the data is not in
    /// the format of that time.
    pub(super) fn of(spec: &ChainSpec, extra_data: &Bytes, time: u64) -> Option<Self> {
        let active = spec.at(time);
        if !active.is_op(Fork::Holocene) {
            return extra_data.is_empty().then_some(Self {
                eip_1559_params: None,
                min_base_fee: None,
            });
        }
        let extra = ExtraData::decode(extra_data, &active).ok()?;
        Some(Self {
            eip_1559_params: Some(B64::from_slice(extra_data.get(1..9)?)),
            min_base_fee: active.is_op(Fork::Jovian).then_some(extra.min_base_fee),
        })
    }
}

/// The L1 attributes of the head with the next sequence number; `None` if they are not in `format`.
fn next_attributes(head: &Payload, format: L1InfoFormat) -> Option<Bytes> {
    let mut info = L1BlockInfo::of(head).ok()?;
    (info.format == format).then_some(())?;
    info.sequence_number = info.sequence_number.saturating_add(1);
    let first = decode_transaction(head.transactions.first()?).ok()?;
    let OpTxEnvelope::Deposit(deposit) = first else {
        return None;
    };
    let mut deposit = deposit.into_inner();
    deposit.source_hash = l1_info_source_hash(info.hash, info.sequence_number);
    deposit.input = info.encode();
    Some(OpTxEnvelope::from(deposit).encoded_2718().into())
}
