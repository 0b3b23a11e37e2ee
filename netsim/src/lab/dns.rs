//! Names of nodes that can move to another address, and the name server of a run. It responds over
//! UDP on an address of this machine, for as long as the run lasts. Resolvers of nodes send it their
//! queries, since the run's mount namespace has a resolver configuration that names it.
//!
//! [`super::movable`] starts the server and sets its records. It handles one datagram after another;
//! the kernel's socket buffer drops what exceeds that, and resolvers repeat their queries.

use super::error::LabError;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::net::UdpSocket;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Domain of the nodes' names. No server of the internet has it (RFC 6761).
const DOMAIN: &str = "netsim.test";
/// Port of name servers. A resolver configuration cannot name another one.
const PORT: u16 = 53;
/// Lifetime of a record, in seconds. Zones of many operators have five minutes, so a node that
/// keeps a record for its lifetime does not find a node that has moved.
const LIFETIME: u32 = 300;
/// Largest query that is read, in bytes, as without extensions (RFC 1035).
const LARGEST: usize = 512;
/// Parts of a query: the header, then after the name the type and the class.
const HEADER: usize = 12;
const TYPE_AND_CLASS: usize = 4;
/// Type and class of a request for an IPv4 address.
const IPV4: [u8; 4] = [0, 1, 0, 1];
/// Code of a response about a name that does not exist.
const NO_SUCH_NAME: u8 = 3;

/// Further addresses that are tried if one is in use, and the distance between two of them. Process
/// ids of runs at the same time are close to each other.
const ATTEMPTS: u32 = 8;
const STRIDE: u32 = 4_099;

/// The name under which peers dial a node.
pub fn name(node: &str) -> String {
    format!("{node}.{DOMAIN}")
}

type NameRecords = BTreeMap<String, Ipv4Addr>;

/// The running name server. It ends when this value is dropped.
pub struct LabDns {
    records: Arc<Mutex<NameRecords>>,
    /// Resolver configuration that names this server, for the run's mount namespace.
    pub resolver: PathBuf,
    _end: DropGuard,
}

impl LabDns {
    /// Starts the server, and writes a resolver configuration into `folder`.
    pub async fn serve(folder: &Path) -> Result<Self, LabError> {
        let (socket, ip) = bind(std::process::id(), PORT).await?;
        let resolver = folder.join("resolv.conf");
        fs::write(&resolver, format!("nameserver {ip}\n")).map_err(LabError::io(&resolver))?;
        let records = Arc::new(Mutex::new(NameRecords::new()));
        let token = CancellationToken::new();
        let serving = serve_queries(socket, records.clone());
        tokio::spawn(token.clone().run_until_cancelled_owned(serving));
        Ok(Self {
            records,
            resolver,
            _end: token.drop_guard(),
        })
    }

    /// Sets the address of a node's name.
    pub fn set(&self, node: &str, address: IpAddr) {
        if let IpAddr::V4(address) = address {
            self.records.lock().insert(name(node), address);
        }
    }
}

/// Binds a port at the first free address of some that a process id gives. Runs at the same time
/// have different processes, and other programs may have an address.
async fn bind(process: u32, port: u16) -> Result<(UdpSocket, Ipv4Addr), LabError> {
    let mut attempt = 0;
    loop {
        let id = process.wrapping_add(attempt * STRIDE).to_be_bytes();
        let ip = Ipv4Addr::new(127, 53, id[2], id[3]);
        let address = SocketAddr::from((ip, port));
        match UdpSocket::bind(address).await {
            Ok(socket) => return Ok((socket, ip)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(LabError::Dns { address, error }),
        }
    }
}

async fn serve_queries(socket: UdpSocket, records: Arc<Mutex<NameRecords>>) {
    let mut query = [0; LARGEST];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut query).await else {
            continue;
        };
        let response = respond(&query[..len], &records.lock());
        if let Some(response) = response {
            // The resolver repeats a query whose response is lost.
            let _ = socket.send_to(&response, from).await;
        }
    }
}

/// The response to a query with one question; `None` for other datagrams.
fn respond(query: &[u8], records: &NameRecords) -> Option<Vec<u8>> {
    let header = query.get(..HEADER)?;
    let (is_response, questions) = (header[2] & 0x80 != 0, [header[4], header[5]]);
    if is_response || questions != [0, 1] {
        return None;
    }
    let (name, len) = question(&query[HEADER..])?;
    let end = HEADER + len + TYPE_AND_CLASS;
    let kind = query.get(HEADER + len..end)?;
    let address = records.get(&name);
    let found = address.filter(|_| kind == IPV4);
    let code = if address.is_none() { NO_SUCH_NAME } else { 0 };
    let mut response = header[..2].to_vec();
    // An authoritative response that keeps the bit with which the resolver desires recursion.
    response.extend([0x84 | (header[2] & 1), code]);
    response.extend([0, 1, 0, u8::from(found.is_some()), 0, 0, 0, 0]);
    response.extend(&query[HEADER..end]);
    if let Some(address) = found {
        // The name is that of the question, by its offset.
        response.extend([0xc0, HEADER as u8]);
        response.extend(IPV4);
        response.extend(LIFETIME.to_be_bytes());
        response.extend([0, 4]);
        response.extend(address.octets());
    }
    Some(response)
}

/// The name of a question in lower case, and its length in bytes.
fn question(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1;
        if len == 0 {
            return Some((labels.join("."), at));
        }
        // A longer label would be a pointer, which a question does not have.
        let label = bytes.get(at..at + len).filter(|_| len < 64)?;
        labels.push(String::from_utf8(label.to_ascii_lowercase()).ok()?);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u8) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.bytes());
        }
        query.extend([0, 0, kind, 0, 1]);
        // An additional record, as resolvers send it (EDNS).
        query.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        query
    }

    #[tokio::test]
    async fn an_address_in_use_is_passed_over_and_many_are_an_error() {
        let (first, ip) = bind(77, 0).await.unwrap();
        let port = first.local_addr().unwrap().port();
        let (mut held, mut seen) = (vec![first], vec![ip]);
        for _ in 0..ATTEMPTS {
            let (socket, ip) = bind(77, port).await.unwrap();
            assert_eq!(socket.local_addr().unwrap(), (ip, port).into());
            assert!(!seen.contains(&ip));
            held.push(socket);
            seen.push(ip);
        }
        let error = bind(77, port).await.unwrap_err().to_string();
        let last = seen[seen.len() - 1];
        let begin = format!("the verb `move` needs a name server on {last}:{port}, and it cannot");
        assert!(error.starts_with(&begin), "{error}");
    }

    fn records() -> NameRecords {
        NameRecords::from([(name("a"), Ipv4Addr::new(127, 1, 2, 3))])
    }

    #[test]
    fn a_known_name_has_one_address_in_any_case_of_its_letters() {
        let response = respond(&query("A.netsim.TEST", 1), &records()).unwrap();
        assert_eq!(response[..8], [7, 9, 0x85, 0, 0, 1, 0, 1]);
        assert_eq!(response[12..27], query("A.netsim.TEST", 1)[12..27]);
        let answer = &response[response.len() - 16..];
        assert_eq!(answer[..12], [0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
        assert_eq!(answer[12..], [127, 1, 2, 3]);
    }

    #[test]
    fn other_types_have_no_address_and_other_names_do_not_exist() {
        let ipv6 = respond(&query("a.netsim.test", 28), &records()).unwrap();
        assert_eq!(ipv6[3..8], [0, 0, 1, 0, 0]);
        let other = respond(&query("b.netsim.test", 1), &records()).unwrap();
        assert_eq!(other[3..8], [NO_SUCH_NAME, 0, 1, 0, 0]);
    }

    #[tokio::test]
    async fn a_server_follows_moves_and_a_second_one_has_another_address() {
        let folder = tempfile::tempdir().unwrap();
        let served = LabDns::serve(folder.path()).await;
        let what = "the right to open port 53 (run as root)";
        let Some(names) = starling_testkit::require(served.ok(), what) else {
            return;
        };
        let conf = fs::read_to_string(&names.resolver).unwrap();
        let ip = conf.trim().strip_prefix("nameserver ").unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        socket.connect((ip, PORT)).await.unwrap();
        for last in [1, 2] {
            let address = Ipv4Addr::new(127, 1, 2, last);
            names.set("a", address.into());
            socket.send(&query("a.netsim.test", 1)).await.unwrap();
            let mut response = [0; LARGEST];
            let len = socket.recv(&mut response).await.unwrap();
            assert_eq!(response[len - 4..len], address.octets());
        }
        let second = LabDns::serve(folder.path()).await;
        let second = second.map_err(|error| error.to_string()).unwrap();
        let other = fs::read_to_string(&second.resolver).unwrap();
        assert_ne!(other, conf);
    }

    #[test]
    fn datagrams_that_are_no_queries_have_no_response() {
        let whole = query("a.netsim.test", 1);
        for len in 0..HEADER + 15 + TYPE_AND_CLASS {
            assert_eq!(respond(&whole[..len], &records()), None, "{len}");
        }
        let mut response = whole.clone();
        response[2] |= 0x80;
        assert_eq!(respond(&response, &records()), None);
        let mut pointer = whole;
        pointer[HEADER] = 0xc0;
        assert_eq!(respond(&pointer, &records()), None);
    }
}
