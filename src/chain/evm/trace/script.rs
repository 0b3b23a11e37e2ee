//! Tracers in JavaScript: passes the events of a transaction to a script, as geth does.
//!
//! The script runs in a process of its own ([`port`]) with limits on memory and stack, which a
//! JavaScript engine alone cannot enforce. An instruction is reported to the script after it has
//! run, since only then its cost is known; the script's reads of the EVM return values from before
//! it.

pub mod message;
mod port;

pub use port::{ScriptConnection, ScriptError, ScriptHost};

use super::{
    Entered, FrameKind, Left, StepEnd, TraceEnd, TracePlace, TraceStart, TracedStep,
    point::PointState, struct_log::address_of, vm_trace::written_range, writer::TraceWriter,
};
use crate::chain::evm::Deadline;
use alloy_primitives::{Address, B256, Bytes, U256};
use message::{
    FromScript, ScriptContract, ScriptExit, ScriptFrame, ScriptHooks, ScriptQuestion, ScriptStep,
    ScriptTransaction, TOP_WORDS, ToScript,
};
use port::ScriptPort;
use revm::{bytecode::opcode, state::AccountInfo};
use serde_json::value::RawValue;

/// Largest number of bytes of memory that a script may read at once.
const MAX_MEMORY: usize = 1 << 20;

/// A script and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSource {
    /// The tracer's name in the request, for messages.
    pub name: String,
    pub code: String,
    /// Options as JSON.
    pub config: String,
}

/// The script host and its process, passed from the tracer of one transaction to the next.
#[derive(Default)]
pub(super) struct ScriptLink {
    pub host: Option<ScriptHost>,
    pub deadline: Option<Deadline>,
    port: Option<ScriptPort>,
}

/// An instruction that has not been reported to the script yet.
struct WaitingStep {
    step: ScriptStep,
    stack: Vec<U256>,
    address: Address,
    /// Offset and old bytes of the memory that the instruction overwrites.
    overwritten: (usize, Vec<u8>),
    before: BeforeStep,
}

/// The state that the instruction changes, as it was before the instruction.
enum BeforeStep {
    Nothing,
    Slot(U256, U256),
    Accounts([(Address, AccountInfo); 2]),
}

/// The tracer's state for one transaction.
pub(super) struct ScriptTracer {
    source: ScriptSource,
    link: ScriptLink,
    hooks: ScriptHooks,
    contracts: Vec<ScriptContract>,
    /// Whether the innermost frame has not been reported to the script yet.
    contract_changed: bool,
    waiting: Option<WaitingStep>,
    transaction: ScriptTransaction,
    failure: Option<ScriptError>,
}

/// The parts of the EVM that a script may read at one point.
struct Readable<'a> {
    state: &'a mut dyn PointState,
    memory: &'a [u8],
    waiting: Option<&'a WaitingStep>,
}

impl Readable<'_> {
    fn read(&mut self, question: ScriptQuestion) -> Bytes {
        match question {
            ScriptQuestion::Stack(index) => {
                let stack = self.waiting.map_or(&[][..], |waiting| &waiting.stack);
                let word = stack.iter().rev().nth(index).copied();
                B256::from(word.unwrap_or_default()).into()
            }
            ScriptQuestion::Memory { offset, length } => self.memory(offset, length),
            ScriptQuestion::Balance(address) => B256::from(self.info(address).balance).into(),
            ScriptQuestion::Nonce(address) => {
                B256::from(U256::from(self.info(address).nonce)).into()
            }
            ScriptQuestion::Code(address) => {
                let info = self.info(address);
                self.state.code_of(&info)
            }
            ScriptQuestion::Storage { address, slot } => {
                let slot = slot.into();
                let value = match self.waiting {
                    Some(WaitingStep {
                        before: BeforeStep::Slot(key, value),
                        address: own,
                        ..
                    }) if *key == slot && *own == address => *value,
                    _ => self.state.slot(address, slot),
                };
                B256::from(value).into()
            }
            ScriptQuestion::Exists(address) => {
                vec![u8::from(!self.info(address).is_empty())].into()
            }
        }
    }

    fn info(&mut self, address: Address) -> AccountInfo {
        if let Some(WaitingStep {
            before: BeforeStep::Accounts(accounts),
            ..
        }) = self.waiting
            && let Some((_, info)) = accounts.iter().find(|(known, _)| *known == address)
        {
            return info.clone();
        }
        self.state.account(address)
    }

    /// Memory before the instruction, with zeros beyond the end of memory.
    fn memory(&self, offset: usize, length: usize) -> Bytes {
        let mut copy = vec![0; length.min(MAX_MEMORY)];
        let Some(waiting) = self.waiting else {
            return copy.into();
        };
        let mut lay = |from: usize, bytes: &[u8]| {
            for (index, byte) in bytes.iter().enumerate() {
                let at = (from + index).checked_sub(offset);
                if let Some(place) = at.and_then(|at| copy.get_mut(at)) {
                    *place = *byte;
                }
            }
        };
        let end = waiting.step.memory.min(self.memory.len());
        let wanted = offset.min(end)..offset.saturating_add(length).min(end);
        lay(wanted.start, &self.memory[wanted]);
        let (from, bytes) = &waiting.overwritten;
        lay(*from, bytes);
        copy.into()
    }
}

impl ScriptTracer {
    pub(super) fn new(source: ScriptSource) -> Self {
        Self {
            source,
            link: ScriptLink::default(),
            hooks: ScriptHooks::default(),
            contracts: Vec::new(),
            contract_changed: false,
            waiting: None,
            transaction: ScriptTransaction::default(),
            failure: None,
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn take_failure(&mut self) -> Option<ScriptError> {
        self.failure.take()
    }

    /// Takes the link, for the next transaction.
    pub(super) fn take_link(&mut self) -> ScriptLink {
        std::mem::take(&mut self.link)
    }

    /// Loads the script for a new transaction. It may run until the deadline in `link`.
    pub(super) fn begin(
        &mut self,
        link: ScriptLink,
        start: &TraceStart,
        state: &mut dyn PointState,
    ) {
        self.link = link;
        self.transaction = ScriptTransaction {
            kind: if start.to.is_some() { "CALL" } else { "CREATE" }.to_owned(),
            from: start.from,
            to: start.to.unwrap_or_default(),
            input: start.input.clone(),
            value: start.value.to_string(),
            gas: start.gas_limit,
            gas_price: start.tip.to_string(),
            block: start.block,
            coinbase: start.coinbase,
            ..ScriptTransaction::default()
        };
        if let Err(error) = self.load(start, state) {
            self.failure = Some(error);
        }
    }

    fn load(&mut self, start: &TraceStart, state: &mut dyn PointState) -> Result<(), ScriptError> {
        let host = self.link.host.as_ref();
        let host = host.ok_or_else(|| ScriptError::TurnedOff(self.source.name.clone()))?;
        let mut port = match self.link.port.take() {
            Some(port) => port,
            None => ScriptPort::open(host)?,
        };
        port.set_deadline(self.link.deadline.clone());
        self.link.port = Some(port);
        let load = ToScript::Load {
            code: self.source.code.clone(),
            config: self.source.config.clone(),
            precompiles: start.precompiles.clone(),
        };
        let mut readable = Readable {
            state,
            memory: &[],
            waiting: None,
        };
        match exchange(&mut self.link, &load, &mut readable)? {
            FromScript::Loaded(hooks) => self.hooks = hooks,
            _ => return Err(ScriptError::Gone),
        }
        Ok(())
    }

    /// Sends a message to the script and serves the script's reads until it has handled the
    /// message.
    fn send(&mut self, message: &ToScript, readable: &mut Readable<'_>) {
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = exchange(&mut self.link, message, readable) {
            self.failure = Some(error);
        }
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        if !self.hooks.step || self.failure.is_some() {
            return;
        }
        let overwritten = written_range(step).map_or((0, Vec::new()), |(offset, length)| {
            let end = offset.saturating_add(length).min(step.memory.len());
            let bytes = step.memory.get(offset..end).unwrap_or_default();
            (offset, bytes.to_vec())
        });
        let before = match (step.op, step.stack) {
            (opcode::SSTORE, [.., slot]) => {
                BeforeStep::Slot(*slot, state.slot(step.address, *slot))
            }
            (opcode::SELFDESTRUCT, [.., word]) => {
                let addresses = [step.address, address_of(*word)];
                BeforeStep::Accounts(addresses.map(|it| (it, state.account(it))))
            }
            _ => BeforeStep::Nothing,
        };
        let top = step.stack.iter().rev().take(TOP_WORDS).copied();
        self.waiting = Some(WaitingStep {
            step: ScriptStep {
                pc: step.pc,
                op: step.op,
                gas: step.gas,
                cost: 0,
                depth: step.depth,
                refund: step.refund,
                memory: step.memory.len(),
                stack: step.stack.len(),
                top: top.collect(),
                error: None,
            },
            stack: step.stack.to_vec(),
            address: step.address,
            overwritten,
            before,
        });
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>, state: &mut dyn PointState) {
        let Some(mut waiting) = self.waiting.take() else {
            return;
        };
        waiting.step.cost = end.cost;
        let failure = end.failure.map(|failure| failure.text.clone());
        let before_step = end.failure.is_some_and(|failure| failure.before_step);
        if before_step {
            waiting.step.error.clone_from(&failure);
        }
        let mut readable = Readable {
            state,
            memory: &end.memory,
            waiting: Some(&waiting),
        };
        if std::mem::take(&mut self.contract_changed)
            && let Some(contract) = self.contracts.last()
        {
            let contract = ToScript::Contract(contract.clone());
            self.send(&contract, &mut readable);
        }
        self.send(&ToScript::Step(waiting.step.clone()), &mut readable);
        if let Some(failure) = failure.filter(|_| !before_step) {
            self.send(&ToScript::Fault(failure), &mut readable);
        }
    }

    pub(super) fn enter(&mut self, entered: &Entered, state: &mut dyn PointState) {
        let caller = self.contracts.last();
        let own = |from, to| ScriptContract {
            caller: from,
            address: to,
            value: entered.value.unwrap_or_default(),
            input: entered.input.clone(),
        };
        let contract = match entered.kind {
            FrameKind::DelegateCall => ScriptContract {
                caller: caller.map_or(entered.from, |caller| caller.caller),
                ..own(entered.from, entered.from)
            },
            FrameKind::CallCode => own(entered.from, entered.from),
            FrameKind::Create | FrameKind::Create2 => ScriptContract {
                input: Bytes::new(),
                ..own(entered.from, entered.to)
            },
            _ => own(entered.from, entered.to),
        };
        let root = self.contracts.is_empty();
        self.contracts.push(contract);
        self.contract_changed = true;
        if root {
            self.transaction.to = entered.to;
            return;
        }
        if self.hooks.frames {
            let frame = ToScript::Enter(ScriptFrame {
                kind: entered.kind.name().to_owned(),
                from: entered.from,
                to: entered.to,
                input: entered.input.clone(),
                gas: entered.gas,
                value: entered.value,
            });
            let mut readable = Readable {
                state,
                memory: &[],
                waiting: None,
            };
            self.send(&frame, &mut readable);
        }
    }

    pub(super) fn leave(&mut self, left: &Left<'_>, state: &mut dyn PointState) {
        self.contracts.pop();
        self.contract_changed = true;
        let error = left.failure.as_ref().map(|failure| failure.text.clone());
        if self.contracts.is_empty() {
            self.transaction.output = left.output.clone();
            self.transaction.error = error;
            return;
        }
        if self.hooks.frames {
            let exit = ToScript::Exit(ScriptExit {
                gas_used: left.gas_used,
                output: left.output.clone(),
                error,
            });
            let mut readable = Readable {
                state,
                memory: &[],
                waiting: None,
            };
            self.send(&exit, &mut readable);
        }
    }

    /// Writes the script's result for the transaction.
    pub(super) fn finish(
        &mut self,
        end: &TraceEnd<'_>,
        place: &TracePlace,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        if self.failure.is_some() {
            return;
        }
        let mut transaction = std::mem::take(&mut self.transaction);
        transaction.gas_used = end.gas_used;
        transaction.block_hash = place.block_hash;
        transaction.tx_hash = place.tx_hash;
        transaction.tx_index = place.tx_hash.map(|_| place.tx_index);
        let mut readable = Readable {
            state,
            memory: &[],
            waiting: None,
        };
        let asked = ToScript::Result(Box::new(transaction));
        match exchange(&mut self.link, &asked, &mut readable) {
            // The script may control the process, so the result need not be JSON.
            Ok(FromScript::Result(text)) => match serde_json::from_str::<&RawValue>(&text) {
                Ok(value) => out.raw(value.get()),
                Err(_) => {
                    let text = "the result of the script is no JSON".to_owned();
                    self.failure = Some(ScriptError::Script(text));
                }
            },
            Ok(_) => self.failure = Some(ScriptError::Gone),
            Err(error) => self.failure = Some(error),
        }
    }
}

/// Sends a message, and answers the script's reads until the script is done.
fn exchange(
    link: &mut ScriptLink,
    message: &ToScript,
    readable: &mut Readable<'_>,
) -> Result<FromScript, ScriptError> {
    let Some(mut port) = link.port.take() else {
        return Err(ScriptError::Gone);
    };
    port.send(message)?;
    loop {
        match port.receive()? {
            FromScript::Ask(question) => {
                let answer = ToScript::Reply(readable.read(question));
                port.send(&answer)?;
            }
            FromScript::Failed(text) => {
                // The script has failed, but its process can load another script.
                link.port = Some(port);
                return Err(ScriptError::Script(text));
            }
            other => {
                link.port = Some(port);
                return Ok(other);
            }
        }
    }
}
