//! Command lines of the nodes: the options that join each node to the network, and the quoted form
//! for a shell.

use super::{
    DirectoryError, L1_CHAIN_CONFIG, L1_GENESIS, L2_GENESIS, NodePlan, NodeRole, ROLLUP, new_key,
    ports::NodePorts, write,
};
use crate::{
    cli::key,
    devnet::{
        accounts::DevAccount,
        posters::{PosterPlan, ProposalContract},
    },
};
use std::path::Path;

/// A sequencer or replica, with the values that its command line needs.
pub struct Member {
    pub role: NodeRole,
    pub name: String,
    pub peer: String,
    pub ports: NodePorts,
}

impl Member {
    fn multiaddr(&self) -> String {
        format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", self.ports.p2p, self.peer)
    }
}

/// Values that all command lines of a network share. The methods plan the nodes.
pub struct CommandLines<'a> {
    pub path: &'a Path,
    pub program: &'a str,
    pub log_level: &'a str,
    pub verbosity: u8,
    pub l1_block_time: u64,
}

impl CommandLines<'_> {
    /// Peer id of a node. Creates the node's network key if it is missing.
    pub fn peer(&self, name: &str) -> Result<String, DirectoryError> {
        let file = format!("{name}.p2p-key");
        let key = new_key(self.path, &file)?;
        let damaged = |reason: String| DirectoryError::Damaged {
            path: self.path.join(&file),
            reason,
        };
        let bytes = hex::decode(&key).map_err(|error| damaged(error.to_string()))?;
        key::peer_id(&bytes)
            .map(|id| id.to_string())
            .map_err(|error| damaged(error.to_string()))
    }

    /// Plans the L1.
    pub fn l1(&self, ports: &NodePorts) -> NodePlan {
        let mut command = self.command("execution", "l1");
        command.push(format!("--dev.period={}", self.l1_block_time));
        command.push(format!("--dev.beacon.port={}", ports.beacon));
        command.extend(self.rpc(ports));
        command.extend([
            "--metrics".into(),
            "--metrics.addr=127.0.0.1".into(),
            format!("--metrics.port={}", ports.metrics),
            format!("--verbosity={}", self.verbosity),
        ]);
        NodePlan {
            beacon: Some(ports.beacon_url()),
            ..self.plan("l1", NodeRole::L1, L1_GENESIS, command, ports, None)
        }
    }

    /// Plans a sequencer or a replica. `members` are all L2 nodes, `l1` are the L1's ports.
    pub fn l2(&self, member: &Member, members: &[Member], l1: &NodePorts) -> NodePlan {
        let ports = &member.ports;
        let mut command = self.command("node", &member.name);
        command.extend([
            format!("--rollup.config={}", self.file(ROLLUP)),
            format!("--l1={}", l1.http_url()),
            format!("--l1.beacon={}", l1.beacon_url()),
            format!("--rollup.l1-chain-config={}", self.file(L1_CHAIN_CONFIG)),
            // The L1 is on this machine, so frequent polling is cheap, and deposits arrive sooner.
            "--l1.http-poll-interval=500ms".into(),
            "--l1.epoch-poll-interval=1s".into(),
        ]);
        command.extend(self.rpc(ports));
        command.extend([
            "--rpc.addr=127.0.0.1".into(),
            format!("--rpc.port={}", ports.rpc),
        ]);
        // Enable all needed namespaces: only this machine can reach these ports.
        let apis = match member.role {
            // The batcher throttles the sequencer's blocks with the namespace `miner`.
            NodeRole::Sequencer => "eth,net,web3,txpool,opp2p,miner",
            _ => "eth,net,web3,txpool,opp2p",
        };
        command.extend(["http", "ws"].map(|end| format!("--{end}.api={apis}")));
        command.extend(self.swarm(member, members));
        match (
            member.role,
            members
                .iter()
                .find(|other| other.role == NodeRole::Sequencer),
        ) {
            (NodeRole::Replica, Some(sequencer)) => command.extend([
                format!("--rollup.sequencerhttp={}", sequencer.ports.http_url()),
                // A wallet that sends several transactions to a replica also reads the next nonce
                // there.
                "--rollup.enabletxpooladmission".into(),
            ]),
            _ => command.extend([
                "--sequencer.enabled".into(),
                // The L1 never reorgs, so the sequencer needs no confirmation depth.
                "--sequencer.l1-confs=0".into(),
                format!("--p2p.sequencer.key.path={}", self.file("sequencer.key")),
            ]),
        }
        command.extend([
            "--metrics.enabled".into(),
            "--metrics.addr=127.0.0.1".into(),
            format!("--metrics.port={}", ports.metrics),
            format!("--log.level={}", self.log_level),
        ]);
        self.plan(
            &member.name,
            member.role,
            L2_GENESIS,
            command,
            ports,
            Some(member.multiaddr()),
        )
    }

    /// Plans the batcher, which reads from the sequencer.
    pub fn batcher(
        &self,
        account: &DevAccount,
        ports: &NodePorts,
        l1: &NodePorts,
        sequencer: &NodePorts,
    ) -> Result<NodePlan, DirectoryError> {
        let options = [
            format!("--l2-eth-rpc={}", sequencer.http_url()),
            // Post blobs in every L1 block, so that users see the safe head advance.
            "--data-availability-type=blobs".into(),
            "--max-channel-duration=1".into(),
            "--max-pending-tx=10".into(),
            "--poll-interval=500ms".into(),
        ];
        let role = NodeRole::Batcher;
        self.poster(role, account, ports, l1, sequencer, &options)
    }

    /// Plans the proposer, which reads from the sequencer.
    pub fn proposer(
        &self,
        plan: &PosterPlan,
        game_type: u32,
        ports: &NodePorts,
        l1: &NodePorts,
        sequencer: &NodePorts,
    ) -> Result<NodePlan, DirectoryError> {
        let mut options = vec!["--poll-interval=1s".into()];
        match plan.contract {
            ProposalContract::OutputOracle(address) => {
                options.push(format!("--l2oo-address={address}"));
            }
            ProposalContract::DisputeGameFactory(address) => options.extend([
                format!("--game-factory-address={address}"),
                format!("--game-type={game_type}"),
                "--proposal-interval=30s".into(),
            ]),
        }
        let role = NodeRole::Proposer;
        self.poster(role, &plan.account, ports, l1, sequencer, &options)
    }

    /// Plans a batcher or proposer with additional `options`. Writes its private key to a file.
    fn poster(
        &self,
        role: NodeRole,
        account: &DevAccount,
        ports: &NodePorts,
        l1: &NodePorts,
        sequencer: &NodePorts,
        options: &[String],
    ) -> Result<NodePlan, DirectoryError> {
        let name = role.to_string();
        let key = format!("{name}.key");
        let digits = account.private_key.trim_start_matches("0x");
        write(self.path, &key, digits, 0o600)?;
        let mut command = vec![
            self.program.to_string(),
            name.clone(),
            format!("--l1-eth-rpc={}", l1.http_url()),
            format!("--rollup-rpc={}", sequencer.rpc_url()),
            format!("--private-key.path={}", self.file(&key)),
        ];
        command.extend_from_slice(options);
        command.extend([
            // The L1 never reorgs, and is on this machine.
            "--num-confirmations=1".into(),
            "--txmgr.receipt-query-interval=500ms".into(),
            "--rpc.addr=127.0.0.1".into(),
            format!("--rpc.port={}", ports.rpc),
            "--rpc.enable-admin".into(),
            "--metrics.enabled".into(),
            "--metrics.addr=127.0.0.1".into(),
            format!("--metrics.port={}", ports.metrics),
            format!("--log.level={}", self.log_level),
        ]);
        Ok(NodePlan {
            log: self.path.join(format!("{name}.log")),
            name,
            role,
            init: Vec::new(),
            command,
            http: String::new(),
            ws: String::new(),
            rpc: Some(ports.rpc_url()),
            metrics: ports.metrics_url(),
            p2p: None,
            beacon: None,
        })
    }

    /// Options of a member's swarm. Every member has all other members as static peers.
    fn swarm(&self, member: &Member, members: &[Member]) -> Vec<String> {
        let others = members
            .iter()
            .filter(|other| other.name != member.name)
            .map(Member::multiaddr)
            .collect::<Vec<_>>();
        let key = self.file(&format!("{}.p2p-key", member.name));
        let mut options = vec![
            "--p2p.listen.ip=127.0.0.1".into(),
            format!("--p2p.listen.tcp={}", member.ports.p2p),
            // No discovery is needed: all peers are static.
            "--p2p.no-discovery".into(),
            format!("--p2p.priv.path={key}"),
        ];
        if !others.is_empty() {
            options.push(format!("--p2p.static={}", others.join(",")));
        }
        options
    }

    fn plan(
        &self,
        name: &str,
        role: NodeRole,
        genesis: &str,
        command: Vec<String>,
        ports: &NodePorts,
        p2p: Option<String>,
    ) -> NodePlan {
        let mut init = self.command("init", name);
        init.push(self.file(genesis));
        NodePlan {
            name: name.to_string(),
            role,
            init,
            command,
            http: ports.http_url(),
            ws: format!("ws://127.0.0.1:{}", ports.ws),
            rpc: (role != NodeRole::L1).then(|| ports.rpc_url()),
            metrics: ports.metrics_url(),
            p2p,
            beacon: None,
            log: self.path.join(format!("{name}.log")),
        }
    }

    fn command(&self, role: &str, name: &str) -> Vec<String> {
        vec![
            self.program.to_string(),
            role.to_string(),
            format!("--datadir={}", self.file(name)),
        ]
    }

    fn rpc(&self, ports: &NodePorts) -> [String; 6] {
        [
            "--http".into(),
            "--http.addr=127.0.0.1".into(),
            format!("--http.port={}", ports.http),
            "--ws".into(),
            "--ws.addr=127.0.0.1".into(),
            format!("--ws.port={}", ports.ws),
        ]
    }

    fn file(&self, name: &str) -> String {
        self.path.join(name).to_string_lossy().into_owned()
    }
}

impl NodePlan {
    /// The node's command line, quoted for a shell.
    pub fn command_line(&self) -> String {
        self.command
            .iter()
            .map(|word| shell_word(word))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Quotes a word for a shell if necessary.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
