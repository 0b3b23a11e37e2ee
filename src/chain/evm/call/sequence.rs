//! Calls that are traced one after another (`debug_traceCall`, `debug_traceCallMany`): each sees
//! the changes of the calls before it.

use super::{
    CallError, CallInput, Overrides, PrecompileOverride, RepeatedCall, override_state, transaction,
};
use crate::chain::{
    evm::{
        BlockOverrides, Db, Deadline, EvmUse, ParentState, RunError, TraceError, TracePlace,
        Tracer, Vm, block_env, deadline::StateReader, overrides::override_precompiles, state_of,
        trace::TraceStart,
    },
    rules::ChainSpec,
};
use alloy_consensus::Header;
use revm::{DatabaseCommit, context::BlockEnv};

/// A sequence of calls that are traced in the environment of one block. Each call sees the changes
/// of the calls before it.
pub struct CallSequence<'a> {
    spec: &'a ChainSpec,
    env: BlockEnv,
    overrides: &'a Overrides,
    /// The state after the calls so far; `None` while a call runs, and after a call has failed.
    db: Option<Db>,
}

/// The reason why a call is not traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceCallError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl<'a> CallSequence<'a> {
    /// A sequence of calls on the state after a block.
    pub fn new(
        spec: &'a ChainSpec,
        state: ParentState,
        block: &Header,
        overrides: &'a Overrides,
        deadline: Deadline,
    ) -> Result<Self, CallError> {
        let db = state_of(StateReader::new(state, Some(deadline)));
        Self::on(spec, db, block, overrides)
    }

    /// A sequence of calls on the state within a block, after the transactions that `vm` has
    /// executed.
    pub fn within(
        spec: &'a ChainSpec,
        vm: Vm,
        block: &Header,
        overrides: &'a Overrides,
    ) -> Result<Self, CallError> {
        Self::on(spec, vm.into_db(), block, overrides)
    }

    fn on(
        spec: &'a ChainSpec,
        mut db: Db,
        block: &Header,
        overrides: &'a Overrides,
    ) -> Result<Self, CallError> {
        let Overrides {
            state,
            block: fields,
        } = overrides;
        fields.check_for_call()?;
        let mut env = block_env(spec, block);
        fields.apply(&mut env);
        if !fields.is_next(block) {
            fields.hide_hash(block, &mut db);
        }
        fields.apply_hashes(&mut db);
        let mut vm = Vm::with(spec, env.clone(), db, EvmUse::Simulation);
        override_state(&mut vm, state, PrecompileOverride::Applied)?;
        Ok(Self {
            spec,
            env,
            overrides,
            db: Some(vm.into_db()),
        })
    }

    /// Runs the following calls in the environment of another block.
    pub fn set_block(
        &mut self,
        block: &Header,
        overrides: &BlockOverrides,
    ) -> Result<(), CallError> {
        overrides.check_for_call()?;
        self.env = block_env(self.spec, block);
        overrides.apply(&mut self.env);
        if let Some(db) = &mut self.db {
            overrides.apply_hashes(db);
        }
        Ok(())
    }

    /// Sets the deadline of the next call.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        if let Some(db) = &mut self.db {
            db.database.set_deadline(deadline);
        }
    }

    /// Traces a call and keeps its changes.
    pub fn trace(
        &mut self,
        input: &CallInput,
        gas_cap: u64,
        tracer: &mut Option<Box<Tracer>>,
        place: &TracePlace,
    ) -> Result<(), TraceCallError> {
        let gas = input.gas.unwrap_or(gas_cap).min(gas_cap);
        let tx = transaction(input, gas)?;
        let gone = || CallError::Override("an earlier call has failed".to_owned());
        let db = self.db.take().ok_or_else(gone)?;
        let mut simulation = RepeatedCall::on(self.spec, self.env.clone(), db, tx);
        override_precompiles(&mut simulation.vm, &self.overrides.state);
        let start = simulation.vm.trace_start(TraceStart {
            from: input.from,
            to: input.to,
            value: input.value,
            input: input.data.clone(),
            gas_limit: gas,
            authorities: input
                .authorizations()
                .iter()
                .filter_map(|authorization| authorization.recover_authority().ok())
                .collect(),
            ..TraceStart::default()
        });
        let tx = simulation.with_gas(gas);
        let ran = simulation.vm.run_traced(tx, &start, tracer);
        let (result, state) = match ran {
            Ok(ran) => ran,
            Err(error) => return Err(simulation.trace_error(error, gas, tracer)),
        };
        let gas_used = result.tx_gas_used();
        let vm = &mut simulation.vm;
        vm.end_trace(tracer, &start, gas_used, place, &state)?;
        vm.db().commit(state);
        self.db = Some(simulation.vm.into_db());
        Ok(())
    }
}

impl RepeatedCall {
    /// The error of a traced call that was not completed.
    fn trace_error(
        &self,
        error: RunError,
        gas: u64,
        tracer: &mut Option<Box<Tracer>>,
    ) -> TraceCallError {
        if let Some(stopped) = tracer.as_mut().and_then(|tracer| tracer.stopped()) {
            return stopped.into();
        }
        match self.call_error(error, gas) {
            CallError::Refused { refusal, .. } => TraceError::Invalid(refusal.to_string()).into(),
            CallError::State(error) => TraceError::State(error).into(),
            other => other.into(),
        }
    }
}
