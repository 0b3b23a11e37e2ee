//! Authentication of the Engine API: every request carries a JSON Web Token (HS256), signed with a
//! secret shared with the rollup node and issued within a minute of now (execution-apis:
//! engine/authentication.md). Error texts are geth's.

use crate::clock::since_epoch;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Maximum difference in seconds between a token's time of issue and now.
const DRIFT: f64 = 60.0;

/// The reason why a secret could not be read or created.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{} holds no JWT secret: it must be 32 bytes in hex; remove the file to have one made", .0.display())]
    Invalid(PathBuf),
    #[error("the JWT secret in {} cannot be used: {error}", path.display())]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
}

/// The secret that rollup node and execution client share.
#[derive(Clone)]
pub struct JwtSecret([u8; 32]);

impl std::fmt::Debug for JwtSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JwtSecret(..)")
    }
}

#[derive(Deserialize)]
struct JwtHeader {
    #[serde(default)]
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    iat: Option<f64>,
    exp: Option<f64>,
}

impl JwtSecret {
    /// Parses 32 bytes of hex, with or without `0x`. Ignores surrounding white space.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text
            .strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            .unwrap_or(text);
        hex::decode(digits).ok()?.try_into().ok().map(Self)
    }

    /// Reads the secret from a file. If the file is missing, creates it with a new random secret,
    /// readable only by its owner.
    pub fn load_or_create(path: &Path) -> Result<Self, SecretError> {
        let failed = |error| SecretError::Io {
            path: path.to_owned(),
            error,
        };
        match std::fs::read_to_string(path) {
            Ok(text) => {
                return Self::from_hex(&text).ok_or_else(|| SecretError::Invalid(path.to_owned()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Err(SecretError::Invalid(path.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let secret = Self(rand::random());
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        write!(file, "0x{}", hex::encode(secret.0))
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        Ok(secret)
    }

    /// Value of an `Authorization` header with a token issued at `now` (Unix seconds).
    pub fn authorization(&self, now: u64) -> String {
        let signed = [
            r#"{"alg":"HS256","typ":"JWT"}"#,
            &format!(r#"{{"iat":{now}}}"#),
        ]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.hmac(signed.as_bytes()));
        format!("Bearer {signed}.{signature}")
    }

    /// Checks the token of a request. The error is the reason for refusing the request.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let now = since_epoch().as_secs_f64();
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match bearer.filter(|token| !token.is_empty()) {
            Some(token) => self.check_token(token, now),
            None => Err("missing token".into()),
        }
    }

    /// Checks a token at the time `now`, in Unix seconds.
    fn check_token(&self, token: &str, now: f64) -> Result<(), String> {
        let [head, claims, signature] =
            <[&str; 3]>::try_from(token.split('.').take(4).collect::<Vec<_>>())
                .map_err(|_| "token contains an invalid number of segments")?;
        let decode = |part: &str| {
            URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_| "illegal base64 data".to_owned())
        };
        let malformed = |error: serde_json::Error| error.to_string();
        let JwtHeader { alg } = serde_json::from_slice(&decode(head)?).map_err(malformed)?;
        let Claims { iat, exp } = serde_json::from_slice(&decode(claims)?).map_err(malformed)?;
        if alg != "HS256" {
            return Err(match alg.as_str() {
                "" => "signing method (alg) is unspecified.".into(),
                alg => format!("signing method {alg} is invalid"),
            });
        }
        let wanted = self.hmac(&token.as_bytes()[..head.len() + 1 + claims.len()]);
        let given = decode(signature)?;
        // Compare all bytes, so that the duration does not reveal the position of the first
        // difference.
        let differs = wanted
            .iter()
            .zip(&given)
            .fold(0, |differs, (a, b)| differs | (a ^ b));
        if given.len() != wanted.len() || differs != 0 {
            return Err("signature is invalid".into());
        }
        if exp.is_some_and(|exp| now >= exp) {
            return Err("token is expired".into());
        }
        match iat {
            None => Err("missing issued-at".into()),
            Some(iat) if now - iat > DRIFT => Err("stale token".into()),
            Some(iat) if iat - now > DRIFT => Err("future token".into()),
            Some(_) => Ok(()),
        }
    }

    /// HMAC-SHA256 (RFC 2104) of `message` with the secret as key.
    fn hmac(&self, message: &[u8]) -> [u8; 32] {
        let pad = |with: u8| {
            let mut block = [with; 64];
            block
                .iter_mut()
                .zip(&self.0)
                .for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new()
            .chain_update(pad(0x36))
            .chain_update(message)
            .finalize();
        Sha256::new()
            .chain_update(pad(0x5c))
            .chain_update(inner)
            .finalize()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::PermissionsExt;

    const SECRET: &str = "0x7365637265747365637265747365637265747365637265747365637265747365";
    const NOW: f64 = 1_700_000_000.0;

    fn secret() -> JwtSecret {
        JwtSecret::from_hex(SECRET).unwrap()
    }

    fn token(head: Value, claims: Value) -> String {
        let signed = [head, claims]
            .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
            .join(".");
        format!(
            "{signed}.{}",
            URL_SAFE_NO_PAD.encode(secret().hmac(signed.as_bytes()))
        )
    }

    #[test]
    fn the_cases_of_the_fixtures() {
        let Some(text) = starling_testkit::fixture_text("jwt/cases.json") else {
            return;
        };
        let file: Value = serde_json::from_str(&text).unwrap();
        let secret = JwtSecret::from_hex(file["secret"].as_str().unwrap()).unwrap();
        let cases = file["cases"].as_array().unwrap();
        assert!(cases.len() >= 7);
        for case in cases {
            let answer = secret.check_token(
                case["token"].as_str().unwrap(),
                case["clock"].as_f64().unwrap(),
            );
            assert_eq!(
                answer.is_ok(),
                case["accept"].as_bool().unwrap(),
                "{}: {answer:?}",
                case["name"]
            );
        }
    }

    fn hs256(claims: Value) -> String {
        token(json!({ "alg": "HS256", "typ": "JWT" }), claims)
    }

    fn check(token: &str) -> Result<(), String> {
        secret().check_token(token, NOW)
    }

    #[test]
    fn tokens_of_now_are_accepted_with_any_other_claims() {
        let now = NOW as u64;
        for claims in [
            json!({ "iat": now }),
            json!({ "iat": now, "exp": now + 1, "id": "x" }),
        ] {
            assert_eq!(check(&hs256(claims)), Ok(()));
        }
    }

    #[test]
    fn refusals_are_in_geths_words() {
        let now = NOW as u64;
        for (token, reason) in [
            (
                "".to_owned(),
                "token contains an invalid number of segments",
            ),
            (
                "a.b".to_owned(),
                "token contains an invalid number of segments",
            ),
            (
                "a.b.c.d".to_owned(),
                "token contains an invalid number of segments",
            ),
            ("?.?.?".to_owned(), "illegal base64 data"),
            (
                token(json!({}), json!({ "iat": now })),
                "signing method (alg) is unspecified.",
            ),
            (
                token(json!({ "alg": "HS512" }), json!({ "iat": now })),
                "signing method HS512 is invalid",
            ),
            (
                hs256(json!({ "iat": now })) + "AAAA",
                "signature is invalid",
            ),
            (hs256(json!({ "iat": now, "exp": now })), "token is expired"),
            (hs256(json!({})), "missing issued-at"),
            (hs256(json!({ "iat": null })), "missing issued-at"),
            (hs256(json!({ "iat": now - 61 })), "stale token"),
            (hs256(json!({ "iat": now + 61 })), "future token"),
            (hs256(json!({ "iat": 1e300 })), "future token"),
        ] {
            assert_eq!(check(&token).unwrap_err(), reason, "{token}");
        }
    }

    #[test]
    fn malformed_claims_and_signatures_of_another_secret_are_refused() {
        let now = NOW as u64;
        assert!(check(&hs256(json!({ "iat": "now" }))).is_err());
        assert!(check(&hs256(json!([]))).is_err());
        let other = JwtSecret([9; 32]);
        assert_eq!(
            other
                .check_token(&hs256(json!({ "iat": now })), NOW)
                .unwrap_err(),
            "signature is invalid"
        );
        // A token that is truncated at any position is refused.
        let whole = hs256(json!({ "iat": now }));
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).is_err());
        }
    }

    #[test]
    fn what_it_issues_it_accepts() {
        let now = since_epoch().as_secs();
        let headers =
            |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(
            secret().check(&headers(&secret().authorization(now))),
            Ok(())
        );
        for value in ["", "Bearer ", "Basic abc"] {
            assert_eq!(
                secret().check(&headers(value)).unwrap_err(),
                "missing token"
            );
        }
        assert_eq!(
            secret().check(&HeaderMap::new()).unwrap_err(),
            "missing token"
        );
        assert_eq!(format!("{:?}", secret()), "JwtSecret(..)");
    }

    #[test]
    fn a_secret_is_made_once_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("geth/jwtsecret");
        let made = JwtSecret::load_or_create(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(JwtSecret::load_or_create(&path).unwrap().0, made.0);
        let plain = SECRET.trim_start_matches("0x");
        for text in [
            SECRET,
            plain,
            &format!("  {plain}\n"),
            &SECRET.to_uppercase(),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(JwtSecret::load_or_create(&path).unwrap().0, secret().0);
        }
        for text in ["", "0x", "0x00", &plain[1..], &"g".repeat(64), "\u{fffd}"] {
            std::fs::write(&path, text).unwrap();
            assert!(
                matches!(
                    JwtSecret::load_or_create(&path),
                    Err(SecretError::Invalid(_))
                ),
                "{text}"
            );
        }
        std::fs::write(&path, [0xff; 32]).unwrap();
        assert!(matches!(
            JwtSecret::load_or_create(&path),
            Err(SecretError::Invalid(_))
        ));
    }
}
