//! Checks of the public endpoints: their namespaces, and a port that two of them share.

use super::{HttpConfig, WsConfig};
use crate::{
    cli::{CliError, parse::Values},
    rpc,
};
use std::net::IpAddr;

/// The namespaces that are served if none are named.
const DEFAULT: [&str; 3] = ["eth", "net", "web3"];
/// Namespaces of geth, now or once, that are left out here with a notice. Start scripts name them.
const OF_GETH: [&str; 9] = [
    "clique", "db", "engine", "ethash", "les", "personal", "rpc", "shh", "vflux",
];

/// Reads the namespaces of the option `name`. An unknown name is an error, since its methods would
/// be missing.
pub(super) fn namespaces(
    values: &Values,
    name: &'static str,
    notices: &mut Vec<String>,
) -> Result<Vec<String>, CliError> {
    let given = values.list(name)?;
    let given = given.iter().map(|given| given.trim());
    let given: Vec<&str> = given.filter(|given| !given.is_empty()).collect();
    if given.is_empty() {
        return Ok(DEFAULT.map(str::to_owned).to_vec());
    }
    let mut served = Vec::new();
    for namespace in given {
        if rpc::namespaces().any(|known| known == namespace) {
            served.push(namespace.to_owned());
        } else if OF_GETH.contains(&namespace) {
            notices.push(format!(
                "--{name}: the namespace {namespace} is left out: {}",
                instead(namespace)
            ));
        } else {
            return Err(unknown(name, namespace));
        }
    }
    Ok(served)
}

/// The reason why a namespace of geth is left out.
fn instead(namespace: &str) -> &'static str {
    match namespace {
        "engine" => "the Engine API is served with a JWT secret only (--authrpc.port)",
        "rpc" => "rpc_modules is always served",
        "personal" => "this node keeps no accounts",
        _ => "geth has no such methods any more",
    }
}

fn unknown(name: &'static str, namespace: &str) -> CliError {
    let known: Vec<&str> = rpc::namespaces().collect();
    let distance = |known: &&&str| strsim::damerau_levenshtein(namespace, known);
    let nearest = known.iter().min_by_key(distance);
    let nearest = nearest.filter(|known| distance(known) <= 2);
    let hint = nearest.map(|known| format!("; did you mean {known}?"));
    CliError::Invalid {
        name,
        reason: format!(
            "there is no namespace {namespace}{}; known are {}",
            hint.unwrap_or_default(),
            known.join(", ")
        ),
    }
}

/// Refuses one port for HTTP and WebSocket on two addresses of which one includes the other. With
/// one address they share a socket; with two distinct ones each has its own.
pub(super) fn check_shared_port(
    http: Option<&HttpConfig>,
    ws: Option<&WsConfig>,
) -> Result<(), CliError> {
    let (Some(http), Some(ws)) = (http, ws) else {
        return Ok(());
    };
    let is_any = |addr: &str| addr.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    let overlap = http.addr != ws.addr && (is_any(&http.addr) || is_any(&ws.addr));
    if http.port != ws.port || http.port == 0 || !overlap {
        return Ok(());
    }
    Err(CliError::Invalid {
        name: "ws.addr",
        reason: format!(
            "WebSocket and HTTP share the port {}, and have the addresses {} and {}: give both one address, or --ws.port another port",
            ws.port, ws.addr, http.addr
        ),
    })
}
