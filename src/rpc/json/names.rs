//! A deserializer that finds the members of structs by the rules of Go's `encoding/json`.
//!
//! serde's structs know their members by exact names and refuse a repeated one, so each struct is
//! read in two steps: the object's members are found, then the struct is given each once and by the
//! name that it knows. A value of a struct is therefore scanned once more than by serde_json, for
//! each struct that it is inside of.

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::BorrowedStrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{de::StrRead, value::RawValue};
use std::{fmt, vec};

/// Name of the newtype by which serde_json recognises a [`RawValue`].
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// The JSON text of one value.
#[derive(Clone, Copy)]
pub struct GoJson<'de>(pub &'de str);

impl<'de> GoJson<'de> {
    /// Reads the value by serde_json.
    fn plain<T>(
        self,
        read: impl FnOnce(&mut serde_json::Deserializer<StrRead<'de>>) -> serde_json::Result<T>,
    ) -> serde_json::Result<T> {
        let mut json = serde_json::Deserializer::from_str(self.0);
        let value = read(&mut json)?;
        json.end()?;
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for GoJson<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_any(visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_ignored_any(visitor))
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_i128(visitor))
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_u128(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        if self.0 == "null" {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> serde_json::Result<V::Value> {
        if name == RAW_VALUE {
            self.plain(|json| json.deserialize_newtype_struct(name, visitor))
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_seq(Container(visitor)))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _: usize,
        visitor: V,
    ) -> serde_json::Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> serde_json::Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_map(Container(visitor)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> serde_json::Result<V::Value> {
        visitor.visit_map(self.plain(|json| json.deserialize_map(MemberSearch(names)))?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> serde_json::Result<V::Value> {
        self.plain(|json| json.deserialize_enum(name, variants, visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit
        unit_struct identifier
    }
}

/// Reads the elements of a list, or the values of a map, as [`GoJson`].
struct Container<T>(T);

impl<'de, V: Visitor<'de>> Visitor<'de> for Container<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Container(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Container(members))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Container<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let element = self.0.next_element::<&'de RawValue>()?;
        element.map(|element| value(seed, element)).transpose()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Container<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let member = self.0.next_value::<&'de RawValue>()?;
        value(seed, member)
    }
}

fn value<'de, T: DeserializeSeed<'de>, E: Error>(
    seed: T,
    json: &'de RawValue,
) -> Result<T::Value, E> {
    seed.deserialize(GoJson(json.get())).map_err(E::custom)
}

/// Finds the members of a struct with these names in an object.
struct MemberSearch(&'static [&'static str]);

impl<'de> Visitor<'de> for MemberSearch {
    type Value = StructMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found: Vec<(&'static str, &'de RawValue)> = Vec::with_capacity(self.0.len());
        let mut unknown = None;
        while let Some(name) = object.next_key_seed(NameSearch {
            names: self.0,
            unknown: &mut unknown,
        })? {
            let Some(name) = name else {
                object.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = object.next_value()?;
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some(earlier) => earlier.1 = value,
                None => found.push((name, value)),
            }
        }
        Ok(StructMembers {
            found: found.into_iter(),
            unknown,
            value: RawValue::NULL,
        })
    }
}

/// Finds the struct's name for a member of the object; the two may differ in case. An exact match
/// is preferred, since two names of a struct may differ in case alone.
struct NameSearch<'a> {
    names: &'static [&'static str],
    /// The first name that the struct does not know.
    unknown: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for NameSearch<'_> {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSearch<'_> {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let exact = self.names.iter().find(|known| **known == name);
        let known = exact.or_else(|| self.names.iter().find(|known| is_same(known, name)));
        if known.is_none() {
            self.unknown.get_or_insert_with(|| name.to_owned());
        }
        Ok(known.copied())
    }
}

/// Whether two names differ at most in case, as Go sees it: the long s and the Kelvin sign are
/// lower and upper case of s and k.
fn is_same(one: &str, other: &str) -> bool {
    let folded = |letter| match letter {
        'ſ' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    let other = other.chars().map(folded);
    one.chars().map(folded).eq(other)
}

/// The members of a struct, each once. A name that the struct does not know comes last, for a
/// struct that refuses such names.
struct StructMembers<'de> {
    found: vec::IntoIter<(&'static str, &'de RawValue)>,
    unknown: Option<String>,
    /// Value of the member whose name was read last.
    value: &'de RawValue,
}

impl<'de> MapAccess<'de> for StructMembers<'de> {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> serde_json::Result<Option<K::Value>> {
        if let Some((name, value)) = self.found.next() {
            self.value = value;
            let name: BorrowedStrDeserializer<'_, _> = BorrowedStrDeserializer::new(name);
            return seed.deserialize(name).map(Some);
        }
        self.value = RawValue::NULL;
        let unknown = self.unknown.take();
        unknown
            .map(|name| seed.deserialize(name.into_deserializer()))
            .transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> serde_json::Result<T::Value> {
        value(seed, self.value)
    }
}
