//! Running transactions under a tracer.

use super::{
    EvmState, Executed, OpHaltReason, OpTx, RunError, TraceError, TracePlace, Tracer, Vm, VmError,
    VmKind, environment,
    trace::{TraceEnd, TraceStart},
    watch::Watcher,
};
use crate::chain::transaction::ChainTx;
use alloy_consensus::{Transaction, transaction::Recovered};
use alloy_evm::Evm;
use alloy_primitives::Bytes;
use op_revm::constants::BASE_FEE_RECIPIENT;
use revm::{
    DatabaseCommit, context_interface::result::ExecutionResult, primitives::hardfork::SpecId,
};

impl Vm {
    /// Runs a transaction under a tracer and keeps its changes. On an error nothing is changed.
    pub fn trace(
        &mut self,
        tx: &Recovered<ChainTx>,
        raw: &Bytes,
        tracer: &mut Option<Box<Tracer>>,
        place: &TracePlace,
    ) -> Result<Executed, TraceError> {
        let authorities = tx.authorization_list().unwrap_or_default().iter();
        let start = self.trace_start(TraceStart {
            from: tx.signer(),
            to: tx.to(),
            value: tx.value(),
            input: tx.input().clone(),
            gas_limit: tx.gas_limit(),
            tip: tx.effective_tip_per_gas(self.base_fee()).unwrap_or(0),
            authorities: authorities
                .filter_map(|authorization| authorization.recover_authority().ok())
                .collect(),
            ..TraceStart::default()
        });
        let (result, mut state) = self
            .run_traced(environment(tx, raw), &start, tracer)
            .map_err(|error| trace_error(tracer, error))?;
        let executed = self.settle(tx, result, &mut state);
        self.end_trace(tracer, &start, executed.gas_used, place, &state)?;
        self.db().commit(state);
        Ok(executed)
    }

    /// The block's base fee, in wei per gas.
    fn base_fee(&self) -> u64 {
        match &self.0 {
            VmKind::Optimism(evm) => evm.block().basefee,
            VmKind::Ethereum(evm) => evm.block().basefee,
        }
    }

    /// Fills in the fields of a trace's start that come from the block.
    pub(super) fn trace_start(&self, start: TraceStart) -> TraceStart {
        let block = match &self.0 {
            VmKind::Optimism(evm) => evm.block(),
            VmKind::Ethereum(evm) => evm.block(),
        };
        let spec = match &self.0 {
            VmKind::Optimism(evm) => evm.cfg_env().spec.into_eth_spec(),
            VmKind::Ethereum(evm) => evm.cfg_env().spec,
        };
        let precompiles = match &self.0 {
            VmKind::Optimism(evm) => evm.components().2,
            VmKind::Ethereum(evm) => evm.components().2,
        };
        TraceStart {
            precompiles: precompiles.addresses().copied().collect(),
            block: block.number.saturating_to(),
            coinbase: block.beneficiary,
            base_fee_vault: matches!(self.0, VmKind::Optimism(_)).then_some(BASE_FEE_RECIPIENT),
            cancun: spec.is_enabled_in(SpecId::CANCUN),
            prague: spec.is_enabled_in(SpecId::PRAGUE),
            ..start
        }
    }

    /// Runs a transaction under a tracer. `tracer` is lent to the EVM and returned afterwards.
    pub(super) fn run_traced(
        &mut self,
        tx: OpTx,
        start: &TraceStart,
        tracer: &mut Option<Box<Tracer>>,
    ) -> Result<(ExecutionResult<OpHaltReason>, EvmState), RunError> {
        if let Some(mut tracer) = tracer.take() {
            tracer.begin(start, self.db());
            self.set_watcher(Watcher::Tracer(tracer));
        }
        let outcome = self.run(tx);
        *tracer = self.set_watcher(Watcher::Idle).into_tracer();
        outcome
    }

    /// Writes the trace of a transaction that has been run and not yet committed.
    pub(super) fn end_trace(
        &mut self,
        tracer: &mut Option<Box<Tracer>>,
        start: &TraceStart,
        gas_used: u64,
        place: &TracePlace,
        changed: &EvmState,
    ) -> Result<(), TraceError> {
        let end = TraceEnd {
            gas_limit: start.gas_limit,
            gas_used,
            changed,
        };
        match tracer {
            Some(tracer) => tracer.end(&end, place, self.db()),
            None => Ok(()),
        }
    }
}

/// The error of a traced transaction that was not completed.
fn trace_error(tracer: &mut Option<Box<Tracer>>, error: RunError) -> TraceError {
    if let Some(stopped) = tracer.as_mut().and_then(|tracer| tracer.stopped()) {
        return stopped;
    }
    match VmError::from(error) {
        VmError::Invalid(reason) => TraceError::Invalid(reason),
        VmError::State(error) => TraceError::State(error),
    }
}
