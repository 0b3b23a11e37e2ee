//! Records the addresses and slots that a call touches: an inspector that reads the operands of the
//! opcodes priced by EIP-2929.
//!
//! [`super::Vm::watch`] makes it the observer of an EVM; blocks are executed without it.

use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_primitives::{Address, B256, U256};
use revm::{
    bytecode::opcode,
    interpreter::{
        Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps},
    },
};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Addresses and slots touched so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Accesses {
    /// Addresses that are always warm. They are listed only if slots of them are touched.
    warm: HashSet<Address>,
    touched: BTreeMap<Address, BTreeSet<B256>>,
}

impl Accesses {
    pub(super) fn new(warm: HashSet<Address>) -> Self {
        Self {
            warm,
            touched: BTreeMap::new(),
        }
    }

    /// Adds the entries of an access list.
    pub(super) fn extend(&mut self, list: &AccessList) {
        for item in &list.0 {
            self.account(item.address);
            for slot in &item.storage_keys {
                self.touched.entry(item.address).or_default().insert(*slot);
            }
        }
    }

    /// The access list of the touched addresses and slots, ascending.
    pub(super) fn list(&self) -> AccessList {
        let item = |(address, slots): (&Address, &BTreeSet<B256>)| AccessListItem {
            address: *address,
            storage_keys: slots.iter().copied().collect(),
        };
        AccessList(self.touched.iter().map(item).collect())
    }

    fn account(&mut self, address: Address) {
        if !self.warm.contains(&address) {
            self.touched.entry(address).or_default();
        }
    }
}

impl Accesses {
    /// Records the addresses and slots that the next instruction touches.
    pub(super) fn step(&mut self, interpreter: &Interpreter<EthInterpreter>) {
        let operand = |n| interpreter.stack.peek(n).ok();
        let address = |word: U256| Address::from_word(B256::from(word));
        match interpreter.bytecode.opcode() {
            opcode::SLOAD | opcode::SSTORE => {
                if let Some(slot) = operand(0) {
                    self.touched
                        .entry(interpreter.input.target_address())
                        .or_default()
                        .insert(B256::from(slot));
                }
            }
            opcode::BALANCE
            | opcode::EXTCODESIZE
            | opcode::EXTCODECOPY
            | opcode::EXTCODEHASH
            | opcode::SELFDESTRUCT => {
                operand(0)
                    .into_iter()
                    .for_each(|word| self.account(address(word)));
            }
            opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL => {
                operand(1)
                    .into_iter()
                    .for_each(|word| self.account(address(word)));
            }
            _ => {}
        }
    }
}
