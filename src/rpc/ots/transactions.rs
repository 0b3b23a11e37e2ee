//! Methods that execute transactions again: they show the calls and transfers of a transaction, why
//! it failed, and which transaction created a contract.

use crate::{
    chain::{
        evm::{CallFrames, Deadline, FrameKind, FrameView, TraceWriter, TracerConfig},
        view::View,
    },
    rpc::{
        context::RpcContext,
        error::RpcError,
        params::Args,
        trace_session::{TraceOptions, TraceSession, Traced},
    },
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use serde::Serialize;
use std::sync::Arc;

fn new_session<'a>(
    context: &'a RpcContext,
    deadline: &'a Deadline,
    out: TraceWriter,
) -> TraceSession<'a> {
    let options = TraceOptions::without_tx_timeout(TracerConfig::Frames);
    TraceSession::new(context, deadline, &options, out)
}

/// The call frames of a transaction; `None` if the transaction is unknown.
fn frames(
    session: &mut TraceSession<'_>,
    view: &Arc<View>,
    hash: B256,
) -> Result<Option<CallFrames>, RpcError> {
    let Some(replay) = session.replay_to(view, hash)? else {
        return Ok(None);
    };
    Ok(Some(session.frames_and_keep(replay)?))
}

fn text(value: &impl Serialize) -> Traced {
    serde_json::to_string(value).map_err(|error| RpcError::server(error.to_string()))
}

/// A call, as Otterscan shows it.
#[derive(Serialize)]
struct CallEntry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    depth: usize,
    from: Address,
    to: Address,
    /// Null for a call that cannot transfer value.
    value: Option<U256>,
    input: &'a Bytes,
    output: &'a Bytes,
}

impl<'a> CallEntry<'a> {
    fn new(frame: &'a FrameView<'_>) -> Self {
        let kind = frame.kind();
        let without_value = matches!(kind, FrameKind::DelegateCall | FrameKind::StaticCall);
        Self {
            kind: kind.name(),
            depth: frame.depth(),
            from: frame.from(),
            to: frame.to().unwrap_or_default(),
            value: (!without_value).then(|| frame.value()),
            input: frame.input(),
            output: frame.output(),
        }
    }
}

/// `ots_traceTransaction(hash)`: the transaction's calls in order; null if the transaction is
/// unknown.
pub fn trace(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let hash: B256 = args.at_most(1)?.required()?;
    let mut session = new_session(context, deadline, out);
    let Some(frames) = frames(&mut session, &context.view(), hash)? else {
        return Ok("null".to_owned());
    };
    session.raw("[");
    let mut separator = "";
    frames.visit(|frame| {
        if let Ok(entry) = serde_json::to_string(&CallEntry::new(frame)) {
            session.raw(std::mem::replace(&mut separator, ","));
            session.raw(&entry);
        }
    });
    session.raw("]");
    session.finish()
}

/// An internal operation as Otterscan shows it: a value transfer, contract creation or
/// self-destruct below the transaction's own call.
#[derive(Serialize)]
struct InternalOperation {
    #[serde(rename = "type")]
    kind: u8,
    from: Address,
    to: Address,
    value: U256,
}

impl InternalOperation {
    fn of(frame: &FrameView<'_>) -> Option<Self> {
        let kind = match frame.kind() {
            FrameKind::Call if !frame.value().is_zero() => 0,
            FrameKind::SelfDestruct => 1,
            FrameKind::Create => 2,
            FrameKind::Create2 => 3,
            _ => return None,
        };
        // The transaction's own call or creation is not internal.
        (frame.depth() > 0).then(|| Self {
            kind,
            from: frame.from(),
            to: frame.to().unwrap_or_default(),
            value: frame.value(),
        })
    }
}

/// `ots_getInternalOperations(hash)`: an empty list if the transaction is unknown.
pub fn internal_operations(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let hash: B256 = args.at_most(1)?.required()?;
    let mut session = new_session(context, deadline, out);
    let mut operations = Vec::new();
    if let Some(frames) = frames(&mut session, &context.view(), hash)? {
        frames.visit(|frame| operations.extend(InternalOperation::of(frame)));
    }
    text(&operations)
}

/// `ots_getTransactionError(hash)`: the data with which the transaction reverted, empty if it did
/// not revert; null if the transaction is unknown.
pub fn error(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let Some((number, index)) = view.transaction(hash)? else {
        return Ok("null".to_owned());
    };
    let mined = view.mined(number, index)?;
    if mined.is_some_and(|mined| mined.receipt.receipt.success) {
        return text(&Bytes::new());
    }
    let mut session = new_session(context, deadline, out);
    let mut output = Bytes::new();
    if let Some(frames) = frames(&mut session, &view, hash)? {
        frames.visit(|frame| {
            if frame.depth() == 0 && frame.has_failed() {
                output = frame.output().clone();
            }
        });
    }
    text(&output)
}

/// The transaction and the account that created a contract.
#[derive(Serialize)]
struct ContractCreator {
    hash: B256,
    creator: Address,
}

/// `ots_getContractCreator(address)`: null for an account without code, and for a contract that no
/// transaction created.
///
/// The block that created the contract is found by a search in the kept states, and is executed
/// again.
pub fn contract_creator(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let address: Address = args.at_most(1)?.required()?;
    let view = context.view();
    let Some(number) = created_in(&view, address, deadline)? else {
        return Ok("null".to_owned());
    };
    let mut session = new_session(context, deadline, out);
    let mut replay = session.replay(&view, number)?;
    while replay.done() < replay.count() {
        let hash = replay.place().tx_hash.unwrap_or_default();
        let frames = session.frames(&mut replay)?;
        if let Some(creator) = creator_in(&frames, address) {
            return text(&ContractCreator { hash, creator });
        }
    }
    Ok("null".to_owned())
}

/// The account that created a contract, in a frame that was not reverted.
fn creator_in(frames: &CallFrames, address: Address) -> Option<Address> {
    let (mut reverted, mut creator) = (None, None);
    frames.visit(|frame| {
        let depth = frame.depth();
        if reverted.is_some_and(|reverted| depth <= reverted) {
            reverted = None;
        }
        if reverted.is_none() && frame.has_failed() {
            reverted = Some(depth);
        }
        if reverted.is_none() && frame.kind().is_create() && frame.to() == Some(address) {
            creator.get_or_insert(frame.from());
        }
    });
    creator
}

/// The first block after which an account has code. `None` if the account has no code at the head,
/// or had code in the first block already.
fn created_in(
    view: &Arc<View>,
    address: Address,
    deadline: &Deadline,
) -> Result<Option<u64>, RpcError> {
    let (oldest, head) = (view.oldest_state(), view.head().number);
    if !has_code(view, head, address)? {
        return Ok(None);
    }
    if has_code(view, oldest, address)? {
        if oldest == 0 {
            return Ok(None);
        }
        return Err(RpcError::server(format!(
            "the contract is older than block #{oldest}, whose state is the oldest that is kept: keep all states with --gcmode=archive to find its creator"
        )));
    }
    let (mut before, mut after) = (oldest, head);
    while before + 1 < after {
        deadline.check()?;
        let middle = before.midpoint(after);
        if has_code(view, middle, address)? {
            after = middle;
        } else {
            before = middle;
        }
    }
    Ok(Some(after))
}

fn has_code(view: &Arc<View>, number: u64, address: Address) -> Result<bool, RpcError> {
    let state = view
        .state_at(number)?
        .ok_or_else(|| RpcError::server(format!("state at block #{number} is pruned")))?;
    let account = state.account(address)?;
    Ok(account.is_some_and(|account| account.code_hash != KECCAK256_EMPTY))
}
