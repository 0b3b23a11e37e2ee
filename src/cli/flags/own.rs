//! Options that Starling defines itself, instead of taking them over from op-node, op-geth,
//! op-batcher or op-proposer. Some have the name of another client's option.

use super::{Kind::*, Program, Role, Section, flag};

pub const SECTIONS: &[Section] = &[
    Section {
        title: "Batcher and proposer",
        program: Program::Starling,
        roles: &[Role::Node],
        flags: &[
            flag("batcher.enabled", Bool, "false", "Run a batcher in this process; its options are --batcher.*"),
            flag("proposer.enabled", Bool, "false", "Run a proposer in this process; its options are --proposer.*"),
        ],
    },
    Section {
        title: "L1",
        program: Program::Starling,
        roles: &[Role::Node, Role::Rollup],
        flags: &[flag(
            "l1.beacon-fallback-header",
            List,
            "",
            "Header of requests to a fallback of --l1.beacon-fallbacks, as 'HOST=X-Key: Value' with the fallback's host (and port)",
        )],
    },
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
                "Connections of all public RPC endpoints together. At the limit a new connection closes the longest idle one. \
                 The limit of open files (ulimit -Hn) may lower it",
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
        title: "Pending block",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution],
        flags: &[flag(
            "flashblocks-url",
            Url,
            "",
            "WebSocket with the sequencer's flashblocks (ws:// or wss://). `pending` then means the newest one, in every method; \
             without one that builds on our chain it is the latest block",
        )],
    },
    Section {
        title: "Keys and budgets",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution],
        flags: &[flag(
            "rpc.limits",
            Path,
            "",
            "TOML file with the keys of HTTP and WebSocket clients, their namespaces and methods, the cost of each method, and \
             the budgets of keys and addresses; see README.md. Without it everybody is served and calls are not counted",
        )],
    },
    Section {
        title: "Log queries and traces",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution],
        flags: &[
            flag(
                "rpc.max-blocks-per-filter",
                Uint,
                "100000",
                "Blocks in the range of eth_getLogs, as op-reth has it; 0 is no limit",
            ),
            flag(
                "rpc.max-logs-per-response",
                Uint,
                "20000",
                "Logs in one answer of eth_getLogs; the error for more names the widest range that works. 0 is no limit",
            ),
            flag(
                "rpc.max-trace-filter-blocks",
                Uint,
                "100",
                "Blocks between the first and the last one of trace_filter, as op-reth has it; 0 is no limit",
            ),
            flag(
                "rpc.jstracers",
                Bool,
                "true",
                "Run tracers that are scripts in JavaScript, each in a process with 128 MB of memory. They are served with the debug namespace only",
            ),
        ],
    },
    Section {
        title: "Search by address",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution, Role::Import, Role::Db],
        flags: &[flag(
            "index.addresses",
            Bool,
            "false",
            "Index transactions by sender, recipient, created contract and contracts that log, for ots_searchTransactionsBefore \
             and ots_searchTransactionsAfter. An existing directory is indexed in the background; without the option the index is dropped",
        )],
    },
    Section {
        title: "Proofs",
        program: Program::Starling,
        roles: &[Role::Node, Role::Execution, Role::Import, Role::Db],
        flags: &[flag(
            "proofs.max-size",
            Size,
            "20GB",
            "Disk space for the trie history that answers eth_getProof at old blocks, in archive mode too; 0 is no limit. \
             Withdrawal proofs are kept for 604800 blocks at any setting",
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
            "Longest time between two syncs of the database to disk. A power cut may lose the blocks of that time, which are \
             fetched again; a killed process loses none. Blocks that a sequencer signs are synced at once",
        )
        .env(&["STARLING_COMMIT_INTERVAL"])],
    },
    Section {
        title: "Data",
        program: Program::Starling,
        roles: &[Role::Rollup],
        flags: &[flag(
            "datadir",
            Path,
            "starling-rollup",
            "Directory of its records: safe heads, blocks that it signed, scores of peers. Created if absent. A sequencer must keep it",
        )
        .env(&["STARLING_ROLLUP_DATADIR"])],
    },
    Section {
        title: "Genesis",
        program: Program::Starling,
        roles: &[Role::Init],
        flags: &[
            flag("rollup.config", Path, "", "rollup.json of the chain, for a genesis file whose config is null")
                .env(&["STARLING_INIT_ROLLUP_CONFIG"]),
            flag("network", Text, "", "Known network of the genesis file, instead of --rollup.config; see `starling networks list`")
                .aliases(&["op-network", "beta.op-network"])
                .env(&["STARLING_INIT_NETWORK"]),
        ],
    },
    Section {
        title: "Fork overrides",
        program: Program::Starling,
        roles: &[Role::Execution],
        flags: &[
            flag("override.delta", Uint, "", "As --override.canyon, for Delta, which op-geth does not know"),
        ],
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
                "rollup.json of the chain. With any --p2p.* option the core joins the swarm and follows its blocks, unless a rollup node drives it",
            )
            .env(&["STARLING_EXECUTION_ROLLUP_CONFIG"]),
            flag("p2p.unsafe.block.signer", Text, "", "Address of the block signer; without it gossiped blocks are ignored"),
        ],
    },
    Section {
        title: "Development chain",
        program: Program::Starling,
        roles: &[Role::Execution],
        flags: &[
            flag("dev.period", Uint, "", "Seconds between blocks that this core makes itself (Ethereum chains only)"),
            flag(
                "dev.beacon.port",
                Port,
                "",
                "Serve the blobs of these blocks on this port, by the paths of the Beacon API that rollup nodes read (--l1.beacon)",
            ),
            flag("dev.beacon.addr", Text, "127.0.0.1", "Address of --dev.beacon.port"),
        ],
    },
    Section {
        title: "Development network",
        program: Program::Starling,
        roles: &[Role::Devnet],
        flags: &[
            flag("replicas", Uint, "2", "Replicas beside the sequencer, at most 50").env(&["STARLING_DEVNET_REPLICAS"]),
            flag("datadir", Path, "", "Directory of the network, kept and resumed. Default: a temporary one, removed at the end")
                .env(&["STARLING_DEVNET_DATADIR"]),
            flag("l2.block-time", Uint, "2", "Seconds between L2 blocks").env(&["STARLING_DEVNET_L2_BLOCK_TIME"]),
            flag("l1.block-time", Uint, "6", "Seconds between L1 blocks").env(&["STARLING_DEVNET_L1_BLOCK_TIME"]),
            flag("genesis.age", Uint, "0", "Seconds from the genesis of a new network until now: the sequencer makes the blocks of that time first, as fast as it can")
                .env(&["STARLING_DEVNET_GENESIS_AGE"]),
            flag("base-port", Port, "", "First port of the network. Each node gets ten ports; the first six are HTTP, WebSocket, peer-to-peer, metrics, the RPC of the rollup node (or batcher, proposer), and the Beacon API of the L1")
                .env(&["STARLING_DEVNET_BASE_PORT"]),
            flag(
                "l1.genesis",
                Path,
                "",
                "Genesis file (or its alloc) of an L1 with your own contracts, .zst allowed; needs --l2.genesis and --rollup.config",
            )
            .env(&["STARLING_DEVNET_L1_GENESIS"]),
            flag("l2.genesis", Path, "", "Genesis file of the L2, .zst allowed").env(&["STARLING_DEVNET_L2_GENESIS"]),
            flag("rollup.config", Path, "", "rollup.json of that L1 and L2; its times and hashes are replaced")
                .env(&["STARLING_DEVNET_ROLLUP_CONFIG"]),
            flag("p2p.sequencer.key.path", Path, "", "File with the sequencer's key, unless it is that of a development account")
                .env(&["STARLING_DEVNET_P2P_SEQUENCER_KEY_PATH"]),
            flag("batcher", Bool, "true", "Run a batcher, so that blocks become safe").env(&["STARLING_DEVNET_BATCHER"]),
            flag("proposer", Bool, "true", "Run a proposer, so that withdrawals can be proven").env(&["STARLING_DEVNET_PROPOSER"]),
            flag("proposer.game-type", Uint, "1", "Type of the proposer's dispute games, on your own contracts")
                .env(&["STARLING_DEVNET_PROPOSER_GAME_TYPE"]),
            flag("log.level", Text, "info", "Log level of the nodes; each logs to a file in --datadir")
                .env(&["STARLING_DEVNET_LOG_LEVEL"]),
        ],
    },
];
