//! Secrets that must never be printed.

use std::fmt;

/// A private key in hex, a credential, or a URL that contains one. Neither `Debug` nor `Display`
/// shows it, so it cannot get into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret text, which callers must not print.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The 32 bytes of a key in hex, with or without 0x; `None` if the text is not such a key.
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
