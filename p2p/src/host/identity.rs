//! The node's network identity: one secp256k1 key in a text file.
//!
//! The file contains the 32-byte scalar as 64 hexadecimal digits. Reading allows white space around
//! the digits and one leading `0x`; writing uses neither, nor a newline, and mode 0600. An existing
//! file is never overwritten.

use libp2p::identity::{Keypair, secp256k1};
use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// The reason why there is no identity. The error sentence names the path and the next step, never
/// the key.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error(
        "cannot read the p2p key file {path}: {source}; check its permissions, or give another path"
    )]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not contain a key.
    #[error(
        "the p2p key file {path} holds no secp256k1 key: expected 64 hexadecimal digits; move it away to have a new key made"
    )]
    Garbage {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file cannot be created.
    #[error(
        "cannot create the p2p key file {path}: {source}; check that its folder exists and is writable"
    )]
    Uncreatable {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Reads the key at `path`, or creates a key file if there is none.
pub fn load_or_create(path: &Path) -> Result<Keypair, IdentityError> {
    match read(path) {
        Err(IdentityError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
            create(path)
        }
        found => found,
    }
}

fn read(path: &Path) -> Result<Keypair, IdentityError> {
    let bytes = std::fs::read(path).map_err(|source| IdentityError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let text = std::str::from_utf8(&bytes).ok();
    text.and_then(from_hex)
        .ok_or_else(|| IdentityError::Garbage {
            path: path.to_owned(),
        })
}

/// Parses a key in hexadecimal digits; white space around them and one leading `0x` are allowed.
pub fn from_hex(text: &str) -> Option<Keypair> {
    let text = text.trim();
    let mut bytes: [u8; 32] = hex::decode(text.strip_prefix("0x").unwrap_or(text))
        .ok()?
        .try_into()
        .ok()?;
    let secret = secp256k1::SecretKey::try_from_bytes(&mut bytes).ok()?;
    Some(secp256k1::Keypair::from(secret).into())
}

/// Writes a new key to a draft beside `path`, and links the complete draft to `path`, so no process
/// reads half a key. If two processes start at once, the link of the second one fails, and the
/// second one uses the key of the first.
fn create(path: &Path) -> Result<Keypair, IdentityError> {
    let keypair = secp256k1::Keypair::generate();
    let text = hex::encode(keypair.secret().to_bytes());
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{:016x}.new", rand::random::<u64>()));
    let draft = PathBuf::from(draft);
    let named = write_new(&draft, &text).and_then(|()| match std::fs::hard_link(&draft, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => write_new(path, &text), // a file system without links
        linked => linked,
    });
    let _ = std::fs::remove_file(&draft);
    match named {
        Ok(()) => Ok(keypair.into()),
        Err(source) if source.kind() == ErrorKind::AlreadyExists => read(path),
        Err(source) => Err(IdentityError::Uncreatable {
            path: path.to_owned(),
            source,
        }),
    }
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("starling-identity-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_missing_key_is_made_once_and_kept() {
        let path = scratch("new").join("key.txt");
        let first = load_or_create(&path).unwrap().public().to_peer_id();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.len(), 64);
        assert!(
            text.bytes()
                .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(load_or_create(&path).unwrap().public().to_peer_id(), first);
        assert!(first.to_string().starts_with("16Uiu2HA"));
    }

    #[test]
    fn of_many_that_start_at_once_all_have_one_key() {
        let dir = scratch("race");
        let path = dir.join("key.txt");
        let ids: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        load_or_create(&path)
                            .unwrap()
                            .public()
                            .to_peer_id()
                            .to_string()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(
            std::fs::read_dir(&dir).unwrap().count(),
            1,
            "no draft is left"
        );
    }

    #[test]
    fn white_space_and_a_prefix_are_read() {
        let key = format!("{:0>64}", "1");
        for text in [key.clone(), format!(" 0x{key}\n")] {
            let path = scratch("forms").join("key.txt");
            std::fs::write(&path, &text).unwrap();
            let peer = load_or_create(&path).unwrap().public().to_peer_id();
            assert_eq!(
                peer.to_string(),
                "16Uiu2HAm3cuhhRL2msUuLF62KRSfneFDx94RsuouyW25Ho42cFMq"
            );
        }
    }

    #[test]
    fn garbage_is_named_and_left_alone() {
        let zero = "0".repeat(64);
        for text in [
            "",
            "abc",
            &zero,
            &"f".repeat(64),
            &"1".repeat(66),
            &format!("0x0x{}", "1".repeat(64)),
            "\u{fffd}",
        ] {
            let path = scratch("garbage").join("key.txt");
            std::fs::write(&path, text).unwrap();
            let error = load_or_create(&path).unwrap_err();
            assert!(matches!(error, IdentityError::Garbage { .. }), "{text:?}");
            assert!(error.to_string().contains(path.to_str().unwrap()));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_cannot_be_read_or_made_is_named() {
        let dir = scratch("dir");
        assert!(matches!(
            load_or_create(&dir),
            Err(IdentityError::Unreadable { .. })
        ));
        let error = load_or_create(&dir.join("no/such/key.txt")).unwrap_err();
        assert!(matches!(error, IdentityError::Uncreatable { .. }));
        assert!(error.to_string().contains("no/such/key.txt"));
    }

    #[test]
    fn peer_ids_of_known_keys() {
        let Some(text) = starling_testkit::fixture_text("p2p-wire/keys.json") else {
            return;
        };
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let vectors = json["vectors"].as_array().unwrap();
        assert!(!vectors.is_empty());
        for vector in vectors {
            let keypair = from_hex(vector["private_key"].as_str().unwrap()).unwrap();
            assert_eq!(
                keypair.public().to_peer_id().to_string(),
                vector["peer_id"].as_str().unwrap()
            );
            let public = keypair.public().try_into_secp256k1().unwrap().to_bytes();
            assert_eq!(
                hex::encode(public),
                vector["compressed_pubkey"].as_str().unwrap()
            );
        }
    }
}
