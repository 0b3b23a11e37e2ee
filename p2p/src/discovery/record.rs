//! Node records: our own, and the contacts read from other nodes' records. The nodes that discovery
//! finds are dialled only as [`Contact`]s, which only [`Contact::of`] makes, from records that name
//! our chain.

use super::Advertise;
use crate::{address::Scope, peers::candidates::Contact};
use ::enr::{CombinedKey, CombinedPublicKey, EnrPublicKey};
use discv5::Enr;
use libp2p::{
    Multiaddr, PeerId,
    identity::{Keypair, PublicKey, secp256k1},
    multiaddr::Protocol,
};
use starling_proto::enr::{self, OpStack};
use std::net::{IpAddr, SocketAddr};

/// The reason why a record is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unfit {
    /// The record has no OP Stack entry.
    #[error("it has no opstack entry: the node is of another network")]
    NoEntry,
    /// The OP Stack entry cannot be decoded.
    #[error("its opstack entry cannot be read")]
    BadEntry,
    /// The node is on another chain.
    #[error("the node is on another chain")]
    OtherChain,
    /// The OP Stack entry has an unknown version.
    #[error("its version of the opstack entry is unknown")]
    OtherVersion,
    /// The record's key is not of the secp256k1 kind.
    #[error("its key is not one of secp256k1")]
    Key,
    /// The record has no address with a TCP port.
    #[error("it has no address and port for TCP")]
    NoAddress,
    /// The record has no address of a sufficient scope.
    #[error("its address cannot be reached from elsewhere")]
    Unroutable,
    /// The record has no address that the operator allows.
    #[error("its address is outside of --p2p.netrestrict")]
    Restricted,
    /// The record is our own.
    #[error("it is our own")]
    Ourselves,
}

impl Unfit {
    /// The value of the metrics label.
    pub fn label(self) -> &'static str {
        match self {
            Unfit::NoEntry => "no_opstack_entry",
            Unfit::BadEntry => "bad_opstack_entry",
            Unfit::OtherChain => "other_chain",
            Unfit::OtherVersion => "other_version",
            Unfit::Key => "key",
            Unfit::NoAddress => "no_address",
            Unfit::Unroutable => "unroutable",
            Unfit::Restricted => "netrestrict",
            Unfit::Ourselves => "ourselves",
        }
    }
}

impl Contact {
    /// Reads the contact of a record, if its node is on our chain. Addresses of a smaller scope
    /// than `nearest` are left out: a record from elsewhere must not make us dial our own machine.
    pub fn of(record: &Enr, chain_id: u64, nearest: Scope) -> Result<Self, Unfit> {
        on_chain(record, chain_id)?;
        let peer = peer_of(record).ok_or(Unfit::Key)?;
        let tcp4 = record.tcp4();
        let v4 = record
            .ip4()
            .zip(tcp4)
            .map(|(ip, port)| SocketAddr::new(ip.into(), port));
        // Some nodes put one port for both address families into the IPv4 entry.
        let v6 = record
            .ip6()
            .zip(record.tcp6().or(tcp4))
            .map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let given: Vec<SocketAddr> = [v4, v6]
            .into_iter()
            .flatten()
            .filter(|socket| socket.port() != 0)
            .collect();
        let usable: Vec<&SocketAddr> = given
            .iter()
            .filter(|socket| Scope::of(socket.ip()) >= nearest.max(Scope::Machine))
            .collect();
        if given.is_empty() {
            return Err(Unfit::NoAddress);
        }
        if usable.is_empty() {
            return Err(Unfit::Unroutable);
        }
        Ok(Self {
            peer,
            addresses: usable.into_iter().map(multiaddr).collect(),
            seq: record.seq(),
            record: record.to_base64(),
        })
    }
}

/// Whether the record belongs to a node of this chain (op-node's filter).
pub fn on_chain(record: &Enr, chain_id: u64) -> Result<(), Unfit> {
    let rlp = record.get_raw_rlp(enr::KEY).ok_or(Unfit::NoEntry)?;
    match OpStack::from_rlp(rlp).ok_or(Unfit::BadEntry)? {
        entry if entry.chain_id != chain_id => Err(Unfit::OtherChain),
        entry if entry.version != enr::VERSION => Err(Unfit::OtherVersion),
        _ => Ok(()),
    }
}

/// The peer whose key signed the record.
pub fn peer_of(record: &Enr) -> Option<PeerId> {
    let CombinedPublicKey::Secp256k1(_) = record.public_key() else {
        return None;
    };
    let key = secp256k1::PublicKey::try_from_bytes(&record.public_key().encode()).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

fn multiaddr(socket: &SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port()))
}

/// The key that signs our record: the same key as that of our peer id.
pub fn key(identity: &Keypair) -> Option<CombinedKey> {
    let mut secret = identity
        .clone()
        .try_into_secp256k1()
        .ok()?
        .secret()
        .to_bytes();
    CombinedKey::secp256k1_from_bytes(&mut secret).ok()
}

/// Builds our record. An address that no machine can have is left out.
pub fn ours(
    key: &CombinedKey,
    chain_id: u64,
    seq: u64,
    ip: Option<IpAddr>,
    ports: Advertise,
) -> Option<Enr> {
    let mut builder = Enr::builder();
    builder
        .seq(seq)
        .add_value_rlp(enr::KEY, OpStack::new(chain_id).to_rlp().into());
    match ip.filter(|ip| Scope::of(*ip) != Scope::None) {
        Some(IpAddr::V6(ip)) => builder.ip6(ip).tcp6(ports.tcp).udp6(ports.udp),
        Some(IpAddr::V4(ip)) => builder.ip4(ip).tcp4(ports.tcp).udp4(ports.udp),
        None => builder.tcp4(ports.tcp),
    };
    builder.build(key).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(chain_id: u64, ip: Option<IpAddr>) -> Enr {
        let identity = Keypair::generate_secp256k1();
        ours(
            &key(&identity).unwrap(),
            chain_id,
            7,
            ip,
            Advertise { tcp: 1, udp: 2 },
        )
        .unwrap()
    }

    fn fixture(name: &str) -> Option<serde_json::Value> {
        let text = starling_testkit::fixture_text(name)?;
        Some(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn records_of_the_network_are_read() {
        let Some(json) = fixture("p2p-wire/enr.json") else {
            return;
        };
        let records = json["records"].as_array().unwrap();
        assert!(records.len() >= 10);
        for vector in records {
            let record: Enr = vector["enr"].as_str().unwrap().parse().unwrap();
            assert_eq!(record.to_base64(), vector["enr"].as_str().unwrap());
            assert_eq!(
                format!("0x{}", hex::encode(record.node_id().raw())),
                vector["node_id"].as_str().unwrap()
            );
            let chain_id = vector["chain_id"].as_u64().unwrap();
            let contact = Contact::of(&record, chain_id, Scope::Machine).unwrap();
            assert_eq!(
                contact.peer().to_string(),
                vector["peer_id"].as_str().unwrap()
            );
            let address = format!(
                "/ip4/{}/tcp/{}",
                vector["ip"].as_str().unwrap(),
                vector["tcp"]
            );
            assert_eq!(contact.addresses(), [address.parse().unwrap()]);
            assert_eq!(contact.seq(), vector["seq"].as_u64().unwrap());
            assert_eq!(
                Contact::of(&record, chain_id + 1, Scope::Machine),
                Err(Unfit::OtherChain)
            );
        }
    }

    #[test]
    fn records_of_other_networks_have_no_entry() {
        let Some(vectors) = fixture("p2p/enr-vectors.json") else {
            return;
        };
        let (mut ours, mut others) = (0, 0);
        for vector in vectors.as_array().unwrap() {
            let record: Enr = vector["enr"].as_str().unwrap().parse().unwrap();
            let decoded = &vector["decoded"];
            assert_eq!(
                format!("0x{}", hex::encode(record.node_id().raw())),
                decoded["node_id"].as_str().unwrap()
            );
            match decoded["opstack_decoded"]["chain_id"].as_u64() {
                Some(chain_id) => {
                    ours += 1;
                    assert!(Contact::of(&record, chain_id, Scope::Machine).is_ok());
                }
                None => {
                    others += 1;
                    assert_eq!(
                        Contact::of(&record, 10, Scope::Machine),
                        Err(Unfit::NoEntry)
                    );
                }
            }
        }
        assert!(ours > 3 && others > 3);
    }

    #[test]
    fn a_broken_signature_or_a_cut_record_is_no_record() {
        let text = record(10, Some([10, 0, 0, 1].into())).to_base64();
        assert!(text.parse::<Enr>().is_ok());
        for end in 0..text.len() {
            assert!(text[..end].parse::<Enr>().is_err(), "{end}");
        }
        let mut broken = text.into_bytes();
        broken[30] = if broken[30] == b'A' { b'B' } else { b'A' };
        assert!(String::from_utf8(broken).unwrap().parse::<Enr>().is_err());
    }

    #[test]
    fn every_reason_to_leave_a_record_alone() {
        let identity = Keypair::generate_secp256k1();
        let secret = key(&identity).unwrap();
        let with = |rlp: Vec<u8>| {
            let ip = [1, 2, 3, 4].into();
            Enr::builder()
                .ip4(ip)
                .tcp4(5)
                .add_value_rlp(enr::KEY, rlp.into())
                .build(&secret)
                .unwrap()
        };
        assert_eq!(
            Contact::of(&Enr::builder().build(&secret).unwrap(), 10, Scope::Machine),
            Err(Unfit::NoEntry)
        );
        assert_eq!(
            Contact::of(&with(vec![0x81, 0x8a]), 10, Scope::Machine),
            Err(Unfit::BadEntry)
        );
        assert_eq!(
            Contact::of(&with(OpStack::new(11).to_rlp()), 10, Scope::Machine),
            Err(Unfit::OtherChain)
        );
        let version = OpStack {
            chain_id: 10,
            version: 1,
        };
        assert_eq!(
            Contact::of(&with(version.to_rlp()), 10, Scope::Machine),
            Err(Unfit::OtherVersion)
        );
        assert_eq!(
            Contact::of(&record(10, None), 10, Scope::Machine),
            Err(Unfit::NoAddress)
        );
        let entry = OpStack::new(10).to_rlp();
        let nowhere = Enr::builder()
            .ip4([0, 0, 0, 0].into())
            .tcp4(5)
            .add_value_rlp(enr::KEY, entry.into())
            .build(&secret);
        assert_eq!(
            Contact::of(&nowhere.unwrap(), 10, Scope::Machine),
            Err(Unfit::Unroutable)
        );
        let local = record(10, Some([127, 0, 0, 1].into()));
        assert_eq!(Contact::of(&local, 10, Scope::Site), Err(Unfit::Unroutable));
        let contact = Contact::of(&with(OpStack::new(10).to_rlp()), 10, Scope::Machine).unwrap();
        assert_eq!(contact.peer(), identity.public().to_peer_id());
    }

    #[test]
    fn our_record_has_a_usable_address_or_none() {
        for ip in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1"] {
            let record = record(10, Some(ip.parse().unwrap()));
            assert_eq!((record.ip4(), record.ip6()), (None, None), "{ip}");
        }
        let record = record(10, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(
            (record.tcp6(), record.udp6(), record.seq()),
            (Some(1), Some(2), 7)
        );
        assert_eq!(
            Contact::of(&record, 10, Scope::Machine)
                .unwrap()
                .addresses(),
            ["/ip6/2001:db8::1/tcp/1".parse().unwrap()]
        );
    }

    #[test]
    fn how_far_addresses_reach() {
        let scopes = [
            ("0.0.0.0", Scope::None),
            ("0.1.2.3", Scope::None),
            ("::", Scope::None),
            ("ff02::1", Scope::None),
            ("127.0.0.1", Scope::Machine),
            ("::1", Scope::Machine),
            ("::ffff:127.0.0.1", Scope::Machine),
            ("10.1.2.3", Scope::Site),
            ("100.64.0.1", Scope::Site),
            ("169.254.1.1", Scope::Site),
            ("fd00::1", Scope::Site),
            ("fe80::1", Scope::Site),
            ("3.231.138.188", Scope::World),
            ("2600::1", Scope::World),
        ];
        for (ip, scope) in scopes {
            assert_eq!(Scope::of(ip.parse().unwrap()), scope, "{ip}");
        }
    }
}
