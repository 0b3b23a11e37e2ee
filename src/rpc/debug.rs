//! The `debug` namespace: transactions executed again and traced, and raw data of the chain, in
//! geth's forms.
//!
//! Over TCP it is served only where an operator names it, because its methods are the most
//! expensive ones. [`trace`], [`trace_call`] and [`files`] execute transactions in the queue of
//! tracing calls, and [`chain_trace`] traces ranges of blocks. [`raw`], [`storage`] and [`witness`]
//! read blocks and states. [`node`] has the methods about the node itself.

mod chain_trace;
mod files;
mod node;
pub mod options;
mod raw;
mod storage;
mod trace;
mod trace_call;
mod witness;

use super::api::{
    Method::{Async, Heavy, Quick, Read, Trace},
    Namespace, Subscribe,
};

pub const NAMESPACE: Namespace = Namespace {
    name: "debug",
    methods: &[
        ("debug_traceTransaction", Trace(trace::trace_transaction)),
        ("debug_traceBlock", Trace(trace::trace_block)),
        (
            "debug_traceBlockByNumber",
            Trace(trace::trace_block_by_number),
        ),
        ("debug_traceBlockByHash", Trace(trace::trace_block_by_hash)),
        ("debug_traceBadBlock", Trace(trace::trace_bad_block)),
        (
            "debug_traceBlockFromFile",
            Trace(files::trace_block_from_file),
        ),
        (
            "debug_standardTraceBlockToFile",
            Trace(files::trace_block_to_file),
        ),
        (
            "debug_standardTraceBadBlockToFile",
            Trace(files::trace_bad_block_to_file),
        ),
        ("debug_getBadBlocks", Read(node::get_bad_blocks)),
        ("debug_traceCall", Trace(trace_call::trace_call)),
        ("debug_traceCallMany", Trace(trace_call::trace_call_many)),
        ("debug_intermediateRoots", Heavy(trace::intermediate_roots)),
        ("debug_getRawHeader", Read(raw::get_raw_header)),
        ("debug_getRawBlock", Read(raw::get_raw_block)),
        ("debug_getRawReceipts", Read(raw::get_raw_receipts)),
        ("debug_getRawTransaction", Read(raw::get_raw_transaction)),
        ("debug_getRawTransactions", Read(raw::get_raw_transactions)),
        ("debug_storageRangeAt", Heavy(storage::storage_range_at)),
        ("debug_accountRange", Heavy(storage::account_range)),
        ("debug_dumpBlock", Heavy(storage::dump_block)),
        (
            "debug_getModifiedAccountsByNumber",
            Heavy(node::modified_by_number),
        ),
        (
            "debug_getModifiedAccountsByHash",
            Heavy(node::modified_by_hash),
        ),
        ("debug_executionWitness", Heavy(witness::execution_witness)),
        (
            "debug_executionWitnessByHash",
            Heavy(witness::execution_witness_by_hash),
        ),
        (
            "debug_executionWitnessByBlockHash",
            Heavy(witness::execution_witness_by_hash),
        ),
        ("debug_executePayload", Heavy(witness::execute_payload)),
        ("debug_getAccessibleState", Read(node::get_accessible_state)),
        ("debug_codeByHash", Read(node::code_by_hash)),
        ("debug_dbGet", Read(node::db_get)),
        ("debug_printBlock", Read(node::print_block)),
        ("debug_chainConfig", Read(node::chain_config)),
        ("debug_setHead", Async(node::set_head)),
        ("debug_sync", Async(node::sync)),
        ("debug_proofsSyncStatus", Read(node::proofs_sync_status)),
        ("debug_preimage", Read(node::preimage)),
        ("debug_dbAncient", Quick(node::no_ancients)),
        ("debug_dbAncients", Quick(node::no_ancients)),
        ("debug_chaindbProperty", Quick(node::no_geth_database)),
        ("debug_chaindbCompact", Quick(node::no_geth_database)),
        ("debug_stateSize", Quick(node::no_geth_database)),
        ("debug_setTrieFlushInterval", Quick(node::no_geth_database)),
        ("debug_getTrieFlushInterval", Quick(node::no_geth_database)),
        ("debug_verbosity", Quick(node::fixed_log)),
        ("debug_vmodule", Quick(node::fixed_log)),
        ("debug_memStats", Quick(node::no_go)),
        ("debug_gcStats", Quick(node::no_go)),
        ("debug_stacks", Quick(node::no_go)),
        ("debug_freeOSMemory", Quick(node::no_go)),
        ("debug_setGCPercent", Quick(node::no_go)),
        ("debug_setMemoryLimit", Quick(node::no_go)),
        ("debug_cpuProfile", Quick(node::no_go)),
        ("debug_startCPUProfile", Quick(node::no_go)),
        ("debug_stopCPUProfile", Quick(node::no_go)),
        ("debug_goTrace", Quick(node::no_go)),
        ("debug_startGoTrace", Quick(node::no_go)),
        ("debug_stopGoTrace", Quick(node::no_go)),
        ("debug_blockProfile", Quick(node::no_go)),
        ("debug_setBlockProfileRate", Quick(node::no_go)),
        ("debug_writeBlockProfile", Quick(node::no_go)),
        ("debug_mutexProfile", Quick(node::no_go)),
        ("debug_setMutexProfileFraction", Quick(node::no_go)),
        ("debug_writeMutexProfile", Quick(node::no_go)),
        ("debug_writeMemProfile", Quick(node::no_go)),
    ],
    subscriptions: &[("traceChain", Subscribe::Read(chain_trace::subscribe))],
};
