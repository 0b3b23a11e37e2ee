//! Compares two responses. Block hashes and filter identifiers differ between the nodes, and are
//! first replaced by their numbers.

use super::nodes::Block;
use serde_json::{Value, json};
use std::{collections::HashMap, fmt};

/// The result of a request, or its JSON-RPC error object.
pub type Answer = Result<Value, Value>;

/// One place where two responses differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Path of member names from the response on, with `[]` for any element of a list.
    pub place: String,
    /// Starling's value as JSON, or `absent`.
    pub ours: String,
    pub theirs: String,
}

impl Difference {
    fn new(place: &str, ours: &Value, theirs: &Value) -> Self {
        Self {
            place: place.to_owned(),
            ours: ours.to_string(),
            theirs: theirs.to_string(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} | {}", self.place, self.ours, self.theirs)
    }
}

struct Filter {
    /// The filter's identifiers on Starling and on anvil.
    ids: [Value; 2],
    /// Parameters of the request that made the filter.
    params: Value,
}

/// Values from earlier responses that later requests refer to.
#[derive(Default)]
pub struct Answers {
    filters: Vec<Filter>,
}

impl Answers {
    /// The parameters to send to Starling and to anvil.
    pub fn translate(&self, blocks: &[Block], params: &Value) -> [Value; 2] {
        [0, 1].map(|side| {
            replace(params, &|text| {
                let number = |prefix| {
                    text.strip_prefix(prefix)
                        .and_then(|n| n.parse::<usize>().ok())
                };
                if let Some(n) = number("@block:") {
                    return Some(json!(if side == 0 {
                        blocks[n].ours
                    } else {
                        blocks[n].theirs
                    }));
                }
                number("@filter:").map(|n| {
                    self.filters
                        .get(n)
                        .map_or(json!("0x1234567"), |filter| filter.ids[side].clone())
                })
            })
        })
    }

    /// The parameters, in which a filter's identifier is replaced by the parameters of the filter.
    pub fn describe(&self, params: &Value) -> Value {
        let number = |text: &str| {
            text.strip_prefix("@filter:")
                .and_then(|n| n.parse::<usize>().ok())
        };
        let filter = params[0]
            .as_str()
            .and_then(number)
            .and_then(|n| self.filters.get(n));
        filter.map_or_else(|| params.clone(), |filter| filter.params.clone())
    }

    pub fn compare(
        &mut self,
        blocks: &[Block],
        method: &str,
        params: &Value,
        ours: Answer,
        theirs: Answer,
    ) -> Vec<Difference> {
        if let ("eth_newFilter" | "eth_newBlockFilter", Ok(ours), Ok(theirs)) =
            (method, &ours, &theirs)
        {
            self.filters.push(Filter {
                ids: [ours.clone(), theirs.clone()],
                params: params.clone(),
            });
            return vec![];
        }
        let whole = |answer: Answer, side: usize| {
            let answer = match answer {
                Ok(result) => json!({ "result": result }),
                Err(error) => json!({ "error": error }),
            };
            let hash = |block: &Block| if side == 0 { block.ours } else { block.theirs };
            let hashes = blocks.iter().map(|block| hash(block).to_string());
            let numbers: HashMap<String, usize> = hashes.zip(0..).collect();
            replace(&answer, &|text| {
                let number = numbers.get(text)?;
                Some(json!(format!("@block:{number}")))
            })
        };
        let mut found = Vec::new();
        let (ours, theirs) = (whole(ours, 0), whole(theirs, 1));
        match (ours.get("result"), theirs.get("result")) {
            (Some(ours), Some(theirs)) => walk("result", Some(ours), Some(theirs), &mut found),
            _ if ours == theirs => {}
            (None, None) => found.push(Difference::new("error", &ours["error"], &theirs["error"])),
            _ => found.push(Difference::new("outcome", &ours, &theirs)),
        }
        found.sort();
        found.dedup();
        found
    }
}

fn replace(value: &Value, with: &impl Fn(&str) -> Option<Value>) -> Value {
    match value {
        Value::String(text) => with(text).unwrap_or_else(|| value.clone()),
        Value::Array(list) => list.iter().map(|item| replace(item, with)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), replace(member, with)))
            .collect(),
        other => other.clone(),
    }
}

fn walk(place: &str, ours: Option<&Value>, theirs: Option<&Value>, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let dot = if place.is_empty() { "" } else { "." };
                walk(
                    &format!("{place}{dot}{name}"),
                    a.get(name),
                    b.get(name),
                    found,
                );
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (a, b) in a.iter().zip(b) {
                walk(&format!("{place}[]"), Some(a), Some(b), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let text =
                |value: Option<&Value>| value.map_or("absent".to_owned(), ToString::to_string);
            found.push(Difference {
                place: place.to_owned(),
                ours: text(a),
                theirs: text(b),
            });
        }
    }
}
