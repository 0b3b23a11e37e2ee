//! The signer of a sequencer's blocks: a key in this process, or a signer in another process
//! ([`remote`]). A key is never printed.

mod remote;

#[cfg(test)]
pub(crate) use remote::tests::{Behaviour, StandIn, TransactionSigning};
pub use remote::{Remote, RemoteCause, RemoteConfig, RemoteError, SIGN_TIMEOUT, TlsFiles};

use alloy_primitives::Address;
use starling_proto::{
    payload::Payload,
    sign::{self, SIGNATURE_LEN, SecretKey},
};
use std::{fmt, path::Path};

/// Signs blocks with a local key or through a remote signer.
#[derive(Clone)]
pub enum Signer {
    /// A key in this process.
    Key(SecretKey),
    /// A remote signing service, which keeps the key.
    Remote(Remote),
}

/// The reason why a key is unusable or a signature failed. The text never contains any part of a
/// key.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    #[error("the sequencer key is not 32 bytes of hex, with or without 0x")]
    Hex,
    #[error("the sequencer key file {path} cannot be read: {cause}")]
    File { path: String, cause: std::io::Error },
    #[error("the sequencer key file {path} does not hold 32 bytes of hex, with or without 0x")]
    FileHex { path: String },
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

impl Signer {
    /// Parses a key in hex from a flag or the environment (`--p2p.sequencer.key`).
    pub fn from_hex(hex: &str) -> Result<Self, SignerError> {
        sign::secret_from_hex(hex)
            .map(Self::Key)
            .map_err(|_| SignerError::Hex)
    }

    /// Reads a key from a file that contains the key in hex and otherwise only white space
    /// (`--p2p.sequencer.key.path`).
    pub fn from_file(path: &Path) -> Result<Self, SignerError> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|cause| SignerError::File {
            path: name(),
            cause,
        })?;
        sign::secret_from_hex(&text)
            .map(Self::Key)
            .map_err(|_| SignerError::FileHex { path: name() })
    }

    /// The address of the key. Peers expect it as the unsafe block signer that L1 names.
    pub fn address(&self) -> Address {
        match self {
            Self::Key(secret) => sign::address(secret),
            Self::Remote(remote) => remote.address(),
        }
    }

    /// Signs a block for the swarm (specs: rollup-node-p2p, block signatures). The signature is r ‖
    /// s ‖ recovery id and recovers to [`Signer::address`].
    pub async fn sign(
        &self,
        chain_id: u64,
        payload: &Payload,
    ) -> Result<[u8; SIGNATURE_LEN], SignerError> {
        let signed_bytes = payload.to_wire(payload.version());
        match self {
            Self::Key(secret) => Ok(sign::sign(secret, chain_id, &signed_bytes)),
            Self::Remote(remote) => Ok(remote
                .sign(chain_id, sign::payload_hash(&signed_bytes))
                .await?),
        }
    }
}

/// Prints the address only, never the key.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::address;
    use std::io::Write;

    /// The first well-known private key of development networks.
    const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";

    #[test]
    fn a_key_is_read_from_hex_and_from_a_file_and_never_shown() {
        let expected = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "0x{KEY}").unwrap();
        for signer in [
            Signer::from_hex(KEY).unwrap(),
            Signer::from_file(file.path()).unwrap(),
        ] {
            assert_eq!(signer.address(), expected);
            assert_eq!(format!("{signer:?}"), format!("Signer({expected})"));
        }
    }

    #[test]
    fn errors_name_the_file_and_not_the_key() {
        let bad = &KEY[..62];
        assert!(!Signer::from_hex(bad).unwrap_err().to_string().contains(bad));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{bad}").unwrap();
        let error = Signer::from_file(file.path()).unwrap_err().to_string();
        assert!(
            error.contains(&file.path().display().to_string()) && !error.contains(bad),
            "{error}"
        );
        let error = Signer::from_file(Path::new("/nowhere/key"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the sequencer key file /nowhere/key cannot be read"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_signature_recovers_to_the_address() {
        let signer = Signer::from_hex(KEY).unwrap();
        let payload = Payload::sealed(alloy_consensus::Header::default(), vec![]);
        let signature = signer.sign(901, &payload).await.unwrap();
        let recovered =
            sign::recover(&signature, 901, &payload.to_wire(payload.version())).unwrap();
        assert_eq!(recovered, signer.address());
    }
}
