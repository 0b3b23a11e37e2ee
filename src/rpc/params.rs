//! Positional parameters, which a method reads one after another. Errors have geth's texts (code
//! -32602).

use super::{
    error::{RpcError, cut},
    json::{firsts, read},
};
use alloy_primitives::{Address, B256, Bytes, U256};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Maximum parameters that are kept from a request: more than any method takes.
const MAX_PARAMS: usize = 16;

/// The parameters of one request. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct Args {
    values: Arc<[Box<RawValue>]>,
    /// Index of the next parameter to read.
    next: usize,
}

/// A type that can be read from a parameter. The error is the text after `invalid argument N: `.
pub trait Arg: Sized {
    fn from_json(json: &str) -> Result<Self, String>;
}

impl Args {
    /// Parses the `params` member of a request: an array, null or nothing.
    pub fn parse(params: Option<&RawValue>) -> Result<Self, RpcError> {
        let Some(params) = params.filter(|params| params.get() != "null") else {
            return Ok(Self::default());
        };
        let values = firsts(params.get(), MAX_PARAMS)
            .map_err(|_| RpcError::invalid_params("non-array args"))?;
        Ok(Self {
            values: values.into_iter().map(ToOwned::to_owned).collect(),
            next: 0,
        })
    }

    /// All parameters as the JSON of an array.
    pub fn to_json(&self) -> String {
        let values: Vec<&str> = self.values.iter().map(|value| value.get()).collect();
        format!("[{}]", values.join(","))
    }

    /// Bytes of all parameters.
    pub fn size(&self) -> usize {
        self.values.iter().map(|value| value.get().len()).sum()
    }

    /// The JSON of the parameter at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.values.get(index).map(|value| value.get())
    }

    /// Refuses a request with more than `most` parameters in total.
    pub fn at_most(self, most: usize) -> Result<Self, RpcError> {
        if self.values.len() > most {
            return Err(RpcError::invalid_params(format!(
                "too many arguments, want at most {most}"
            )));
        }
        Ok(self)
    }

    pub fn required<T: Arg>(&mut self) -> Result<T, RpcError> {
        let number = self.next;
        let value = self.values.get(number);
        self.next += 1;
        let value = value.ok_or_else(|| {
            RpcError::invalid_params(format!("missing value for required argument {number}"))
        })?;
        T::from_json(value.get())
            .map_err(|text| RpcError::invalid_params(format!("invalid argument {number}: {text}")))
    }

    /// Reads the next parameter; `None` if it is absent or null.
    pub fn optional<T: Arg>(&mut self) -> Result<Option<T>, RpcError> {
        match self.values.get(self.next) {
            None => Ok(None),
            Some(value) if value.get() == "null" => {
                self.next += 1;
                Ok(None)
            }
            Some(_) => self.required().map(Some),
        }
    }
}

/// The value of a JSON string; `None` if the JSON is of another kind.
pub fn string(json: &str) -> Option<String> {
    read(json).ok()
}

/// The number of a `0x` quantity of at most 64 bits.
pub fn quantity(text: &str) -> Result<u64, &'static str> {
    let digits = quantity_digits(text)?;
    if digits.len() > 16 {
        return Err("hex number > 64 bits");
    }
    u64::from_str_radix(digits, 16).map_err(|_| "invalid hex string")
}

/// The number of a `0x` quantity of at most 256 bits.
pub fn big_quantity(text: &str) -> Result<U256, &'static str> {
    let digits = quantity_digits(text)?;
    if digits.len() > 64 {
        return Err("hex number > 256 bits");
    }
    U256::from_str_radix(digits, 16).map_err(|_| "invalid hex string")
}

fn quantity_digits(text: &str) -> Result<&str, &'static str> {
    let digits = hex_digits(text)?;
    if digits.is_empty() {
        return Err("hex string \"0x\"");
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err("hex number with leading zero digits");
    }
    // `from_str_radix` would accept a sign or an underscore.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("invalid hex string");
    }
    Ok(digits)
}

fn hex_digits(text: &str) -> Result<&str, &'static str> {
    if text.is_empty() {
        return Err("empty hex string");
    }
    text.strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .ok_or("hex string without 0x prefix")
}

/// The bytes of a `0x` string.
pub fn bytes(text: &str) -> Result<Vec<u8>, &'static str> {
    let digits = hex_digits(text)?;
    if !digits.len().is_multiple_of(2) {
        return Err("hex string of odd length");
    }
    hex::decode(digits).map_err(|_| "invalid hex string")
}

/// Reads a JSON string as Go's types of numbers and bytes do: an empty one is zero, or no bytes.
/// Other readers of the same texts, such as that of block tags, refuse it.
fn text_or_default<T: Default>(
    json: &str,
    go_type: &str,
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<T, String> {
    let text = string(json).ok_or_else(|| unfit("non-string", go_type))?;
    if text.is_empty() {
        return Ok(T::default());
    }
    read(&text).map_err(|problem| unfit(problem, go_type))
}

/// The JSON of a struct. As Go's decoder does, null is read as a struct without members.
pub(super) fn object(json: &str) -> &str {
    if json == "null" { "{}" } else { json }
}

/// The error text of Go's JSON decoder for a value that does not fit a type.
pub(super) fn unfit(problem: &str, go_type: &str) -> String {
    format!("json: cannot unmarshal {problem} into Go value of type {go_type}")
}

/// The error text for a value of a field of a struct in Go. `text` is the error for the value on its
/// own, or for a field of it.
pub(super) fn in_field(parent: &str, field: &str, text: String) -> String {
    const VALUE: &str = "into Go value of type";
    const FIELD: &str = "into Go struct field ";
    if text.contains(VALUE) {
        return text.replacen(VALUE, &format!("{FIELD}{parent}.{field} of type"), 1);
    }
    let Some((problem, path)) = text.split_once(FIELD) else {
        return text;
    };
    // Go names the innermost struct, and the fields from the outermost struct on.
    let path = path.replacen('.', &format!(".{field}."), 1);
    format!("{problem}{FIELD}{path}")
}

/// The value of a field of a struct in Go; `None` if it is absent or null.
pub(super) fn field<T: Arg>(
    parent: &str,
    name: &str,
    value: Option<&RawValue>,
) -> Result<Option<T>, String> {
    let value = value.filter(|value| value.get() != "null");
    let value = value.map(|value| T::from_json(value.get()));
    value
        .transpose()
        .map_err(|text| in_field(parent, name, text))
}

fn fixed<const N: usize>(json: &str, go_type: &str) -> Result<[u8; N], String> {
    let bytes = text_or_default(json, go_type, bytes)?;
    sized(bytes, go_type)
}

/// Exactly `N` bytes of a `0x` string.
pub(super) fn fixed_text<const N: usize>(text: &str, go_type: &str) -> Result<[u8; N], String> {
    let bytes = match text {
        "" => Vec::new(),
        text => bytes(text).map_err(|problem| unfit(problem, go_type))?,
    };
    sized(bytes, go_type)
}

fn sized<const N: usize>(bytes: Vec<u8>, go_type: &str) -> Result<[u8; N], String> {
    let digits = bytes.len() * 2;
    bytes.try_into().map_err(|_| {
        format!(
            "hex string has length {digits}, want {} for {go_type}",
            N * 2
        )
    })
}

impl Arg for B256 {
    fn from_json(json: &str) -> Result<Self, String> {
        fixed(json, "common.Hash").map(B256::new)
    }
}

impl Arg for Address {
    fn from_json(json: &str) -> Result<Self, String> {
        fixed(json, "common.Address").map(Address::new)
    }
}

impl Arg for Bytes {
    fn from_json(json: &str) -> Result<Self, String> {
        text_or_default(json, "hexutil.Bytes", bytes).map(Bytes::from)
    }
}

impl Arg for bool {
    fn from_json(json: &str) -> Result<Self, String> {
        or_default(json, "bool")
    }
}

impl Arg for String {
    fn from_json(json: &str) -> Result<Self, String> {
        or_default(json, "string")
    }
}

/// Reads a value of a type that Go knows by itself, of which null is the default.
fn or_default<T: serde::de::DeserializeOwned + Default>(
    json: &str,
    go_type: &str,
) -> Result<T, String> {
    let value: Result<Option<T>, _> = read(json);
    let value = value.map_err(|_| unfit(kind(json), go_type))?;
    Ok(value.unwrap_or_default())
}

/// A 64-bit quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity(pub u64);

impl Arg for Quantity {
    fn from_json(json: &str) -> Result<Self, String> {
        text_or_default(json, "hexutil.Uint64", quantity).map(Quantity)
    }
}

/// A quantity of at most 256 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Big(pub U256);

impl Arg for Big {
    fn from_json(json: &str) -> Result<Self, String> {
        text_or_default(json, "*hexutil.Big", big_quantity).map(Big)
    }
}

/// A number of blocks: hexadecimal or decimal, with any leading zeros, as a string or as a JSON
/// number. An empty string is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl Arg for Count {
    fn from_json(json: &str) -> Result<Self, String> {
        let text = string(json).unwrap_or_else(|| json.to_owned());
        let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let (digits, radix) = hex.map_or((text.as_str(), 10), |digits| (digits, 16));
        // `from_str_radix` would accept a sign.
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(digits, radix).ok().filter(|_| plain);
        number
            .or_else(|| text.is_empty().then_some(0))
            .map(Count)
            .ok_or_else(|| format!("invalid hex or decimal integer {:?}", cut(&text)))
    }
}

/// Any value that serde can read, such as objects and lists.
#[derive(Clone, Debug)]
pub struct Json<T>(pub T);

impl<T: serde::de::DeserializeOwned> Arg for Json<T> {
    fn from_json(json: &str) -> Result<Self, String> {
        read(json).map(Json).map_err(|error| error.to_string())
    }
}

/// A list of strings or numbers.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<T>);

/// An element of a list, with its type's name in Go for error texts.
pub trait Element: serde::de::DeserializeOwned + Default {
    const GO_TYPE: &str;
}

impl Element for String {
    const GO_TYPE: &str = "string";
}

impl Element for f64 {
    const GO_TYPE: &str = "float64";
}

impl<T: Element> Arg for List<T> {
    fn from_json(json: &str) -> Result<Self, String> {
        let elements: Vec<&RawValue> = match kind(json) {
            "null" => vec![],
            "array" => read(json).map_err(|error| error.to_string())?,
            other => return Err(unfit(other, &format!("[]{}", T::GO_TYPE))),
        };
        let elements = elements.into_iter();
        elements
            .map(|one| or_default(one.get(), T::GO_TYPE))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

pub(super) fn kind(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'"') => "string",
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b't' | b'f') => "bool",
        Some(b'n') => "null",
        _ => "number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(json: &str) -> Args {
        Args::parse(Some(&RawValue::from_string(json.to_owned()).unwrap())).unwrap()
    }

    fn refusal<T: Arg + std::fmt::Debug>(json: &str) -> String {
        let error = args(json).required::<T>().unwrap_err();
        assert_eq!(error.code, -32602);
        error.message
    }

    #[test]
    fn refusals_are_in_geths_words() {
        assert_eq!(
            refusal::<Address>("[]"),
            "missing value for required argument 0"
        );
        assert_eq!(
            refusal::<B256>(r#"["12"]"#),
            "invalid argument 0: json: cannot unmarshal hex string without 0x prefix into Go value of type common.Hash"
        );
        assert_eq!(
            refusal::<B256>("[12]"),
            "invalid argument 0: json: cannot unmarshal non-string into Go value of type common.Hash"
        );
        assert_eq!(
            refusal::<Address>(r#"["0x12"]"#),
            "invalid argument 0: hex string has length 2, want 40 for common.Address"
        );
        assert_eq!(
            refusal::<Quantity>(r#"["0x01"]"#),
            "invalid argument 0: json: cannot unmarshal hex number with leading zero digits into Go value of type hexutil.Uint64"
        );
        assert_eq!(
            refusal::<bool>(r#"["x"]"#),
            "invalid argument 0: json: cannot unmarshal string into Go value of type bool"
        );
        let list = refusal::<List<String>>(r#"["0x0"]"#);
        assert_eq!(
            list,
            "invalid argument 0: json: cannot unmarshal string into Go value of type []string"
        );
        let element = refusal::<List<f64>>(r#"[[1,"2"]]"#);
        assert_eq!(
            element,
            "invalid argument 0: json: cannot unmarshal string into Go value of type float64"
        );
        let value = refusal::<Big>(r#"["10"]"#);
        assert_eq!(
            value,
            "invalid argument 0: json: cannot unmarshal hex string without 0x prefix into Go value of type *hexutil.Big"
        );
        assert_eq!(
            args("[1,2]").at_most(1).unwrap_err().message,
            "too many arguments, want at most 1"
        );
        let object = RawValue::from_string("{}".into()).unwrap();
        assert_eq!(
            Args::parse(Some(&object)).unwrap_err().message,
            "non-array args"
        );
    }

    #[test]
    fn trailing_parameters_may_be_null_or_absent() {
        let mut given = args(r#"[true,null]"#);
        assert!(given.required::<bool>().unwrap());
        assert_eq!(given.optional::<bool>().unwrap(), None);
        assert_eq!(given.optional::<bool>().unwrap(), None);
        assert_eq!(Args::parse(None).unwrap().optional::<bool>().unwrap(), None);
    }

    #[test]
    fn quantities_are_minimal() {
        assert_eq!(quantity("0x0"), Ok(0));
        assert_eq!(quantity("0xffffffffffffffff"), Ok(u64::MAX));
        assert_eq!(quantity("0x10000000000000000"), Err("hex number > 64 bits"));
        assert_eq!(quantity("0x"), Err("hex string \"0x\""));
        assert_eq!(quantity("0x+1"), Err("invalid hex string"));
        assert_eq!(quantity("1"), Err("hex string without 0x prefix"));
        assert_eq!(big_quantity("0x1_0"), Err("invalid hex string"));
    }
}
