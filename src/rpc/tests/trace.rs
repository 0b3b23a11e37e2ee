//! The `trace` namespace: the forms of its results (those of `alloy-rpc-types-trace`), its filters
//! and its bounds.

use super::{
    chain::{CONTRACT, Chain, RICH, legacy},
    send::{SENDER, transfer},
};
use crate::{
    chain::{evm::Deadline, replay::Replay},
    rpc::RpcContext,
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, hex};
use alloy_rpc_types_trace::{
    opcode::BlockOpcodeGas,
    parity::{LocalizedTransactionTrace, TraceResults, TraceResultsWithTransactionHash},
};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::{sync::Arc, time::Duration};

const SENDERS: [Address; 2] = [Address::repeat_byte(0xd1), Address::repeat_byte(0xd2)];
const HEIR: Address = Address::repeat_byte(0x0e);

/// Code that calls the heir with three wei, calls the identity precompile without value, and stores
/// five in slot 2.
fn caller() -> Bytes {
    let mut code = hex!("6000600060006000600373").to_vec();
    code.extend_from_slice(HEIR.as_slice());
    code.extend_from_slice(&hex!("5af1506000600060206000600060045af1506005600255"));
    code.into()
}

/// Init code of a contract that self-destructs in favour of the heir.
fn creation() -> Bytes {
    let mut runtime = vec![0x73];
    runtime.extend_from_slice(HEIR.as_slice());
    runtime.push(0xff);
    // Copies the bytes after the first twelve to memory, and returns them as the contract's code.
    let mut code = vec![0x60, runtime.len() as u8, 0x60, 12, 0x60, 0, 0x39];
    code.extend_from_slice(&[0x60, runtime.len() as u8, 0x60, 0, 0xf3]);
    code.extend_from_slice(&runtime);
    code.into()
}

fn deposit(from: Address, to: TxKind, value: u64, input: Bytes) -> OpTxEnvelope {
    TxDeposit {
        source_hash: alloy_primitives::keccak256((from, value).0),
        from,
        to,
        mint: 1_000_000,
        value: U256::from(value),
        gas_limit: 1_000_000,
        is_system_transaction: false,
        input,
    }
    .into()
}

/// A chain whose block has deposits that are executed when they are traced: a creation, a call of
/// the created contract, and a transfer.
fn chain(change: impl FnOnce(&mut RpcContext)) -> Chain {
    let mut chain = Chain::new(Fork::Isthmus).with(change);
    let created = SENDERS[0].create(0);
    let transactions = [
        deposit(SENDERS[0], TxKind::Create, 0, creation()),
        deposit(SENDERS[1], TxKind::Call(created), 7, Bytes::new()),
        deposit(SENDERS[1], TxKind::Call(HEIR), 9, Bytes::new()),
    ];
    let transactions: Vec<_> = transactions.into_iter().map(|tx| (tx, vec![])).collect();
    chain.add(&transactions);
    chain.serve(&["trace", "debug", "eth"]);
    chain
}

/// Checks that a value has the form of type `T`, without a missing or additional member.
fn in_form<T: DeserializeOwned + Serialize>(value: &Value) -> T {
    let typed: T =
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value:#}"));
    assert_eq!(&serde_json::to_value(&typed).unwrap(), value);
    typed
}

fn call_with(code: &Bytes, types: Value) -> Value {
    let overrides = json!({ CONTRACT.to_string(): { "code": code, "balance": "0x10" } });
    json!([{ "from": RICH, "to": CONTRACT, "gas": "0x186a0" }, types, "latest", overrides])
}

#[tokio::test]
async fn results_of_a_call_are_in_paritys_form() {
    let chain = chain(|_| ());
    let all = json!(["trace", "vmTrace", "stateDiff"]);
    let response = chain.result("trace_call", call_with(&caller(), all)).await;
    let results = in_form::<TraceResults>(&response);
    // The call of the precompile is not among the frames.
    let addresses: Vec<_> = results.trace.iter().map(|it| &it.trace_address).collect();
    assert_eq!(addresses, [&vec![], &vec![0]]);
    assert_eq!(results.trace[0].subtraces, 1);
    let root = results.trace[0].action.as_call().unwrap();
    assert_eq!((root.from, root.to), (RICH, CONTRACT));
    assert!(root.gas < 100_000 - 20_000, "{}", root.gas);
    let diff = results.state_diff.unwrap();
    assert_eq!(diff[&HEIR].balance.as_added(), Some(&U256::from(3)));
    let spent = diff[&CONTRACT].balance.as_changed().unwrap();
    assert_eq!((spent.from, spent.to), (U256::from(16), U256::from(13)));
    assert!(diff[&CONTRACT].code.is_unchanged() && diff[&CONTRACT].nonce.is_unchanged());
    let slot = &diff[&CONTRACT].storage[&B256::with_last_byte(2)];
    assert_eq!(slot.as_changed().unwrap().to, B256::with_last_byte(5));
    let parts = chain
        .result("trace_call", call_with(&caller(), json!([])))
        .await;
    assert_eq!(
        parts,
        json!({ "output": "0x", "trace": [], "vmTrace": null, "stateDiff": null })
    );
}

#[tokio::test]
async fn instructions_of_a_callee_are_within_the_one_that_called_it() {
    let chain = chain(|_| ());
    let params = call_with(&caller(), json!(["vmTrace"]));
    let response = chain.result("trace_call", params).await;
    let vm = in_form::<TraceResults>(&response).vm_trace.unwrap();
    assert_eq!(vm.code, caller());
    let names: Vec<_> = vm.ops.iter().filter_map(|op| op.op.clone()).collect();
    assert_eq!(names[6..9], ["GAS", "CALL", "POP"]);
    let calls: Vec<_> = (vm.ops.iter())
        .filter(|op| op.op.as_deref() == Some("CALL"))
        .collect();
    // The heir has no code, so its list of operations is empty. The precompile has no trace at all.
    assert_eq!(calls[0].sub.as_ref().unwrap().ops, []);
    assert!(calls[1].sub.is_none());
    let done = calls[0].ex.as_ref().unwrap();
    assert_eq!(done.push, [U256::ONE]);
    let store = vm.ops.last().map(|op| op.ex.clone().unwrap()).unwrap();
    let stored = store.store.unwrap();
    assert_eq!((stored.key, stored.val), (U256::from(2), U256::from(5)));
    // The remaining gas falls by the cost of each instruction.
    let used: Vec<_> = vm
        .ops
        .iter()
        .map(|op| op.ex.as_ref().unwrap().used)
        .collect();
    assert_eq!(used[1], used[0] - vm.ops[1].cost);
    assert_eq!(done.used - used[8], vm.ops[8].cost);
    // An instruction that fails has no effect in the trace. The memory that MSTORE writes is shown.
    let failing = Bytes::from(hex!("602a60005260016000fe"));
    let response = chain
        .result(
            "trace_call",
            call_with(&failing, json!(["vmTrace", "trace"])),
        )
        .await;
    let results = in_form::<TraceResults>(&response);
    assert_eq!(results.trace[0].error.as_deref(), Some("Bad instruction"));
    assert!(results.trace[0].result.is_none());
    let ops = results.vm_trace.unwrap().ops;
    let written = ops[2].ex.as_ref().unwrap().mem.as_ref().unwrap();
    assert_eq!((written.off, written.data.len()), (0, 32));
    assert!(ops.last().unwrap().ex.is_none());
}

#[tokio::test]
async fn calls_see_what_earlier_ones_changed_and_raw_transactions_pay() {
    let chain = chain(|_| ());
    let give = json!([{ "from": RICH, "to": HEIR, "value": "0x1" }, ["stateDiff"]]);
    let params = json!([[give, give], "latest"]);
    let responses = chain.result("trace_callMany", params).await;
    let heir = format!("{HEIR:#x}");
    assert_eq!(
        responses[0]["stateDiff"][&heir]["balance"],
        json!({ "+": "0x1" })
    );
    assert_eq!(
        responses[1]["stateDiff"][&heir]["balance"],
        json!({ "*": { "from": "0x1", "to": "0x2" } })
    );
    let params = json!([transfer(0, 21_000), ["trace", "stateDiff"]]);
    let response = chain.result("trace_rawTransaction", params).await;
    let results = in_form::<TraceResults>(&response);
    let sender = &results.state_diff.unwrap()[&SENDER];
    assert!(sender.balance.is_changed() && sender.nonce.is_changed());
    let again = json!([transfer(7, 21_000), ["trace"]]);
    let start = "tracing failed";
    chain.fails("trace_rawTransaction", again, start).await;
    let nonsense = json!(["0x7e01", ["trace"]]);
    let (code, _) = chain.error("trace_rawTransaction", nonsense).await;
    assert_eq!(code, -32000);
}

#[tokio::test]
async fn frames_of_a_block_are_those_of_its_transactions() {
    let chain = chain(|_| ());
    let frames = chain.result("trace_block", json!(["latest"])).await;
    let block = in_form::<Vec<LocalizedTransactionTrace>>(&frames);
    let of = |position: u64| -> Vec<_> {
        let mine = block.iter();
        mine.filter(|it| it.transaction_position == Some(position))
            .collect()
    };
    assert!(of(1)[0].trace.action.is_create());
    let created = of(1)[0].trace.result.as_ref().unwrap().created_contract();
    assert_eq!(created, Some(SENDERS[0].create(0)));
    let end = of(2)[1].trace.action.as_selfdestruct().unwrap();
    assert_eq!((end.refund_address, end.balance), (HEIR, U256::from(7)));
    assert_eq!(of(3).len(), 1);
    let hash = of(2)[0].transaction_hash.unwrap();
    let alone = chain.result("trace_transaction", json!([hash])).await;
    let mine = frames.as_array().unwrap().iter();
    let mine: Vec<_> = mine
        .filter(|it| it["transactionHash"] == json!(hash))
        .collect();
    assert_eq!(alone, json!(mine));
    let one = |index: Value| chain.result("trace_get", json!([hash, index]));
    assert_eq!(one(json!(["0x1"])).await, *mine[1]);
    assert_eq!(one(json!([2])).await, Value::Null);
    assert_eq!(one(json!([0, 0])).await, Value::Null);
    let params = json!(["latest", ["trace"]]);
    let replayed = chain.result("trace_replayBlockTransactions", params).await;
    let replayed = in_form::<Vec<TraceResultsWithTransactionHash>>(&replayed);
    let actions = replayed.iter().flat_map(|it| &it.full_trace.trace);
    let plain: Vec<_> = block.iter().map(|it| &it.trace).collect();
    assert_eq!(actions.collect::<Vec<_>>(), plain);
    let types = json!([hash, ["trace"]]);
    let single = chain.result("trace_replayTransaction", types).await;
    let single = in_form::<TraceResults>(&single);
    assert_eq!(single, replayed[2].full_trace);
    assert_eq!(chain.result("trace_block", json!(["0x0"])).await, json!([]));
}

#[tokio::test]
async fn gas_by_opcode_is_the_gas_of_all_instructions() {
    let chain = chain(|_| ());
    let response = chain
        .result("trace_blockOpcodeGas", json!(["latest"]))
        .await;
    let block = in_form::<BlockOpcodeGas>(&response);
    assert_eq!(block.block_hash, chain.head().hash);
    let creation = &block.transactions[1];
    let of = |name: &str| {
        let mut all = creation.opcode_gas.iter();
        all.find(|op| op.opcode == name)
            .map(|op| (op.count, op.gas_used))
    };
    assert_eq!(of("PUSH1"), Some((5, 15)));
    assert_eq!(of("RETURN"), Some((1, 0)));
    let hash = creation.transaction_hash;
    let alone = chain
        .result("trace_transactionOpcodeGas", json!([hash]))
        .await;
    assert_eq!(alone, json!(creation));
}

#[tokio::test]
async fn frames_are_filtered_by_address_and_page() {
    let chain = chain(|context| context.bounds.trace_blocks = 1);
    let all = chain.result("trace_block", json!(["latest"])).await;
    let all = all.as_array().unwrap().clone();
    let filtered = async |filter: Value| {
        let found = chain.result("trace_filter", json!([filter])).await;
        found.as_array().unwrap().clone()
    };
    assert_eq!(filtered(json!({})).await, all);
    assert_eq!(filtered(json!({ "after": 1, "count": 2 })).await, all[1..3]);
    assert_eq!(filtered(json!({ "after": 100 })).await, [] as [Value; 0]);
    let given = filtered(json!({ "fromAddress": [SENDERS[1]], "toAddress": [HEIR] })).await;
    assert_eq!(given.len(), 1);
    assert_eq!(given[0]["transactionPosition"], 3);
    let either = json!({ "fromAddress": [SENDERS[0]], "toAddress": [HEIR], "mode": "union" });
    let positions: Vec<_> = filtered(either).await;
    let positions: Vec<_> = positions
        .iter()
        .map(|it| &it["transactionPosition"])
        .collect();
    assert_eq!(positions, [1, 2, 3]);
    let created = json!({ "toAddress": [SENDERS[0].create(0)] });
    assert_eq!(filtered(created).await.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_traced_is_null_or_an_error() {
    let mut chain = chain(|context| context.bounds.trace_blocks = 1);
    let hash = B256::repeat_byte(7);
    for method in ["trace_transaction", "trace_transactionOpcodeGas"] {
        assert_eq!(chain.result(method, json!([hash])).await, Value::Null);
    }
    assert_eq!(
        chain.result("trace_blockOpcodeGas", json!([hash])).await,
        Value::Null
    );
    for (method, params, text) in [
        ("trace_block", json!(["0x64"]), "block #100 not found"),
        (
            "trace_replayTransaction",
            json!([hash, ["trace"]]),
            "transaction not found",
        ),
        (
            "trace_filter",
            json!([{ "toBlock": "0x64" }]),
            "block #100 not found",
        ),
    ] {
        chain.fails(method, params, text).await;
    }
    let refused = async |chain: &Chain, method: &str, params: Value| {
        let (code, message) = chain.error(method, params).await;
        assert_eq!(code, -32602, "{message}");
        message
    };
    let types = json!([hash, ["everything"]]);
    let message = refused(&chain, "trace_replayTransaction", types).await;
    assert!(
        message.contains("unknown variant `everything`"),
        "{message}"
    );
    let range = json!([{ "fromBlock": "0x1", "toBlock": "0x0" }]);
    refused(&chain, "trace_filter", range).await;
    chain.add(&[]);
    let message = refused(&chain, "trace_filter", json!([{}])).await;
    assert!(message.starts_with("Block range too large"), "{message}");
}

#[tokio::test]
async fn time_and_memory_are_bounded() {
    let chain = chain(|context| {
        context.bounds.trace_bytes = 1 << 20;
        context.bounds.trace_timeout = std::time::Duration::from_secs(2);
        context.bounds.gas_cap = u64::MAX;
    });
    let endless = |code: &'static [u8], types: Value| {
        let mut params = call_with(&Bytes::from_static(code), types);
        params[0]["gas"] = json!("0xffffffffffff");
        params
    };
    let params = endless(&hex!("5b600056"), json!(["vmTrace"]));
    chain
        .fails("trace_call", params, "the trace is larger than 1 MB")
        .await;
    // Code that hashes memory for ever and makes no text: only the timeout ends it.
    let params = endless(&hex!("5b620f000060002050600056"), json!(["trace"]));
    chain
        .fails("trace_call", params, "execution aborted (timeout = 2s)")
        .await;
    // Code that calls an account in a loop, with a megabyte of input each time.
    let greedy = &hex!("5b6000600062100000600060ff5afa50600056");
    let params = endless(greedy, json!(["trace"]));
    let large = "the trace is larger than 32 MB";
    chain.fails("trace_call", params, large).await;
}

#[tokio::test]
async fn transactions_traced_one_by_one_have_the_results_of_their_block() {
    let chain = chain(|_| ());
    let tracer = json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } });
    let block = chain
        .result("debug_traceBlockByNumber", json!(["latest", tracer]))
        .await;
    let block = block.as_array().unwrap();
    let progress = || chain.context.replays.progress();
    let trace = async |index: usize| {
        let params = json!([block[index]["txHash"], tracer]);
        let traced = chain.result("debug_traceTransaction", params).await;
        assert_eq!(traced, block[index]["result"], "transaction {index}");
    };
    assert_eq!((block.len(), progress()), (4, vec![]));
    trace(0).await;
    assert_eq!(progress(), [1]);
    // A request resumes the replay of the previous request, even past a transaction that was not
    // requested.
    trace(2).await;
    assert_eq!(progress(), [3]);
    // An earlier transaction needs a replay of its own.
    trace(1).await;
    assert_eq!(progress(), [3, 2]);
    // The nearest replay is taken. After the block's last transaction, no replay is kept.
    trace(3).await;
    assert_eq!(progress(), [2]);
    let frames = chain
        .result("trace_transaction", json!([block[2]["txHash"]]))
        .await;
    let of_block = chain.result("trace_block", json!(["latest"])).await;
    let expected: Vec<_> = (of_block.as_array().unwrap().iter())
        .filter(|frame| frame["transactionHash"] == block[2]["txHash"])
        .collect();
    assert_eq!(
        frames.as_array().unwrap().iter().collect::<Vec<_>>(),
        expected
    );
    assert_eq!(progress(), [3]);
    // A replay whose trace failed is kept before the transaction. A script fails here because
    // scripts are turned off.
    let fail = async |index: usize, options: &Value| {
        let params = json!([block[index]["txHash"], options]);
        let response = chain.ask("debug_traceTransaction", params).await;
        assert!(response["error"].is_object(), "{response}");
        assert_eq!(progress(), [index]);
    };
    let script = json!({ "tracer": "{result: () => undefined_name}" });
    fail(3, &script).await;
    trace(3).await;
    assert_eq!(progress(), [] as [usize; 0]);
    // Both failures interrupt the creation, which reads accounts and has instructions.
    fail(1, &json!({ "tracer": "callTracer", "timeout": "0" })).await;
    fail(1, &script).await;
    trace(1).await;
    assert_eq!(progress(), [2]);
}

#[tokio::test]
async fn a_replay_that_is_interrupted_continues_at_the_same_transaction() {
    let chain = chain(|_| ());
    let view = chain.context.view();
    let spec = &chain.context.chain.spec;
    let long = Deadline::after(Duration::from_secs(60));
    let number = view.head().number;
    let root_of = |interrupted: bool| {
        let mut replay = Replay::of_block(spec, &view, number, &long).unwrap();
        replay.skip_to(1).unwrap();
        if interrupted {
            replay.set_deadline(Deadline::after(Duration::ZERO));
            let error = replay.skip_to(4).unwrap_err().to_string();
            assert!(error.contains("aborted"), "{error}");
            assert_eq!(replay.done(), 1);
            replay.set_deadline(long.clone());
        }
        replay.skip_to(4).unwrap();
        replay.state_root().unwrap()
    };
    assert_eq!(root_of(true), root_of(false));
}

#[tokio::test]
async fn replays_that_are_kept_are_bounded() {
    let mut chain = chain(|_| ());
    for nonce in 0..20 {
        chain.add(&[(legacy(nonce), vec![])]);
    }
    let view = chain.context.view();
    let readers = Arc::strong_count(&view);
    let deadline = Deadline::after(Duration::from_secs(60));
    let replays = &chain.context.replays;
    let keep = |number: u64, index: usize| {
        let spec = &chain.context.chain.spec;
        let mut replay = Replay::of_block(spec, &view, number, &deadline).unwrap();
        replay.skip_to(index).unwrap();
        replays.keep(replay.pause());
    };
    keep(1, 0);
    assert!(replays.progress().is_empty(), "it has executed nothing");
    for number in 2..=21 {
        keep(number, 1);
    }
    assert_eq!(replays.progress(), [1; 8]);
    // At the limit, replays at one transaction displace each other.
    for _ in 0..8 {
        keep(1, 2);
    }
    let kept: [usize; 8] = [1, 1, 1, 1, 1, 1, 1, 2];
    assert_eq!(replays.progress(), kept);
    assert!(replays.take(B256::ZERO, 3).is_none());
    let hash = view.hash_of(1).unwrap().unwrap();
    assert!(replays.take(hash, 1).is_none(), "it is beyond index 1");
    assert_eq!(replays.progress(), kept);
    assert_eq!(Arc::strong_count(&view), readers, "none pins a view");
}
