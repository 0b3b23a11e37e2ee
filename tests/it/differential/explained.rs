//! The kinds of differences that `docs/differences.md` explains, under the same names. In most
//! kinds Starling responds as op-geth does. The first kind that matches a difference explains it.
//! Kinds of traces and simulations are in [`executions`].

mod executions;

use super::{
    compare::Difference,
    contracts::{BASE_FEE, CREATE, GAS_PRICE, NUMBER, TELLS, TIMESTAMP},
};
use serde_json::Value;

/// A difference in the responses to one request.
pub struct Seen<'a> {
    pub method: &'a str,
    pub params: &'a Value,
    pub difference: &'a Difference,
}

/// A kind of difference: its name in the document, and a test whether a difference is of this kind.
pub type Kind = (&'static str, fn(&Seen<'_>) -> bool);

impl Seen<'_> {
    /// Both nodes returned an error, and each message contains one of these texts.
    fn refused(&self, ours: &[&str], theirs: &[&str]) -> bool {
        self.difference.place == "error" && self.said(ours, theirs)
    }

    /// Only one node returned an error, and the texts match.
    fn one_refused(&self, ours: &[&str], theirs: &[&str]) -> bool {
        self.difference.place == "outcome" && self.said(ours, theirs)
    }

    fn said(&self, ours: &[&str], theirs: &[&str]) -> bool {
        let among = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
        among(&self.difference.ours, ours) && among(&self.difference.theirs, theirs)
    }

    fn of(&self, methods: &[&str]) -> bool {
        methods.contains(&self.method)
    }

    /// Whether the last member name of the difference's path is one of `names`.
    fn member(&self, names: &[&str]) -> bool {
        let last = self
            .difference
            .place
            .rsplit(['.', '[', ']'])
            .find(|part| !part.is_empty());
        last.is_some_and(|last| names.contains(&last))
    }

    fn values(&self, ours: &str, theirs: &str) -> bool {
        self.difference.ours == ours && self.difference.theirs == theirs
    }

    /// Both errors have the same revert data; the messages may differ.
    fn same_revert_data(&self) -> bool {
        let data = |text: &str| {
            let error: Value = serde_json::from_str(text).unwrap_or_default();
            (error["code"] == 3).then(|| error["data"].clone())
        };
        let ours = data(&self.difference.ours);
        self.difference.place == "error" && ours.is_some() && ours == data(&self.difference.theirs)
    }

    /// Whether both values are quantities that differ by at most `thousandths` thousandths.
    fn near(&self, thousandths: u64) -> bool {
        let number =
            |text: &str| u64::from_str_radix(text.trim_matches('"').strip_prefix("0x")?, 16).ok();
        match (
            number(&self.difference.ours),
            number(&self.difference.theirs),
        ) {
            (Some(ours), Some(theirs)) => ours.abs_diff(theirs) * 1000 <= theirs * thousandths,
            _ => false,
        }
    }

    /// Whether the result of an `eth_call` of ENVIRONMENT differs in these words only.
    fn environment(&self, words: &[usize]) -> bool {
        self.method == "eth_call"
            && self.difference.place == "result"
            && self.differs_in_words(words)
    }

    /// Whether both values are results of ENVIRONMENT that differ in these words only.
    fn differs_in_words(&self, words: &[usize]) -> bool {
        let split = |text: &str| -> Vec<String> {
            let digits = text.trim_matches('"').trim_start_matches("0x").as_bytes();
            digits
                .chunks(64)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect()
        };
        let (ours, theirs) = (split(&self.difference.ours), split(&self.difference.theirs));
        ours.len() == TELLS.len()
            && ours.len() == theirs.len()
            && (0..ours.len()).all(|n| ours[n] == theirs[n] || words.contains(&n))
    }

    /// Whether anvil omits a member of a deposit or shows it as zero.
    fn deposit(&self) -> bool {
        let noughts = [
            "absent",
            "\"0x0\"",
            "\"0x0000000000000000000000000000000000000000000000000000000000000000\"",
        ];
        noughts.contains(&self.difference.theirs.as_str())
    }

    /// Whether the filter's last topic position matches anything, including a log that lacks this
    /// topic.
    fn asks_beyond_topics(&self) -> bool {
        let topics = self.params[0]["topics"].as_array();
        topics
            .and_then(|topics| topics.last())
            .is_some_and(|last| *last == serde_json::json!([]) || last.is_null())
    }

    fn is_call(&self) -> bool {
        self.of(&["eth_call", "eth_estimateGas", "eth_createAccessList"])
    }

    /// Whether the difference is in a block, or in a transaction inside or outside of one.
    fn is_block(&self) -> bool {
        self.of(&["eth_getBlockByNumber", "eth_getBlockByHash"])
    }

    fn is_receipt(&self) -> bool {
        self.of(&["eth_getTransactionReceipt", "eth_getBlockReceipts"])
    }

    fn is_transaction(&self) -> bool {
        self.method.starts_with("eth_getTransactionBy")
            || self.difference.place.contains("transactions[]")
    }

    fn is_send(&self) -> bool {
        self.method == "eth_sendRawTransaction"
    }
}

const RESULT: &[&str] = &["{\"result\":"];
const INVALID_PARAMS: &[&str] = &["\"code\":-32602"];
const UNKNOWN: &[&str] = &["BlockOutOfRange", "Resource not found"];
const ANY: &[&str] = &[""];
const FUNDS: &[&str] = &["Insufficient funds for gas * price + value"];
/// Error messages of a call that the EVM aborted.
const HALTS: &[&str] = &[
    "invalid jump destination",
    "invalid opcode",
    "invalid code: must not begin with 0xef",
    "max code size exceeded",
    "max initcode size exceeded",
    "out of gas",
    "gas uint64 overflow",
    "precompile error",
    "return data out of bounds",
    "stack underflow",
    "write protection",
    "gas required exceeds allowance",
];

/// All kinds, in the order in which they are tried.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    executions::KINDS.iter().chain(KINDS)
}

const KINDS: &[Kind] = &[
    // Differences in methods and parameters.
    ("unknown method", |s| {
        s.refused(&["does not exist/is not available"], &["Method not found"])
    }),
    ("no peer count", |s| {
        s.method == "net_peerCount" && s.one_refused(RESULT, &["Method not found"])
    }),
    ("number of parameters", |s| {
        s.refused(
            &["missing value for required argument", "too many arguments"],
            INVALID_PARAMS,
        )
    }),
    ("words for a parameter", |s| {
        s.refused(INVALID_PARAMS, INVALID_PARAMS)
    }),
    ("block parameter left out", |s| {
        s.one_refused(RESULT, &["expected tuple variant"])
    }),
    ("loose quantities", |s| {
        s.said(
            &["with leading zero digits", "without 0x prefix"],
            &["{\"result\":", "Insufficient funds"],
        )
    }),
    ("count in an unknown block", |s| {
        s.one_refused(&["{\"result\":null}"], UNKNOWN)
    }),
    ("unknown block", |s| {
        s.refused(&["header not found"], UNKNOWN)
    }),
    ("client version", |s| s.method == "web3_clientVersion"),
    ("listening", |s| {
        s.method == "net_listening" && s.values("false", "true")
    }),
    // Differences in the responses to sent transactions.
    ("words for undecodable bytes", |s| {
        let ours = [
            "\"rlp: ",
            "transaction type not supported",
            "typed transaction too short",
        ];
        s.is_send()
            && s.refused(
                &ours,
                &["Failed to decode transaction", "Empty transaction data"],
            )
    }),
    ("words for a refused transaction", |s| {
        let words = [
            (
                "exceeds block gas limit",
                "tx.gas_limit > env.block.gas_limit",
            ),
            (
                "insufficient funds for gas * price + value",
                "Insufficient funds for gas * price + value",
            ),
            ("intrinsic gas too low", "intrinsic gas too low"),
            ("invalid chain id for signer", "invalid chain id for signer"),
            ("max initcode size exceeded", "max initcode size exceeded"),
            ("nonce too low", "nonce too low"),
            ("already known", "transaction already imported"),
            (
                "replacement transaction underpriced",
                "replacement transaction underpriced",
            ),
        ];
        s.is_send()
            && words
                .iter()
                .any(|(ours, theirs)| s.refused(&[ours], &[theirs]))
    }),
    ("order of a transaction's checks", |s| {
        let funds_last = [
            "max priority fee per gas higher than max fee per gas",
            "nonce has max value",
        ];
        let theirs = [
            "max fee per gas less than block base fee",
            "replacement transaction underpriced",
            "already imported",
        ];
        s.is_send() && s.refused(&funds_last, &theirs)
    }),
    ("room of the L1 attributes", |s| {
        s.is_send() && s.one_refused(&["exceeds block gas limit"], RESULT)
    }),
    ("unprotected transactions", |s| {
        s.is_send() && s.one_refused(&["only replay-protected"], RESULT)
    }),
    ("chain id of a legacy transaction", |s| {
        s.is_send() && s.one_refused(&["invalid chain id for signer"], RESULT)
    }),
    ("signature with a high s", |s| {
        s.is_send() && s.one_refused(&["invalid sender"], RESULT)
    }),
    ("oversized transactions", |s| {
        s.is_send() && s.one_refused(&["oversized data"], RESULT)
    }),
    ("empty authorization list", |s| {
        s.is_send() && s.one_refused(&["at least one authorization tuple"], RESULT)
    }),
    ("fee cap of the node", |s| {
        s.is_send() && s.one_refused(&["exceeds the configured cap"], RESULT)
    }),
    ("intrinsic gas of calldata", |s| {
        s.is_send() && s.one_refused(&["intrinsic gas too low", "floor data gas cost"], RESULT)
    }),
    ("last nonce", |s| {
        s.is_send() && s.one_refused(&["nonce has max value"], RESULT)
    }),
    ("replacement at the same price", |s| {
        s.is_send() && s.one_refused(&["replacement transaction underpriced"], RESULT)
    }),
    // Differences in calls.
    ("words for a call without funds", |s| {
        s.is_call() && s.refused(&["insufficient funds for"], ANY)
    }),
    ("two data in a call", |s| {
        let [data, input] = ["data", "input"].map(|name| &s.params[0][name]);
        let two = data.is_string() && input.is_string() && data != input;
        s.is_call() && two && s.one_refused(&["result"], ANY)
    }),
    ("both fees in a call", |s| {
        s.is_call() && s.said(&["both gasPrice and"], ANY)
    }),
    ("fee below the base fee in a call", |s| {
        s.is_call() && s.said(&["less than block base fee"], ANY)
    }),
    ("words for a tip above the fee", |s| {
        s.is_call() && s.said(&["max priority fee per gas higher"], ANY)
    }),
    ("words for a foreign chain id in a call", |s| {
        s.is_call() && s.refused(&["chainId does not match"], &["invalid chain id"])
    }),
    ("words for intrinsic gas in a call", |s| {
        s.is_call()
            && s.refused(
                &["intrinsic gas too low", "floor data gas cost"],
                &["MoreThanGasLimit"],
            )
    }),
    ("words for a state override", |s| {
        s.is_call() && s.refused(&["has both 'state' and 'stateDiff'"], ANY)
    }),
    ("calls that pay", |s| {
        s.is_call() && s.difference.place != "result" && s.said(ANY, FUNDS)
    }),
    ("words for a halt", |s| {
        s.is_call() && s.refused(HALTS, &["EVM error ", "Out of gas: "])
    }),
    ("words for a revert", |s| {
        s.is_call() && s.same_revert_data()
    }),
    ("access list of a call that fails", |s| {
        s.method == "eth_createAccessList" && s.one_refused(&["\"error\":"], ANY)
    }),
    ("gas of an access list", |s| {
        s.method == "eth_createAccessList" && s.member(&["gasUsed"])
    }),
    ("revert of an estimate with little gas", |s| {
        s.method == "eth_estimateGas" && s.refused(&["\"code\":3"], &["Out of gas"])
    }),
    ("gas below a transfer's in an estimate", |s| {
        s.method == "eth_estimateGas"
            && s.params[0]["gas"] == "0x1388"
            && s.one_refused(RESULT, &["Out of gas"])
    }),
    ("precompiles as plain addresses", |s| {
        s.method == "eth_estimateGas" && s.one_refused(&["precompile error"], &["0x5208"])
    }),
    ("funds of an estimate", |s| {
        let ours = ["insufficient funds", "gas required exceeds allowance"];
        s.method == "eth_estimateGas" && s.one_refused(&ours, RESULT)
    }),
    ("pending block", |s| {
        s.params[1] == "pending" && s.environment(&[TIMESTAMP, NUMBER, BASE_FEE, GAS_PRICE])
    }),
    ("base fee in a call", |s| s.environment(&[BASE_FEE])),
    ("gas price in a call", |s| s.environment(&[GAS_PRICE])),
    ("gas that a failing creation burns", |s| {
        s.method == "eth_estimateGas" && s.params[0]["to"] == CREATE.to_string().to_lowercase()
    }),
    ("estimates differ a little", |s| {
        s.method == "eth_estimateGas" && s.near(50)
    }),
    // Differences in fees.
    ("suggested tip", |s| s.of(&["eth_maxPriorityFeePerGas"])),
    ("gas price", |s| s.of(&["eth_gasPrice"])),
    ("reward percentiles", |s| {
        s.method == "eth_feeHistory" && s.one_refused(&["invalid reward percentile"], RESULT)
    }),
    ("fee history beyond the head", |s| {
        s.method == "eth_feeHistory" && s.one_refused(&["request beyond head block"], RESULT)
    }),
    ("fee history of nothing", |s| {
        s.method == "eth_feeHistory" && s.params[0] == "0x0"
    }),
    ("fee history of tags", |s| {
        s.method == "eth_feeHistory"
            && s.params[1]
                .as_str()
                .is_some_and(|tag| !tag.starts_with("0x"))
    }),
    ("no rewards asked for", |s| {
        s.member(&["reward"]) && s.values("absent", "[]")
    }),
    ("reward at a percentile", |s| {
        s.difference.place == "result.reward[][]"
    }),
    ("base fee of the next block", |s| {
        s.method == "eth_feeHistory" && s.member(&["baseFeePerGas"])
    }),
    // Differences in blocks and transactions.
    ("roots of a block", |s| {
        s.is_block() && s.member(&["stateRoot", "receiptsRoot", "withdrawalsRoot"])
    }),
    ("size of a block", |s| s.is_block() && s.member(&["size"])),
    ("extra data of a block", |s| {
        s.is_block() && s.member(&["extraData"])
    }),
    ("randomness of a block", |s| {
        s.is_block() && s.member(&["mixHash"])
    }),
    ("data availability footprint", |s| {
        (s.is_block() || s.is_receipt()) && s.member(&["blobGasUsed", "daFootprintGasScalar"])
    }),
    ("members of a deposit", |s| {
        s.is_transaction()
            && s.member(&[
                "depositReceiptVersion",
                "gasPrice",
                "mint",
                "nonce",
                "r",
                "s",
            ])
            && s.deposit()
    }),
    // Differences in receipts.
    ("L1 fee in a receipt", |s| {
        let names = [
            "l1BaseFeeScalar",
            "l1BlobBaseFee",
            "l1BlobBaseFeeScalar",
            "l1Fee",
            "l1FeeScalar",
            "l1GasPrice",
            "l1GasUsed",
        ];
        s.is_receipt() && s.member(&names) && s.difference.theirs == "absent"
    }),
    ("blob gas price in a receipt", |s| {
        s.is_receipt() && s.member(&["blobGasPrice"]) && s.difference.ours == "absent"
    }),
    ("time in a receipt", |s| {
        s.is_receipt() && s.member(&["blockTimestamp"]) && s.difference.ours == "absent"
    }),
    ("type in a deposit's receipt", |s| {
        s.is_receipt() && s.values("\"0x7e\"", "\"0x7E\"")
    }),
    ("nonce in a deposit's receipt", |s| {
        s.is_receipt() && s.member(&["depositNonce"])
    }),
    // Differences in logs and filters.
    ("range of logs", |s| {
        s.said(
            &["invalid block range params", "beyond current head block"],
            ANY,
        )
    }),
    ("filter of blocks to come", |s| {
        s.method == "eth_newFilter" && s.one_refused(RESULT, UNKNOWN)
    }),
    ("topics beyond a log's", |s| {
        s.of(&["eth_getLogs", "eth_getFilterLogs", "eth_getFilterChanges"])
            && s.asks_beyond_topics()
    }),
    ("changes from before the filter", |s| {
        s.method == "eth_getFilterChanges"
    }),
    // Differences in proofs.
    ("proof of the account", |s| {
        s.method == "eth_getProof" && s.difference.place.contains("accountProof")
    }),
    ("proof in an empty storage", |s| {
        s.method == "eth_getProof" && s.values("[]", "[\"0x80\"]")
    }),
    ("proof of an account that is not there", |s| {
        s.method == "eth_getProof"
            && s.member(&["codeHash", "storageHash"])
            && s.difference.ours.contains(&"0".repeat(64))
    }),
    ("zeros in a storage trie", |s| {
        s.method == "eth_getProof"
            && (s.member(&["storageHash"]) || s.difference.place.contains("proof"))
    }),
];
