//! The cost of an instruction as geth finds it, and the errors that geth finds before it runs the
//! instruction.
//!
//! revm charges an instruction in parts while it runs, so it does not know the cost of one that
//! cannot pay. geth's interpreter (`core/vm/interpreter.go`) knows more, in this order: the fixed
//! cost, the height of the stack, the size of memory, the dynamic cost. An error at one of these
//! points leaves out the costs after it.

use super::{
    failure::Failure,
    point::{LivePoint, delegation},
    struct_log::address_of,
};
use alloy_primitives::{Address, U256};
use revm::{
    bytecode::opcode::{self as op, OpCode},
    interpreter::{
        Interpreter,
        host::DummyHost,
        instructions::instruction_table,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps, MemoryTr, RuntimeFlag},
    },
    primitives::hardfork::SpecId,
};
use std::sync::LazyLock;

/// Cost of a first access to an account, and to a slot, in a transaction (EIP-2929).
const COLD_ACCOUNT: u64 = 2_600;
const COLD_SLOT: u64 = 2_100;
/// Cost of a later access.
const WARM: u64 = 100;
const NEW_ACCOUNT: u64 = 25_000;
const CALL_VALUE: u64 = 9_000;
const CREATE: u64 = 32_000;
const SET_SLOT: u64 = 20_000;
const RESET_SLOT: u64 = 5_000;
/// Gas that must be left before SSTORE (EIP-2200).
const SENTRY: u64 = 2_300;
const MAX_INITCODE: u64 = 49_152;
/// Largest memory in bytes whose cost geth computes.
const MAX_MEMORY: u64 = 0x1F_FFFF_FFE0;
const WORD: u64 = 32;

const OVERFLOW: &str = "gas uint64 overflow";
const OUT_OF_GAS: &str = "out of gas";
const WRITE_PROTECTION: &str = "write protection";

/// The cost of an instruction, and why it cannot run.
#[derive(Clone, Debug, Default)]
pub(super) struct StepCharge {
    pub cost: u64,
    pub refusal: Option<Failure>,
    /// Change of the transaction's refund by the instruction.
    pub refund: i64,
}

/// An instruction and the parts of the EVM that decide about its cost.
pub(super) struct ChargedStep<'a> {
    op: u8,
    spec: SpecId,
    gas: u64,
    stack: &'a [U256],
    /// Size of memory in bytes.
    memory: u64,
    address: Address,
    is_static: bool,
}

/// A dynamic cost, or the text of the error that ends its computation.
type DynamicCost = Result<u64, String>;

impl<'a> ChargedStep<'a> {
    /// The next instruction of a frame.
    pub(super) fn new(interpreter: &'a Interpreter<EthInterpreter>) -> Self {
        Self {
            op: interpreter.bytecode.opcode(),
            spec: interpreter.runtime_flag.spec_id(),
            gas: interpreter.gas.remaining(),
            stack: interpreter.stack.data(),
            memory: interpreter.memory.size() as u64,
            address: interpreter.input.target_address(),
            is_static: interpreter.runtime_flag.is_static(),
        }
    }

    pub(super) fn charge(&self, state: &mut dyn LivePoint) -> StepCharge {
        // An unknown opcode costs nothing, and fails when it runs.
        let Some(code) = OpCode::new(self.op).filter(|_| self.spec >= introduced(self.op)) else {
            return StepCharge::default();
        };
        let cost = fixed_cost(self.op, self.spec);
        let refused = |cost, refusal| StepCharge {
            cost,
            refusal: Some(refusal),
            refund: 0,
        };
        if let Some(failure) = Failure::of_stack(code, self.stack.len()) {
            return refused(cost, failure);
        }
        let Some(left) = self.gas.checked_sub(cost) else {
            return refused(cost, Failure::out_of_gas(OUT_OF_GAS));
        };
        let Some(memory) = self.needed_memory() else {
            return refused(cost, Failure::before(OVERFLOW));
        };
        match self.dynamic_cost(left, memory, state) {
            Err(text) => refused(cost, Failure::out_of_gas(&format!("out of gas: {text}"))),
            Ok(dynamic) => StepCharge {
                cost: cost.wrapping_add(dynamic),
                refusal: (left < dynamic).then(|| Failure::out_of_gas(OUT_OF_GAS)),
                refund: if self.op == op::SSTORE {
                    self.store_refund(state)
                } else {
                    0
                },
            },
        }
    }

    fn since(&self, fork: SpecId) -> bool {
        self.spec.is_enabled_in(fork)
    }

    /// A word of the stack, counted from its top.
    fn word(&self, position: usize) -> U256 {
        let index = self.stack.len().checked_sub(position + 1);
        index.map_or(U256::ZERO, |index| self.stack[index])
    }

    /// A length on the stack, which is not larger than the memory that the instruction needs.
    fn words(&self, position: usize) -> u64 {
        self.word(position).saturating_to::<u64>().div_ceil(WORD)
    }

    /// Size in bytes of the memory that the instruction needs, in whole words; `None` if no number of
    /// 64 bits holds it.
    fn needed_memory(&self) -> Option<u64> {
        let range = |offset: U256, length: U256| -> Option<u64> {
            let length = u64::try_from(length).ok()?;
            if length == 0 {
                return Some(0);
            }
            u64::try_from(offset).ok()?.checked_add(length)
        };
        let on_stack = |offset, length| range(self.word(offset), self.word(length));
        let two = |first: Option<u64>, second: Option<u64>| Some(first?.max(second?));
        let end = match self.op {
            op::MLOAD | op::MSTORE => range(self.word(0), U256::from(WORD)),
            op::MSTORE8 => range(self.word(0), U256::ONE),
            op::KECCAK256 | op::RETURN | op::REVERT | op::LOG0..=op::LOG4 => on_stack(0, 1),
            op::CALLDATACOPY | op::CODECOPY | op::RETURNDATACOPY => on_stack(0, 2),
            op::EXTCODECOPY => on_stack(1, 3),
            op::MCOPY => range(self.word(0).max(self.word(1)), self.word(2)),
            op::CREATE | op::CREATE2 => on_stack(1, 2),
            op::CALL | op::CALLCODE => two(on_stack(5, 6), on_stack(3, 4)),
            op::DELEGATECALL | op::STATICCALL => two(on_stack(4, 5), on_stack(2, 3)),
            _ => Some(0),
        };
        end?.div_ceil(WORD).checked_mul(WORD)
    }

    /// Cost of the memory that is new, up to `needed` bytes.
    fn memory_cost(&self, needed: u64) -> DynamicCost {
        if needed > MAX_MEMORY {
            return Err(OVERFLOW.to_owned());
        }
        let total = |bytes: u64| {
            let words = bytes / WORD;
            3 * words + words * words / 512
        };
        Ok(total(needed.max(self.memory)) - total(self.memory))
    }

    fn dynamic_cost(&self, left: u64, memory: u64, state: &mut dyn LivePoint) -> DynamicCost {
        let memory_cost = || self.memory_cost(memory);
        match self.op {
            op::MLOAD | op::MSTORE | op::MSTORE8 | op::RETURN | op::REVERT => memory_cost(),
            op::KECCAK256 => Ok(memory_cost()? + 6 * self.words(1)),
            op::CALLDATACOPY | op::CODECOPY | op::RETURNDATACOPY | op::MCOPY => {
                Ok(memory_cost()? + 3 * self.words(2))
            }
            op::EXTCODECOPY => {
                let copied = memory_cost()? + 3 * self.words(3);
                Ok(copied + self.cold_account(0, state))
            }
            op::BALANCE | op::EXTCODESIZE | op::EXTCODEHASH => Ok(self.cold_account(0, state)),
            op::EXP => {
                let bytes = self.word(1).byte_len() as u64;
                Ok(10
                    + bytes
                        * if self.since(SpecId::SPURIOUS_DRAGON) {
                            50
                        } else {
                            10
                        })
            }
            op::LOG0..=op::LOG4 => {
                let memory = memory_cost()?;
                let topics = u64::from(self.op - op::LOG0);
                Ok(memory + 375 + 375 * topics + 8 * self.word(1).saturating_to::<u64>())
            }
            op::CREATE | op::CREATE2 => self.creation_cost(memory),
            op::SLOAD if self.since(SpecId::BERLIN) => {
                let warm = state.is_slot_warm(self.address, self.word(0));
                Ok(if warm { WARM } else { COLD_SLOT })
            }
            op::SSTORE => self.store_cost(left, state),
            op::SELFDESTRUCT => self.destruction_cost(left, state),
            op::CALL | op::CALLCODE | op::DELEGATECALL | op::STATICCALL => {
                self.call_cost(left, memory, state)
            }
            _ => Ok(0),
        }
    }

    /// The cost of a first access to an account above the instruction's fixed cost; zero if this is
    /// not the first. The account's address is on the stack.
    fn cold_account(&self, position: usize, state: &mut dyn LivePoint) -> u64 {
        let address = address_of(self.word(position));
        if self.since(SpecId::BERLIN) && !state.is_warm(address) {
            COLD_ACCOUNT - WARM
        } else {
            0
        }
    }

    fn creation_cost(&self, memory: u64) -> DynamicCost {
        let memory = self.memory_cost(memory)?;
        let hashed = if self.op == op::CREATE2 { 6 } else { 0 };
        if !self.since(SpecId::SHANGHAI) {
            return Ok(memory + hashed * self.words(2));
        }
        let size = self.word(2).saturating_to::<u64>();
        if size > MAX_INITCODE {
            return Err(format!(
                "max initcode size exceeded: code size {size} limit {MAX_INITCODE}"
            ));
        }
        Ok(memory + (2 + hashed) * self.words(2))
    }

    fn store_cost(&self, left: u64, state: &mut dyn LivePoint) -> DynamicCost {
        if self.is_static {
            return Err(WRITE_PROTECTION.to_owned());
        }
        if self.since(SpecId::ISTANBUL) && left <= SENTRY {
            return Err("not enough gas for reentrancy sentry".to_owned());
        }
        let (slot, value) = (self.word(0), self.word(1));
        let current = state.slot(self.address, slot);
        // EIP-1283 holds in Constantinople only. Istanbul brought EIP-2200.
        let constantinople = self.spec == SpecId::CONSTANTINOPLE;
        if !constantinople && !self.since(SpecId::ISTANBUL) {
            let set = current.is_zero() && !value.is_zero();
            return Ok(if set { SET_SLOT } else { RESET_SLOT });
        }
        let (read, reset, cold) = if self.since(SpecId::BERLIN) {
            let warm = state.is_slot_warm(self.address, slot);
            let cold = if warm { 0 } else { COLD_SLOT };
            (WARM, RESET_SLOT - COLD_SLOT, cold)
        } else {
            (if constantinople { 200 } else { 800 }, RESET_SLOT, 0)
        };
        let original = state.original_slot(self.address, slot);
        Ok(cold
            + if current == value || original != current {
                read
            } else if original.is_zero() {
                SET_SLOT
            } else {
                reset
            })
    }

    /// Change of the refund by a storage write. geth makes it with the cost, so that it counts at the
    /// instruction itself (EIP-2200, EIP-2929, EIP-3529).
    fn store_refund(&self, state: &mut dyn LivePoint) -> i64 {
        let (slot, value) = (self.word(0), self.word(1));
        let current = state.slot(self.address, slot);
        let clear = if self.since(SpecId::LONDON) {
            4_800
        } else {
            15_000
        };
        if self.spec != SpecId::CONSTANTINOPLE && !self.since(SpecId::ISTANBUL) {
            let clears = !current.is_zero() && value.is_zero();
            return if clears { clear } else { 0 };
        }
        let original = state.original_slot(self.address, slot);
        if current == value {
            return 0;
        }
        if original == current {
            let clears = !original.is_zero() && value.is_zero();
            return if clears { clear } else { 0 };
        }
        let (read, reset) = if self.since(SpecId::BERLIN) {
            (WARM, RESET_SLOT - COLD_SLOT)
        } else if self.since(SpecId::ISTANBUL) {
            (800, RESET_SLOT)
        } else {
            (200, RESET_SLOT)
        };
        let mut refund = 0;
        if !original.is_zero() && current.is_zero() {
            refund -= clear;
        } else if !original.is_zero() && value.is_zero() {
            refund += clear;
        }
        if original == value {
            let paid = if original.is_zero() { SET_SLOT } else { reset };
            refund += (paid - read) as i64;
        }
        refund
    }

    fn destruction_cost(&self, left: u64, state: &mut dyn LivePoint) -> DynamicCost {
        if self.is_static {
            return Err(WRITE_PROTECTION.to_owned());
        }
        if !self.since(SpecId::TANGERINE) {
            return Ok(0);
        }
        let heir = address_of(self.word(0));
        let access = if !self.since(SpecId::BERLIN) {
            5_000
        } else if state.is_warm(heir) {
            0
        } else {
            COLD_ACCOUNT
        };
        if self.since(SpecId::BERLIN) && left < access {
            return Err(OUT_OF_GAS.to_owned());
        }
        let funded = !state.account(self.address).balance.is_zero();
        Ok(access + self.new_account(heir, funded, state))
    }

    /// Cost of an account that does not exist. From Spurious Dragon on an empty one costs it, if it
    /// gets a value.
    fn new_account(&self, address: Address, value: bool, state: &mut dyn LivePoint) -> u64 {
        let new = if self.since(SpecId::SPURIOUS_DRAGON) {
            value && state.account(address).is_empty()
        } else {
            !state.exists(address)
        };
        if new { NEW_ACCOUNT } else { 0 }
    }

    fn call_cost(&self, left: u64, memory: u64, state: &mut dyn LivePoint) -> DynamicCost {
        let prague = self.since(SpecId::PRAGUE);
        let value = matches!(self.op, op::CALL | op::CALLCODE) && !self.word(2).is_zero();
        let protected = self.op == op::CALL && value && self.is_static;
        if prague && protected {
            return Err(WRITE_PROTECTION.to_owned());
        }
        let pay = |left: u64, cost: u64| left.checked_sub(cost).ok_or(OUT_OF_GAS.to_owned());
        let cold = self.cold_account(1, state);
        let left = pay(left, cold)?;
        if protected {
            return Err(WRITE_PROTECTION.to_owned());
        }
        let target = address_of(self.word(1));
        let mut own = self.memory_cost(memory)? + if value { CALL_VALUE } else { 0 };
        if self.op == op::CALL {
            pay(left, own)?;
            own += self.new_account(target, value, state);
        }
        let delegated = if prague {
            pay(left, own)?;
            self.delegation_cost(target, state)
        } else {
            0
        };
        let left = pay(left, delegated)?;
        let passed = self.passed_gas(left, own)?;
        let total = (cold + delegated + own).checked_add(passed);
        total.ok_or(OVERFLOW.to_owned())
    }

    /// Cost of resolving the delegation of an account's code (EIP-7702). The account itself has been
    /// accessed already.
    fn delegation_cost(&self, account: Address, state: &mut dyn LivePoint) -> u64 {
        match delegation(&state.code(account)) {
            None => 0,
            Some(target) if target == account || state.is_warm(target) => WARM,
            Some(_) => COLD_ACCOUNT,
        }
    }

    /// The gas that a call passes on, out of `left` after its own cost. As in geth the difference
    /// wraps if the call cannot pay that cost, so that the sum is the requested gas or overflows.
    fn passed_gas(&self, left: u64, own: u64) -> DynamicCost {
        let requested = u64::try_from(self.word(0));
        if self.since(SpecId::TANGERINE) {
            let available = left.wrapping_sub(own);
            let most = available - available / 64;
            return Ok(requested.map_or(most, |requested| requested.min(most)));
        }
        requested.map_err(|_| OVERFLOW.to_owned())
    }
}

/// The cost that an instruction has whatever its operands are. geth counts the whole cost of EXP, of
/// logs and of SSTORE as dynamic.
fn fixed_cost(op: u8, spec: SpecId) -> u64 {
    static FIRST: LazyLock<[u64; 256]> = LazyLock::new(|| {
        instruction_table::<EthInterpreter, DummyHost>().map(|instruction| instruction.static_gas())
    });
    let since = |fork| spec.is_enabled_in(fork);
    match op {
        op::EXP | op::LOG0..=op::LOG4 => 0,
        op::CREATE | op::CREATE2 => CREATE,
        op::SLOAD if since(SpecId::BERLIN) => 0,
        op::SLOAD if since(SpecId::ISTANBUL) => 800,
        op::SLOAD if since(SpecId::TANGERINE) => 200,
        op::SELFDESTRUCT if since(SpecId::BERLIN) => 5_000,
        op::BALANCE | op::EXTCODEHASH | op::EXTCODESIZE | op::EXTCODECOPY
            if since(SpecId::BERLIN) =>
        {
            WARM
        }
        op::CALL | op::CALLCODE | op::DELEGATECALL | op::STATICCALL if since(SpecId::BERLIN) => {
            WARM
        }
        op::BALANCE | op::EXTCODEHASH if since(SpecId::ISTANBUL) => 700,
        op::BALANCE if since(SpecId::TANGERINE) => 400,
        op::EXTCODESIZE | op::EXTCODECOPY if since(SpecId::TANGERINE) => 700,
        op::CALL | op::CALLCODE | op::DELEGATECALL | op::STATICCALL if since(SpecId::TANGERINE) => {
            700
        }
        _ => FIRST[usize::from(op)],
    }
}

/// The fork from which on an opcode is known.
fn introduced(op: u8) -> SpecId {
    match op {
        op::DELEGATECALL => SpecId::HOMESTEAD,
        op::RETURNDATASIZE | op::RETURNDATACOPY | op::STATICCALL | op::REVERT => SpecId::BYZANTIUM,
        op::SHL | op::SHR | op::SAR | op::EXTCODEHASH | op::CREATE2 => SpecId::CONSTANTINOPLE,
        op::CHAINID | op::SELFBALANCE => SpecId::ISTANBUL,
        op::BASEFEE => SpecId::LONDON,
        op::PUSH0 => SpecId::SHANGHAI,
        op::TLOAD | op::TSTORE | op::MCOPY | op::BLOBHASH | op::BLOBBASEFEE => SpecId::CANCUN,
        op::CLZ => SpecId::OSAKA,
        op::SLOTNUM | op::DUPN | op::SWAPN | op::EXCHANGE => SpecId::AMSTERDAM,
        _ => SpecId::FRONTIER,
    }
}
