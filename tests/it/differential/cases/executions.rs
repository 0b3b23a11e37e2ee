//! Requests that make a node execute transactions again, or execute calls that were never sent:
//! tracers, frames in Parity's form, simulations, access lists.
//!
//! Every call specifies its gas: the two nodes have different default limits, and every number in a
//! trace depends on the limit.

use super::*;

/// A JavaScript tracer that records each instruction.
const STEPS: &str = "{steps: [], step: function(log) { this.steps.push([log.getPC(), \
    log.op.toNumber(), log.getGas(), log.getDepth(), log.stack.length(), log.memory.length(), \
    log.stack.length() > 0 ? log.stack.peek(0).toString(16) : '']) }, fault: function(log) {}, \
    result: function() { return this.steps }}";
/// A JavaScript tracer that records each call frame.
const FRAMES: &str = "{frames: [], enter: function(frame) { this.frames.push([frame.getType(), \
    toHex(frame.getFrom()), toHex(frame.getTo()), frame.getGas(), toHex(frame.getInput())]) }, \
    exit: function(frame) { this.frames.push([frame.getGasUsed(), toHex(frame.getOutput())]) }, \
    fault: function(log) {}, result: function() { return this.frames }}";
/// A JavaScript tracer that records the context of the transaction.
const CONTEXT: &str = "{step: function(log) {}, fault: function(log) {}, result: function(ctx) { \
    return [ctx.type, toHex(ctx.from), toHex(ctx.input), ctx.gas, ctx.gasUsed, ctx.value, \
    ctx.block] }}";

impl Generator {
    /// A request about executions. It uses a separate random sequence, so that the other requests
    /// of a seed do not depend on it.
    pub fn execution(&mut self, blocks: &[Block]) -> Case {
        std::mem::swap(&mut self.rng, &mut self.execution_rng);
        let (method, params) = self.execution_question(blocks);
        std::mem::swap(&mut self.rng, &mut self.execution_rng);
        Case::Ask(method, params)
    }

    fn execution_question(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        match self.below(40) {
            0..10 => self.traced_transaction(blocks),
            10..13 => self.traced_block(blocks),
            13..18 => self.traced_call(blocks),
            18..21 => ("trace_transaction", json!([self.transaction_hash(blocks)])),
            21 | 22 => ("trace_block", json!([self.number(blocks)])),
            23 => {
                let index = format!("{:#x}", self.below(3));
                ("trace_get", json!([self.transaction_hash(blocks), [index]]))
            }
            24..27 => ("trace_filter", json!([self.frame_filter(blocks)])),
            27 => (
                "trace_replayTransaction",
                json!([self.transaction_hash(blocks), self.parts()]),
            ),
            28 | 29 => self.replayed_block(blocks),
            30 => {
                let call = self.plain_object();
                ("trace_call", json!([call, ["trace"], self.number(blocks)]))
            }
            31 => {
                let calls: Vec<_> = (0..1 + self.below(3))
                    .map(|_| json!([self.plain_object(), ["trace"]]))
                    .collect();
                ("trace_callMany", json!([calls, self.number(blocks)]))
            }
            32..36 => (
                "eth_simulateV1",
                json!([self.simulation(), self.number(blocks)]),
            ),
            36 => {
                let calls: Vec<_> = (0..1 + self.below(4))
                    .map(|_| self.plain_object())
                    .collect();
                let state = json!({ "blockNumber": self.number(blocks) });
                ("eth_callMany", json!([[{ "transactions": calls }], state]))
            }
            _ => self.listed_call(blocks),
        }
    }

    fn traced_transaction(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let hash = self.transaction_hash(blocks);
        let looping = hash
            .as_str()
            .and_then(|hash| hash.parse().ok())
            .is_some_and(|hash: B256| self.looping.contains(&hash));
        let options = match self.below(3) {
            _ if looping => self.whole_tracer(),
            0 => self.steps(),
            _ => self.tracer(),
        };
        ("debug_traceTransaction", json!([hash, options]))
    }

    fn traced_block(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let options = self.whole_tracer();
        if self.one_in(3) {
            let block = self.block_hash(blocks);
            ("debug_traceBlockByHash", json!([block, options]))
        } else {
            let block = self.number(blocks);
            ("debug_traceBlockByNumber", json!([block, options]))
        }
    }

    fn traced_call(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let block = self.tag(blocks);
        let mut call = self.plain_object();
        let mut options = match self.below(8) {
            0..3 => json!({ "tracer": "callTracer", "tracerConfig": { "withLog": true } }),
            3 => json!({ "tracer": "callTracer" }),
            4 => json!({ "tracer": "prestateTracer" }),
            5 => json!({ "tracer": "noopTracer" }),
            _ => {
                call = self.object_for_steps();
                self.steps()
            }
        };
        if self.one_in(6) {
            options["stateOverrides"] = self.overridden_store();
        }
        if self.one_in(8) {
            options["blockOverrides"] = json!({ "number": "0x1234", "time": "0x7fffffff" });
        }
        ("debug_traceCall", json!([call, block, options]))
    }

    /// Options of a random tracer that both nodes have.
    fn tracer(&mut self) -> Value {
        match self.below(6) {
            0 => json!({
                "tracer": "flatCallTracer",
                "tracerConfig": { "convertParityErrors": true },
            }),
            1 => json!({
                "tracer": "muxTracer",
                "tracerConfig": { "callTracer": { "withLog": true }, "4byteTracer": {} },
            }),
            2 => json!({ "tracer": self.pick(&[FRAMES, CONTEXT]) }),
            _ => self.whole_tracer(),
        }
    }

    /// Options of a random tracer that both nodes have, also for whole blocks.
    fn whole_tracer(&mut self) -> Value {
        let config = |name: &str, config: Value| json!({ "tracer": name, "tracerConfig": config });
        match self.below(12) {
            0 | 1 => json!({ "tracer": "callTracer" }),
            2 | 3 => config("callTracer", json!({ "withLog": true })),
            4 => config(
                "callTracer",
                json!({ "withLog": true, "onlyTopCall": true }),
            ),
            5 | 6 => json!({ "tracer": "prestateTracer" }),
            7 | 8 => config("prestateTracer", json!({ "diffMode": true })),
            9 => config(
                "prestateTracer",
                json!({ "diffMode": self.one_in(2), "disableCode": true, "disableStorage": true }),
            ),
            10 => json!({ "tracer": "4byteTracer" }),
            _ => json!({ "tracer": "noopTracer" }),
        }
    }

    /// Options of a random tracer that lists instructions.
    fn steps(&mut self) -> Value {
        match self.below(5) {
            0 => json!({ "enableMemory": true, "enableReturnData": true }),
            1 => json!({ "disableStack": true, "disableStorage": true }),
            2 => json!({ "tracer": STEPS }),
            _ => json!({}),
        }
    }

    /// Random parts of a replayed transaction, without the list of instructions.
    fn parts(&mut self) -> Value {
        self.pick(&[
            json!(["trace"]),
            json!(["stateDiff"]),
            json!(["trace", "stateDiff"]),
            json!([]),
        ])
    }

    fn replayed_block(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let method = "trace_replayBlockTransactions";
        if self.one_in(3) {
            let number = self.below(blocks.len() as u64);
            let transactions = &blocks[number as usize].transactions;
            if transactions.iter().all(|hash| !self.looping.contains(hash)) {
                return (method, json!([format!("{number:#x}"), ["vmTrace"]]));
            }
        }
        (method, json!([self.number(blocks), self.parts()]))
    }

    /// A search for frames. A search with a window excludes precompiles as callees, since anvil
    /// counts frames of precompiles.
    fn frame_filter(&mut self, blocks: &[Block]) -> Value {
        let head = blocks.len() as u64 - 1;
        let from = self.below(head + 1);
        let to = from + self.below(3);
        let mut filter = json!({
            "fromBlock": format!("{from:#x}"),
            "toBlock": format!("{:#x}", to.min(head)),
        });
        let callees = [STORE, REVERT, LOG0, LOG2, CREATE];
        if self.one_in(2) {
            filter["toAddress"] = json!([self.pick(&callees), self.pick(&callees)]);
            if self.one_in(2) {
                filter["after"] = json!(self.below(3));
                filter["count"] = json!(self.below(6));
            }
        }
        if self.one_in(3) {
            let user = self.users[self.rng.random_range(0..8)].address;
            filter["fromAddress"] = json!([user, PROXY]);
            let mode = self.pick(&[None, Some("union"), Some("intersection")]);
            if let Some(mode) = mode {
                filter["mode"] = json!(mode);
            }
            if mode != Some("intersection") {
                let members = filter.as_object_mut().expect("an object");
                members.retain(|name, _| name != "after" && name != "count");
            }
        }
        filter
    }

    /// A random call with gas and without a gas price.
    fn plain_object(&mut self) -> Value {
        let (to, data) = self.message();
        self.object(to, data)
    }

    /// A random call without loops, and without values that differ between the two nodes' blocks.
    fn object_for_steps(&mut self) -> Value {
        loop {
            let (to, data) = self.message();
            if ![LOOPING, ENVIRONMENT].contains(&to) {
                return self.object(to, data);
            }
        }
    }

    fn object(&mut self, to: Address, data: Vec<u8>) -> Value {
        let from = self.users[self.rng.random_range(0..8)].address;
        let gas = self.pick(&[60_000u64, 200_000, 1_000_000]);
        let mut object = json!({
            "from": from,
            "to": to,
            "data": hex::encode_prefixed(data),
            "gas": format!("{gas:#x}"),
        });
        if self.one_in(4) {
            object["value"] = json!(format!("{:#x}", self.below(200)));
        }
        object
    }

    /// A state override that replaces the code and the stored number of STORE.
    fn overridden_store(&mut self) -> Value {
        let slots = json!({ B256::ZERO.to_string(): self.word() });
        json!({ STORE.to_string(): { "code": "0x5f545f5260205ff3", "stateDiff": slots } })
    }

    fn simulation(&mut self) -> Value {
        let count = 1 + self.below(2);
        let blocks: Vec<_> = (0..count).map(|_| self.simulated_block()).collect();
        let mut payload = json!({ "blockStateCalls": blocks });
        for (name, one_in) in [
            ("traceTransfers", 4),
            ("returnFullTransactions", 8),
            ("validation", 16),
        ] {
            if self.one_in(one_in) {
                payload[name] = json!(true);
            }
        }
        if self.one_in(20) {
            payload["blockStateCalls"] = json!([]);
        }
        payload
    }

    fn simulated_block(&mut self) -> Value {
        let calls: Vec<_> = (0..self.below(4)).map(|_| self.plain_object()).collect();
        let mut block = json!({ "calls": calls });
        if self.one_in(4) {
            block["stateOverrides"] = self.overridden_store();
        }
        match self.below(12) {
            0 => block["blockOverrides"] = json!({ "feeRecipient": self.stranger() }),
            1 => block["blockOverrides"] = json!({ "gasLimit": "0x1c9c380" }),
            2 => block["blockOverrides"] = json!({ "number": "0x1" }),
            _ => {}
        }
        block
    }

    /// A random call of which an access list is requested.
    fn listed_call(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let mut call = self.plain_object();
        if self.one_in(4) {
            // anvil drops the first of two entries for one address, so remove duplicates.
            let mut list = self.access_list().0;
            list.dedup_by_key(|item| item.address);
            call["accessList"] = json!(list);
        }
        let block = self.tag(blocks);
        ("eth_createAccessList", json!([call, block]))
    }
}
