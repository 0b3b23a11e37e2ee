//! The fields of a JSON object in the formats of geth's files. A number is a JSON number, or a
//! string in decimal or with 0x in hex. Bytes and hashes may lack the 0x prefix.

use super::GenesisError;
use alloy_primitives::{Address, B256, Bytes, U256, hex};
use serde_json::{Map, Value};

/// A JSON object and its path in the file, for error messages.
pub(super) struct GenesisFields<'a> {
    path: String,
    object: &'a Map<String, Value>,
}

impl<'a> GenesisFields<'a> {
    pub fn new(path: &str, value: &'a Value) -> Result<Self, GenesisError> {
        let problem = "is not an object".to_owned();
        let field = if path.is_empty() {
            "the document"
        } else {
            path
        };
        let object = value.as_object().ok_or_else(|| GenesisError::Field {
            field: field.to_owned(),
            problem,
        })?;
        Ok(Self {
            path: path.to_owned(),
            object,
        })
    }

    pub fn error(&self, name: &str, problem: &str) -> GenesisError {
        GenesisError::Field {
            field: self.path_of(name),
            problem: problem.to_owned(),
        }
    }

    fn path_of(&self, name: &str) -> String {
        let separator = if self.path.is_empty() || name.is_empty() {
            ""
        } else {
            "."
        };
        format!("{}{separator}{name}", self.path)
    }

    /// The field's value; `None` if the field is absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a String> {
        self.object.keys()
    }

    pub fn object(&self, name: &str) -> Result<Option<GenesisFields<'a>>, GenesisError> {
        self.get(name)
            .map(|value| GenesisFields::new(&self.path_of(name), value))
            .transpose()
    }

    /// All fields of the object, each of which must be an object itself.
    pub fn entries(&self) -> Result<Vec<(String, GenesisFields<'a>)>, GenesisError> {
        self.object
            .iter()
            .map(|(key, value)| Ok((key.clone(), GenesisFields::new(&self.path_of(key), value)?)))
            .collect()
    }

    pub fn u256(&self, name: &str) -> Result<Option<U256>, GenesisError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => number.as_u64().map(U256::from),
            Value::String(text) => match text.strip_prefix("0x") {
                Some("") => Some(U256::ZERO),
                Some(hex) => U256::from_str_radix(hex, 16).ok(),
                None => U256::from_str_radix(text, 10).ok(),
            },
            _ => None,
        };
        number
            .map(Some)
            .ok_or_else(|| self.error(name, &format!("is {value}, not a number")))
    }

    pub fn u64(&self, name: &str) -> Result<Option<u64>, GenesisError> {
        let Some(number) = self.u256(name)? else {
            return Ok(None);
        };
        u64::try_from(number)
            .map(Some)
            .map_err(|_| self.error(name, &format!("is {number}, more than 64 bits")))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, GenesisError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.error(name, &format!("is {value}, not a string")))
    }

    pub fn bytes(&self, name: &str) -> Result<Option<Bytes>, GenesisError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        hex::decode(text)
            .map(|bytes| Some(bytes.into()))
            .map_err(|error| self.error(name, &format!("is not hex: {error}")))
    }

    pub fn b256(&self, name: &str) -> Result<Option<B256>, GenesisError> {
        Ok(self.fixed::<32>(name)?.map(B256::from))
    }

    pub fn address(&self, name: &str) -> Result<Option<Address>, GenesisError> {
        Ok(self.fixed::<20>(name)?.map(Address::from))
    }

    fn fixed<const N: usize>(&self, name: &str) -> Result<Option<[u8; N]>, GenesisError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        fixed(text)
            .map(Some)
            .map_err(|problem| self.error(name, &problem))
    }

    /// Parses a storage word: up to 32 bytes of hex.
    pub fn word(&self, name: &str) -> Result<U256, GenesisError> {
        let text = self
            .text(name)?
            .ok_or_else(|| self.error(name, "is missing"))?;
        padded(text)
            .map(|word| U256::from_be_bytes(word.0))
            .map_err(|problem| self.error(name, &problem))
    }
}

/// Parses exactly `N` bytes of hex.
pub(super) fn fixed<const N: usize>(text: &str) -> Result<[u8; N], String> {
    hex::decode_to_array(text).map_err(|error| format!("is not {N} bytes of hex: {error}"))
}

/// Parses up to 32 bytes of hex as a word, padded with zeros on the left. The number of digits may
/// be odd.
pub(super) fn padded(text: &str) -> Result<B256, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.len() > 64 {
        return Err("is longer than 32 bytes".to_owned());
    }
    fixed(&format!("{digits:0>64}")).map(B256::from)
}
