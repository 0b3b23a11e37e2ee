//! Options of op-geth without a meaning here, accepted so that its command lines keep working.
//! Options that would do harm if ignored are refused.

use super::{
    Kind::*,
    Role, Section, flag,
    op_geth::{BOTH, NO_DEVP2P, NO_PROFILER, section},
};

const NO_ACCOUNTS: &str = "this node keeps no accounts: wallets sign for themselves";
const NO_CONSOLE: &str = "there is no JavaScript console; connect a client to the local socket";
const NO_LIGHT_CLIENT: &str = "there is no light client of the beacon chain";
const NO_LOG_FILE: &str = "the log goes to standard error";
const NO_INFLUX: &str = "metrics are served for Prometheus alone (--metrics)";
const ONE_CACHE: &str = "the node divides --cache by itself";
const NO_BLOB_POOL: &str = "only a development L1 has blob transactions, and keeps them in memory";
const FIXED_BLOCKS: &str = "the rollup node and SystemConfig decide this for each block";
const NO_TX_GOSSIP: &str = "transactions are never gossiped";
const NO_REMOTE_DB: &str = "only the database in --datadir is used";
const NO_PROFILES: &str = "there are no profiles; use --metrics and the log";
const NO_TELEMETRY: &str = "there are no traces over OpenTelemetry; use --metrics and the log";
const NO_MINING: &str =
    "the sequencer alone makes blocks, and the rollup node names their fee recipient";
const NO_USB: &str = "this node uses no hardware wallets";
const IMPORT_HAS_NO_METRICS: &str = "an import serves no metrics; its log shows the progress";

/// Roles that execute blocks, one of them from files.
const WITH_IMPORT: &[Role] = &[Role::Node, Role::Execution, Role::Import];

const USE_TRACERS: &str = "use debug_traceTransaction or debug_traceBlockByNumber";
const OTHER_CHAIN: &str =
    "an Ethereum network is not followed; name an OP Stack network with --op-network";
const NO_SYNC_END: &str =
    "the node follows the chain until it is stopped; ask eth_syncing whether it has caught up";

pub const SECTIONS: &[Section] = &[
    section(
        "Accounts and console",
        BOTH,
        &[
            flag("keystore", Path, "", "Directory of keys").no_effect(NO_ACCOUNTS),
            flag("lightkdf", Bool, "false", "Derive keys with less work").no_effect(NO_ACCOUNTS),
            flag("password", Path, "", "File of passwords").no_effect(NO_ACCOUNTS),
            flag("pcscdpath", Path, "/run/pcscd/pcscd.comm", "Socket of the smartcard daemon").no_effect(NO_ACCOUNTS),
            flag("signer", Text, "", "External signer").no_effect(NO_ACCOUNTS),
            flag("usb", Bool, "false", "Use hardware wallets").no_effect(NO_ACCOUNTS),
            flag("exec", Text, "", "Statement to execute").no_effect(NO_CONSOLE),
            flag("header", List, "", "Headers of the console's requests").no_effect(NO_CONSOLE),
            flag("jspath", Path, ".", "Directory of scripts").no_effect(NO_CONSOLE),
            flag("preload", List, "", "Scripts to load").no_effect(NO_CONSOLE),
            flag("remotedb", Url, "", "Remote database").no_effect(NO_CONSOLE),
            flag("graphql.corsdomain", List, "", "Origins that may use GraphQL").no_effect("there is no GraphQL"),
            flag("graphql.vhosts", List, "localhost", "Host names of GraphQL").no_effect("there is no GraphQL"),
        ],
    ),
    section(
        "Networks of Ethereum",
        BOTH,
        &[
            flag("mainnet", Bool, "false", "Ethereum Mainnet").refused(OTHER_CHAIN),
            flag("holesky", Bool, "false", "Holesky").refused(OTHER_CHAIN),
            flag("hoodi", Bool, "false", "Hoodi").refused(OTHER_CHAIN),
            flag("sepolia", Bool, "false", "Sepolia").refused(OTHER_CHAIN),
            flag("dev", Bool, "false", "Development network").refused("this command runs a node of an existing chain; use `starling devnet`"),
            flag("dev.gaslimit", Uint, "11500000", "Gas limit of the development network's first block")
                .no_effect("the genesis has the first gas limit"),
            flag("beacon.api", List, "", "Beacon nodes of the light client").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.api.header", List, "", "Headers of its requests").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.checkpoint", Text, "", "Its checkpoint").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.checkpoint.file", Path, "", "File of its checkpoint").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.config", Path, "", "Its chain configuration").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.genesis.gvroot", Text, "", "Its validators root").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.genesis.time", Uint, "0", "Its genesis time").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.nofilter", Bool, "false", "Take signatures of later slots").no_effect(NO_LIGHT_CLIENT),
            flag("beacon.threshold", Uint, "342", "Signatures it needs").no_effect(NO_LIGHT_CLIENT),
            flag("override.bpo1", Uint, "", "Activation time of BPO1").refused("blob parameters of L2 do not change; those of an L1 of your own are in its genesis"),
            flag("override.bpo2", Uint, "", "Activation time of BPO2").refused("blob parameters of L2 do not change; those of an L1 of your own are in its genesis"),
            flag("override.verkle", Uint, "", "Activation time of Verkle").refused("this build does not know the fork; leave it out"),
            flag("override.genesis", Path, "", "Genesis to begin with").refused("a data directory keeps its genesis; give the file to `starling init`"),
        ],
    ),
    section(
        "Blocks and transactions of op-geth",
        BOTH,
        &[
            flag("eth.requiredblocks", List, "", "Blocks that peers must have").no_effect(NO_DEVP2P),
            flag("identity", Text, "", "Name among peers").no_effect(NO_DEVP2P),
            flag("maxpendpeers", Uint, "0", "Most connections being made").no_effect(NO_DEVP2P),
            flag("exitwhensynced", Bool, "false", "Exit when the chain has been fetched").refused(NO_SYNC_END),
            flag("synctarget", Text, "", "Block to fetch the chain to").refused(NO_SYNC_END),
            flag("miner.effectivegaslimit", Uint, "0", "Gas that a sequencer's blocks use at most").refused("blocks have the gas limit of SystemConfig; lower it there"),
            flag("miner.extradata", Text, "", "Extra data of blocks").no_effect(FIXED_BLOCKS),
            flag("miner.gaslimit", Uint, "60000000", "Gas limit of blocks").no_effect(FIXED_BLOCKS),
            flag("miner.gasprice", Uint, "1", "Lowest tip in blocks").no_effect("set it with miner_setGasPrice"),
            flag("miner.maxblobs", Uint, "", "Blobs of a block at most").no_effect(FIXED_BLOCKS),
            flag("miner.pending.feeRecipient", Text, "", "Fee recipient of the pending block").no_effect(FIXED_BLOCKS),
            flag("miner.recommit", Duration, "2s", "Interval at which a block is built again").no_effect("a block is built again when the pool changes"),
            flag("rollup.txpool.netrestrict", List, "", "Peers of the pool").no_effect(NO_TX_GOSSIP),
            flag("rollup.txpool.trusted-peers-only", Bool, "false", "Gossip with trusted peers alone").no_effect(NO_TX_GOSSIP),
            flag("txpool.journalremotes", Bool, "false", "Keep transactions of others in the journal").no_effect(NO_TX_GOSSIP),
            flag("blobpool.datacap", Uint, "2684354560", "Bytes of the pool of blobs").no_effect(NO_BLOB_POOL),
            flag("blobpool.datadir", Path, "blobpool", "Directory of the pool of blobs").no_effect(NO_BLOB_POOL),
            flag("blobpool.pricebump", Uint, "100", "Percent by which a replacement must pay more").no_effect(NO_BLOB_POOL),
        ],
    ),
    section(
        "Resources of op-geth",
        WITH_IMPORT,
        &[
            flag("cache.blocklogs", Uint, "32", "Blocks whose logs are kept").no_effect(ONE_CACHE),
            flag("cache.database", Uint, "50", "Percent for the database").no_effect(ONE_CACHE),
            flag("cache.gc", Uint, "25", "Percent for tries to be written").no_effect(ONE_CACHE),
            flag("cache.noprefetch", Bool, "false", "Read no state ahead").no_effect(ONE_CACHE),
            flag("cache.snapshot", Uint, "10", "Percent for the flat state").no_effect(ONE_CACHE),
            flag("cache.trie", Uint, "15", "Percent for tries").no_effect(ONE_CACHE),
            flag("crypto.kzg", Text, "gokzg", "Library of KZG").no_effect("there is one library"),
            flag("datadir.era", Path, "", "Directory of era files").no_effect("old blocks are in the database"),
            flag("datadir.minfreedisk", Uint, "", "Free megabytes below which to stop")
                .no_effect("on a full disk the node stores nothing, waits for room and goes on"),
            flag("fdlimit", Uint, "0", "Most open files").no_effect("the limit of the system is used"),
            flag("history.trienode", Text, "-1", "Blocks whose trie nodes are kept").no_effect("--proofs.max-size bounds the trie history"),
            flag("history.trienode.full-value-checkpoint", Uint, "8", "Interval of full trie nodes")
                .no_effect("--proofs.max-size bounds the trie history"),
            flag("history.logs.export", Path, "", "Directory of log index checkpoints").no_effect("there are no checkpoints"),
            flag("state.size-tracking", Bool, "false", "Count the size of the state").no_effect("`starling db stats` counts it"),
            flag("stateless-self-validation", Bool, "false", "Execute from witnesses too").no_effect("debug_executionWitness makes them on request"),
        ],
    ),
    section(
        "Logging, profiling and metrics of op-geth",
        WITH_IMPORT,
        &[
            flag("ethstats", Text, "", "Server of ethstats").no_effect("there are no reports to ethstats"),
            flag("debug.logslowblock", Text, "", "Execution time from which a block is logged").no_effect("starling_* metrics show the execution times of blocks"),
            flag("go-execution-trace", Path, "", "File for Go's trace").no_effect(NO_PROFILER),
            flag("log.compress", Bool, "false", "Compress log files").no_effect(NO_LOG_FILE),
            flag("log.maxage", Uint, "30", "Days to keep log files").no_effect(NO_LOG_FILE),
            flag("log.maxbackups", Uint, "10", "Log files to keep").no_effect(NO_LOG_FILE),
            flag("log.maxsize", Uint, "100", "Megabytes of a log file").no_effect(NO_LOG_FILE),
            flag("log.rotate", Bool, "false", "Rotate log files").no_effect(NO_LOG_FILE),
            flag("log.vmodule", Text, "", "Levels of single modules").aliases(&["vmodule"]).no_effect("--verbosity is for all modules"),
            flag("metrics.influxdb", Bool, "false", "Send metrics to InfluxDB").no_effect(NO_INFLUX),
            flag("metrics.influxdb.bucket", Text, "geth", "Bucket").no_effect(NO_INFLUX),
            flag("metrics.influxdb.database", Text, "geth", "Database").no_effect(NO_INFLUX),
            flag("metrics.influxdb.endpoint", Text, "http://localhost:8086", "Endpoint").no_effect(NO_INFLUX),
            flag("metrics.influxdb.interval", Duration, "10s", "Interval").no_effect(NO_INFLUX),
            flag("metrics.influxdb.organization", Text, "geth", "Organization").no_effect(NO_INFLUX),
            flag("metrics.influxdb.password", Secret, "test", "Password").no_effect(NO_INFLUX),
            flag("metrics.influxdb.tags", Text, "host=localhost", "Tags").no_effect(NO_INFLUX),
            flag("metrics.influxdb.token", Secret, "test", "Token").no_effect(NO_INFLUX),
            flag("metrics.influxdb.username", Text, "test", "User").no_effect(NO_INFLUX),
            flag("metrics.influxdbv2", Bool, "false", "Send metrics to InfluxDB 2").no_effect(NO_INFLUX),
            flag("pprof.blockprofilerate", Uint, "0", "Rate of the block profile").no_effect(NO_PROFILER),
            flag("pprof.cpuprofile", Path, "", "File for the processor's profile").no_effect(NO_PROFILER),
            flag("pprof.memprofilerate", Uint, "524288", "Rate of the memory profile").no_effect(NO_PROFILER),
            flag("vmdebug", Bool, "false", "Record what the VM does").no_effect(USE_TRACERS),
            flag("vmtrace", Text, "", "Tracer of every block").no_effect(USE_TRACERS),
            flag("vmtrace.jsonconfig", Text, "{}", "Options of the tracer").no_effect(USE_TRACERS),
            flag("vmwitnessstats", Bool, "false", "Count what witnesses hold").no_effect(USE_TRACERS),
        ],
    ),
    section(
        "Telemetry of op-geth",
        BOTH,
        &[
            flag("pyroscope", Bool, "false", "Send profiles").no_effect(NO_PROFILES),
            flag("pyroscope.password", Secret, "", "Password").no_effect(NO_PROFILES),
            flag("pyroscope.server", Text, "http://localhost:4040", "Server").no_effect(NO_PROFILES),
            flag("pyroscope.tags", Text, "", "Tags").no_effect(NO_PROFILES),
            flag("pyroscope.username", Text, "", "User").no_effect(NO_PROFILES),
            flag("rpc.telemetry", Bool, "false", "Send traces of calls").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.endpoint", Text, "", "Endpoint").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.instance-id", Text, "", "Name of this node").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.password", Secret, "", "Password").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.sample-ratio", Float, "1", "Share of calls").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.tags", Text, "", "Tags").no_effect(NO_TELEMETRY),
            flag("rpc.telemetry.username", Text, "", "User").no_effect(NO_TELEMETRY),
        ],
    ),
    // geth itself accepts these without effect. Start scripts written for older versions have them.
    section(
        "Deprecated options of geth",
        BOTH,
        &[
            flag("allow-insecure-unlock", Bool, "false", "Unlock accounts beside HTTP").no_effect(NO_ACCOUNTS),
            flag("unlock", Text, "", "Accounts to unlock").no_effect(NO_ACCOUNTS),
            flag("rpc.enabledeprecatedpersonal", Bool, "false", "Serve the namespace personal").no_effect(NO_ACCOUNTS),
            flag("nousb", Bool, "false", "Use no hardware wallets").no_effect(NO_USB),
            flag("mine", Bool, "false", "Mine").no_effect(NO_MINING),
            flag("miner.etherbase", Text, "", "Fee recipient of mined blocks").no_effect(NO_MINING),
            flag("miner.newpayload-timeout", Duration, "2s", "Time to build a block").no_effect(NO_MINING),
            flag("v5disc", Bool, "false", "Use discovery version 5").no_effect(NO_DEVP2P),
            flag("whitelist", Text, "", "Blocks that peers must have").no_effect(NO_DEVP2P),
        ],
    ),
    section(
        "Deprecated options of geth",
        WITH_IMPORT,
        &[
            flag("cache.trie.journal", Text, "", "Directory of the trie cache's journal").no_effect(ONE_CACHE),
            flag("cache.trie.rejournal", Duration, "", "Interval of that journal").no_effect(ONE_CACHE),
            flag("log.backtrace", Text, "", "Stack traces in the log").no_effect("the log has no stack traces"),
            flag("log.debug", Bool, "false", "Places in the source in the log").no_effect("the log names no places in the source"),
            flag("metrics.expensive", Bool, "false", "Collect expensive metrics").no_effect("all metrics are cheap"),
            flag("txlookuplimit", Uint, "2350000", "Blocks to index transactions of").no_effect("the index of transactions is never pruned"),
        ],
    ),
    section(
        "Options of geth's tools",
        &[Role::Init, Role::Import, Role::Export],
        &[
            flag("remotedb", Url, "", "Remote database").no_effect(NO_REMOTE_DB),
            flag("header", List, "", "Headers of requests to --remotedb").no_effect(NO_REMOTE_DB),
        ],
    ),
    section(
        "Options of geth's tools",
        &[Role::Init, Role::Export],
        &[flag("datadir.era", Path, "", "Directory of era files").no_effect("old blocks are in the database")],
    ),
    section(
        "Options of geth's tools",
        &[Role::Init],
        &[
            flag("cache.preimages", Bool, "false", "Keep the addresses and slots of the genesis").no_effect("they are always kept"),
        ],
    ),
    section(
        "Options of geth's tools",
        &[Role::Import],
        &[
            flag("history.transactions", Uint, "2350000", "Blocks to index transactions of")
                .no_effect("the index of transactions is never pruned"),
            flag("nocompaction", Bool, "false", "Do not compact the database at the end").no_effect("there is no such compaction"),
            flag("snapshot", Bool, "true", "Keep a flat copy of the state").no_effect("the state is always kept flat"),
            flag("metrics", Bool, "false", "Serve metrics").no_effect(IMPORT_HAS_NO_METRICS),
            flag("metrics.addr", Text, "", "Address of the metrics server").no_effect(IMPORT_HAS_NO_METRICS),
            flag("metrics.port", Port, "6060", "Port of the metrics server").no_effect(IMPORT_HAS_NO_METRICS),
        ],
    ),
];
