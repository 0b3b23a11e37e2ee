//! Bootnodes (`--p2p.bootnodes`): records (`enr:…`), or addresses and keys
//! (`enode://KEY@HOST:TCP?discport=UDP`) of nodes whose records are then requested. A host name is
//! looked up for each query, so that a node whose address changes is found again.

use super::record;
use discv5::Enr;
use libp2p::{Multiaddr, PeerId, identity::PublicKey, multiaddr::Protocol};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// Number of hexadecimal digits of an enode's key: both coordinates of the point.
const KEY_DIGITS: usize = 128;
/// Longest host name, in characters (RFC 1035).
const MAX_NAME: usize = 253;

/// A node at which discovery starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Bootnode {
    /// A signed node record.
    Enr(Box<Enr>),
    /// A key and an address.
    Enode(Enode),
}

/// A node's key and address, without a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enode {
    /// The peer id that belongs to the node's key.
    pub peer: PeerId,
    /// IP address or host name of the node.
    pub host: EnodeHost,
    /// TCP port; 0 if the node only serves discovery.
    pub tcp: u16,
    /// UDP port of discovery.
    pub udp: u16,
    key: String,
}

/// The host of an enode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnodeHost {
    /// An IP address.
    Ip(IpAddr),
    /// A host name, which is looked up for each query.
    Name(String),
}

/// The reason why a bootnode cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootnodeError {
    /// An unknown prefix.
    #[error("it begins neither with enr: nor with enode://")]
    Scheme,
    /// An invalid record.
    #[error("it is no signed record (enr:…)")]
    Record,
    /// An invalid key.
    #[error("its key is no point of secp256k1 in {KEY_DIGITS} hexadecimal digits")]
    Key,
    /// A missing or invalid host or port.
    #[error("it does not name a host and a port (enode://KEY@HOST:PORT)")]
    Address,
    /// A missing or invalid port of discovery.
    #[error("it has no port for discovery")]
    Port,
}

impl FromStr for Bootnode {
    type Err = BootnodeError;

    fn from_str(text: &str) -> Result<Self, BootnodeError> {
        let text = text.trim();
        if text.starts_with("enr:") {
            let enr: Enr = text.parse().map_err(|_| BootnodeError::Record)?;
            record::peer_of(&enr).ok_or(BootnodeError::Key)?;
            return Ok(Bootnode::Enr(Box::new(enr)));
        }
        text.parse().map(Bootnode::Enode)
    }
}

impl fmt::Display for Bootnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bootnode::Enr(enr) => f.write_str(&enr.to_base64()),
            Bootnode::Enode(enode) => enode.fmt(f),
        }
    }
}

impl FromStr for Enode {
    type Err = BootnodeError;

    fn from_str(text: &str) -> Result<Self, BootnodeError> {
        let rest = text.strip_prefix("enode://").ok_or(BootnodeError::Scheme)?;
        let (key, rest) = rest.split_once('@').ok_or(BootnodeError::Address)?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Split at the last colon, since an IPv6 address may come without brackets.
        let (host, port) = address.rsplit_once(':').ok_or(BootnodeError::Address)?;
        let tcp: u16 = port.parse().map_err(|_| BootnodeError::Address)?;
        let udp = match query.strip_prefix("discport=") {
            Some(port) => port.parse().map_err(|_| BootnodeError::Port)?,
            None if query.is_empty() => tcp,
            None => return Err(BootnodeError::Port),
        };
        if udp == 0 {
            return Err(BootnodeError::Port);
        }
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Ok(Self {
            peer: peer_of_key(key).ok_or(BootnodeError::Key)?,
            host: host.parse()?,
            tcp,
            udp,
            key: key.to_lowercase(),
        })
    }
}

fn peer_of_key(key: &str) -> Option<PeerId> {
    if key.len() != KEY_DIGITS {
        return None;
    }
    let point = hex::decode(key).ok()?;
    let key = libp2p::identity::secp256k1::PublicKey::try_from_bytes(&[&[4], &point[..]].concat())
        .ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

impl FromStr for EnodeHost {
    type Err = BootnodeError;

    fn from_str(text: &str) -> Result<Self, BootnodeError> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(EnodeHost::Ip(ip.to_canonical()));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(is_name) {
            Ok(EnodeHost::Name(text.to_owned()))
        } else {
            Err(BootnodeError::Address)
        }
    }
}

impl EnodeHost {
    /// The current addresses of the host. A name is looked up with the machine's resolver.
    pub async fn addresses(&self) -> std::io::Result<Vec<IpAddr>> {
        match self {
            EnodeHost::Ip(ip) => Ok(vec![*ip]),
            EnodeHost::Name(name) => {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
                Ok(found.map(|socket| socket.ip().to_canonical()).collect())
            }
        }
    }
}

impl fmt::Display for EnodeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnodeHost::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            EnodeHost::Ip(ip) => ip.fmt(f),
            EnodeHost::Name(name) => f.write_str(name),
        }
    }
}

impl Enode {
    /// The same node at one IP address of its host.
    pub fn at(self, ip: IpAddr) -> Self {
        Self {
            host: EnodeHost::Ip(ip),
            ..self
        }
    }

    /// The addresses at which the node's record is requested; `None` if its host is a name.
    pub fn contact(&self) -> Option<(SocketAddr, Multiaddr)> {
        let EnodeHost::Ip(ip) = self.host else {
            return None;
        };
        let socket = SocketAddr::new(ip, self.udp);
        Some((
            socket,
            Multiaddr::from(ip)
                .with(Protocol::Udp(self.udp))
                .with(Protocol::P2p(self.peer)),
        ))
    }
}

impl fmt::Display for Enode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enode://{}@{}:{}", self.key, self.host, self.tcp)?;
        if self.udp == self.tcp {
            Ok(())
        } else {
            write!(f, "?discport={}", self.udp)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(name: &str) -> Option<serde_json::Value> {
        let text = starling_testkit::fixture_text(&format!("p2p-wire/{name}"))?;
        Some(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn host_names_are_replaced_by_their_addresses() {
        let Some(json) = vectors("enode-resolve.json") else {
            return;
        };
        for vector in json["vectors"].as_array().unwrap() {
            let enode: Enode = vector["input"].as_str().unwrap().parse().unwrap();
            let found = match &enode.host {
                EnodeHost::Ip(ip) => Some(*ip),
                EnodeHost::Name(name) => json["resolver"][name]
                    .as_str()
                    .map(|ip| ip.parse().unwrap()),
            };
            let resolved = found.map(|ip| enode.at(ip).to_string());
            assert_eq!(resolved.as_deref(), vector["output"].as_str(), "{vector}");
        }
    }

    #[test]
    fn bootnodes_of_the_network_are_parsed() {
        let Some(json) = vectors("bootnodes.json") else {
            return;
        };
        for list in [
            "kona_mainnet",
            "kona_testnet",
            "op_node_default",
            "op_node_default_op26",
        ] {
            for text in json[list].as_array().unwrap() {
                let text = text.as_str().unwrap();
                assert_eq!(text.parse::<Bootnode>().unwrap().to_string(), text);
            }
        }
        let ids = json["enode_to_peer_id"].as_object().unwrap();
        assert!(ids.len() > 20);
        for (enode, peer) in ids {
            assert_eq!(
                enode.parse::<Enode>().unwrap().peer.to_string(),
                peer.as_str().unwrap()
            );
        }
    }

    #[test]
    fn invalid_bootnodes_are_refused_with_the_reason() {
        let key = hex::encode(
            libp2p::identity::secp256k1::Keypair::generate()
                .public()
                .to_bytes_uncompressed(),
        );
        let key = &key[2..];
        for (text, error) in [
            (String::new(), BootnodeError::Scheme),
            (format!("http://{key}@1.2.3.4:5"), BootnodeError::Scheme),
            ("enr:AAAA".into(), BootnodeError::Record),
            ("enr:-J24".into(), BootnodeError::Record),
            (
                format!("enode://{}@1.2.3.4:5", "0".repeat(128)),
                BootnodeError::Key,
            ),
            (
                format!("enode://{}@1.2.3.4:5", &key[2..]),
                BootnodeError::Key,
            ),
            (format!("enode://{key}"), BootnodeError::Address),
            (format!("enode://{key}@1.2.3.4"), BootnodeError::Address),
            (format!("enode://{key}@:5"), BootnodeError::Address),
            (format!("enode://{key}@a b:5"), BootnodeError::Address),
            (
                format!("enode://{key}@1.2.3.4:70000"),
                BootnodeError::Address,
            ),
            (format!("enode://{key}@1.2.3.4:0"), BootnodeError::Port),
            (
                format!("enode://{key}@1.2.3.4:5?discport=x"),
                BootnodeError::Port,
            ),
        ] {
            assert_eq!(text.parse::<Bootnode>(), Err(error), "{text}");
        }
        let v6: Enode = format!("enode://{key}@[2001:db8::1]:5").parse().unwrap();
        assert_eq!(v6.host, EnodeHost::Ip("2001:db8::1".parse().unwrap()));
        assert_eq!(v6.to_string().parse::<Enode>().unwrap(), v6);
    }
}
