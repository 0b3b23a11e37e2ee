//! Another network on the same machine, with a chain of its own: another genesis, L1 and sequencer,
//! but the same chain id and so the same gossip topics. Every two nodes of the networks have each
//! other as static peers, as after a mistake in a configuration. The chains must not meet.

use super::{
    error::LabError,
    network::{LabFolder, LabNetwork, LabNode, STATIC},
    report::{LabReport, LabVerdict},
    scenario::{LabReplica, LabScenario},
    topology::LabTopology,
};
use crate::{FaultyLink, LinkConditions, LinkEnd};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;

/// Prefix of the names of the other network's nodes.
pub const PREFIX: &str = "other-";
/// Pause between the creation of both networks. The time of a genesis block is the present one in
/// whole seconds, and genesis blocks of one second are the same.
const APART: Duration = Duration::from_secs(1);
/// Seed of links without faults.
const SEED: u64 = 0;

/// The other network of a scenario, without faults; `None` if the scenario has only one.
pub fn scenario(first: &LabScenario) -> Option<LabScenario> {
    let count = Some(first.other_chain).filter(|count| *count > 0)?;
    let replicas = (1..=count).map(|number| LabReplica::new(&number.to_string(), Duration::ZERO));
    Some(LabScenario {
        length: first.length,
        block_time: first.block_time,
        l1_block_time: first.l1_block_time,
        genesis_age: first.genesis_age,
        replicas: replicas.collect(),
        allow: first.allow.clone(),
        ..LabScenario::new(&first.name, &first.purpose)
    })
}

/// Creates the other network, and makes all nodes of both static peers. The programs are `starling`
/// and `netsim`.
pub async fn create(
    folder: &Path,
    [program, netsim]: [&PathBuf; 2],
    scenario: &LabScenario,
    first: &mut LabNetwork,
) -> Result<LabNetwork, LabError> {
    let taken = first.ports.clone();
    let lab_folder = LabFolder {
        path: folder,
        prefix: PREFIX,
        taken: &taken,
    };
    let topology = LabTopology::new(scenario);
    sleep(APART).await;
    let mut other =
        LabNetwork::create(lab_folder, program, netsim, scenario, topology, SEED).await?;
    for node in other.nodes.iter_mut().filter(|node| node.role.is_l2()) {
        for peer in first.nodes.iter_mut().filter(|node| node.role.is_l2()) {
            let link = {
                let _context = first.link_threads.enter();
                FaultyLink::new(SEED, LinkConditions::CLEAR)?
            };
            let to_peer = multiaddr(&link, LinkEnd::Far, [node, peer]).await?;
            let to_node = multiaddr(&link, LinkEnd::Near, [peer, node]).await?;
            node.process.append(STATIC, &to_peer);
            peer.process.append(STATIC, &to_node);
            first.other_links.push(link);
        }
    }
    Ok(other)
}

/// The multiaddr at which the first node dials the second one through a link.
async fn multiaddr(
    link: &FaultyLink,
    end: LinkEnd,
    [from, node]: [&LabNode; 2],
) -> Result<String, LabError> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let relay = link.tcp(end, node.swarm.unwrap_or(any)).await;
    let failed = LabError::listen(&from.process.name, &node.process.name, any);
    let relay = relay.map_err(failed)?;
    let (ip, port, id) = (relay.ip(), relay.port(), &node.peer);
    Ok(format!("/ip4/{ip}/tcp/{port}/p2p/{id}"))
}

/// One report of both networks, with a check that their chains stay apart. Only heads that were
/// sampled are compared, so a block that was no head at a sample is not seen.
pub fn joined(mut first: LabReport, other: LabReport) -> LabReport {
    if first.failure.is_some() {
        return first;
    }
    if let Some(failure) = other.failure {
        first.failure = Some(format!("other chain: {failure}"));
        first.checks.clear();
        first.passed = false;
        return first;
    }
    first.checks.push(apart(&first, &other));
    first
        .checks
        .extend(other.checks.into_iter().map(|verdict| LabVerdict {
            check: format!("other chain: {}", verdict.check),
            ..verdict
        }));
    let shift = first.nodes.len();
    first.nodes.extend(other.nodes);
    first.counters.extend(other.counters);
    first.links.extend(other.links.into_iter().map(|mut link| {
        (link.near, link.far) = (link.near + shift, link.far + shift);
        link
    }));
    first.passed = first.checks.iter().all(|verdict| verdict.passed);
    first
}

fn apart(first: &LabReport, other: &LabReport) -> LabVerdict {
    let hashes = |report: &LabReport| -> BTreeSet<String> {
        let heads = report.nodes.iter().flat_map(|node| &node.heads);
        heads.map(|head| head.hash.clone()).collect()
    };
    let finding = separation(&hashes(first), &hashes(other), &first.other_links);
    LabVerdict {
        check: "chains stay apart".to_owned(),
        passed: finding.is_ok(),
        detail: finding.unwrap_or_else(|failure| failure),
    }
}

/// Chains without a common head show something only if their nodes have exchanged packets.
fn separation(
    ours: &BTreeSet<String>,
    theirs: &BTreeSet<String>,
    links: &[[u64; 2]],
) -> Result<String, String> {
    if let Some(hash) = ours.intersection(theirs).next() {
        return Err(format!("both chains have the head {hash}"));
    }
    let (ours, theirs) = (ours.len(), theirs.len());
    let count = links.len();
    let silent = links.iter().filter(|packets| packets.contains(&0)).count();
    if silent > 0 || count == 0 {
        return Err(format!(
            "{silent} of {count} links between the chains had no packet in a direction"
        ));
    }
    if ours == 0 || theirs == 0 {
        return Err(format!(
            "{ours} and {theirs} sampled heads, which are too few"
        ));
    }
    Ok(format!(
        "{ours} and {theirs} sampled heads, none in common; packets in both directions on {count} \
         links"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_apart_only_if_their_nodes_were_connected() {
        let hashes = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let separation = |ours: &[&str], theirs: &[&str], links: &[[u64; 2]]| {
            separation(&hashes(ours), &hashes(theirs), links)
        };
        assert_eq!(
            separation(&["a", "b"], &["c"], &[[3, 4], [5, 6]]).unwrap(),
            "2 and 1 sampled heads, none in common; packets in both directions on 2 links"
        );
        assert_eq!(
            separation(&["a"], &["a"], &[[3, 4]]).unwrap_err(),
            "both chains have the head a"
        );
        for silent in [[0, 4], [3, 0]] {
            assert_eq!(
                separation(&["a"], &["b"], &[[3, 4], silent]).unwrap_err(),
                "1 of 2 links between the chains had no packet in a direction"
            );
        }
        assert!(separation(&["a"], &["b"], &[]).is_err());
        assert!(separation(&["a"], &[], &[[3, 4]]).is_err());
    }
}
