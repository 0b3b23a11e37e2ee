//! Process options, which op-batcher and op-proposer share. Inside the node's process, log and
//! metrics are those of the node.

use super::{Flag, Kind::*, flag};

const OWNED_BY_NODE: &str = "the log and the metrics are those of the node";
const NO_PROFILER: &str = "there is no profiler yet";

/// Options of the program's own RPC.
pub const RPC: &[Flag] = &[
    flag("rpc.addr", Text, "0.0.0.0", "Address of its RPC"),
    flag(
        "rpc.port",
        Port,
        "8545",
        "Port of its RPC. In the process of a node it is served only if this is given",
    ),
    flag(
        "rpc.enable-admin",
        Bool,
        "false",
        "Serve the namespaces admin and txmgr on its RPC",
    ),
];

/// Options of the log, the metrics server and the profiler.
macro_rules! process {
    ($($effect:tt)*) => {
        &[
            flag("log.level", Text, "INFO", "Lowest level that is logged: trace, debug, info, warn, error, crit, silent, or 5 to 0") $($effect)*,
            flag("log.format", Choice(&["text", "terminal", "logfmt", "json", "json-pretty"]), "text", "Format of log lines") $($effect)*,
            flag("log.color", Bool, "false", "Colour in the formats text and terminal") $($effect)*,
            flag("log.pid", Bool, "false", "Add the process id to every line") $($effect)*,
            flag("metrics.enabled", Bool, "false", "Serve metrics for Prometheus under /metrics") $($effect)*,
            flag("metrics.addr", Text, "0.0.0.0", "Address of the metrics server") $($effect)*,
            flag("metrics.port", Port, "7300", "Port of the metrics server; 0 is any free one") $($effect)*,
            flag("pprof.enabled", Bool, "false", "Serve profiles").no_effect(NO_PROFILER),
            flag("pprof.addr", Text, "0.0.0.0", "Address of the profile server").no_effect(NO_PROFILER),
            flag("pprof.port", Port, "6060", "Port of the profile server").no_effect(NO_PROFILER),
            flag("pprof.path", Path, "", "File or directory for profiles").no_effect(NO_PROFILER),
            flag(
                "pprof.type",
                Choice(&["cpu", "heap", "goroutine", "threadcreate", "block", "mutex", "allocs"]),
                "",
                "Kind of the profile",
            )
            .no_effect(NO_PROFILER),
        ]
    };
}

/// Process flags of a batcher or proposer that runs as a separate process.
pub const ALONE: &[Flag] = process!();
/// Process flags of a batcher or proposer that runs inside a node. Log and metrics flags have no
/// effect there.
pub const IN_NODE: &[Flag] = process!(.no_effect(OWNED_BY_NODE));
