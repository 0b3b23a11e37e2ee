//! The deadline of a simulated call: interrupts an EVM that runs for JSON-RPC, whatever gas it has
//! left.
//!
//! Code can run for long only by jumping, calling, reading state, or working on much memory.
//! [`interruptible`] adds a check of the clock to the instructions that every loop and recursion
//! needs, and to those that hash or copy memory. [`StateReader`] checks before every read of the
//! state. The clock is read once in [`CHECK_EVERY`] of these instructions, and more often if single
//! instructions may be slow. Blocks are executed without these checks. Code without any such
//! instruction is bounded by gas alone.

use super::{Db, ParentState, StateError};
use crate::chain::{memory_only, rows::ReadError};
use alloy_primitives::{Address, B256, U256};
use revm::{
    Database, DatabaseRef,
    bytecode::{Bytecode, opcode},
    context_interface::{ContextTr, Host, context::ContextError},
    database_interface::bal::EvmDatabaseError,
    handler::instructions::EthInstructions,
    interpreter::{
        Instruction, InstructionContext,
        instructions::{arithmetic, contract, host, memory, system},
        interpreter::EthInterpreter,
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

/// Ticks between two checks of the clock. A jump is one tick, and so many jumps take about ten
/// microseconds.
const CHECK_EVERY: u32 = 4096;
/// Ticks of a call, since a precompile may take a millisecond.
const CALL_TICKS: u32 = CHECK_EVERY / 16;
/// Ticks of an exponentiation, which takes up to two microseconds.
const EXP_TICKS: u32 = CHECK_EVERY / 8;
/// Bytes that are hashed in the time of one tick. Copies are faster.
const BYTES_PER_TICK: usize = 4;
/// Most bytes that one instruction may hash, copy or pass on where work must be short: 100 µs.
const SHORT_DATA: usize = 64 << 10;
/// Highest address of a precompile of any fork: P256VERIFY is at 0x100.
const LAST_PRECOMPILE: u16 = 0x1ff;

/// Deadline of a call. It also passes when the call is cancelled. Clones share the cancellation.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Instant,
    /// The duration from which `at` was computed, for the error message.
    limit: Duration,
    cancelled: Arc<AtomicBool>,
    hook: Option<Hook>,
}

/// A function that is called at each check of the clock. It may block the thread while other calls
/// run. It returns false to end the call.
pub type CheckHook = Arc<dyn Fn(&Deadline, Instant) -> bool + Send + Sync>;

#[derive(Clone)]
struct Hook(CheckHook);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// Cancels the call when dropped, since then nobody waits for its result.
#[derive(Debug)]
pub struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit of centuries would overflow the clock.
        let at = now
            .checked_add(limit)
            .unwrap_or_else(|| now + Duration::from_secs(u32::MAX.into()));
        Self {
            at,
            limit,
            cancelled: Arc::default(),
            hook: None,
        }
    }

    /// The same deadline, which also calls `hook` at each check of the clock, so that calls can
    /// take turns on the processor.
    pub fn with_check_hook(self, hook: CheckHook) -> Self {
        Self {
            hook: Some(Hook(hook)),
            ..self
        }
    }

    /// The earlier of this deadline and `limit` from now.
    pub fn within(&self, limit: Duration) -> Self {
        let sooner = Self::after(limit);
        if sooner.at >= self.at {
            return self.clone();
        }
        Self {
            at: sooner.at,
            limit,
            ..self.clone()
        }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    /// A guard for the caller that waits for the call. Dropping it cancels the call.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.cancelled.clone())
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the deadline has passed or the call was cancelled.
    pub fn passed(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || Instant::now() >= self.at
    }

    /// Fails once the deadline has passed or the call was cancelled. It may block while other calls
    /// run, so do not hold a lock.
    pub fn check(&self) -> Result<(), StateError> {
        let may_continue = self
            .hook
            .as_ref()
            .is_none_or(|Hook(hook)| hook(self, Instant::now()));
        if may_continue && !self.passed() {
            Ok(())
        } else {
            Err(StateError::Aborted(self.limit))
        }
    }
}

/// The state that an EVM reads. With a deadline, reads fail once the deadline has passed.
#[derive(Debug)]
pub(super) struct StateReader {
    parent: ParentState,
    deadline: Option<Deadline>,
    /// Ticks left until the next check of the clock.
    ticks: u32,
}

impl StateReader {
    pub(super) fn new(parent: ParentState, deadline: Option<Deadline>) -> Self {
        Self {
            parent,
            deadline,
            ticks: CHECK_EVERY,
        }
    }

    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = Some(deadline);
        self.ticks = CHECK_EVERY;
    }

    /// Drops the state and the deadline. Accounts, slots and codes cannot be read afterwards.
    pub(super) fn detach(&mut self) {
        *self = Self::new(self.parent.header_only(), None);
    }

    /// Fails once the deadline has passed.
    pub(super) fn check_deadline(&self) -> Result<(), StateError> {
        self.deadline.as_ref().map_or(Ok(()), Deadline::check)
    }

    /// The state to read from; an error once the deadline has passed.
    fn parent(&self) -> Result<&ParentState, StateError> {
        self.check_deadline()?;
        Ok(&self.parent)
    }

    /// Counts an instruction as `ticks`, and checks the clock once per [`CHECK_EVERY`] ticks.
    fn tick(&mut self, ticks: u32) -> Result<(), StateError> {
        self.ticks = self.ticks.saturating_sub(ticks);
        if self.ticks > 0 {
            return Ok(());
        }
        // If the check fails, the next tick checks again.
        self.ticks = 1;
        self.parent()?;
        self.ticks = CHECK_EVERY;
        Ok(())
    }
}

impl Database for StateReader {
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

/// Puts a check before instructions: it returns the context if the instruction may run.
macro_rules! put_before {
    ($instructions:ident, $check:expr, $($opcode:ident => $function:expr,)*) => {$(
        let gas = $instructions.instruction_table[usize::from(opcode::$opcode)].static_gas();
        let checked: fn(Context<'_, CTX>) = |context| {
            let check = $check;
            check(context).into_iter().for_each($function)
        };
        $instructions.insert_instruction(opcode::$opcode, Instruction::new(checked, gas));
    )*};
}

/// Makes an EVM's jumps, calls, exponentiations and uses of memory check the clock of its
/// [`StateReader`].
pub(super) fn interruptible<CTX>(instructions: &mut EthInstructions<EthInterpreter, CTX>)
where
    CTX: ContextTr<Db = Db> + Host,
{
    put_before!(instructions, |context| before_deadline(context, 1), JUMPDEST => |_| (),);
    put_before!(instructions, |context| before_deadline(context, EXP_TICKS),
        EXP => arithmetic::exp,
    );
    put_before!(instructions, |context| before_call(context, 4),
        CALL => contract::call,
        CALLCODE => contract::call_code,
    );
    put_before!(instructions, |context| before_call(context, 3),
        DELEGATECALL => contract::delegate_call,
        STATICCALL => contract::static_call,
    );
    put_before!(instructions, |context| before_data(context, CALL_TICKS, 2),
        CREATE => contract::create::<_, false, _>,
        CREATE2 => contract::create::<_, true, _>,
    );
    put_before!(instructions, |context| before_data(context, 1, 1),
        KECCAK256 => system::keccak256,
        LOG0 => host::log::<0, _>,
        LOG1 => host::log::<1, _>,
        LOG2 => host::log::<2, _>,
        LOG3 => host::log::<3, _>,
        LOG4 => host::log::<4, _>,
    );
    put_before!(instructions, |context| before_data(context, 1, 2),
        CALLDATACOPY => system::calldatacopy,
        CODECOPY => system::codecopy,
        RETURNDATACOPY => system::returndatacopy,
        MCOPY => memory::mcopy,
    );
    put_before!(instructions, |context| before_data(context, 1, 3),
        EXTCODECOPY => host::extcodecopy,
    );
}

/// Whether `address` may be a precompile of which one call can take milliseconds: any but those for
/// signatures, SHA-256, RIPEMD-160 and copies.
pub fn is_slow_precompile(address: &Address) -> bool {
    let [zeros @ .., high, low] = address.0.0;
    zeros == [0; 18] && (5..=LAST_PRECOMPILE).contains(&u16::from_be_bytes([high, low]))
}

/// [`before_data`] for a call, whose input is the data. Calls of slow precompiles are refused where
/// work must be short ([`memory_only`]).
#[inline]
fn before_call<CTX: ContextTr<Db = Db>>(
    context: Context<'_, CTX>,
    length: usize,
) -> Option<Context<'_, CTX>> {
    let callee = context.interpreter.stack.peek(1);
    let is_slow = callee.is_ok_and(|word| is_slow_precompile(&Address::from_word(word.into())));
    if is_slow && memory_only::refuses() {
        return end(context, ReadError::NotInMemory.into());
    }
    before_data(context, CALL_TICKS, length)
}

/// [`before_deadline`] for an instruction that works on data of the length at position `length` of
/// the stack. More than [`SHORT_DATA`] bytes are refused where work must be short ([`memory_only`]).
#[inline]
fn before_data<CTX: ContextTr<Db = Db>>(
    context: Context<'_, CTX>,
    ticks: u32,
    length: usize,
) -> Option<Context<'_, CTX>> {
    let length = context.interpreter.stack.peek(length).unwrap_or_default();
    let length = length.saturating_to::<usize>();
    if length > SHORT_DATA && memory_only::refuses() {
        return end(context, ReadError::NotInMemory.into());
    }
    let more = u32::try_from(length / BYTES_PER_TICK).unwrap_or(u32::MAX);
    before_deadline(context, ticks.saturating_add(more))
}

/// Returns the context if the deadline has not passed, and otherwise ends the transaction.
#[inline]
fn before_deadline<CTX: ContextTr<Db = Db>>(
    context: Context<'_, CTX>,
    ticks: u32,
) -> Option<Context<'_, CTX>> {
    match context.host.db_mut().database.tick(ticks) {
        Ok(()) => Some(context),
        Err(error) => end(context, error),
    }
}

/// Ends the transaction with an error of the database, which the code cannot handle.
#[cold]
fn end<'a, CTX: ContextTr<Db = Db>>(
    context: Context<'a, CTX>,
    error: StateError,
) -> Option<Context<'a, CTX>> {
    *context.host.error() = Err(ContextError::Db(EvmDatabaseError::Database(error)));
    context.interpreter.halt_fatal();
    None
}
