//! Byte strings and texts from the protocol's vectors, found anywhere in their JSON.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// Longest value used. Mutations of longer values are slow and reach no other code.
const LONGEST: usize = 32 << 10;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures")
}

/// The text of a vector file; `None` if the vectors are absent.
pub fn file(name: &str) -> Option<String> {
    std::fs::read_to_string(folder().join(name)).ok()
}

/// Every string in these files once, in order.
pub fn strings(files: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for json in files
        .iter()
        .filter_map(|name| serde_json::from_str(&file(name)?).ok())
    {
        collect(&json, &mut out);
    }
    out.sort();
    out.dedup();
    out
}

/// Every string in these files that is hex of at least `least` bytes, decoded.
pub fn bytes(files: &[&str], least: usize) -> Vec<Vec<u8>> {
    let decode = |text: &String| hex::decode(text.strip_prefix("0x").unwrap_or(text)).ok();
    strings(files)
        .iter()
        .filter_map(decode)
        .filter(|bytes| bytes.len() >= least)
        .collect()
}

fn collect(json: &Value, out: &mut Vec<String>) {
    match json {
        Value::String(text) if text.len() <= LONGEST => out.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, out)),
        Value::Object(members) => members.values().for_each(|member| collect(member, out)),
        _ => {}
    }
}
