//! `starling p2p …`: creates a network key, or prints the peer id of a key. Keys are read from
//! standard input, never from arguments.

use super::CliError;
use clap::{ArgMatches, Command};
use libp2p::PeerId;
use libp2p::identity::{PublicKey, secp256k1};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Print a new key.
    Generate,
    /// Read a private key and print its peer id.
    PrivateToId,
    /// Read a public key and print its peer id.
    PublicToId,
}

/// The subcommand `p2p`.
pub fn command() -> Command {
    Command::new("p2p")
        .about("Network keys and peer ids")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("genkey").about("Print a new network key in hex"))
        .subcommand(
            Command::new("priv2id")
                .about("Read a network key in hex from standard input, print its peer id"),
        )
        .subcommand(
            Command::new("pub2id")
                .about("Read a public key in hex from standard input, print its peer id"),
        )
}

impl Tool {
    pub(super) fn from_matches(matches: &ArgMatches) -> Result<Self, CliError> {
        match matches.subcommand_name() {
            Some("genkey") => Ok(Tool::Generate),
            Some("priv2id") => Ok(Tool::PrivateToId),
            Some("pub2id") => Ok(Tool::PublicToId),
            _ => Err(CliError::Usage(
                "p2p takes one of genkey, priv2id, pub2id".into(),
            )),
        }
    }

    /// Whether [`Tool::run`] needs the text on standard input.
    pub fn reads_input(self) -> bool {
        self != Tool::Generate
    }

    /// Runs the tool, and returns the line to print.
    pub fn run(self, input: &str) -> Result<String, CliError> {
        match self {
            Tool::Generate => Ok(hex::encode(
                secp256k1::Keypair::generate().secret().to_bytes(),
            )),
            Tool::PrivateToId => peer_id(&bytes(input)?).map(|id| id.to_string()),
            Tool::PublicToId => {
                let key = secp256k1::PublicKey::try_from_bytes(&bytes(input)?)
                    .map_err(|_| not_a_key("public key, 33 bytes"))?;
                Ok(PeerId::from_public_key(&PublicKey::from(key)).to_string())
            }
        }
    }
}

/// Peer id of a network key of 32 bytes.
pub fn peer_id(key: &[u8]) -> Result<PeerId, CliError> {
    let secret = secp256k1::SecretKey::try_from_bytes(key.to_vec())
        .map_err(|_| not_a_key("private key, 32 bytes"))?;
    let keypair = secp256k1::Keypair::from(secret);
    Ok(PeerId::from_public_key(&PublicKey::from(
        keypair.public().clone(),
    )))
}

fn bytes(input: &str) -> Result<Vec<u8>, CliError> {
    let text = input.trim();
    hex::decode(text.strip_prefix("0x").unwrap_or(text)).map_err(|_| not_a_key("key"))
}

fn not_a_key(what: &str) -> CliError {
    CliError::Usage(format!("standard input holds no {what} in hex"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_has_the_peer_id_of_its_public_key() -> Result<(), CliError> {
        let key = Tool::Generate.run("")?;
        let secret = ::secp256k1::SecretKey::from_slice(&hex::decode(&key).unwrap_or_default())
            .expect("a key");
        let public = hex::encode(secret.public_key(::secp256k1::SECP256K1).serialize());
        assert_eq!(
            Tool::PrivateToId.run(&format!("0x{key}\n"))?,
            Tool::PublicToId.run(&public)?
        );
        assert!(Tool::PrivateToId.run(&key)?.starts_with("16Uiu2HA"));
        Ok(())
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(Tool::PrivateToId.run("00").is_err());
        assert!(Tool::PrivateToId.run("zz").is_err());
        assert!(Tool::PublicToId.run(&"00".repeat(33)).is_err());
    }
}
