//! The `eth` namespace: the table of its methods, and those that need no file of their own.

pub mod block_arg;
pub mod blocks;
pub mod call;
pub(super) mod call_bundles;
mod call_many;
pub(super) mod call_object;
pub mod config;
pub mod events;
pub mod fees;
mod fill;
pub mod filters;
pub mod logs;
pub(super) mod overrides;
pub mod proof;
pub mod receipt;
pub mod send;
mod send_conditional;
mod send_sync;
pub(super) mod sender_nonce;
pub mod shape;
pub mod simulate;
pub mod state;
pub mod syncing;

use super::{
    api::{
        Method::{Async, Call, Heavy, Lookup, Quick, Read},
        Namespace, Subscribe,
    },
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::Args,
};
use alloy_primitives::{Address, U64};

pub const NAMESPACE: Namespace = Namespace {
    name: "eth",
    methods: &[
        ("eth_chainId", Quick(chain_id)),
        ("eth_config", Read(config::config)),
        ("eth_blockNumber", Quick(block_number)),
        ("eth_syncing", Quick(syncing::syncing)),
        ("eth_accounts", Quick(accounts)),
        ("eth_pendingTransactions", Quick(accounts)),
        ("eth_capabilities", Read(capabilities)),
        ("eth_getBalance", Lookup(state::get_balance)),
        (
            "eth_getTransactionCount",
            Lookup(state::get_transaction_count),
        ),
        ("eth_getCode", Read(state::get_code)),
        ("eth_getAccount", Lookup(state::get_account)),
        ("eth_getAccountInfo", Lookup(state::get_account_info)),
        ("eth_getStorageAt", Lookup(state::get_storage_at)),
        ("eth_getStorageValues", Read(state::get_storage_values)),
        ("eth_getProof", Heavy(proof::get_proof)),
        ("eth_getBlockByNumber", Lookup(blocks::get_block_by_number)),
        ("eth_getBlockByHash", Lookup(blocks::get_block_by_hash)),
        (
            "eth_getHeaderByNumber",
            Lookup(blocks::get_header_by_number),
        ),
        ("eth_getHeaderByHash", Lookup(blocks::get_header_by_hash)),
        (
            "eth_getBlockTransactionCountByNumber",
            Lookup(blocks::get_transaction_count_by_number),
        ),
        (
            "eth_getBlockTransactionCountByHash",
            Lookup(blocks::get_transaction_count_by_hash),
        ),
        (
            "eth_getTransactionByHash",
            Lookup(blocks::get_transaction_by_hash),
        ),
        (
            "eth_getTransactionBySenderAndNonce",
            Read(sender_nonce::get_transaction_by_sender_and_nonce),
        ),
        (
            "eth_getTransactionByBlockNumberAndIndex",
            Lookup(blocks::get_transaction_by_number_and_index),
        ),
        (
            "eth_getTransactionByBlockHashAndIndex",
            Lookup(blocks::get_transaction_by_hash_and_index),
        ),
        (
            "eth_getRawTransactionByHash",
            Lookup(blocks::get_raw_transaction_by_hash),
        ),
        (
            "eth_getRawTransactionByBlockNumberAndIndex",
            Lookup(blocks::get_raw_transaction_by_number_and_index),
        ),
        (
            "eth_getRawTransactionByBlockHashAndIndex",
            Lookup(blocks::get_raw_transaction_by_hash_and_index),
        ),
        (
            "eth_getUncleCountByBlockNumber",
            Read(blocks::get_uncle_count_by_number),
        ),
        (
            "eth_getUncleCountByBlockHash",
            Read(blocks::get_uncle_count_by_hash),
        ),
        (
            "eth_getUncleByBlockNumberAndIndex",
            Read(blocks::get_uncle_by_number_and_index),
        ),
        (
            "eth_getUncleByBlockHashAndIndex",
            Read(blocks::get_uncle_by_hash_and_index),
        ),
        (
            "eth_getTransactionReceipt",
            Lookup(receipt::get_transaction_receipt),
        ),
        ("eth_getBlockReceipts", Read(receipt::get_block_receipts)),
        ("eth_getLogs", Heavy(logs::get_logs)),
        ("eth_newFilter", Quick(filters::new_filter)),
        ("eth_newBlockFilter", Quick(filters::new_block_filter)),
        (
            "eth_newPendingTransactionFilter",
            Quick(filters::new_pending_transaction_filter),
        ),
        ("eth_getFilterChanges", Read(filters::get_filter_changes)),
        ("eth_getFilterLogs", Heavy(filters::get_filter_logs)),
        ("eth_uninstallFilter", Quick(filters::uninstall_filter)),
        ("eth_call", Call(call::call)),
        ("eth_estimateGas", Call(call::estimate_gas)),
        ("eth_createAccessList", Call(call::create_access_list)),
        ("eth_callMany", Heavy(call_many::call_many)),
        ("eth_simulateV1", Heavy(simulate::simulate_v1)),
        ("eth_gasPrice", Read(fees::gas_price)),
        (
            "eth_maxPriorityFeePerGas",
            Read(fees::max_priority_fee_per_gas),
        ),
        ("eth_baseFee", Lookup(fees::base_fee)),
        ("eth_blobBaseFee", Lookup(fees::blob_base_fee)),
        ("eth_feeHistory", Heavy(fees::fee_history)),
        ("eth_sendRawTransaction", Async(send::send_raw_transaction)),
        (
            "eth_sendRawTransactionSync",
            Async(send_sync::send_raw_transaction_sync),
        ),
        (
            "eth_sendRawTransactionConditional",
            Async(send_conditional::send_raw_transaction_conditional),
        ),
        ("eth_fillTransaction", Heavy(fill::fill_transaction)),
        ("eth_sendTransaction", Quick(unknown_account)),
        ("eth_signTransaction", Quick(unknown_account)),
        ("eth_signTypedData", Quick(unknown_account)),
        ("eth_resend", Quick(unknown_account)),
        ("eth_sign", Quick(unknown_account)),
    ],
    subscriptions: &[
        ("newHeads", Subscribe::Read(events::new_heads)),
        ("logs", Subscribe::Read(events::logs)),
        (
            "newPendingTransactions",
            Subscribe::Quick(events::new_pending_transactions),
        ),
        ("syncing", Subscribe::Quick(syncing::subscribe)),
        (
            "transactionReceipts",
            Subscribe::Read(events::transaction_receipts),
        ),
    ],
};

fn chain_id(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(U64::from(context.chain.spec.chain_id))
}

fn block_number(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(U64::from(context.view().head().number))
}

/// `eth_capabilities`: for each kind of data, the oldest block for which the node has it.
fn capabilities(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let view = context.view();
    let since =
        |number: u64| serde_json::json!({ "disabled": false, "oldestBlock": U64::from(number) });
    let genesis = block_arg::BlockTag::Earliest.number(context, &view)?;
    reply(serde_json::json!({
        "head": { "number": U64::from(view.head().number), "hash": view.head().hash },
        "state": since(view.oldest_state()),
        "tx": since(genesis),
        "logs": since(genesis),
        "receipts": since(genesis),
        "blocks": since(genesis),
        "stateproofs": since(view.oldest_proof(Address::ZERO)),
    }))
}

/// The error of methods that need a user's key: the node has no such keys, because wallets sign
/// transactions themselves.
fn unknown_account(_: &RpcContext, _: Args) -> Reply {
    Err(RpcError::server("unknown account"))
}

/// `eth_accounts`: an empty list, because the node has no keys of users.
fn accounts(_: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply([(); 0])
}
