//! Tests of `--p2p.nat` against stand-ins for routers on loopback.

use crate::net::*;
use parking_lot::Mutex;
use starling_p2p::{Bootnode, Config, DiscoveryConfig, NatConfig};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

const LIMIT: Duration = Duration::from_secs(120);
const EXTERNAL: [u8; 4] = [198, 41, 0, 4];

/// A request to a router: protocol, internal port, lifetime in seconds (zero closes the port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked(&'static str, u16, u32);

type Log = Arc<Mutex<Vec<Asked>>>;

/// A NAT-PMP router that maps TCP to port 40000 and UDP to 40001, with leases of two seconds.
async fn pmp_router() -> (SocketAddr, Log) {
    let (address, log, _) = pmp_router_that_may_refuse().await;
    (address, log)
}

/// A router like [`pmp_router`], and a list of protocols whose ports it refuses to map from then
/// on.
async fn pmp_router_that_may_refuse() -> (SocketAddr, Log, Arc<Mutex<Vec<&'static str>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, log) = (socket.local_addr().unwrap(), Log::default());
    let refused = Arc::new(Mutex::new(Vec::new()));
    let (asked, refuses) = (log.clone(), refused.clone());
    tokio::spawn(async move {
        let mut bytes = [0; 64];
        loop {
            let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
            let answer = match (bytes[1], length) {
                (0, 2) => [&[0, 128, 0, 0, 0, 0, 0, 1], &EXTERNAL[..]].concat(),
                (operation @ (1 | 2), 12) => {
                    let port = u16::from_be_bytes([bytes[4], bytes[5]]);
                    let seconds = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
                    let (name, external) = if operation == 2 {
                        ("TCP", 40_000u16)
                    } else {
                        ("UDP", 40_001)
                    };
                    asked.lock().push(Asked(name, port, seconds));
                    let code = if seconds > 0 && refuses.lock().contains(&name) {
                        2
                    } else {
                        0
                    };
                    let lease = seconds.min(2).to_be_bytes();
                    let ports = [&bytes[4..6], &external.to_be_bytes()[..]].concat();
                    [
                        &[0, 128 + operation, 0, code, 0, 0, 0, 1],
                        &ports[..],
                        &lease[..],
                    ]
                    .concat()
                }
                _ => continue,
            };
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (address, log, refused)
}

/// A UPnP gateway: the search over UDP, its description and control over HTTP. It grants only
/// permanent leases for UDP.
async fn upnp_router() -> (SocketAddr, Log) {
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let search = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, log) = (search.local_addr().unwrap(), Log::default());
    let location = http.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 1500];
        loop {
            let (length, from) = search.recv_from(&mut bytes).await.unwrap();
            assert!(bytes[..length].starts_with(b"M-SEARCH"));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nLOCATION: http://{location}/root.xml\r\n\r\n"
            );
            search.send_to(answer.as_bytes(), from).await.unwrap();
        }
    });
    let asked = log.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = http.accept().await.unwrap();
            tokio::spawn(serve_upnp(stream, asked.clone()));
        }
    });
    (address, log)
}

/// Reads a whole HTTP request; `None` if the client closes the connection before the end.
async fn read_http(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length:")?
                .trim()
                .parse()
                .ok()
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

const ROOT: &str = "<root><device><serviceList><service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>\
    <SCPDURL>/actions.xml</SCPDURL><controlURL>/control</controlURL></service></serviceList></device></root>";
const ONLY_PERMANENT: &str = "<Fault><detail><UPnPError><errorCode>725</errorCode><errorDescription>OnlyPermanentLeasesSupported</errorDescription>\
    </UPnPError></detail></Fault>";

/// The XML description of an action and its arguments.
fn action(name: &str, arguments: &[&str]) -> String {
    let argument = |name: &&str| {
        format!("<argument><name>New{name}</name><direction>in</direction></argument>")
    };
    let arguments: String = arguments.iter().map(argument).collect();
    format!("<action><name>{name}</name><argumentList>{arguments}</argumentList></action>")
}

/// The XML description of the gateway's actions.
fn actions() -> String {
    let subject = ["RemoteHost", "ExternalPort", "Protocol"];
    let target = ["InternalPort", "InternalClient", "Enabled"];
    let lease = ["PortMappingDescription", "LeaseDuration"];
    let add = [&subject[..], &target, &lease].concat();
    format!(
        "<scpd><actionList>{}{}</actionList></scpd>",
        action("AddPortMapping", &add),
        action("DeletePortMapping", &subject)
    )
}

/// The response to a request to map or close a port. The request is written to the log.
fn control(request: &str, asked: &Log) -> Option<String> {
    let value = |name: &str| {
        request
            .split_once(&format!("<{name}>"))?
            .1
            .split_once('<')
            .map(|(value, _)| value.to_owned())
    };
    let protocol = if value("NewProtocol")? == "TCP" {
        "TCP"
    } else {
        "UDP"
    };
    let external: u16 = value("NewExternalPort")?.parse().ok()?;
    if request.contains("#DeletePortMapping") {
        asked.lock().push(Asked(protocol, external, 0));
        return Some("<DeletePortMappingResponse/>".into());
    }
    let (internal, lease) = (value("NewInternalPort")?, value("NewLeaseDuration")?);
    if protocol == "UDP" && lease != "0" {
        return Some(ONLY_PERMANENT.into());
    }
    let mapped = Asked(protocol, internal.parse().ok()?, lease.parse().ok()?);
    asked.lock().push(mapped);
    Some("<AddPortMappingResponse/>".into())
}

async fn serve_upnp(mut stream: TcpStream, asked: Log) -> Option<()> {
    let request = read_http(&mut stream).await?;
    let body = if request.starts_with("GET /root.xml") {
        ROOT.to_owned()
    } else if request.starts_with("GET /actions.xml") {
        actions()
    } else {
        let response = if request.contains("#GetExternalIPAddress") {
            let ip = std::net::Ipv4Addr::from(EXTERNAL);
            format!(
                "<GetExternalIPAddressResponse><NewExternalIPAddress>{ip}</NewExternalIPAddress></GetExternalIPAddressResponse>"
            )
        } else {
            control(&request, &asked)?
        };
        format!("<Envelope><Body>{response}</Body></Envelope>")
    };
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await.ok()
}

fn behind(nat: NatConfig) -> Config {
    Config {
        nat: Some(nat),
        discovery: Some(DiscoveryConfig::default()),
        ..config()
    }
}

/// The TCP and UDP ports in the node's record, once the record has the router's address.
async fn advertised(node: &Node) -> (Option<u16>, Option<u16>) {
    let start = Instant::now();
    loop {
        let report = node.network.discovery().await.expect("discovery runs");
        let Bootnode::Enr(record) = report.enr.parse().unwrap() else {
            panic!("a record")
        };
        if record.ip4() == Some(EXTERNAL.into()) {
            return (record.tcp4(), record.udp4());
        }
        assert!(start.elapsed() < LIMIT, "{report:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An address without a process that responds.
async fn nobody() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_opened_by_pmp_renewed_and_closed() {
    let (router, log) = pmp_router().await;
    let node = Node::start(behind(NatConfig {
        pmp: Some(router),
        upnp: Some(nobody().await),
    }))
    .await;
    assert_eq!(advertised(&node).await, (Some(40_000), Some(40_001)));
    let udp = node.network.discovery().await.unwrap().udp;
    let count = |wanted: Asked| log.lock().iter().filter(|asked| **asked == wanted).count();
    eventually(LIMIT, || count(Asked("UDP", udp, 7200)) >= 3).await;
    let tcp = log.lock().iter().find(|asked| asked.0 == "TCP").unwrap().1;
    assert!(node.address.to_string().contains(&format!("/tcp/{tcp}/")));
    assert_eq!(count(Asked("TCP", tcp, 0)) + count(Asked("UDP", udp, 0)), 0);
    node.stop().await;
    assert_eq!(
        (count(Asked("TCP", tcp, 0)), count(Asked("UDP", udp, 0))),
        (1, 1),
        "closed at the end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_the_router_refuses_is_not_in_the_way_of_another_and_what_it_opened_once_is_closed()
 {
    let (router, log, refused) = pmp_router_that_may_refuse().await;
    refused.lock().push("UDP");
    let node = Node::start(behind(NatConfig {
        pmp: Some(router),
        upnp: Some(nobody().await),
    }))
    .await;
    assert_eq!(advertised(&node).await.0, Some(40_000));
    let count = |name: &str, seconds: u32| {
        log.lock()
            .iter()
            .filter(|asked| asked.0 == name && asked.2 == seconds)
            .count()
    };
    eventually(LIMIT, || count("TCP", 7200) >= 2 && count("UDP", 7200) >= 2).await;
    let asked = count("TCP", 7200);
    refused.lock().push("TCP");
    eventually(LIMIT, || count("TCP", 7200) > asked).await;
    // Wait until the node finds that no port is open. It then forgets the router, and searches for
    // it again at the end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.stop().await;
    assert_eq!((count("TCP", 0), count("UDP", 0)), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_opened_by_upnp_and_closed() {
    let (router, log) = upnp_router().await;
    let node = Node::start(behind(NatConfig {
        pmp: Some(nobody().await),
        upnp: Some(router),
    }))
    .await;
    let (tcp, udp) = advertised(&node).await;
    let (tcp, udp) = (tcp.unwrap(), udp.unwrap());
    assert!(
        log.lock().contains(&Asked("TCP", tcp, 7200)) && log.lock().contains(&Asked("UDP", udp, 0)),
        "{log:?}"
    );
    assert!(node.address.to_string().contains(&format!("/tcp/{tcp}/")));
    log.lock().clear();
    node.stop().await;
    assert_eq!(*log.lock(), [Asked("TCP", tcp, 0), Asked("UDP", udp, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_not_there_keeps_nobody_waiting() {
    let node = Node::start(behind(NatConfig {
        pmp: Some(nobody().await),
        upnp: Some(nobody().await),
    }))
    .await;
    assert!(node.network.discovery().await.is_some());
    node.stop().await;
}
