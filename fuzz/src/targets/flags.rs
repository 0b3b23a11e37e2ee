//! Texts from the command line and the environment: multiaddrs, enodes, networks, durations, sizes,
//! and whole sets of `--p2p.*` options.

use crate::{InputKind, fixtures};
use starling::cli::{
    self,
    flags::Kind,
    value::{self, Value},
};
use starling_p2p::{Bootnode, IpNet, Multiaddr, address::static_peer};
use std::fmt::{Debug, Display};
use std::str::FromStr;

const KINDS: [Kind; 12] = [
    Kind::Bool,
    Kind::Text,
    Kind::Url,
    Kind::Ip,
    Kind::Port,
    Kind::Uint,
    Kind::Float,
    Kind::Duration,
    Kind::Size,
    Kind::List,
    Kind::Choice(&["none", "light"]),
    Kind::Secret,
];

const OPTIONS: [&str; 9] = [
    "p2p.static",
    "p2p.bootnodes",
    "p2p.netrestrict",
    "p2p.listen.ip",
    "p2p.ban.duration",
    "p2p.ban.threshold",
    "p2p.peers.hi",
    "p2p.scoring",
    "p2p.advertise.ip",
];
/// One of this many inputs is parsed as a command line, which takes as long as a hundred other
/// cases.
const RARELY: usize = 256;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let text = String::from_utf8_lossy(data);
    for kind in KINDS {
        let given = [text.clone().into_owned()];
        match value::read(kind, &given) {
            Err(error) => outcome.add(&error),
            Ok(value) => {
                if let Value::Float(number) = value {
                    assert!(number.is_finite());
                }
                assert_eq!(value::read(kind, &given), Ok(value));
                outcome.add(&kind);
            }
        }
    }
    comes_back::<Multiaddr>(&text, &mut outcome);
    comes_back::<Bootnode>(&text, &mut outcome);
    comes_back::<IpNet>(&text, &mut outcome);
    if let Some((_, peer)) = text.parse().ok().as_ref().and_then(static_peer) {
        assert!(
            text.contains(&peer.to_string()) || text.contains("/ipfs/"),
            "{peer} is not in {text}"
        );
        outcome.add(&"static");
    }
    let sum: usize = data.iter().map(|byte| usize::from(*byte)).sum();
    if sum.is_multiple_of(RARELY) && !text.contains('\0') {
        let option = OPTIONS[sum / RARELY % OPTIONS.len()];
        let line = [
            "starling",
            "node",
            "--rollup.config=r",
            &format!("--{option}={text}"),
        ]
        .map(str::to_owned);
        match cli::parse(line, &|_| None) {
            Ok(_) => outcome.add(&option),
            Err(error) => outcome.add(&error),
        }
    }
    outcome
}

/// Checks that a parsed value stays the same if it is printed and parsed again.
fn comes_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(
    text: &str,
    outcome: &mut InputKind,
) {
    match text.parse::<T>() {
        Err(error) => outcome.add(&error),
        Ok(value) => {
            let written = value.to_string();
            let again = written
                .parse::<T>()
                .unwrap_or_else(|error| panic!("{text} is written {written}: {error:?}"));
            assert_eq!(again, value, "{text} is written {written}");
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let files = [
        "p2p-wire/enode-resolve.json",
        "p2p-wire/bootnodes.json",
        "p2p-wire/keys.json",
    ];
    let mut seeds = fixtures::strings(&files);
    let key = "2bd2e657bb3c8efffb8ff6db9071d9eb7be70d7c6d7d980ff80fc93b2629675c5f750bc0a5ef27cd788c2e491b8795a7e9a4a6e72178c14acc6753c0e5d77ae4";
    seeds.push(format!(
        "enode://{key}@bootnode.example.org:9222?discport=30301"
    ));
    seeds.push(format!("enode://{key}@[2001:db8::1]:9222"));
    let peer = "/p2p/16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa";
    for address in [
        "/ip4/203.0.113.5/tcp/9222",
        "/ip6/2001:db8::1/tcp/9222",
        "/dns4/a.example.org/tcp/9222",
        "/dnsaddr/x",
        "",
    ] {
        seeds.push(format!("{address}{peer}"));
    }
    let more = [
        "10.0.0.0/8",
        "2001:db8::/32",
        "1h0m0s",
        "1.5s",
        "20GB",
        "-100",
        "true",
        "9222",
        "http://l1:8545",
        "a,b,c",
        "light",
    ];
    seeds.extend(more.map(str::to_owned));
    seeds.into_iter().map(String::into_bytes).collect()
}
