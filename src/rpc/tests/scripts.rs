//! Tracers in JavaScript: the values that a script sees, and geth's own scripts. The script host is
//! a thread in these tests.

use super::{
    chain::{CONTRACT, Chain, RICH},
    debug::looping,
};
use crate::{
    chain::evm::{
        ScriptConnection, ScriptHost,
        script_message::{
            FromScript, MessageReader, ScriptHooks, ScriptQuestion, ToScript, write_message,
        },
    },
    rpc::RpcContext,
    script_host,
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::{
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering},
};

/// Code that stores 42 in slot 1, calls the identity precompile, and then sends a wei to an account
/// without code.
const CODE: &str = "0x602a6001556000600060046000600060045af1506000600060006000600160ee5af150";
/// Code that writes a word to memory and reverts with two bytes of it.
const REVERTING: &str = "0x61beef6000526002601efd";

fn threads() -> ScriptHost {
    ScriptHost::new(|| {
        let (stream, theirs) = UnixStream::pair()?;
        std::thread::Builder::new()
            .stack_size(64 << 20)
            .spawn(move || script_host::serve(theirs))?;
        Ok(ScriptConnection {
            stream,
            process: None,
        })
    })
}

fn chain(change: impl FnOnce(&mut RpcContext)) -> Chain {
    let mut chain = Chain::new(Fork::Isthmus).with(|context| {
        context.scripts = Some(threads());
        change(context);
    });
    chain.add(&[]);
    chain.serve(&["debug"]);
    chain
}

fn call(code: &str, options: Value) -> Value {
    let mut options = options;
    let overrides = json!({ CONTRACT.to_string(): { "code": code, "balance": "0x10" } });
    options["stateOverrides"] = overrides;
    json!([{ "from": RICH, "to": CONTRACT, "gas": "0x186a0", "value": "0x2" }, "latest", options])
}

async fn run(code: &str, script: &str) -> Value {
    let params = call(code, json!({ "tracer": script }));
    chain(|_| ()).result("debug_traceCall", params).await
}

#[tokio::test]
async fn a_script_sees_the_instructions_before_they_run() {
    let script = r"{
        seen: [],
        step: function (log, db) {
            if (log.op.toString() !== 'SSTORE') return;
            var own = log.contract.getAddress();
            this.seen.push([
                log.getPC(), log.op.toNumber(), log.getGas(), log.getCost(), log.getDepth(), log.getRefund(),
                log.stack.length(), log.stack.peek(0).toString(16), log.stack.peek(1).toJSNumber(),
                toHex(db.getState(own, toWord('0x01'))), toHex(log.contract.getCaller()), log.contract.getValue(),
                log.getError() === undefined, log.op.isPush(), db.exists(own), db.getNonce(own),
            ]);
        },
        fault: function () {},
        result: function (ctx, db) {
            return { seen: this.seen, to: toHex(ctx.to), gas: ctx.gas, used: ctx.gasUsed, value: ctx.value, type: ctx.type,
                block: ctx.block, after: toHex(db.getState(ctx.to, toWord('0x01'))) };
        },
    }";
    let response = run(CODE, script).await;
    let step = &response["seen"][0];
    let before = format!("0x{:064x}", 0x38);
    let want = json!([
        4, 0x55, 78_994, 5_000, 1, 0, 2, "1", 42, before, RICH, "2", true, false, true, 1
    ]);
    assert_eq!(*step, want, "{response}");
    assert_eq!(response["to"], json!(CONTRACT));
    assert_eq!(
        (&response["gas"], &response["type"]),
        (&json!(100_000), &json!("CALL"))
    );
    assert_eq!(
        (&response["value"], &response["block"]),
        (&json!("2"), &json!(1))
    );
    assert_eq!(response["after"], format!("0x{:064x}", 0x2a));
}

#[tokio::test]
async fn a_script_sees_frames_memory_and_faults() {
    let frames = r"{
        all: [],
        enter: function (frame) {
            this.all.push([frame.getType(), toHex(frame.getTo()), frame.getGas(), String(frame.getValue())]);
        },
        exit: function (frame) { this.all.push([frame.getGasUsed(), toHex(frame.getOutput()), frame.getError() === undefined]); },
        fault: function () {},
        result: function () { return this.all; },
    }";
    let response = run(CODE, frames).await;
    let kinds: Vec<_> = (0..4).map(|at| response[at][0].clone()).collect();
    assert_eq!((&kinds[0], &kinds[2]), (&json!("CALL"), &json!("CALL")));
    assert_eq!(response[2][3], "1");
    let memory = r"{
        seen: [],
        step: function (log) { if (log.op.toString() === 'REVERT') this.seen = [log.memory.length(), toHex(log.memory.slice(30, 34)),
            log.memory.getUint(0).toString(16)]; },
        fault: function (log) { this.fault = log.getError(); },
        result: function (ctx) { return [this.seen, this.fault, ctx.error, toHex(ctx.output)]; },
    }";
    let response = run(REVERTING, memory).await;
    let seen = json!([32, "0xbeef0000", "beef"]);
    let error = "execution reverted";
    assert_eq!(response, json!([seen, error, error, "0xbeef"]));
    // A script's `step` runs before MSTORE has written.
    let early = r"{ seen: null, step: function (log) { if (log.op.toString() === 'MSTORE') this.seen = [log.memory.length(),
        toHex(log.memory.slice(0, 32))]; }, fault: function () {}, result: function () { return this.seen; } }";
    let zeros = format!("0x{:064x}", 0);
    assert_eq!(run(REVERTING, early).await, json!([0, zeros]));
}

#[tokio::test]
async fn functions_of_geth_are_there() {
    let script = r"{
        config: null,
        setup: function (config) { this.config = JSON.parse(config); },
        fault: function () {},
        result: function (ctx) {
            var big = bigInt('100000000000000000000', 10);
            return {
                config: this.config,
                word: toHex(toWord('0x0102')), address: toHex(toAddress('0xff')), cut: toHex(slice([1, 2, 3, 4], 1, 3)),
                contract: toHex(toContract('0x6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0', 1)),
                contract2: toHex(toContract2('0x00000000000000000000000000000000deadbeef', '0xcafebabe', '0xdeadbeef')),
                precompiled: [isPrecompiled(toAddress('0x01')), isPrecompiled(ctx.to)],
                big: [big.add(1), big.multiply(big).toString(16), big.greater(5), bigInt('ff', 16).valueOf(), big.mod(7).toJSNumber(),
                    big.subtract('1').equals(bigInt('99999999999999999999')), bigInt(7).divmod(2).quotient.toString(), big.bitLength()],
            };
        },
    }";
    let chain = chain(|_| ());
    let options = json!({ "tracer": script, "tracerConfig": { "a": [1] } });
    let response = chain.result("debug_traceCall", call("0x00", options)).await;
    assert_eq!(response["config"], json!({ "a": [1] }));
    assert_eq!(response["word"], format!("0x{:064x}", 0x0102));
    assert_eq!(response["address"], format!("0x{:040x}", 0xff));
    assert_eq!(response["cut"], "0x0203");
    // The addresses are the examples in EIP-1014 and in geth's tests.
    assert_eq!(
        response["contract"],
        "0x343c43a37d37dff08ae8c4a11544c718abb4fcf8"
    );
    let created = "0x60f3f640a8508fc6a86d45df051962668e1e8ac7";
    assert_eq!(response["contract2"], created);
    assert_eq!(response["precompiled"], json!([true, false]));
    let big = json!([
        "100000000000000000001",
        "1d6329f1c35ca4bfabb9f5610000000000",
        true,
        255,
        2,
        true,
        "3",
        "67"
    ]);
    assert_eq!(response["big"], big);
}

#[tokio::test]
async fn a_script_that_fails_says_why() {
    let chain = chain(|_| ());
    for (script, text) in [
        ("{", "SyntaxError"),
        (
            "{ result: function () {} }",
            "trace object must expose a function fault()",
        ),
        (
            "{ result: function () {}, fault: function () {}, enter: function () {} }",
            "trace object must expose either both or none of enter() and exit()",
        ),
        (
            "{ result: function () { return this.x.y; }, fault: function () {} }",
            "TypeError",
        ),
        (
            "{ result: function () { return toHex('0x12'); }, fault: function () {} }",
            "invalid buffer type    in server-side tracer function 'result'",
        ),
        (
            "{ step: function (log) { try { log.stack.peek(9); } catch (error) {} }, result: function () { return 1; }, fault: function () {} }",
            "tracer accessed out of bound stack: size 0, index 9    in server-side tracer function 'step'",
        ),
        (
            "{ step: function (log) { log.memory.slice(-1, 2); }, result: function () { return 1; }, fault: function () {} }",
            "tracer accessed out of bound memory: offset -1, end 2",
        ),
        (
            "{ result: function again() { return again(); }, fault: function () {} }",
            "exceeded maximum",
        ),
        (
            "{ step: function (log) { log.memory.slice(0, 1e9); }, result: function () { return 1; }, fault: function () {} }",
            "tracer reads too much memory at once",
        ),
    ] {
        let params = call("0x00", json!({ "tracer": script }));
        let response = chain.ask("debug_traceCall", params).await;
        assert_eq!(response["error"]["code"], -32000, "{script}: {response}");
        let message = response["error"]["message"].as_str().unwrap();
        assert!(message.contains(text), "{script}: {message}");
    }
    let nothing = "{ result: function () {}, fault: function () {} }";
    assert_eq!(run("0x00", nothing).await, Value::Null);
    let off = self::chain(|context| context.scripts = None);
    let text = "the tracer \"{ result: function () {}, fault: function () {} }\" is a script";
    off.fails(
        "debug_traceCall",
        call("0x00", json!({ "tracer": nothing })),
        text,
    )
    .await;
    let mux = json!({ "tracer": "muxTracer", "tracerConfig": { nothing: null } });
    let (code, _) = chain.error("debug_traceCall", call("0x00", mux)).await;
    assert_eq!(code, -32602);
}

/// A script host that requests a word beyond the end of the stack, and returns the result `text`.
fn lying(text: &'static str) -> ScriptHost {
    let respond = move |message: &ToScript| match message {
        ToScript::Load { .. } => FromScript::Loaded(ScriptHooks {
            step: true,
            frames: false,
        }),
        ToScript::Step(_) => FromScript::Ask(ScriptQuestion::Stack(usize::MAX)),
        ToScript::Reply(word) if word.len() != 32 => FromScript::Failed("no word".to_owned()),
        ToScript::Result(_) => FromScript::Result(text.to_owned()),
        _ => FromScript::Done,
    };
    ScriptHost::new(move || {
        let (stream, mut theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            let mut reader = MessageReader::default();
            while let Ok(Some(message)) = reader.read::<ToScript>(&mut theirs) {
                write_message(&mut theirs, &respond(&message)).unwrap();
            }
        });
        Ok(ScriptConnection {
            stream,
            process: None,
        })
    })
}

#[tokio::test]
async fn a_process_that_lies_breaks_nothing() {
    let options = json!({ "tracer": "opcountTracer" });
    let fine = chain(|context| context.scripts = Some(lying("1")));
    let params = call(CODE, options);
    assert_eq!(fine.result("debug_traceCall", params.clone()).await, 1);
    let raw = chain(|context| context.scripts = Some(lying("1},\"x\":{\"y\":2")));
    let text = "the result of the script is no JSON";
    raw.fails("debug_traceCall", params, text).await;
}

/// A chain whose second block has contract creations after its L1 attributes.
fn chain_of_creations(scripts: ScriptHost) -> Chain {
    let mut chain = chain(|context| context.scripts = Some(scripts));
    let created = |source| looping(B256::repeat_byte(source), 2);
    chain.add(&[
        (created(1), vec![]),
        (created(2), vec![]),
        (created(3), vec![]),
    ]);
    chain
}

#[tokio::test]
async fn a_transaction_whose_script_fails_has_an_error_in_its_place() {
    let chain = chain_of_creations(threads());
    let script = "{ result: function (ctx) { if (ctx.txIndex === 2) throw new Error('not this'); return toHex(ctx.to); }, \
        fault: function () {} }";
    let params = json!(["latest", { "tracer": script }]);
    let traces = chain.result("debug_traceBlockByNumber", params).await;
    let frames = json!(["latest", { "tracer": "callTracer" }]);
    let frames = chain.result("debug_traceBlockByNumber", frames).await;
    assert_eq!(traces.as_array().unwrap().len(), 4);
    for index in [0, 1, 3] {
        let to = &frames[index]["result"]["to"];
        let want = json!({ "txHash": frames[index]["txHash"], "result": to });
        assert_eq!(traces[index], want, "{traces}");
    }
    assert_eq!(traces[2]["txHash"], frames[2]["txHash"]);
    let error = traces[2]["error"].as_str().unwrap();
    let text = "in server-side tracer function 'result'";
    assert!(
        error.starts_with("Error: not this") && error.ends_with(text),
        "{error}"
    );
    assert_eq!(traces[2].get("result"), None);
    // If a built-in tracer fails, the whole call fails, as in geth.
    let late = json!(["latest", { "tracer": "callTracer", "timeout": "0" }]);
    let text = "execution timeout";
    chain.fails("debug_traceBlockByNumber", late, text).await;
}

#[tokio::test]
async fn a_transaction_whose_script_takes_too_long_has_an_error_in_its_place() {
    // The first process never responds.
    let (first, answering) = (AtomicBool::new(true), lying("1"));
    let silent = Mutex::new(None);
    let host = ScriptHost::new(move || {
        if !first.swap(false, Ordering::Relaxed) {
            return answering.start();
        }
        let (stream, theirs) = UnixStream::pair()?;
        *silent.lock() = Some(theirs);
        Ok(ScriptConnection {
            stream,
            process: None,
        })
    });
    let chain = chain_of_creations(host);
    let params = json!(["latest", { "tracer": "opcountTracer", "timeout": "300ms" }]);
    let traces = chain.result("debug_traceBlockByNumber", params).await;
    assert_eq!(traces[0]["error"], "execution timeout", "{traces}");
    for index in [1, 2, 3] {
        assert_eq!(traces[index]["result"], 1, "{traces}");
    }
}

#[tokio::test]
async fn geths_scripts_are_there_by_name() {
    let chain = chain(|_| ());
    let trace = async |name: &str| {
        let params = call(CODE, json!({ "tracer": name }));
        chain.result("debug_traceCall", params).await
    };
    assert_eq!(trace("noopTracerLegacy").await, json!({}));
    assert_eq!(trace("opcountTracer").await, 22);
    assert_eq!(trace("unigramTracer").await["PUSH1"], 14);
    assert_eq!(trace("bigramTracer").await["PUSH1-SSTORE"], 1);
    assert_eq!(
        trace("trigramTracer").await["PUSH1-PUSH1-SSTORE"],
        Value::Null
    );
    assert_eq!(trace("trigramTracer").await["PUSH1-SSTORE-PUSH1"], 1);
    assert_eq!(trace("4byteTracerLegacy").await, json!({}));
    let frame = trace("callTracerLegacy").await;
    assert_eq!(frame["type"], "CALL");
    let inner = &frame["calls"];
    assert_eq!(inner.as_array().unwrap().len(), 1, "{frame}");
    assert_eq!(
        (&inner[0]["to"], &inner[0]["value"]),
        (&json!(format!("0x{:040x}", 0xee)), &json!("0x1"))
    );
    let native = trace("callTracer").await;
    for member in ["from", "to", "gas", "gasUsed", "input", "value"] {
        assert_eq!(frame[member], native[member], "{member}");
    }
    let accounts = trace("prestateTracerLegacy").await;
    let contract = &accounts[format!("{CONTRACT:#x}")];
    assert_eq!(contract["balance"], "0x10");
    let slot = format!("0x{:064x}", 1);
    assert_eq!(contract["storage"][slot], format!("0x{:064x}", 0x38));
    let steps = trace("evmdisTracer").await;
    assert_eq!(
        steps[0],
        json!({ "op": 0x60, "depth": 1, "result": ["2a"], "len": 2 })
    );
}
