//! The inspector of every EVM: idle while blocks are executed, otherwise a recorder of accesses or
//! a tracer.
//!
//! One type serves all of them, so that an EVM has one type whatever watches it. An idle watcher is
//! switched off and costs nothing.

use super::{Db, access_list::Accesses, trace::Tracer};
use revm::{
    context_interface::ContextTr,
    inspector::{Inspector, JournalExt},
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, Interpreter,
        interpreter::EthInterpreter,
    },
    primitives::Log,
};

/// The observer of an EVM.
#[derive(Default)]
pub(super) enum Watcher {
    #[default]
    Idle,
    Accesses(Accesses),
    Tracer(Box<Tracer>),
}

impl Watcher {
    pub(super) fn into_tracer(self) -> Option<Box<Tracer>> {
        match self {
            Self::Tracer(tracer) => Some(tracer),
            Self::Idle | Self::Accesses(_) => None,
        }
    }

    pub(super) fn accesses(&self) -> Option<&Accesses> {
        match self {
            Self::Accesses(accesses) => Some(accesses),
            Self::Idle | Self::Tracer(_) => None,
        }
    }

    fn tracer(&mut self) -> Option<&mut Tracer> {
        match self {
            Self::Tracer(tracer) => Some(tracer),
            Self::Idle | Self::Accesses(_) => None,
        }
    }
}

impl<CTX> Inspector<CTX, EthInterpreter> for Watcher
where
    CTX: ContextTr<Db = Db, Journal: JournalExt>,
{
    fn step(&mut self, interpreter: &mut Interpreter<EthInterpreter>, context: &mut CTX) {
        match self {
            Self::Idle => {}
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
        if let Some(tracer) = self.tracer() {
            tracer.on_log(&log);
        }
    }

    fn call(&mut self, context: &mut CTX, inputs: &mut CallInputs) -> Option<CallOutcome> {
        if let Some(tracer) = self.tracer() {
            tracer.on_call(context, inputs);
        }
        None
    }

    fn call_end(&mut self, context: &mut CTX, inputs: &CallInputs, outcome: &mut CallOutcome) {
        if let Some(tracer) = self.tracer() {
            tracer.on_call_end(context, inputs, outcome);
        }
    }

    fn create(&mut self, context: &mut CTX, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        if let Some(tracer) = self.tracer() {
            tracer.on_create(context, inputs);
        }
        None
    }

    fn create_end(&mut self, _: &mut CTX, _: &CreateInputs, outcome: &mut CreateOutcome) {
        if let Some(tracer) = self.tracer() {
            tracer.on_create_end(outcome);
        }
    }
}
