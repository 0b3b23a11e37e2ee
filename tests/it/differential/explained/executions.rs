//! The kinds of differences in traces, simulations and access lists.

use super::{ANY, Kind, RESULT, Seen};
use crate::differential::contracts::{BASE_FEE, GAS_PRICE, NUMBER, TIMESTAMP};

/// The vault of the L1 fee, and the vault of the operator fee.
const VAULTS: [&str; 2] = [
    "0x420000000000000000000000000000000000001a",
    "0x420000000000000000000000000000000000001b",
];
/// The block's fee recipient and the vault of the base fee.
const RECIPIENTS: [&str; 2] = [
    "0x4200000000000000000000000000000000000011",
    "0x4200000000000000000000000000000000000019",
];
/// Header members of a simulated block that depend on data that anvil leaves out.
const SIMULATED_HEADER: [&str; 18] = [
    "baseFeePerGas",
    "blobGasUsed",
    "excessBlobGas",
    "hash",
    "logsBloom",
    "mixHash",
    "number",
    "parentBeaconBlockRoot",
    "parentHash",
    "receiptsRoot",
    "requestsHash",
    "size",
    "stateRoot",
    "timestamp",
    "totalDifficulty",
    "transactionsRoot",
    "withdrawals",
    "withdrawalsRoot",
];

impl Seen<'_> {
    fn is_trace(&self) -> bool {
        self.method.starts_with("debug_trace") || self.method.starts_with("trace_")
    }

    fn is_within(&self, part: &str) -> bool {
        self.difference.place.contains(part)
    }

    fn simulates(&self) -> bool {
        self.of(&["eth_simulateV1"])
    }

    /// Whether a `debug` method's tracer has this name, or a JavaScript text that contains it.
    fn has_tracer(&self, text: &str) -> bool {
        let options = self.params.as_array().and_then(|params| params.last());
        let tracer = options.and_then(|options| options["tracer"].as_str());
        self.method.starts_with("debug_trace") && tracer.is_some_and(|name| name.contains(text))
    }

    fn ours_is(&self, texts: &[&str]) -> bool {
        texts.contains(&self.difference.ours.as_str())
    }

    /// Whether anvil's value is the name of an error in the EVM's source code.
    fn theirs_is_name(&self) -> bool {
        let name = self.difference.theirs.trim_matches('"');
        name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric)
    }

    fn theirs_is(&self, texts: &[&str]) -> bool {
        texts.contains(&self.difference.theirs.as_str())
    }
}

pub const KINDS: &[Kind] = &[
    // Differences for transactions and blocks that cannot be traced.
    ("trace of an unknown transaction or block", |s| {
        s.is_trace() && (s.difference.ours.contains("not found") || s.values("null", "[]"))
    }),
    ("trace of the genesis block", |s| {
        s.is_trace() && s.one_refused(&["genesis is not traceable"], RESULT)
    }),
    ("trace on the pending block", |s| {
        s.is_trace() && s.one_refused(&["tracing on top of pending"], RESULT)
    }),
    // Differences in struct logs.
    ("refund at an instruction", |s| {
        s.is_within("structLogs[]") && s.member(&["refund"]) && s.theirs_is(&["0"])
    }),
    ("nothing at an instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["memory", "returnData"])
            && s.ours_is(&["absent"])
            && s.theirs_is(&["[]", "\"0x\""])
    }),
    ("error of an instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["error"])
            && s.difference.theirs.starts_with("\"Some(")
    }),
    ("name of an unknown instruction", |s| {
        s.is_within("structLogs[]") && s.member(&["op"]) && s.theirs_is(&["\"Unknown\""])
    }),
    // Differences in call frames.
    ("gas of a traced transaction", |s| {
        s.method.starts_with("debug_trace")
            && s.member(&["gas", "gasUsed"])
            && !s.is_within("calls[]")
            && !s.is_within("structLogs[]")
    }),
    ("number of a log in a frame", |s| {
        s.is_within("logs[]") && s.member(&["index"]) && s.ours_is(&["absent"])
    }),
    ("frames below the top", |s| {
        s.member(&["calls"]) && s.params.to_string().contains("onlyTopCall")
    }),
    ("words for a failed frame", |s| {
        s.is_trace()
            && s.member(&["error"])
            && !s.ours_is(&["absent"])
            && (s.theirs_is_name() || s.theirs_is(&["\"invalid opcode\""]))
    }),
    ("selectors of precompiles", |s| {
        let counts = s.has_tracer("4byteTracer") || s.is_within("4byteTracer.");
        counts && s.values("absent", "1")
    }),
    ("frames of a script", |s| {
        s.has_tracer("enter:") && s.is_within("result[][]")
    }),
    // Differences in prestates.
    ("code hash in a prestate", |s| {
        s.has_tracer("prestateTracer") && s.member(&["codeHash"]) && s.theirs_is(&["absent"])
    }),
    ("fee vaults in a prestate", |s| {
        s.has_tracer("prestateTracer")
            && s.ours_is(&["absent"])
            && VAULTS.iter().any(|vault| s.is_within(vault))
    }),
    ("fees of a deposit in a prestate", |s| {
        s.has_tracer("prestateTracer")
            && s.theirs_is(&["absent"])
            && RECIPIENTS.iter().any(|recipient| s.is_within(recipient))
    }),
    ("empty accounts in a prestate", |s| {
        let has = |name: &str| s.difference.theirs.contains(&format!("\"{name}\":"));
        s.has_tracer("prestateTracer")
            && s.ours_is(&["absent"])
            && s.difference.theirs.starts_with("{\"balance\":\"0x0\"")
            && !has("code")
            && !has("nonce")
    }),
    // Differences in traces in Parity's form.
    ("frames of precompiles", |s| {
        s.is_trace() && s.member(&["subtraces"]) && s.values("0", "1")
    }),
    ("addresses of a frame filter", |s| {
        let filter = &s.params[0];
        let both = ["fromAddress", "toAddress"];
        s.method == "trace_filter"
            && filter["mode"].is_null()
            && both.iter().all(|name| filter.get(name).is_some())
    }),
    ("accounts that came into being", |s| {
        let zero = "{\"from\":\"0x0";
        s.is_within("stateDiff.")
            && (s.difference.ours.starts_with("{\"+\"")
                || s.member(&["+"]) && s.theirs_is(&["absent"])
                || s.member(&["*"])
                    && s.ours_is(&["absent"])
                    && s.difference.theirs.starts_with(zero))
    }),
    ("failed instructions in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["ex"]) && s.ours_is(&["null"])
    }),
    ("unknown instructions in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["op"]) && s.said(&["not defined"], &["UNKNOWN("])
    }),
    ("precompiles in a vmTrace", |s| {
        s.member(&["sub", "vmTrace"]) && s.values("null", "{\"code\":\"0x\",\"ops\":[]}")
    }),
    ("delegations in a stateDiff", |s| {
        s.is_within("stateDiff.") && s.member(&["code"]) && s.said(&["0xef0100"], &["\"=\""])
    }),
    ("init code in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["code"]) && s.theirs_is(&["\"0x\""])
    }),
    ("cost of a creation in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["cost"]) && s.ours_is(&["32002"])
    }),
    ("results of calls in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["push", "ops"]) && s.theirs_is(&["[]"])
    }),
    ("writes in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["store"]) && s.theirs_is(&["null"])
    }),
    ("gas in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["used"])
    }),
    ("memory in a vmTrace", |s| {
        s.is_within("vmTrace.") && (s.is_within(".mem.") || s.member(&["mem"]))
    }),
    // Differences in simulations.
    ("header of a simulated block", |s| {
        s.simulates() && s.member(&SIMULATED_HEADER) && !s.is_within("calls[]")
    }),
    ("transactions of a simulated block", |s| {
        s.simulates() && s.is_within("transactions[]")
    }),
    ("place of a simulated log", |s| {
        s.simulates()
            && s.is_within("logs[]")
            && s.member(&[
                "blockHash",
                "blockNumber",
                "blockTimestamp",
                "transactionHash",
            ])
    }),
    ("transfers of a failed call", |s| {
        let transfers = s.simulates() && s.params[0]["traceTransfers"] == true;
        let logs = s.member(&["logs"]) && s.difference.ours.len() < s.difference.theirs.len();
        transfers && (logs || s.member(&["logIndex"]))
    }),
    ("most gas of a simulated call", |s| {
        s.simulates() && s.member(&["maxUsedGas"]) && s.theirs_is(&["absent"])
    }),
    ("error of a simulated call", |s| {
        let output = s.member(&["returnData"]) && s.ours_is(&["\"0x\""]);
        s.simulates() && (s.is_within("calls[].error") || output)
    }),
    ("checks of a simulation", |s| {
        s.simulates() && s.params[0]["validation"] == true && s.one_refused(ANY, RESULT)
    }),
    ("numbers of simulated blocks", |s| {
        s.simulates() && s.one_refused(&["block numbers must be in order"], RESULT)
    }),
    ("simulation of nothing", |s| {
        s.simulates() && s.one_refused(&["empty input"], RESULT)
    }),
    ("words for a failed call of a bundle", |s| {
        s.method == "eth_callMany" && s.member(&["error"]) && s.theirs_is(&["\"execution failed\""])
    }),
    ("addresses that an access list leaves out", |s| {
        s.method == "eth_createAccessList"
            && s.difference.place == "result.accessList"
            && s.difference.theirs.contains("\"storageKeys\":[]")
            && s.difference.ours.len() < s.difference.theirs.len()
    }),
    ("environment of a simulated call", |s| {
        s.of(&[
            "eth_simulateV1",
            "eth_callMany",
            "trace_call",
            "trace_callMany",
            "debug_traceCall",
        ]) && s.differs_in_words(&[TIMESTAMP, NUMBER, BASE_FEE, GAS_PRICE])
    }),
];
