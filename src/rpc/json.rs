//! Reads untrusted JSON and keeps only the used parts: a body of 5 MiB can hold millions of tiny
//! values.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::{fmt, marker::PhantomData};

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

/// The members of a request that JSON-RPC defines. If several members have one name, the last one
/// counts.
#[derive(Default)]
pub struct RequestMembers<'a> {
    pub jsonrpc: Option<&'a RawValue>,
    pub id: Option<&'a RawValue>,
    pub method: Option<&'a RawValue>,
    pub params: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for RequestMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Object<'a> {
            type Value = RequestMembers<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = RequestMembers::default();
                while let Some(name) = map.next_key::<String>()? {
                    let member = match name.as_str() {
                        "jsonrpc" => &mut members.jsonrpc,
                        "id" => &mut members.id,
                        "method" => &mut members.method,
                        "params" => &mut members.params,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *member = Some(map.next_value()?);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_elements_are_kept() {
        let kept = firsts("[1, [2], {\"a\": 3}]", 2).unwrap();
        assert_eq!(
            kept.iter().map(|raw| raw.get()).collect::<Vec<_>>(),
            ["1", "[2]"]
        );
        for bad in ["[1, 2, 3", "{}", "[1] 2"] {
            assert!(firsts(bad, 2).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_a_repeated_member_the_last_counts() {
        let members: RequestMembers<'_> =
            serde_json::from_str(r#"{"id":1,"other":[{}],"id":2,"i\u0064":3}"#).unwrap();
        assert_eq!(members.id.unwrap().get(), "3");
        assert!(members.method.is_none());
    }
}
