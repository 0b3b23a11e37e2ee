//! `stateDiff` in Parity's form: the accounts that a transaction has changed, with each member
//! before and after the transaction.

use super::{point::PointState, writer::TraceWriter};
use alloy_primitives::{Address, B256, Bytes, U256};
use revm::state::{Account, EvmState};
use std::collections::BTreeMap;

/// Whether an account exists after the transaction. An empty account does not (EIP-161).
fn is_there_after(account: &Account) -> bool {
    !account.is_selfdestructed() && !account.info.is_empty()
}

/// The kind of change of an account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiffKind {
    Born,
    Died,
    Changed,
}

impl DiffKind {
    /// The kind of change; `None` if the account has not changed.
    fn of(account: &Account) -> Option<Self> {
        let (before, after) = (&account.original_info, &account.info);
        let there = is_there_after(account);
        if before.is_empty() {
            return there.then_some(Self::Born);
        }
        if !there {
            return Some(Self::Died);
        }
        let info = before.balance != after.balance
            || before.nonce != after.nonce
            || before.code_hash != after.code_hash;
        let storage = account.storage.values().any(|slot| slot.is_changed());
        (info || storage).then_some(Self::Changed)
    }

    fn write<T: PartialEq>(
        self,
        before: &T,
        after: &T,
        out: &mut TraceWriter,
        write: impl Fn(&mut TraceWriter, &T),
    ) {
        match self {
            Self::Born => {
                out.raw("{\"+\":");
                write(out, after);
            }
            Self::Died => {
                out.raw("{\"-\":");
                write(out, before);
            }
            Self::Changed if before == after => return out.raw("\"=\""),
            Self::Changed => {
                out.raw("{\"*\":{\"from\":");
                write(out, before);
                out.raw(",\"to\":");
                write(out, after);
                out.raw("}");
            }
        }
        out.raw("}");
    }
}

/// Writes the differences between the states before and after a transaction. `state` is the state
/// after it.
pub(super) fn write_state_diff(
    changed: &EvmState,
    state: &mut dyn PointState,
    out: &mut TraceWriter,
) {
    let accounts: BTreeMap<&Address, &Account> = changed.iter().collect();
    out.raw("{");
    let mut separator = "";
    for (address, account) in accounts {
        let Some(kind) = DiffKind::of(account) else {
            continue;
        };
        out.raw(std::mem::replace(&mut separator, ","));
        out.quoted(format_args!("{address:#x}"));
        out.raw(":");
        write_account(kind, account, state, out);
    }
    out.raw("}");
}

fn write_account(
    kind: DiffKind,
    account: &Account,
    state: &mut dyn PointState,
    out: &mut TraceWriter,
) {
    let (before, after) = (&*account.original_info, &account.info);
    out.raw("{\"balance\":");
    kind.write(&before.balance, &after.balance, out, |out, wei| {
        out.quantity(*wei);
    });
    out.raw(",\"code\":");
    if kind == DiffKind::Changed && before.code_hash == after.code_hash {
        out.raw("\"=\"");
    } else {
        let codes: [Bytes; 2] = [before, after].map(|info| state.code_of(info));
        kind.write(&codes[0], &codes[1], out, |out, code| out.data(code));
    }
    out.raw(",\"nonce\":");
    kind.write(&before.nonce, &after.nonce, out, |out, nonce| {
        out.quantity(U256::from(*nonce));
    });
    out.raw(",\"storage\":{");
    write_slots(kind, account, out);
    out.raw("}}");
}

/// Writes the slots that have changed. If the account no longer exists, writes the slots that were
/// accessed and were not zero before.
fn write_slots(kind: DiffKind, account: &Account, out: &mut TraceWriter) {
    let slots: BTreeMap<_, _> = (account.storage.iter())
        .filter(|(_, slot)| match kind {
            DiffKind::Born => !slot.present_value.is_zero(),
            DiffKind::Died => !slot.original_value.is_zero(),
            DiffKind::Changed => slot.is_changed(),
        })
        .collect();
    for (index, (key, slot)) in slots.into_iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(B256::from(*key));
        out.raw(":");
        let values = [slot.original_value, slot.present_value].map(B256::from);
        kind.write(&values[0], &values[1], out, |out, value| out.quoted(value));
    }
}
