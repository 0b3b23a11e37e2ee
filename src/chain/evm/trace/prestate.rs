//! `prestateTracer`: the accounts and slots that a transaction touches, as they were before the
//! transaction. With `diffMode`, those that the transaction changes, before and after it.

use super::{
    TraceStart, TracedStep,
    options::null_is_default,
    point::{PointState, delegation},
    struct_log::address_of,
    writer::TraceWriter,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use revm::{bytecode::opcode, state::AccountInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Estimated bytes that one recorded account (without its code) or slot uses in memory.
const ENTRY: usize = 256;

/// Options of `prestateTracer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PrestateConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub diff_mode: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub disable_code: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub disable_storage: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub include_empty: bool,
}

/// An account as it was before the transaction.
struct PrestateAccount {
    info: AccountInfo,
    code: Bytes,
    storage: BTreeMap<U256, U256>,
    /// Whether the account did not exist.
    empty: bool,
}

/// The members of an account that the transaction has changed, with their new values.
#[derive(Default)]
struct ChangedAccount {
    balance: Option<U256>,
    nonce: Option<u64>,
    code_hash: Option<B256>,
    code: Option<Bytes>,
    storage: BTreeMap<U256, U256>,
}

/// Something that the current instruction added, to be removed if the instruction did not run.
enum StepAddition {
    Account(Address),
    Slot(Address, U256),
    Created(Address),
    Deleted(Address),
}

/// The tracer's state: the accounts that the transaction has touched so far.
pub(super) struct PrestateTracer {
    config: PrestateConfig,
    cancun: bool,
    prague: bool,
    pre: BTreeMap<Address, PrestateAccount>,
    created: BTreeSet<Address>,
    deleted: BTreeSet<Address>,
    added: Vec<StepAddition>,
    bytes: usize,
}

impl PrestateTracer {
    pub(super) fn new(config: PrestateConfig) -> Self {
        Self {
            config,
            cancun: false,
            prague: false,
            pre: BTreeMap::new(),
            created: BTreeSet::new(),
            deleted: BTreeSet::new(),
            added: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn begin(&mut self, start: &TraceStart, state: &mut dyn PointState) {
        (self.cancun, self.prague) = (start.cancun, start.prague);
        let to = match start.to {
            Some(to) => {
                self.touch_delegate(to, state);
                to
            }
            None => {
                let created = start.from.create(state.account(start.from).nonce);
                self.created.insert(created);
                created
            }
        };
        for address in [start.from, to, start.coinbase] {
            self.touch(address, state);
        }
        if let Some(vault) = start.base_fee_vault {
            self.touch(vault, state);
        }
        for authority in &start.authorities {
            self.touch(*authority, state);
        }
        self.added.clear();
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        self.added.clear();
        let caller = step.address;
        match (step.op, step.stack) {
            (opcode::SLOAD | opcode::SSTORE, [.., slot]) => self.touch_slot(caller, *slot, state),
            (
                opcode::EXTCODECOPY
                | opcode::EXTCODEHASH
                | opcode::EXTCODESIZE
                | opcode::BALANCE
                | opcode::SELFDESTRUCT,
                [.., word],
            ) => {
                self.touch(address_of(*word), state);
                // EIP-6780: SELFDESTRUCT deletes only a contract created in the same transaction.
                let deletes = !self.cancun || self.created.contains(&caller);
                if step.op == opcode::SELFDESTRUCT && deletes && self.deleted.insert(caller) {
                    self.added.push(StepAddition::Deleted(caller));
                }
            }
            (
                opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL,
                [.., word, _],
            ) if step.stack.len() >= 5 => {
                let address = address_of(*word);
                self.touch(address, state);
                self.touch_delegate(address, state);
            }
            (opcode::CREATE, _) => {
                let created = caller.create(state.account(caller).nonce);
                self.create(created, state);
            }
            (opcode::CREATE2, [.., salt, size, offset, _]) => {
                let Some(init) = step.memory_padded(*offset, *size) else {
                    return;
                };
                let created = caller.create2(B256::from(*salt), keccak256(init));
                self.create(created, state);
            }
            _ => {}
        }
    }

    /// Removes everything that an instruction added, because the instruction did not run.
    pub(super) fn undo_step(&mut self) {
        for added in std::mem::take(&mut self.added) {
            match added {
                StepAddition::Account(address) => drop(self.pre.remove(&address)),
                StepAddition::Slot(address, slot) => {
                    if let Some(account) = self.pre.get_mut(&address) {
                        account.storage.remove(&slot);
                    }
                }
                StepAddition::Created(address) => drop(self.created.remove(&address)),
                StepAddition::Deleted(address) => drop(self.deleted.remove(&address)),
            }
        }
    }

    fn create(&mut self, address: Address, state: &mut dyn PointState) {
        self.touch(address, state);
        if self.created.insert(address) {
            self.added.push(StepAddition::Created(address));
        }
    }

    /// Touches the account to which the code of `address` delegates.
    fn touch_delegate(&mut self, address: Address, state: &mut dyn PointState) {
        if self.prague
            && let Some(target) = delegation(&state.code(address))
        {
            self.touch(target, state);
        }
    }

    fn touch(&mut self, address: Address, state: &mut dyn PointState) {
        if self.pre.contains_key(&address) {
            return;
        }
        let info = state.account(address);
        let code = state.code_of(&info);
        let empty = info.nonce == 0 && info.balance.is_zero() && code.is_empty();
        self.bytes += ENTRY
            + if self.config.disable_code {
                0
            } else {
                code.len()
            };
        let account = PrestateAccount {
            info,
            code,
            storage: BTreeMap::new(),
            empty,
        };
        self.pre.insert(address, account);
        self.added.push(StepAddition::Account(address));
    }

    fn touch_slot(&mut self, address: Address, slot: U256, state: &mut dyn PointState) {
        if self.config.disable_storage {
            return;
        }
        // Code may run at an address that no instruction has touched, for example delegated code.
        self.touch(address, state);
        let Some(account) = self.pre.get_mut(&address) else {
            return;
        };
        if let std::collections::btree_map::Entry::Vacant(entry) = account.storage.entry(slot) {
            entry.insert(state.slot(address, slot));
            self.bytes += ENTRY;
            self.added.push(StepAddition::Slot(address, slot));
        }
    }

    pub(super) fn finish(mut self, state: &mut dyn PointState, out: &mut TraceWriter) {
        if !self.config.diff_mode {
            let shown = |account: &PrestateAccount| self.config.include_empty || !account.empty;
            self.write_pre(out, &shown);
            return;
        }
        let mut post = BTreeMap::new();
        let addresses: Vec<Address> = self.pre.keys().copied().collect();
        for address in addresses {
            if self.deleted.contains(&address) {
                continue;
            }
            match self.change_of(address, state) {
                Some(changed) => drop(post.insert(address, changed)),
                None => drop(self.pre.remove(&address)),
            }
        }
        out.raw("{\"post\":");
        write_map(out, post.iter(), |out, changed| changed.write(out));
        out.raw(",\"pre\":");
        self.write_pre(out, &|account| !account.empty);
        out.raw("}");
    }

    /// The members of an account that the transaction has changed; `None` if there are none. Drops
    /// unchanged slots from the state before the transaction.
    fn change_of(
        &mut self,
        address: Address,
        state: &mut dyn PointState,
    ) -> Option<ChangedAccount> {
        let now = state.account(address);
        let account = self.pre.get_mut(&address)?;
        let mut changed = ChangedAccount::default();
        let mut modified = false;
        if now.balance != account.info.balance {
            modified = true;
            changed.balance = Some(now.balance);
        }
        if now.nonce != account.info.nonce {
            modified = true;
            changed.nonce = Some(now.nonce);
        }
        let (hash, before) = (code_hash(&now), code_hash(&account.info));
        if hash != before {
            modified = true;
            changed.code_hash = Some(hash);
            if !self.config.disable_code {
                changed.code = Some(state.code_of(&now));
            }
        }
        account.storage.retain(|slot, value| {
            let new = state.slot(address, *slot);
            if new == *value {
                return false;
            }
            modified = true;
            if !new.is_zero() {
                changed.storage.insert(*slot, new);
            }
            !value.is_zero()
        });
        modified.then_some(changed)
    }

    fn write_pre(&self, out: &mut TraceWriter, shown: &dyn Fn(&PrestateAccount) -> bool) {
        let accounts = self.pre.iter().filter(|(_, account)| shown(account));
        write_map(out, accounts, |out, account| {
            out.raw("\"balance\":");
            out.quantity(account.info.balance);
            if !account.code.is_empty() && !self.config.disable_code {
                out.raw(",\"code\":");
                out.data(&account.code);
            }
            if !account.code.is_empty() {
                out.raw(",\"codeHash\":");
                out.quoted(account.info.code_hash);
            }
            if account.info.nonce > 0 {
                out.raw(",\"nonce\":");
                out.display(account.info.nonce);
            }
            write_storage(out, &account.storage, ",");
        });
    }
}

impl ChangedAccount {
    fn write(&self, out: &mut TraceWriter) {
        let mut separator = "";
        let mut member = |out: &mut TraceWriter, name: &str| {
            out.raw(std::mem::replace(&mut separator, ","));
            out.raw(name);
        };
        if let Some(balance) = self.balance {
            member(out, "\"balance\":");
            out.quantity(balance);
        }
        if let Some(code) = &self.code {
            member(out, "\"code\":");
            out.data(code);
        }
        if let Some(hash) = self.code_hash {
            member(out, "\"codeHash\":");
            out.quoted(hash);
        }
        if let Some(nonce) = self.nonce {
            member(out, "\"nonce\":");
            out.display(nonce);
        }
        write_storage(out, &self.storage, separator);
    }
}

fn code_hash(info: &AccountInfo) -> B256 {
    if info.code_hash.is_zero() {
        KECCAK256_EMPTY
    } else {
        info.code_hash
    }
}

fn write_storage(out: &mut TraceWriter, storage: &BTreeMap<U256, U256>, separator: &str) {
    if storage.is_empty() {
        return;
    }
    out.raw(separator);
    out.raw("\"storage\":{");
    for (index, (slot, value)) in storage.iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(B256::from(*slot));
        out.raw(":");
        out.quoted(B256::from(*value));
    }
    out.raw("}");
}

/// Writes an object with one member for each account.
fn write_map<'a, T: 'a>(
    out: &mut TraceWriter,
    accounts: impl Iterator<Item = (&'a Address, &'a T)>,
    write: impl Fn(&mut TraceWriter, &T),
) {
    out.raw("{");
    for (index, (address, account)) in accounts.enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(format_args!("{address:#x}"));
        out.raw(":{");
        write(out, account);
        out.raw("}");
    }
    out.raw("}");
}
