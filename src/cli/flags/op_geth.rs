//! Options of an execution client, with op-geth's names.

use super::{Flag, Kind::*, Program, Role, Section, flag};

const NO_ENGINE_API: &str = "the rollup node is in this process and needs no Engine API";
pub(super) const NO_DEVP2P: &str = "blocks travel over the rollup node's swarm, there is no devp2p";
const NO_HISTORY_LIMIT: &str = "blocks, receipts and the index of transactions are never pruned";
const OWN_STORE: &str = "there is one database and one state scheme";
pub(super) const NO_PROFILER: &str = "there is no profiler yet";
const NO_INTEROP: &str =
    "interop messages are not checked; leave it out, and keep op-geth for a chain with interop";
const ETHEREUM_FORK: &str = "an OP Stack fork brings this Ethereum fork; use --override.ecotone for Cancun and --override.karst for Osaka";

pub(super) const BOTH: &[Role] = &[Role::Node, Role::Execution];

pub(super) const fn section(
    title: &'static str,
    roles: &'static [Role],
    flags: &'static [Flag],
) -> Section {
    Section {
        title,
        program: Program::OpGeth,
        roles,
        flags,
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
        "Data",
        &[Role::Node, Role::Execution, Role::Init, Role::Import, Role::Export, Role::Db],
        &[flag("datadir", Path, "~/.starling", "Data directory, created by `starling init`")],
    ),
    section(
        "Cache",
        &[Role::Node, Role::Execution, Role::Import, Role::Export, Role::Db],
        &[flag(
            "cache",
            Uint,
            "128",
            "Memory for the database, in megabytes. A quarter is set aside for write buffers, which use up to 50 MB at any setting. op-geth's 4096 is more than this node needs",
        )],
    ),
    section(
        "History",
        &[Role::Node, Role::Execution, Role::Import, Role::Db],
        &[
            flag("gcmode", Choice(&["full", "archive"]), "full", "full keeps the states of --history.state blocks, archive keeps all"),
            flag("history.state", Uint, "302400", "Blocks below the head whose states are kept; 0 is all"),
            flag(
                "history.logs",
                Uint,
                "2350000",
                "Blocks below the head whose logs are indexed for eth_getLogs; 0 is all. Other blocks are searched by their headers",
            ),
            flag("history.logs.disable", Bool, "false", "Index no logs"),
            flag(
                "cache.preimages",
                Bool,
                "false",
                "Keep the addresses and slots that blocks change from now on: debug_preimage finds them, and dumps name accounts by them",
            ),
        ],
    ),
    section(
        "Storage of op-geth",
        &[Role::Init, Role::Import, Role::Export],
        &[
            flag("datadir.ancient", Path, "", "Directory of old blocks").no_effect(OWN_STORE),
            flag("db.engine", Text, "pebble", "Database engine").no_effect(OWN_STORE),
            flag("state.scheme", Choice(&["hash", "path"]), "", "State scheme").no_effect(OWN_STORE),
        ],
    ),
    section(
        "Log",
        &[Role::Execution, Role::Init, Role::Import, Role::Export, Role::Db],
        &[
            flag("verbosity", Uint, "3", "Lowest level that is logged: 0 silent, 1 error, 2 warn, 3 info, 4 debug, 5 trace"),
            flag("log.format", Choice(&["terminal", "logfmt", "json"]), "", "Format of log lines. Default: terminal"),
            flag("log.json", Bool, "false", "Deprecated in geth: --log.format=json").hidden(),
        ],
    ),
    section(
        "Storage",
        BOTH,
        &[
            flag("datadir.ancient", Path, "", "Directory of old blocks").no_effect(OWN_STORE),
            flag("db.engine", Text, "pebble", "Database engine").no_effect(OWN_STORE),
            flag("state.scheme", Choice(&["hash", "path"]), "", "State scheme").no_effect(OWN_STORE),
            flag("snapshot", Bool, "true", "Keep a flat copy of the state").no_effect("the state is always kept flat"),
            flag("history.transactions", Uint, "2350000", "Blocks to index transactions of; 0 is all")
                .no_effect(NO_HISTORY_LIMIT),
            flag("history.chain", Choice(&["all", "postmerge"]), "all", "Blocks to keep").no_effect(NO_HISTORY_LIMIT),
            flag("config", Path, "", "TOML file with more configuration")
                .refused("configuration files are not read; give their settings as options"),
            flag("networkid", Uint, "0", "Network id").no_effect("the network id is the genesis' chain id"),
            flag("op-network", Text, "", "Known network that the data directory must hold, and whose fork times apply; see `starling networks list`")
                .aliases(&["beta.op-network"]),
            flag("syncmode", Choice(&["snap", "full"]), "snap", "Sync mode").no_effect("every block is executed"),
        ],
    ),
    section(
        "JSON-RPC",
        BOTH,
        &[
            flag("http", Bool, "false", "Serve JSON-RPC over HTTP"),
            flag("http.addr", Text, "localhost", "Address of the HTTP server"),
            flag("http.port", Port, "8545", "Port of the HTTP server; 0 is any free one"),
            flag(
                "http.api",
                List,
                "",
                "Namespaces over HTTP: eth, net, web3, debug, trace, ots, txpool, opp2p, miner, admin, testing, starling, optimism, health. Default: eth, net, web3",
            ),
            flag("http.corsdomain", List, "", "Origins that browsers may call from; * is any"),
            flag("http.vhosts", List, "localhost", "Host names the HTTP server answers to; * is any"),
            flag("http.rpcprefix", Text, "", "Prefix of the paths on which HTTP is served, such as /rpc; / is any path. Default: the path / alone"),
            flag("ws", Bool, "false", "Serve JSON-RPC over WebSocket"),
            flag("ws.addr", Text, "localhost", "Address of the WebSocket server"),
            flag("ws.port", Port, "8546", "Port of the WebSocket server; 0 is any free one"),
            flag("ws.api", List, "", "Namespaces over WebSocket, from the same list as --http.api. Default: eth, net, web3"),
            flag("ws.origins", List, "", "Origins that browsers may connect from; * is any"),
            flag("ws.rpcprefix", Text, "", "Prefix of the paths on which WebSockets are served, as --http.rpcprefix"),
            flag("rpc.allow-unprotected-txs", Bool, "false", "Accept transactions without a chain id (EIP-155)"),
            flag("rpc.batch-request-limit", Uint, "1000", "Requests in a batch; 0 is no limit"),
            flag("rpc.batch-response-max-size", Uint, "25000000", "Bytes in the response to a batch; 0 is no limit"),
            flag("rpc.gascap", Uint, "50000000", "Gas of eth_call and eth_estimateGas; 0 is no limit"),
            flag(
                "rpc.evmtimeout",
                Duration,
                "5s",
                "Time limit of eth_call and other expensive methods, time in the queue included; 0 is no limit",
            ),
            flag("rpc.txfeecap", Float, "1", "Highest fee of a submitted transaction, in ether; 0 is no limit"),
            flag("graphql", Bool, "false", "Serve GraphQL").no_effect("there is no GraphQL"),
            flag("rpc.rangelimit", Uint, "0", "Largest difference between the last and the first block of a log query; 0 applies --rpc.max-blocks-per-filter"),
            flag("rpc.logquerylimit", Uint, "1000", "Addresses, and topics in each position, of a log query; 0 is no limit"),
            flag("rpc.txsync.defaulttimeout", Duration, "20s", "Time that eth_sendRawTransactionSync waits for a receipt if the call names none"),
            flag("rpc.txsync.maxtimeout", Duration, "1m", "Longest wait that a call of eth_sendRawTransactionSync may request"),
            flag("ipcdisable", Bool, "false", "Open no local socket"),
            flag("ipcpath", Path, "", "Path of the local socket, which serves every namespace to the owner of its file; a name alone is in --datadir (without it: geth.ipc)"),
        ],
    ),
    section(
        "Engine API",
        &[Role::Execution],
        &[
            flag("authrpc.addr", Text, "localhost", "Address of the Engine API, over HTTP and WebSocket"),
            flag("authrpc.port", Port, "8551", "Port of the Engine API; 0 is any free one"),
            flag("authrpc.vhosts", List, "localhost", "Host names the Engine API answers to; * is any"),
            flag(
                "authrpc.jwtsecret",
                Path,
                "",
                "File with the JWT secret that the rollup node shares (32 bytes in hex), created if absent. Default: geth/jwtsecret in --datadir",
            ),
            flag(
                "rollup.halt",
                Choice(&["major", "minor", "patch", "none"]),
                "none",
                "Stop when the rollup node requires a protocol version whose major, minor or patch number is newer",
            ),
        ],
    ),
    section(
        "Engine API",
        &[Role::Node],
        &[
            flag("authrpc.addr", Text, "localhost", "Address of the Engine API").no_effect(NO_ENGINE_API),
            flag("authrpc.port", Port, "8551", "Port of the Engine API").no_effect(NO_ENGINE_API),
            flag("authrpc.vhosts", List, "localhost", "Host names the Engine API answers to").no_effect(NO_ENGINE_API),
            flag("authrpc.jwtsecret", Path, "", "File with the Engine API's secret").no_effect(NO_ENGINE_API),
            flag("rollup.halt", Choice(&["major", "minor", "patch", "none"]), "none", "Stop when a newer protocol is signalled")
                .no_effect("required protocol versions are not read from L1: follow the chain's upgrade notices"),
        ],
    ),
    section(
        "Transactions",
        BOTH,
        &[
            flag("rollup.sequencerhttp", Url, "", "RPC of the sequencer, to which submitted transactions are forwarded")
                .aliases(&["rollup.sequencer"]),
            flag("rollup.disabletxpoolgossip", Bool, "false", "Do not gossip transactions")
                .aliases(&["rollup.txpool.disable-gossip"])
                .no_effect("they are never gossiped"),
            flag(
                "rollup.enabletxpooladmission",
                Bool,
                "false",
                "Keep forwarded transactions in the local pool as well, so that pending nonces count them and they are found by hash",
            )
            .aliases(&["rollup.txpool.enable-admission"]),
            flag(
                "rollup.computependingblock",
                Bool,
                "false",
                "Let `pending` mean a block of the pool's transactions on the latest one, instead of the latest block; costs a block's gas every two seconds while it is asked for",
            ),
            flag("rollup.historicalrpc", Url, "", "RPC that answers for blocks before Bedrock, on a chain whose first block here is not block 0"),
            flag("rollup.historicalrpctimeout", Duration, "5s", "Time limit of requests to --rollup.historicalrpc"),
            flag("rollup.superchain-upgrades", Bool, "true", "Take fork times from the registry")
                .aliases(&["beta.rollup.superchain-upgrades"])
                .no_effect("fork times come from the genesis, or from the network that is named"),
            flag("rollup.interoprpc", Url, "", "RPC that checks interop messages").refused(NO_INTEROP),
            flag("rollup.interopmempoolfiltering", Bool, "false", "Check interop messages in the pool").refused(NO_INTEROP),
            flag("rollup.sequencertxconditionalenabled", Bool, "false", "Serve eth_sendRawTransactionConditional"),
            flag("rollup.sequencertxconditionalcostratelimit", Uint, "5000", "Cost of the conditions that eth_sendRawTransactionConditional checks in a second"),
            flag("txpool.journal", Path, "transactions.rlp", "File that keeps transactions sent to this node over a restart; a path that is not absolute is below geth in --datadir; empty is none"),
            flag("txpool.rejournal", Duration, "1h0m0s", "Interval at which the journal is rewritten without mined transactions"),
            flag("txpool.locals", List, "", "Accounts whose transactions the journal keeps also with --txpool.nolocals"),
            flag("txpool.lifetime", Duration, "3h0m0s", "Time after which a queued transaction is dropped"),
            flag("txpool.globalslots", Uint, "5120", "Executable transactions in the pool"),
            flag("txpool.globalqueue", Uint, "1024", "Queued transactions in the pool"),
            flag("txpool.accountslots", Uint, "16", "Executable transactions that each account keeps when the pool is full"),
            flag("txpool.accountqueue", Uint, "64", "Queued transactions of one account"),
            flag("txpool.pricelimit", Uint, "1", "Lowest tip that the pool accepts, in wei"),
            flag("txpool.pricebump", Uint, "10", "Percent by which a replacement transaction must pay more"),
            flag("txpool.nolocals", Bool, "false", "Keep in the journal only transactions of --txpool.locals"),
            flag("txpool.maxtxgas", Uint, "0", "Gas limit of a transaction; 0 is no limit"),
            flag("gpo.blocks", Uint, "20", "Recent blocks from which a tip is suggested on an Ethereum chain"),
            flag("gpo.percentile", Uint, "60", "Percentile of the tips in those blocks that is suggested"),
            flag("gpo.maxprice", Uint, "500000000000", "Highest suggested tip, in wei"),
            flag("gpo.ignoreprice", Uint, "2", "Tips below this are ignored on an Ethereum chain, in wei"),
            flag("gpo.minsuggestedpriorityfee", Uint, "1000000", "Lowest suggested tip on an OP Stack chain, in wei"),
        ],
    ),
    section(
        "Execution client, other",
        BOTH,
        &[
            fork("override.canyon"),
            fork("override.ecotone"),
            fork("override.fjord"),
            fork("override.granite"),
            fork("override.holocene"),
            fork("override.isthmus"),
            fork("override.interop"),
            fork("override.jovian"),
            fork("override.karst"),
            fork("override.cancun").refused(ETHEREUM_FORK),
            fork("override.osaka").refused(ETHEREUM_FORK),
            flag("bootnodes", List, "", "Bootnodes of devp2p").no_effect(NO_DEVP2P),
            flag("discovery.port", Port, "30303", "UDP port of discovery").no_effect(NO_DEVP2P),
            flag("discovery.v4", Bool, "false", "Use discovery version 4").aliases(&["discv4"]).no_effect(NO_DEVP2P),
            flag("discovery.v5", Bool, "true", "Use discovery version 5").aliases(&["discv5"]).no_effect(NO_DEVP2P),
            flag("discovery.dns", List, "", "DNS lists of nodes").no_effect(NO_DEVP2P),
            flag("maxpeers", Uint, "50", "Most peers").no_effect(NO_DEVP2P),
            flag("port", Port, "30303", "TCP port").no_effect(NO_DEVP2P),
            flag("nat", Text, "any", "Port mapping").no_effect(NO_DEVP2P),
            flag("netrestrict", List, "", "Connect only within these networks (CIDR)").refused(
                "there is no devp2p, and the swarm would connect to other networks too; restrict it with --p2p.netrestrict",
            ),
            flag("nodekey", Path, "", "File with the devp2p key").no_effect(NO_DEVP2P),
            flag("nodekeyhex", Secret, "", "The devp2p key").no_effect(NO_DEVP2P),
            flag("nodiscover", Bool, "false", "Turn devp2p discovery off").no_effect(NO_DEVP2P),
            flag("pprof", Bool, "false", "Serve profiles").no_effect(NO_PROFILER),
            flag("pprof.addr", Text, "127.0.0.1", "Address of the profile server").no_effect(NO_PROFILER),
            flag("pprof.port", Port, "6060", "Port of the profile server").no_effect(NO_PROFILER),
            flag("log.file", Path, "", "File to log to").no_effect("the log goes to standard error"),
        ],
    ),
    section(
        "Execution client, metrics",
        &[Role::Execution],
        &[
            flag("metrics", Bool, "false", "Serve metrics for Prometheus under /metrics"),
            flag("metrics.addr", Text, "", "Address of the metrics server. Default: 127.0.0.1"),
            flag("metrics.port", Port, "6060", "Port of the metrics server; 0 is any free one"),
        ],
    ),
];
