//! The parts of an answer that must be op-geth's, and the kinds of answers that differ.
//! `docs/differences.md` explains them under the same names ("Forms of parameters").

use serde_json::{Value, json};

/// An answer, as far as it is compared.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The result; `None` if it is too long to be recorded.
    Success(Option<Value>),
    /// A parameter could not be read. The text is its position: the words are those of a JSON reader.
    Unread(String),
    Failure(i64, String),
}

impl Outcome {
    pub fn new(answer: &Value) -> Self {
        let error = &answer["error"];
        let Some(text) = error["message"].as_str() else {
            return Self::Success(answer.get("result").map(floats));
        };
        match text.strip_prefix("invalid argument ") {
            Some(rest) => Self::Unread(rest.chars().take(1).collect()),
            None => Self::Failure(error["code"].as_i64().unwrap_or(0), text.to_owned()),
        }
    }

    /// Whether this is a failure whose text begins so.
    fn says(&self, start: &str) -> bool {
        matches!(self, Self::Failure(_, text) if text.starts_with(start))
    }
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Success(one), Self::Success(two)) => {
                one.is_none() || two.is_none() || one == two
            }
            (Self::Unread(one), Self::Unread(two)) => one == two,
            (Self::Failure(code, one), Self::Failure(other, two)) => (code, one) == (other, two),
            _ => false,
        }
    }
}

/// The value with all numbers as floating-point numbers: 1.0 is 1.
fn floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(floats).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| (name.clone(), floats(value)))
                .collect()
        }
        other => other.clone(),
    }
}

/// A request with both answers, which differ.
struct Differing<'a> {
    method: &'a str,
    params: &'a Value,
    theirs: &'a Outcome,
    ours: &'a Outcome,
}

type Kind = (&'static str, fn(&Differing<'_>) -> bool);

const KINDS: [Kind; 14] = [
    ("parameter left out", |it| {
        let null = it
            .params
            .as_array()
            .is_some_and(|all| all.contains(&Value::Null));
        let left_out =
            it.theirs.says("missing value") || null && it.theirs.says("header not found");
        left_out && it.succeeds()
    }),
    ("object without a block", |it| {
        it.theirs.says("header not found") && it.is_unread()
    }),
    ("block that is not set", |it| {
        let unset = it.ours.says("safe block not") || it.ours.says("finalized block not");
        it.theirs.says("header not found") && unset
    }),
    ("canonical or not", |it| {
        it.params.to_string().contains("requireCanonical") && it.succeeds()
    }),
    ("loose authorizations", |it| {
        let listed = it.params[0].get("authorizationList").is_some();
        listed && it.theirs_is_unread() && it.succeeds()
    }),
    ("parity of an authorization", |it| {
        it.params.to_string().contains(r#""yParity":"0x100""#) && it.is_unread()
    }),
    ("loose overrides", |it| {
        let overridden = it.method == "eth_call" && it.params[2].is_object();
        overridden && it.theirs_is_unread() != it.is_unread()
    }),
    ("words for a halt", |it| {
        let shortened = |start| it.theirs.says(start) && it.ours.says(start);
        shortened("stack underflow") || shortened("invalid opcode")
    }),
    ("access list without funds", |it| {
        it.method == "eth_createAccessList" && it.succeeds()
    }),
    ("options of a trace", |it| {
        it.method == "debug_traceCall" && it.params[2].is_object()
    }),
    ("trace in the genesis block", |it| {
        it.theirs.says("no transaction in genesis") && it.ours.says("genesis is not traceable")
    }),
    ("words for an undecodable transaction", |it| {
        it.method == "eth_sendRawTransaction" && it.ours.says("transaction type not supported")
    }),
    ("gas of a refused estimate", |it| {
        it.theirs.says("failed with 30000000 gas: ") && it.ours.says("failed with 50000000 gas: ")
    }),
    ("raw objects of an unknown block", |it| {
        it.method.starts_with("debug_getRaw") && it.ours.says("header not found")
    }),
];

impl Differing<'_> {
    fn succeeds(&self) -> bool {
        matches!(self.ours, Outcome::Success(_))
    }

    fn is_unread(&self) -> bool {
        matches!(self.ours, Outcome::Unread(_))
    }

    fn theirs_is_unread(&self) -> bool {
        matches!(self.theirs, Outcome::Unread(_))
    }
}

/// Whether the difference of these answers is of one of the explained kinds.
pub fn is_explained(method: &str, params: &Value, theirs: &Outcome, ours: &Outcome) -> bool {
    let difference = Differing {
        method,
        params,
        theirs,
        ours,
    };
    KINDS.iter().any(|(_, explains)| explains(&difference))
}
