//! Reads untrusted JSON and keeps only the used parts: a body of 5 MiB can hold millions of tiny
//! values. All parameters of requests are read by [`read()`], which knows names of members as Go
//! does.

mod names;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// Reads a value as Go's `encoding/json` does. A member is known by its name in any case, and if
/// several members have the same name, the last one counts. Structs are read from objects only.
///
/// A type that serde reads through a generic value (`#[serde(flatten)]`, `untagged`,
/// [`serde_json::Value`]) loses this: its members are known by their exact names.
pub fn read<'de, T: Deserialize<'de>>(json: &'de str) -> serde_json::Result<T> {
    T::deserialize(names::GoJson(json.trim_ascii()))
}

/// The first `most` elements of an array. The other elements are checked for syntax and dropped.
pub fn firsts(array: &str, most: usize) -> serde_json::Result<Vec<&RawValue>> {
    struct Elements(usize);
    impl<'de> Visitor<'de> for Elements {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
            let mut firsts = Vec::new();
            while firsts.len() < self.0 {
                match elements.next_element()? {
                    Some(element) => firsts.push(element),
                    None => return Ok(firsts),
                }
            }
            while elements.next_element::<IgnoredAny>()?.is_some() {}
            Ok(firsts)
        }
    }
    let mut json = serde_json::Deserializer::from_str(array);
    let firsts = json.deserialize_seq(Elements(most))?;
    json.end()?;
    Ok(firsts)
}

/// The members of an object whose names are values, in order.
pub fn entries(object: &str) -> serde_json::Result<Vec<(String, &RawValue)>> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = object.next_entry()? {
                entries.push(entry);
            }
            Ok(entries)
        }
    }
    let mut json = serde_json::Deserializer::from_str(object);
    let entries = json.deserialize_map(Entries)?;
    json.end()?;
    Ok(entries)
}

/// The members of a request that JSON-RPC defines.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct RequestMembers<'a> {
    #[serde(borrow, deserialize_with = "present")]
    pub jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub method: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
}

/// Keeps null as a value: a request whose id is null is no notification.
fn present<'de, D: Deserializer<'de>>(member: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(member).map(Some)
}

#[cfg(test)]
mod tests;
