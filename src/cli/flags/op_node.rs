//! Options of a rollup node, with op-node's names.

use super::{Flag, Kind::*, Program, Role, Section, flag};

const NO_EL_SYNC: &str = "every block is executed, and the safe head is derived from L1";
const NO_EL_MODE: &str = "the execution client gets every block from peers or from L1, one after the other; leave it out, or have the client synchronised before this node starts";
const IN_PROCESS: &str = "the execution core runs in this process, no engine is called over RPC";
const NO_ROLLUP_RPC: &str =
    "the rollup node's own RPC serves optimism and opp2p, and admin if it is enabled";
const NO_PROFILER: &str = "there is no profiler yet";
const NO_CONDUCTOR: &str = "no conductor is consulted, so two sequencers could make blocks at once; keep op-node for a sequencer under a conductor";
const NO_ALTDA: &str = "no DA server is used; leave it out for a replica, which gets its blocks by gossip, and keep op-node for a node that derives";
const NO_INTEROP: &str =
    "interop is not supported: the node stops before the first Lagoon block (--override.interop)";
const NO_HALT: &str =
    "required protocol versions are not read from L1: follow the chain's upgrade notices";
const OLD: &str = "it is obsolete";

const NODE: &[Role] = &[Role::Node, Role::Rollup];

const fn section(title: &'static str, flags: &'static [Flag]) -> Section {
    Section {
        title,
        program: Program::OpNode,
        roles: NODE,
        flags,
    }
}

impl Section {
    /// Makes the section available to `starling execution` too, since an execution core may join
    /// the swarm.
    const fn of_the_core_too(mut self) -> Self {
        self.roles = &[Role::Node, Role::Rollup, Role::Execution];
        self
    }

    /// Restricts the section to `starling node`: with the core in another process, its options mean
    /// something else.
    const fn with_a_core(mut self) -> Self {
        self.roles = &[Role::Node];
        self
    }

    const fn without_a_core(mut self) -> Self {
        self.roles = &[Role::Rollup];
        self
    }
}

/// A fork override. It has no default, because an override that is not given changes nothing, and 0
/// is a valid time.
const fn fork(name: &'static str) -> Flag {
    flag(
        name,
        Uint,
        "",
        "Activation time of this fork in Unix seconds, instead of the configured one; 0 is genesis. Refused if the chain has passed the fork by another time",
    )
}

pub const SECTIONS: &[Section] = &[
    section(
        "L1",
        &[
            flag("l1", Text, "http://127.0.0.1:8545", "JSON-RPC endpoint of an L1 execution client: URL or path of a socket, or several, separated by commas").env(&["OP_NODE_L1_ETH_RPC"]),
            flag("l1.trustrpc", Bool, "false", "Accept headers, transactions, withdrawals and contract storage of the L1 endpoint unverified; receipts are always checked against the header")
                .env(&["OP_NODE_L1_TRUST_RPC"]),
            flag("l1.http-poll-interval", Duration, "12s", "Interval of polling the newest L1 block"),
            flag("l1.beacon", Url, "", "Base URL of an L1 beacon node's REST API"),
            flag("l1.beacon-fallbacks", List, "", "Further beacon endpoints, for blobs that --l1.beacon does not have")
                .aliases(&["l1.beacon-archiver"])
                .env(&["OP_NODE_L1_BEACON_FALLBACKS", "OP_NODE_L1_BEACON_ARCHIVER"]),
            flag("l1.beacon-header", Text, "", "Header of requests to --l1.beacon, as 'X-Key: Value'; fallbacks do not get it"),
            flag("l1.beacon.fetch-all-sidecars", Bool, "false", "Fetch all blobs of a slot, and pick the needed ones locally"),
            flag("l1.beacon.slot-duration-override", Uint, "0", "Seconds per L1 slot; 0 requests it from the beacon node"),
            flag("l1.beacon.ignore", Bool, "false", "Start although the beacon node fails its health check, or although none is given"),
            flag("l1.cache-size", Uint, "900", "L1 blocks, receipts and transactions to keep; 0 is 3/2 of the sequencing window; 32 MiB at most"),
            flag("l1.epoch-poll-interval", Duration, "6m24s", "Interval of polling the safe and finalized L1 block; 0 is never"),
            flag("l1.max-concurrency", Uint, "10", "L1 requests in flight, at least 1"),
            flag("l1.rpc-max-batch-size", Uint, "20", "Requests in one L1 batch, 1 to 500"),
            flag("l1.rpc-rate-limit", Float, "0", "L1 requests per second, those in batches counted one by one; 0 is no limit"),
            flag(
                "l1.rpckind",
                Choice(&[
                    "alchemy",
                    "quicknode",
                    "infura",
                    "parity",
                    "nethermind",
                    "debug_geth",
                    "erigon",
                    "basic",
                    "any",
                    "standard",
                ]),
                "standard",
                "Kind of L1 provider, which decides how receipts are fetched",
            )
            .env(&["OP_NODE_L1_RPC_KIND"]),
            flag(
                "l1.runtime-config-reload-interval",
                Duration,
                "10m0s",
                "Interval of reading the block signer from L1; 0 is never",
            ),
        ],
    ),
    section(
        "L2 engine",
        &[
            flag("l2", Url, "", "Engine API endpoint of an execution client")
                .env(&["OP_NODE_L2_ENGINE_RPC"])
                .no_effect(IN_PROCESS),
            flag("l2.engine-rpc-timeout", Duration, "10s", "Time limit of an engine call").no_effect(IN_PROCESS),
            flag("l2.jwt-secret", Path, "", "File with the engine's JWT secret, 32 bytes in hex")
                .env(&["OP_NODE_L2_ENGINE_AUTH"])
                .no_effect(IN_PROCESS),
            flag("l2.enginekind", Choice(&["geth", "reth", "erigon"]), "geth", "Execution client behind --l2")
                .env(&["OP_NODE_L2_ENGINE_KIND"])
                .no_effect(IN_PROCESS),
            flag(
                "syncmode",
                Choice(&["consensus-layer", "execution-layer"]),
                "consensus-layer",
                "Way to close a large initial gap",
            )
            .no_effect("gaps are closed by asking peers for blocks"),
        ],
    )
    .with_a_core(),
    section(
        "L2 engine",
        &[
            flag("l2", Url, "", "Engine API endpoint of the execution client to drive (its --authrpc.port)")
                .env(&["OP_NODE_L2_ENGINE_RPC"]),
            flag("l2.engine-rpc-timeout", Duration, "10s", "Time limit of an engine call"),
            flag(
                "l2.jwt-secret",
                Path,
                "",
                "File with the JWT secret that both programs have, 32 bytes in hex; created if absent. Without this option jwt.txt in --datadir",
            )
            .env(&["OP_NODE_L2_ENGINE_AUTH"]),
            flag("l2.enginekind", Choice(&["geth", "reth", "erigon"]), "geth", "Execution client behind --l2")
                .env(&["OP_NODE_L2_ENGINE_KIND"])
                .no_effect("execution clients of every kind are driven in the same way"),
            flag(
                "syncmode",
                Choice(&["consensus-layer", "execution-layer"]),
                "consensus-layer",
                "Way to close a large initial gap",
            )
            .refused(NO_EL_MODE),
        ],
    )
    .without_a_core(),
    section(
        "L2 engine",
        &[
            flag("l2.follow.source", Url, "", "Rollup node whose safe and finalized heads are adopted")
                .refused("safe and finalized heads are not adopted from another node; leave it out, since blocks come by gossip"),
            flag("l2.engine-sync", Bool, "false", "Obsolete: see --syncmode")
                .env(&["OP_NODE_L2_ENGINE_SYNC_ENABLED"])
                .no_effect(OLD)
                .hidden(),
            flag("l2.skip-sync-start-check", Bool, "false", "Skip the check of L1 origins at a reset")
                .no_effect("a reset checks few L1 origins, however many blocks are not safe")
                .hidden(),
            flag("l2.backup-unsafe-sync-rpc", Url, "", "Fetch missing blocks from this RPC")
                .no_effect("missing blocks are fetched from peers")
                .hidden(),
            flag("l2.backup-unsafe-sync-rpc.trustrpc", Text, "", "Trust the RPC of --l2.backup-unsafe-sync-rpc")
                .env(&["OP_NODE_L2_BACKUP_UNSAFE_SYNC_RPC_TRUST_RPC"])
                .no_effect("missing blocks are fetched from peers")
                .hidden(),
        ],
    ),
    section(
        "Rollup",
        &[
            flag("rollup.config", Path, "", "rollup.json of the chain; --network is the alternative for a known network"),
            flag("network", Text, "", "Name of a known network, instead of --rollup.config; `starling networks list` shows them"),
            flag(
                "rollup.halt",
                Choice(&["major", "minor", "patch", "none"]),
                "none",
                "Stop when L1 requires a protocol version whose major, minor or patch number is newer",
            )
            .no_effect(NO_HALT),
            flag(
                "rollup.l1-chain-config",
                Path,
                "",
                "Genesis file or chain config of the L1, for its blob fee schedule. On any L1 other than Mainnet, Sepolia, Holesky and Hoodi a node with --l1, or a sequencer, does not start without it",
            ),
            flag("rollup.load-protocol-versions", Bool, "false", "Read protocol versions from L1")
                .no_effect("protocol versions are not read from L1"),
            flag("syncmode.req-resp", Bool, "false", "Fill gaps by requesting blocks from peers")
                .no_effect("--p2p.sync.req-resp decides whether gaps are filled from peers"),
            flag("syncmode.offset-el-safe", Duration, "0s", "Distance of the safe head from the tip after a sync")
                .no_effect(NO_EL_SYNC),
            flag("verifier.l1-confs", Uint, "0", "L1 blocks to stay behind L1's head, for derivation and for reading the block signer"),
            flag("finality.lookback", Uint, "0", "L1 blocks to remember for finality; 0 is 129"),
            flag("finality.delay", Uint, "0", "L1 blocks between attempts to finalize; 0 is 64"),
            flag("safedb.path", Path, "", "Directory of the safe heads; with it optimism_safeHeadAtL1Block is served. Without it they are recorded in --datadir and the method is not served"),
            flag("fetch-withdrawal-root-from-state", Bool, "false", "Take the withdrawals root of an output from the state"),
            flag("snapshotlog.file", Path, "", "Obsolete").env(&["OP_NODE_SNAPSHOT_LOG"]).no_effect(OLD).hidden(),
        ],
    ),
    section(
        "Fork overrides",
        &[
            fork("override.canyon"),
            fork("override.delta"),
            fork("override.ecotone"),
            fork("override.fjord"),
            fork("override.granite"),
            fork("override.holocene"),
            fork("override.isthmus"),
            fork("override.interop").aliases(&["override.lagoon"]),
            fork("override.jovian"),
            fork("override.karst"),
            flag(
                "override.pectrablobschedule",
                Uint,
                "",
                "L1 time (Unix seconds) until which blob fees are computed with Cancun's fraction, instead of the configured one",
            ),
            flag(
                "override.keep-karst-upgrade-gas",
                Bool,
                "",
                "Whether the gas of Karst's upgrade transactions stays in the gas limit, instead of the configured choice",
            ),
            flag("ignore-missing-pectra-blob-schedule", Bool, "false", "Start without the Pectra blob schedule time")
                .no_effect("that is never demanded")
                .hidden(),
        ],
    ),
    section(
        "Sequencer",
        &[
            flag("sequencer.enabled", Bool, "false", "Sequence new L2 blocks"),
            flag("sequencer.stopped", Bool, "false", "Start with the sequencer stopped"),
            flag("sequencer.l1-confs", Uint, "4", "Distance from L1's head, in L1 blocks, at which a sequencer chooses origins"),
            flag("sequencer.max-safe-lag", Uint, "0", "Stop building at this many L2 blocks above the safe head; 0 is no limit"),
            flag("sequencer.recover", Bool, "false", "Advance the L1 origin with every block, and include no transactions of the pool"),
            flag("sequencer.sealing-duration", Duration, "50ms", "Time reserved for sealing a block before it is due"),
            flag("p2p.sequencer.key", Secret, "", "Private key that signs blocks, in hex (better: --p2p.sequencer.key.path)"),
            flag("p2p.sequencer.key.path", Path, "", "File with the private key that signs blocks, in hex"),
        ],
    ),
    section(
        "Peer to peer",
        &[
            flag("p2p.disable", Bool, "false", "Run without the peer-to-peer network"),
            flag("p2p.listen.ip", Ip, "0.0.0.0", "Address to listen on"),
            flag("p2p.listen.tcp", Port, "9222", "TCP port to listen on; 0 is any free one")
                .env(&["OP_NODE_P2P_LISTEN_TCP_PORT"]),
            flag("p2p.priv.path", Path, "opnode_p2p_priv.txt", "File with the network key in hex; a new one goes to --datadir"),
            flag("p2p.priv.raw", Secret, "", "This node's network key in hex (better: --p2p.priv.path)").hidden(),
            flag("p2p.static", List, "", "Peers to stay connected with, as multiaddrs that end in /p2p/PEER_ID"),
            flag("p2p.sync.req-resp", Bool, "true", "Request missing blocks from peers, and serve theirs"),
            flag("p2p.sync.onlyreqtostatic", Bool, "false", "Request missing blocks from static peers only"),
            flag("p2p.gossip.timestamp.threshold", Duration, "1m0s", "Reject gossiped blocks older than this"),
            flag("p2p.gossip.mesh.d", Uint, "8", "Desired peers in the gossip mesh").hidden(),
            flag("p2p.gossip.mesh.lo", Uint, "6", "Fewest peers in the gossip mesh")
                .env(&["OP_NODE_P2P_GOSSIP_MESH_DLO"])
                .hidden(),
            flag("p2p.gossip.mesh.dhi", Uint, "12", "Most peers in the gossip mesh").hidden(),
            flag("p2p.gossip.mesh.dlazy", Uint, "6", "Peers outside the mesh that get announcements of messages").hidden(),
            flag("p2p.gossip.mesh.floodpublish", Bool, "false", "Send own blocks to every peer")
                .env(&["OP_NODE_P2P_GOSSIP_FLOOD_PUBLISH"])
                .no_effect("own blocks go to the mesh")
                .hidden(),
            flag("p2p.listen.udp", Port, "0", "UDP port to listen on; 0 is the TCP port").env(&["OP_NODE_P2P_LISTEN_UDP_PORT"]),
            flag(
                "p2p.listen.quic",
                Port,
                "",
                "UDP port for QUIC in addition to TCP; 0 is any free one. It must differ from the port of discovery. Without this option QUIC is off, as in op-node. The first packet of each sender costs a signature",
            ),
            flag("p2p.advertise.ip", Text, "", "Address or host name to put in the discovery record"),
            flag("p2p.advertise.tcp", Port, "0", "TCP port to put in the discovery record; 0 is the one listened on"),
            flag("p2p.advertise.udp", Port, "0", "UDP port to put in the discovery record; 0 is the one listened on"),
            flag(
                "p2p.bootnodes",
                List,
                "",
                "Bootnodes as enr:… or enode://…; by default those of the L1 network",
            ),
            flag(
                "p2p.discovery.path",
                Path,
                "opnode_discovery_db",
                "Path of the discovered records, or 'memory'; by default in --datadir",
            ),
            flag("p2p.no-discovery", Bool, "false", "Turn peer discovery off"),
            flag("p2p.nat", Bool, "false", "Ask the router to open the ports, by NAT-PMP or UPnP"),
            flag(
                "p2p.netrestrict",
                List,
                "",
                "Connect only within these networks (CIDR), inbound and outbound, static peers included. op-node restricts discovery only",
            ),
            flag(
                "p2p.peerstore.path",
                Path,
                "opnode_peerstore_db",
                "Path of scores and bans, or 'memory'; by default in --datadir",
            ),
            flag("p2p.peers.lo", Uint, "20", "Search for peers while fewer than this are connected"),
            flag("p2p.peers.hi", Uint, "30", "Disconnect peers above this number"),
            flag("p2p.peers.grace", Duration, "30s", "Time for which a new peer is not disconnected for --p2p.peers.hi"),
            flag("p2p.ban.peers", Bool, "true", "Ban peers that behave badly").env(&["OP_NODE_P2P_PEER_BANNING"]),
            flag("p2p.ban.threshold", Float, "-100", "Score below which a peer is banned")
                .env(&["OP_NODE_P2P_PEER_BANNING_THRESHOLD"]),
            flag("p2p.ban.duration", Duration, "1h0m0s", "How long a ban lasts").env(&["OP_NODE_P2P_PEER_BANNING_DURATION"]),
            flag("p2p.scoring", Choice(&["none", "light"]), "light", "Peer scoring").env(&["OP_NODE_P2P_PEER_SCORING"]),
            flag("p2p.scoring.peers", Text, "", "Obsolete: see --p2p.scoring").env(&[]).no_effect(OLD).hidden(),
            flag("p2p.scoring.topics", Text, "", "Obsolete").env(&[]).no_effect(OLD).hidden(),
            flag("p2p.score.bands", Text, "", "Obsolete").env(&[]).no_effect(OLD).hidden(),
            flag("p2p.mux", List, "yamux,mplex", "Stream multiplexers").no_effect("yamux is the one used").hidden(),
            flag("p2p.security", List, "noise", "Transport security").no_effect("noise is the one used").hidden(),
            flag("p2p.useragent", Text, "optimism", "Name shown to peers")
                .env(&["OP_NODE_P2P_AGENT"])
                .no_effect("peers are shown this program's name")
                .hidden(),
            flag("p2p.timeout.negotiation", Duration, "10s", "Obsolete").no_effect(OLD).hidden(),
            flag("p2p.timeout.accept", Duration, "10s", "Obsolete").no_effect(OLD).hidden(),
            flag("p2p.timeout.dial", Duration, "10s", "Time limit of a dial").no_effect("the limit is fixed").hidden(),
            flag("p2p.ping", Bool, "true", "Ping peers").no_effect("peers are always pinged").hidden(),
        ],
    )
    .of_the_core_too(),
    section(
        "Logging",
        &[
            flag("log.level", Text, "info", "Lowest level that is logged: trace, debug, info, warn, error, crit, silent, or 5 to 0"),
            flag("log.format", Choice(&["text", "terminal", "logfmt", "json", "json-pretty"]), "text", "Format of log lines"),
            flag("log.color", Bool, "false", "Colour in the formats text and terminal"),
            flag("log.pid", Bool, "false", "Add the process id to every line"),
        ],
    ),
    section(
        "Metrics and profiles",
        &[
            flag("metrics.enabled", Bool, "false", "Serve metrics for Prometheus under /metrics"),
            flag("metrics.addr", Text, "0.0.0.0", "Address of the metrics server"),
            flag("metrics.port", Port, "7300", "Port of the metrics server; 0 is any free one"),
            flag("pprof.enabled", Bool, "false", "Serve profiles").no_effect(NO_PROFILER),
            flag("pprof.addr", Text, "0.0.0.0", "Address of the profile server").no_effect(NO_PROFILER),
            flag("pprof.port", Port, "6060", "Port of the profile server").no_effect(NO_PROFILER),
            flag("pprof.path", Path, "", "File or directory for profiles").no_effect(NO_PROFILER),
            flag(
                "pprof.type",
                Choice(&["cpu", "heap", "goroutine", "threadcreate", "block", "mutex", "allocs"]),
                "",
                "Type of profile",
            )
            .no_effect(NO_PROFILER),
        ],
    ),
    section(
        "Rollup node RPC",
        &[
            flag("rpc.addr", Text, "0.0.0.0", "Address of the rollup node's RPC (optimism, opp2p, health)"),
            flag("rpc.port", Port, "9545", "Port of the rollup node's RPC (optimism, opp2p, health). Without this option a node whose default port is taken goes on without this RPC"),
            flag("rpc.enable-admin", Bool, "false", "Serve the admin namespace on the rollup node's RPC; its methods can change the block signer"),
            flag("rpc.admin-state", Path, "", "File that records whether the sequencer was started or stopped; refused on a sequencer")
                .no_effect("only a sequencer has such a state"),
            flag("experimental.sequencer-api", Bool, "false", "Serve the block building methods").no_effect(NO_ROLLUP_RPC),
        ],
    ),
    section(
        "Signer, conductor, alternative data availability, interop",
        &[
            flag("signer.endpoint", Url, "", "Remote signer of gossiped blocks"),
            flag("signer.address", Text, "", "Address the remote signer signs for"),
            flag("signer.header", List, "", "Extra header key=value of signer requests"),
            flag("signer.tls.enabled", Bool, "true", "Use TLS client authentication"),
            flag("signer.tls.ca", Path, "tls/ca.crt", "TLS authority of the signer"),
            flag("signer.tls.cert", Path, "tls/tls.crt", "TLS client certificate"),
            flag("signer.tls.key", Path, "tls/tls.key", "TLS client key"),
            flag("conductor.enabled", Bool, "false", "Ask a conductor before sequencing").refused(NO_CONDUCTOR),
            flag("conductor.rpc", Url, "http://127.0.0.1:8547", "Endpoint of the conductor").no_effect("no conductor is used"),
            flag("conductor.rpc-timeout", Duration, "1s", "Time limit of a conductor call").no_effect("no conductor is used"),
            flag("altda.enabled", Bool, "false", "Read data from a DA server").refused(NO_ALTDA),
            flag("altda.da-server", Url, "", "Base URL of the DA server").no_effect("no DA server is used"),
            flag("altda.da-service", Bool, "false", "The DA server makes the commitments").no_effect("no DA server is used"),
            flag("altda.get-timeout", Duration, "0s", "Time limit of a read; 0 is none").no_effect("no DA server is used"),
            flag("altda.put-timeout", Duration, "0s", "Time limit of a write; 0 is none").no_effect("no DA server is used"),
            flag("altda.max-concurrent-da-requests", Uint, "1", "DA requests in flight").no_effect("no DA server is used"),
            flag("altda.verify-on-read", Bool, "true", "Check data against its commitment").no_effect("no DA server is used"),
            flag("interop.dependency-set", Path, "", "JSON file with the dependency set").no_effect(NO_INTEROP),
            flag("interop.jwt-secret", Path, "", "File with the JWT secret of the interop RPC").no_effect(NO_INTEROP),
            flag("interop.rpc.addr", Text, "", "Address of the interop RPC")
                .refused("no supervisor can direct this node; leave it out, and keep op-node for a chain with interop"),
            flag("interop.rpc.port", Port, "9645", "Port of the interop RPC").no_effect(NO_INTEROP),
            flag("supervisor", Url, "", "Obsolete").no_effect(OLD).hidden(),
            flag("heartbeat.enabled", Bool, "false", "Obsolete").no_effect(OLD).hidden(),
            flag("heartbeat.moniker", Text, "", "Obsolete").no_effect(OLD).hidden(),
            flag("heartbeat.url", Text, "", "Obsolete").no_effect(OLD).hidden(),
            flag("beta.extra-networks", Bool, "false", "Obsolete").no_effect(OLD).hidden(),
        ],
    ),
];
