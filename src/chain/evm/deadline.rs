//! The end of a question's time: how an EVM that runs for JSON-RPC is interrupted, whatever gas it has left.
//!
//! Code runs long only by jumping, calling or reading: [`interruptible`] puts a look at the clock into the instructions that a loop
//! or a recursion cannot do without, one in [`LOOK_EVERY`] of them, and [`Source`] looks before every read of the state. Blocks are
//! executed without either. What is left to bound by gas alone is a stretch of code without any of them.

use super::{Db, ParentState, StateError};
use alloy_primitives::{Address, B256, U256};
use revm::{
    Database, DatabaseRef,
    bytecode::{Bytecode, opcode},
    context_interface::{ContextTr, Host, context::ContextError},
    database_interface::bal::EvmDatabaseError,
    handler::instructions::EthInstructions,
    interpreter::{
        Instruction, InstructionContext, instructions::contract, interpreter::EthInterpreter,
    },
    state::AccountInfo,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Jumps and calls between two looks at the clock: some ten microseconds.
const LOOK_EVERY: u32 = 4096;

/// Deadline of a call, which also passes when the caller is gone. Clones share it.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Instant,
    /// What `at` was made from, for the message.
    limit: Duration,
    gone: Arc<AtomicBool>,
    slices: Option<Slices>,
}

/// A function that runs at each look at the clock. It may block the thread while other calls run. It returns false to end the call.
pub type AtLook = Arc<dyn Fn(&Deadline, Instant) -> bool + Send + Sync>;

#[derive(Clone)]
struct Slices(AtLook);

impl std::fmt::Debug for Slices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slices")
    }
}

/// Ends the question when dropped: nobody waits any more.
#[derive(Debug)]
pub struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // Centuries are as good as for ever.
        let at = now
            .checked_add(limit)
            .unwrap_or_else(|| now + Duration::from_secs(u32::MAX.into()));
        Self {
            at,
            limit,
            gone: Arc::default(),
            slices: None,
        }
    }

    /// The same deadline, which also calls `at_look` at each look at the clock so that calls can share the processor.
    pub fn in_slices(self, at_look: AtLook) -> Self {
        Self {
            slices: Some(Slices(at_look)),
            ..self
        }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    /// What the asker holds while it waits.
    pub fn waiting(&self) -> Waiting {
        Waiting(self.gone.clone())
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether work on the answer is to stop.
    pub fn passed(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.at
    }

    /// Fails once the deadline has passed or the call is to end. May block while other calls run: do not hold a lock.
    pub fn check(&self) -> Result<(), StateError> {
        let goes_on = self
            .slices
            .as_ref()
            .is_none_or(|Slices(at_look)| at_look(self, Instant::now()));
        if goes_on && !self.passed() {
            Ok(())
        } else {
            Err(StateError::Aborted(self.limit))
        }
    }
}

/// What an EVM reads from: a state, for a question until its time is over.
#[derive(Debug)]
pub(super) struct Source {
    parent: ParentState,
    deadline: Option<Deadline>,
    /// Until the next look at the clock.
    ticks: u32,
}

impl Source {
    pub(super) fn new(parent: ParentState, deadline: Option<Deadline>) -> Self {
        Self {
            parent,
            deadline,
            ticks: LOOK_EVERY,
        }
    }

    /// The state of a question that still has time.
    fn parent(&self) -> Result<&ParentState, StateError> {
        self.deadline.as_ref().map_or(Ok(()), Deadline::check)?;
        Ok(&self.parent)
    }

    fn tick(&mut self) -> Result<(), StateError> {
        self.ticks -= 1;
        if self.ticks > 0 {
            return Ok(());
        }
        // Once the time is over it stays so: every tick looks.
        self.ticks = 1;
        self.parent()?;
        self.ticks = LOOK_EVERY;
        Ok(())
    }
}

impl Database for Source {
    type Error = StateError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, StateError> {
        self.parent()?.basic_ref(address)
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StateError> {
        self.parent()?.code_by_hash_ref(hash)
    }

    fn storage(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        self.parent()?.storage_ref(address, slot)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, StateError> {
        self.parent()?.block_hash_ref(number)
    }
}

type Context<'a, CTX> = InstructionContext<'a, CTX, EthInterpreter>;

/// Makes an EVM look at its [`Source`]'s clock.
pub(super) fn interruptible<CTX>(instructions: &mut EthInstructions<EthInterpreter, CTX>)
where
    CTX: ContextTr<Db = Db> + Host,
{
    let mut wrap = |opcode: u8, function: fn(Context<'_, CTX>)| {
        let gas = instructions.instruction_table[usize::from(opcode)].static_gas();
        instructions.insert_instruction(opcode, Instruction::new(function, gas));
    };
    wrap(opcode::JUMPDEST, |context| {
        alive(context);
    });
    wrap(opcode::CALL, |context| {
        alive(context).into_iter().for_each(contract::call)
    });
    wrap(opcode::CALLCODE, |context| {
        alive(context).into_iter().for_each(contract::call_code)
    });
    wrap(opcode::DELEGATECALL, |context| {
        alive(context).into_iter().for_each(contract::delegate_call)
    });
    wrap(opcode::STATICCALL, |context| {
        alive(context).into_iter().for_each(contract::static_call)
    });
}

/// Gives the context back while there is time; else ends the transaction with an error that is not the code's.
#[inline]
fn alive<CTX: ContextTr<Db = Db>>(context: Context<'_, CTX>) -> Option<Context<'_, CTX>> {
    match context.host.db_mut().database.tick() {
        Ok(()) => Some(context),
        Err(error) => {
            *context.host.error() = Err(ContextError::Db(EvmDatabaseError::Database(error)));
            context.interpreter.halt_fatal();
            None
        }
    }
}
