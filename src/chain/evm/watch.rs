//! The inspector of every EVM: idle while blocks are executed, otherwise a recorder of accesses or
//! of logs, or a tracer.
//!
//! One type serves all these purposes, so an EVM has the same type whatever observes it. An idle
//! watcher is switched off and costs nothing.

use super::{
    Db,
    access_list::Accesses,
    call_logs::{CallLogs, NumberedLog},
    trace::Tracer,
};
use alloy_primitives::{Address, U256};
use revm::{
    context::Journal,
    context_interface::{ContextTr, JournalTr},
    inspector::Inspector,
    interpreter::{
        CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome, Interpreter,
        interpreter::EthInterpreter,
    },
    primitives::Log,
};

/// The context of an EVM that is observed.
pub(super) trait WatchedContext: ContextTr<Db = Db, Journal = Journal<Db>> {}

impl<CTX: ContextTr<Db = Db, Journal = Journal<Db>>> WatchedContext for CTX {}

/// The observer of an EVM.
#[derive(Default)]
pub(super) enum Watcher {
    #[default]
    Idle,
    Accesses(Accesses),
    Tracer(Box<Tracer>),
    Logs(CallLogs),
}

impl Watcher {
    pub(super) fn into_tracer(self) -> Option<Box<Tracer>> {
        match self {
            Self::Tracer(tracer) => Some(tracer),
            Self::Idle | Self::Accesses(_) | Self::Logs(_) => None,
        }
    }

    pub(super) fn accesses(&self) -> Option<&Accesses> {
        match self {
            Self::Accesses(accesses) => Some(accesses),
            Self::Idle | Self::Tracer(_) | Self::Logs(_) => None,
        }
    }

    /// Takes the logs of the transaction that has ended.
    pub(super) fn take_logs(&mut self) -> Vec<NumberedLog> {
        self.logs().map(CallLogs::take).unwrap_or_default()
    }

    fn logs(&mut self) -> Option<&mut CallLogs> {
        match self {
            Self::Logs(logs) => Some(logs),
            Self::Idle | Self::Accesses(_) | Self::Tracer(_) => None,
        }
    }

    fn tracer(&mut self) -> Option<&mut Tracer> {
        match self {
            Self::Tracer(tracer) => Some(tracer),
            Self::Idle | Self::Accesses(_) | Self::Logs(_) => None,
        }
    }
}

impl<CTX: WatchedContext> Inspector<CTX, EthInterpreter> for Watcher {
    fn step(&mut self, interpreter: &mut Interpreter<EthInterpreter>, context: &mut CTX) {
        match self {
            Self::Idle | Self::Logs(_) => {}
            Self::Accesses(accesses) => accesses.step(interpreter),
            Self::Tracer(tracer) => tracer.on_step(interpreter, context),
        }
    }

    fn step_end(&mut self, interpreter: &mut Interpreter<EthInterpreter>, context: &mut CTX) {
        if let Some(tracer) = self.tracer() {
            tracer.on_step_end(interpreter, context);
        }
    }

    fn log(&mut self, _: &mut CTX, log: Log) {
        match self {
            Self::Idle | Self::Accesses(_) => {}
            Self::Tracer(tracer) => tracer.on_log(&log),
            Self::Logs(logs) => logs.log(log),
        }
    }

    fn call(&mut self, context: &mut CTX, inputs: &mut CallInputs) -> Option<CallOutcome> {
        match self {
            Self::Idle | Self::Accesses(_) => {}
            Self::Tracer(tracer) => tracer.on_call(context, inputs),
            Self::Logs(logs) => {
                logs.enter();
                // CALLCODE transfers its value from the caller to the caller itself, so nothing is
                // recorded.
                if inputs.scheme == CallScheme::Call
                    && let Some(value) = inputs.transfer_value()
                {
                    logs.transfer(inputs.transfer_from(), inputs.transfer_to(), value);
                }
            }
        }
        None
    }

    fn call_end(&mut self, context: &mut CTX, _: &CallInputs, outcome: &mut CallOutcome) {
        match self {
            Self::Idle | Self::Accesses(_) => {}
            Self::Tracer(tracer) => tracer.on_frame_end(context, &outcome.result),
            Self::Logs(logs) => logs.exit(outcome.result.is_ok()),
        }
    }

    fn create(&mut self, context: &mut CTX, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        match self {
            Self::Idle | Self::Accesses(_) => {}
            Self::Tracer(tracer) => tracer.on_create(context, inputs),
            Self::Logs(logs) => {
                logs.enter();
                let (creator, value) = (inputs.caller(), inputs.value());
                if !value.is_zero()
                    && let Ok(account) = context.journal_mut().load_account(creator)
                {
                    let nonce = account.data.info.nonce;
                    logs.transfer(creator, inputs.created_address(nonce), value);
                }
            }
        }
        None
    }

    fn create_end(&mut self, context: &mut CTX, _: &CreateInputs, outcome: &mut CreateOutcome) {
        match self {
            Self::Idle | Self::Accesses(_) => {}
            Self::Tracer(tracer) => tracer.on_frame_end(context, &outcome.result),
            Self::Logs(logs) => logs.exit(outcome.result.is_ok()),
        }
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        if let Some(logs) = self.logs() {
            logs.transfer(contract, target, value);
        }
    }
}
