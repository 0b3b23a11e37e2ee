//! Options that no other program has.

use super::{Kind::*, Program, Role, Section, flag};

pub const SECTIONS: &[Section] = &[
    Section {
        title: "Receipts",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution],
        flags: &[flag(
            "rpc.geth-exact-receipts",
            Bool,
            "false",
            "Leave l1FeeScalar out of receipts from Ecotone on, as op-geth does",
        )],
    },
    Section {
        title: "Connections",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution],
        flags: &[
            flag(
                "rpc.max-connections",
                Uint,
                "10000",
                "Connections of all public RPC endpoints together; at the limit a new one closes the connection that has been idle \
                 for longest. The limit of open files (ulimit -Hn) may lower it",
            ),
            flag(
                "rpc.max-websockets",
                Uint,
                "2000",
                "WebSockets on each endpoint, at most half of --rpc.max-connections; the next one is refused with 503",
            ),
        ],
    },
    Section {
        title: "Proofs",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution, Role::Import, Role::Db],
        flags: &[flag(
            "proofs.max-size",
            Size,
            "20GB",
            "Trie history from which eth_getProof answers at old blocks, of an archive too; 0 is no bound. Proofs of withdrawals \
             are kept for 604800 blocks whatever it is",
        )
        .env(&["STARLING_PROOFS_MAX_SIZE"])],
    },
    Section {
        title: "Durability",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution, Role::Import],
        flags: &[flag(
            "commit.interval",
            Duration,
            "1s",
            "The longest time between two syncs of the database to the disk: the blocks that a power cut may cost, to be fetched again. A \
             killed process loses none, and what a sequencer signs is synced at once",
        )
        .env(&["STARLING_COMMIT_INTERVAL"])],
    },
    Section {
        title: "Genesis",
        program: Program::Starling,
        roles: &[Role::Init],
        flags: &[flag("rollup.config", Path, "", "rollup.json of the chain, for a genesis file whose config is null")
            .env(&["STARLING_INIT_ROLLUP_CONFIG"])],
    },
    Section {
        title: "Following",
        program: Program::Starling,
        roles: &[Role::Execution],
        flags: &[
            flag(
                "rollup.config",
                Path,
                "",
                "rollup.json of the chain; with any --p2p.* option the core joins the swarm and follows its blocks, unless a rollup node drives it",
            )
            .env(&["STARLING_EXECUTION_ROLLUP_CONFIG"]),
            flag("p2p.unsafe.block.signer", Text, "", "Address whose blocks are followed; without it gossip is ignored"),
        ],
    },
    Section {
        title: "Development chain",
        program: Program::Starling,
        roles: &[Role::Execution],
        flags: &[flag("dev.period", Uint, "", "Make a block every so many seconds (Ethereum chains only)")],
    },
    Section {
        title: "Development network",
        program: Program::Starling,
        roles: &[Role::Devnet],
        flags: &[
            flag("replicas", Uint, "2", "Replicas beside the sequencer, at most 50").env(&["STARLING_DEVNET_REPLICAS"]),
            flag("datadir", Path, "", "Directory of the network's files, kept and resumed; none given is a temporary one")
                .env(&["STARLING_DEVNET_DATADIR"]),
            flag("l2.block-time", Uint, "2", "Seconds between L2 blocks").env(&["STARLING_DEVNET_L2_BLOCK_TIME"]),
            flag("l1.block-time", Uint, "6", "Seconds between L1 blocks").env(&["STARLING_DEVNET_L1_BLOCK_TIME"]),
            flag("base-port", Port, "", "First of the ports: each node takes ten, HTTP, WebSocket, peer-to-peer, metrics first")
                .env(&["STARLING_DEVNET_BASE_PORT"]),
            flag(
                "l1.genesis",
                Path,
                "",
                "Genesis file or alloc of an L1 with contracts of its own, .zst allowed; needs the next two",
            )
            .env(&["STARLING_DEVNET_L1_GENESIS"]),
            flag("l2.genesis", Path, "", "Genesis file of the L2, .zst allowed").env(&["STARLING_DEVNET_L2_GENESIS"]),
            flag("rollup.config", Path, "", "rollup.json of the two; all times and hashes in it are made new")
                .env(&["STARLING_DEVNET_ROLLUP_CONFIG"]),
            flag("p2p.sequencer.key.path", Path, "", "The sequencer's key, if it is that of no development account")
                .env(&["STARLING_DEVNET_P2P_SEQUENCER_KEY_PATH"]),
            flag("log.level", Text, "info", "Log level of the nodes, whose logs are files in the directory")
                .env(&["STARLING_DEVNET_LOG_LEVEL"]),
        ],
    },
];
