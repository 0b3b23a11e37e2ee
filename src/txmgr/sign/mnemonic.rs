//! Private keys from mnemonic words: BIP-39 converts the words to a seed, BIP-32 derives the key at
//! a path (BIP-44).

use crate::secret::Secret;
use bip39::{Language, Mnemonic};
use hmac::{Hmac, Mac};
use secp256k1::{SECP256K1, Scalar};
use sha2::Sha512;
use starling_proto::sign::SecretKey;

/// HMAC key with which BIP-32 derives the master key.
const MASTER: &[u8] = b"Bitcoin seed";
/// First index of hardened keys in BIP-32.
const HARDENED: u32 = 1 << 31;
/// Maximum number of steps in a path; real paths are shorter.
const MAX_STEPS: usize = 16;

/// The reason why no key could be derived. The message contains no part of the words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MnemonicError {
    #[error(
        "mnemonic is invalid: 12, 15, 18, 21 or 24 English words with their checksum are expected (--mnemonic)"
    )]
    Words,
    #[error("the path {0:?} is not of the form m/44'/60'/0'/0/0 (--hd-path)")]
    Path(String),
    #[error("the path leads to no key: give another one (--hd-path)")]
    NoKey,
}

/// Private key of `words` at `path`. The words have no passphrase, as in op-service.
pub fn secret_key(words: &Secret, path: &str) -> Result<SecretKey, MnemonicError> {
    let steps = steps(path)?;
    let mnemonic = Mnemonic::parse_in_normalized(Language::English, &normalized(words))
        .map_err(|_| MnemonicError::Words)?;
    key_of_seed(&mnemonic.to_seed_normalized(""), &steps)
}

/// The words in lower case, separated by single spaces.
fn normalized(words: &Secret) -> String {
    let words: Vec<String> = words
        .expose()
        .split_whitespace()
        .map(str::to_lowercase)
        .collect();
    words.join(" ")
}

/// Child indexes of a path, with the hardened bit set where the path requires it.
fn steps(path: &str) -> Result<Vec<u32>, MnemonicError> {
    let wrong = || MnemonicError::Path(path.to_owned());
    let rest = path.trim().strip_prefix("m/").ok_or_else(wrong)?;
    let step = |text: &str| {
        let (digits, hardened) = match text.strip_suffix(['\'', 'h', 'H']) {
            Some(digits) => (digits, HARDENED),
            None => (text, 0),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let index: u32 = digits.parse().ok().filter(|_| is_number)?;
        (index < HARDENED).then_some(index | hardened)
    };
    let steps: Option<Vec<u32>> = rest.split('/').map(step).collect();
    steps
        .filter(|steps| steps.len() <= MAX_STEPS)
        .ok_or_else(wrong)
}

/// Derives the private key at `steps` from a seed's master key (BIP-32).
fn key_of_seed(seed: &[u8], steps: &[u32]) -> Result<SecretKey, MnemonicError> {
    let (left, mut chain) = halves(MASTER, &[seed])?;
    let mut key = SecretKey::from_byte_array(&left).map_err(|_| MnemonicError::NoKey)?;
    for step in steps {
        let index = step.to_be_bytes();
        let (left, right) = if *step >= HARDENED {
            halves(&chain, &[&[0], &key.secret_bytes(), &index])?
        } else {
            halves(&chain, &[&key.public_key(SECP256K1).serialize(), &index])?
        };
        let tweak = Scalar::from_be_bytes(left).map_err(|_| MnemonicError::NoKey)?;
        key = key.add_tweak(&tweak).map_err(|_| MnemonicError::NoKey)?;
        chain = right;
    }
    Ok(key)
}

/// Left and right half of an HMAC-SHA512.
fn halves(key: &[u8], data: &[&[u8]]) -> Result<([u8; 32], [u8; 32]), MnemonicError> {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).map_err(|_| MnemonicError::NoKey)?;
    for part in data {
        mac.update(part);
    }
    let bytes = mac.finalize().into_bytes();
    let (left, right) = bytes.split_at(32);
    match (left.try_into(), right.try_into()) {
        (Ok(left), Ok(right)) => Ok((left, right)),
        _ => Err(MnemonicError::NoKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;
    use starling_proto::sign;

    const WORDS: &str = "test test test test test test test test test test test junk";

    /// The well-known accounts of development tools come from these words.
    #[test]
    fn the_words_of_development_tools_give_their_keys() {
        for (index, account) in crate::devnet::accounts::all().into_iter().enumerate() {
            let path = format!("m/44'/60'/0'/0/{index}");
            let key = secret_key(&Secret::new(WORDS), &path).unwrap();
            assert_eq!(sign::address(&key), account.address, "{path}");
        }
        let shouted = Secret::new(format!("  {} ", WORDS.to_uppercase().replace(' ', "\n ")));
        let key = secret_key(&shouted, "m/44h/60h/0h/0/0").unwrap();
        assert_eq!(sign::address(&key), crate::devnet::accounts::owner());
    }

    /// BIP-32, test vector 1: paths and private keys.
    #[test]
    fn keys_are_derived_as_bip_32_says() {
        let seed = hex!("000102030405060708090a0b0c0d0e0f");
        for (path, key) in [
            (
                "m/0'",
                hex!("edb2e14f9ee77d26dd93b4ecede8d16ed408ce149b6cd80b0715a2d911a0afea"),
            ),
            (
                "m/0'/1",
                hex!("3c6cb8d0f6a264c91ea8b5030fadaa8e538b020f0a387421a12de9319dc93368"),
            ),
            (
                "m/0'/1/2'",
                hex!("cbce0d719ecf7431d88e6a89fa1483e02e35092af60c042b1df2ff59fa424dca"),
            ),
            (
                "m/0'/1/2'/2",
                hex!("0f479245fb19a38a1954c5c7c0ebab2f9bdfd96a17563ef28a6a4b1a2a764ef4"),
            ),
            (
                "m/0'/1/2'/2/1000000000",
                hex!("471b76e389e528d6de6d816857e012c5455051cad6660850e58372a6c3e6e7c8"),
            ),
        ] {
            let derived = key_of_seed(&seed, &steps(path).unwrap()).unwrap();
            assert_eq!(derived.secret_bytes(), key, "{path}");
        }
    }

    #[test]
    fn wrong_words_and_paths_are_refused_and_never_shown() {
        let path = "m/44'/60'/0'/0/0";
        for wrong in [
            "",
            "test",
            &WORDS.replace("junk", "test"),
            &format!("{WORDS} test"),
        ] {
            let error = secret_key(&Secret::new(wrong), path).unwrap_err();
            assert_eq!(error, MnemonicError::Words);
            assert!(!error.to_string().contains("test test"));
        }
        for wrong in [
            "",
            "m",
            "m/",
            "44'/60'",
            "m/x",
            "m/2147483648",
            "m/-1",
            "m/0''",
            "m/0/",
            "m/+1",
        ] {
            let error = secret_key(&Secret::new(WORDS), wrong).unwrap_err();
            assert_eq!(error, MnemonicError::Path(wrong.into()), "{wrong}");
        }
    }
}
