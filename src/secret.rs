//! Secrets that must never be printed.

use std::fmt;

/// A private key as hex, a credential, or a URL that holds one. It has no way into a log: neither
/// `Debug` nor `Display` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Callers must not print it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The 32 bytes of the key, with or without 0x; `None` if it is anything else.
    pub fn bytes(&self) -> Option<[u8; 32]> {
        let text = self.0.trim();
        hex::decode(text.strip_prefix("0x").unwrap_or(text))
            .ok()?
            .try_into()
            .ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
