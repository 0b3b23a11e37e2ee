//! Options of the swarm (`--p2p.*`).

use super::{CliError, Secret, Values, expand_home, warn_of_key};
use starling_p2p::{
    Bootnode, DiscoveryConfig, IpNet, Mesh, PeerLimits, Policy, Scoring,
    discovery::bootnode::EnodeHost,
};
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Clone, Debug)]
pub struct P2pConfig {
    pub listen_ip: IpAddr,
    /// TCP port to listen on; 0 chooses a free port.
    pub listen_tcp: u16,
    /// UDP port for QUIC; 0 chooses a free port, `None` disables QUIC.
    pub listen_quic: Option<u16>,
    pub key: P2pKey,
    /// Multiaddrs of static peers, which end in /p2p/PEER_ID.
    pub static_peers: Vec<String>,
    /// Whether to request missing blocks from peers, and to serve their requests.
    pub req_resp: bool,
    /// Age above which gossiped blocks are refused.
    pub gossip_threshold: Duration,
    pub mesh: Mesh,
    /// Whether to request blocks from static peers only.
    pub only_request_static: bool,
    pub peer_limits: PeerLimits,
    pub policy: Policy,
    /// Connect only to addresses in these networks; empty means all networks.
    pub restrict: Vec<IpNet>,
    /// Folder of the peerstore; `None` keeps it in memory.
    pub peerstore: Option<PathBuf>,
    /// `None` if discovery is disabled.
    pub discovery: Option<DiscoveryConfig>,
    /// Bootnodes; `None` for the built-in ones of the L1 network.
    pub bootnodes: Option<Vec<Bootnode>>,
    /// Whether to ask the router to forward our ports.
    pub nat: bool,
}

/// Source of the key that is the swarm's identity.
#[derive(Clone, Debug)]
pub enum P2pKey {
    /// File with the key in hex, created if missing.
    File(PathBuf),
    Given(Secret),
}

impl P2pConfig {
    pub(super) fn read(
        values: &Values,
        datadir: &Path,
        notices: &mut Vec<String>,
    ) -> Result<Option<Self>, CliError> {
        let static_peers = values.list("p2p.static")?;
        if let Some(peer) = static_peers.iter().find(|peer| peer.starts_with("enode:")) {
            let reason = format!(
                "{peer} is an address of devp2p, which is not spoken here: give the peer as a multiaddr, /ip4/ADDRESS/tcp/PORT/p2p/PEER_ID"
            );
            return Err(CliError::Invalid {
                name: "p2p.static",
                reason,
            });
        }
        if values.bool("p2p.disable")? {
            if static_peers.is_empty() {
                return Ok(None);
            }
            return Err(CliError::Invalid {
                name: "p2p.static",
                reason: "it contradicts --p2p.disable".into(),
            });
        }
        let listen_ip = values.required_text("p2p.listen.ip")?;
        let key = key(values, datadir, notices)?;
        let mesh = mesh(values)?;
        Ok(Some(Self {
            listen_ip: listen_ip
                .parse()
                .map_err(|_| CliError::Table("p2p.listen.ip"))?,
            listen_tcp: values.port("p2p.listen.tcp")?,
            listen_quic: values.optional_port("p2p.listen.quic")?,
            key,
            static_peers,
            req_resp: values.bool("p2p.sync.req-resp")?,
            gossip_threshold: values.duration("p2p.gossip.timestamp.threshold")?,
            mesh,
            only_request_static: values.bool("p2p.sync.onlyreqtostatic")?,
            peer_limits: peer_limits(values)?,
            policy: Policy {
                scoring: match values.required_text("p2p.scoring")?.as_str() {
                    "none" => Scoring::None,
                    _ => Scoring::Light,
                },
                ban: values.bool("p2p.ban.peers")?,
                threshold: values.float("p2p.ban.threshold")?,
                duration: values.duration("p2p.ban.duration")?,
            },
            restrict: restrict(&values.list("p2p.netrestrict")?)?,
            peerstore: store(values, "p2p.peerstore.path", datadir)?,
            discovery: discovery(values, datadir)?,
            bootnodes: bootnodes(values)?,
            nat: values.bool("p2p.nat")?,
        }))
    }
}

/// Reads the network key: either its hex digits, or the path of its file.
fn key(values: &Values, datadir: &Path, notices: &mut Vec<String>) -> Result<P2pKey, CliError> {
    let (raw, path) = ("p2p.priv.raw", "p2p.priv.path");
    match values.secret(raw)? {
        Some(key) if key.bytes().is_none() => Err(CliError::Invalid {
            name: raw,
            reason: "a key is 32 bytes in hex".into(),
        }),
        Some(key) => {
            warn_of_key(values, raw, "--p2p.priv.path", notices);
            Ok(P2pKey::Given(key))
        }
        None => {
            let file = expand_home(&values.required_text(path)?);
            Ok(P2pKey::File(match values.source(path) {
                Some(_) => file,
                None => default_key_file(Path::new(""), datadir, &file),
            }))
        }
    }
}

/// The key file of a node whose options name none. op-node's is in the working directory, where a
/// node that has one keeps it. A new one is in the data directory, so that two nodes started in one
/// place do not share a peer id.
fn default_key_file(working: &Path, datadir: &Path, name: &Path) -> PathBuf {
    let in_working = working.join(name);
    if in_working.exists() {
        in_working
    } else {
        datadir.join(name)
    }
}

/// Reads and checks the sizes of the gossip mesh.
fn mesh(values: &Values) -> Result<Mesh, CliError> {
    let size = |name| Ok::<_, CliError>(values.uint(name)?.min(1_000) as usize);
    let mesh = Mesh {
        d: size("p2p.gossip.mesh.d")?,
        lo: size("p2p.gossip.mesh.lo")?,
        hi: size("p2p.gossip.mesh.dhi")?,
        lazy: size("p2p.gossip.mesh.dlazy")?,
    };
    if !(mesh.lo <= mesh.d && mesh.d <= mesh.hi) {
        return Err(CliError::Invalid {
            name: "p2p.gossip.mesh.d",
            reason: format!(
                "it must lie between the least ({}) and the most ({}), and is {}",
                mesh.lo, mesh.hi, mesh.d
            ),
        });
    }
    Ok(mesh)
}

fn peer_limits(values: &Values) -> Result<PeerLimits, CliError> {
    let count = |name| Ok::<_, CliError>(usize::try_from(values.uint(name)?).unwrap_or(usize::MAX));
    let limits = PeerLimits {
        lo: count("p2p.peers.lo")?,
        hi: count("p2p.peers.hi")?,
        grace: values.duration("p2p.peers.grace")?,
    };
    match limits.check() {
        Ok(()) => Ok(limits),
        Err(reason) => Err(CliError::Invalid {
            name: "p2p.peers.lo",
            reason,
        }),
    }
}

fn restrict(networks: &[String]) -> Result<Vec<IpNet>, CliError> {
    let parse = |text: &String| {
        let reason = || format!("{text} is no network in CIDR notation, such as 10.0.0.0/8");
        text.trim().parse::<IpNet>().map_err(|_| CliError::Invalid {
            name: "p2p.netrestrict",
            reason: reason(),
        })
    };
    networks
        .iter()
        .filter(|text| !text.trim().is_empty())
        .map(parse)
        .collect()
}

/// Reads the discovery options, except for bootnodes, whose default depends on the L1 network.
fn discovery(values: &Values, datadir: &Path) -> Result<Option<DiscoveryConfig>, CliError> {
    if values.bool("p2p.no-discovery")? {
        return Ok(None);
    }
    let advertise_ip = values
        .text("p2p.advertise.ip")?
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty());
    if let Some(text) = &advertise_ip
        && text.parse::<EnodeHost>().is_err()
    {
        let reason = format!("{text} is neither an address nor a host name");
        return Err(CliError::Invalid {
            name: "p2p.advertise.ip",
            reason,
        });
    }
    Ok(Some(DiscoveryConfig {
        listen_udp: values.port("p2p.listen.udp")?,
        advertise_ip,
        advertise_tcp: values.port("p2p.advertise.tcp")?,
        advertise_udp: values.port("p2p.advertise.udp")?,
        bootnodes: vec![],
        store: store(values, "p2p.discovery.path", datadir)?,
    }))
}

/// Reads the bootnodes. A list with only empty entries means no bootnodes. `None`, without a list,
/// means the bootnodes of the L1 network.
fn bootnodes(values: &Values) -> Result<Option<Vec<Bootnode>>, CliError> {
    let parse = |text: &String| {
        let invalid = |error| CliError::Invalid {
            name: "p2p.bootnodes",
            reason: format!("{text}: {error}"),
        };
        text.parse::<Bootnode>().map_err(invalid)
    };
    let named: Vec<Bootnode> = values
        .list("p2p.bootnodes")?
        .iter()
        .map(parse)
        .collect::<Result<_, _>>()?;
    Ok(values.source("p2p.bootnodes").is_some().then_some(named))
}

/// Path of a store; `None` for `memory`. The default path is inside the data directory, so that
/// nodes on one machine do not share a store.
fn store(values: &Values, name: &'static str, datadir: &Path) -> Result<Option<PathBuf>, CliError> {
    let path = values.required_text(name)?;
    Ok(match path.as_str() {
        "memory" => None,
        _ if values.source(name).is_none() => Some(datadir.join(path)),
        path => Some(expand_home(path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_file_is_in_the_data_directory_and_an_old_one_stays_in_use() {
        let (working, datadir) = (tempfile::tempdir().unwrap(), Path::new("data"));
        let (name, working) = (Path::new("key.txt"), working.path());
        let chosen = || default_key_file(working, datadir, name);
        assert_eq!(chosen(), datadir.join(name));
        std::fs::write(working.join(name), "").unwrap();
        assert_eq!(chosen(), working.join(name));
    }
}
