//! Options of a batcher, with op-batcher's names. Its transaction options are in [`super::txmgr`].

use super::{Flag, Kind::*, Program, Role, Section, flag, process};

const NO_ALTDA: &str =
    "data goes to L1 alone; leave it out, and use op-batcher for a chain with Alt-DA";
const NO_DA_SERVER: &str = "data goes to L1 alone";

const BOTH: &[Role] = &[Role::Batcher, Role::Node];

const fn section(title: &'static str, roles: &'static [Role], flags: &'static [Flag]) -> Section {
    Section {
        title,
        program: Program::OpBatcher,
        roles,
        flags,
    }
}

/// Options for the addresses of L2 nodes, which a batcher in the node's process does not use.
macro_rules! l2 {
    ($($effect:tt)*) => {
        &[
            flag("l2-eth-rpc", List, "", "JSON-RPC endpoints of L2 execution clients, as many as --rollup-rpc has") $($effect)*,
            flag("rollup-rpc", List, "", "JSON-RPC endpoints of rollup nodes; of several, the active sequencer's is used") $($effect)*,
            flag("active-sequencer-check-duration", Duration, "5s", "Interval at which the active sequencer is looked up") $($effect)*,
        ]
    };
}

pub const SECTIONS: &[Section] = &[
    section(
        "L1",
        BOTH,
        &[flag(
            "l1-eth-rpc",
            Text,
            "",
            "JSON-RPC endpoint of an L1 execution client, or several, separated by commas. In the process of a node the default is --l1",
        )],
    ),
    section("L2", &[Role::Batcher], l2!()),
    section(
        "L2",
        &[Role::Node],
        l2!(.no_effect("the batcher reads the blocks of this process")),
    ),
    section(
        "Batches",
        BOTH,
        &[
            flag("poll-interval", Duration, "6s", "Interval of reads of L2"),
            flag(
                "sub-safety-margin",
                Uint,
                "10",
                "L1 blocks by which a channel closes before its timeout or the end of the sequencing window",
            ),
            flag(
                "max-pending-tx",
                Uint,
                "1",
                "Transactions in flight; 0 is 64",
            ),
            flag(
                "max-channel-duration",
                Uint,
                "0",
                "L1 blocks for which a channel stays open; 0 is no limit",
            ),
            flag(
                "max-l1-tx-size-bytes",
                Uint,
                "120000",
                "Most bytes of a calldata transaction; not read with blobs or auto",
            ),
            flag(
                "max-blocks-per-span-batch",
                Uint,
                "0",
                "Most blocks of a span batch; 0 is no limit",
            ),
            flag(
                "target-num-frames",
                Uint,
                "1",
                "Frames of a channel, and blobs of a transaction",
            ),
            flag(
                "approx-compr-ratio",
                Float,
                "0.6",
                "Compression ratio that the compressor ratio assumes",
            ),
            flag(
                "compressor",
                Choice(&["none", "ratio", "shadow"]),
                "shadow",
                "Measure of how full a channel is: shadow compresses twice, ratio assumes --approx-compr-ratio, none does not compress",
            ),
            flag(
                "compression-algo",
                Choice(&["zlib", "brotli", "brotli-9", "brotli-10", "brotli-11"]),
                "zlib",
                "Compression of channels; brotli needs Fjord, and brotli alone is brotli-10",
            ),
            flag(
                "stopped",
                Bool,
                "false",
                "Post nothing until admin_startBatcher",
            ),
            flag(
                "batch-type",
                Uint,
                "0",
                "0 is singular batches, 1 is span batches",
            ),
            flag(
                "data-availability-type",
                Choice(&["calldata", "blobs", "auto"]),
                "calldata",
                "Place of the data on L1; auto takes whichever is cheaper",
            ),
            flag(
                "check-recent-txs-depth",
                Uint,
                "0",
                "L1 blocks that are searched at start for transactions of the batcher, at most 128",
            ),
            flag(
                "wait-node-sync",
                Bool,
                "false",
                "Wait at start until the rollup node has read L1 to its head",
            ),
        ],
    ),
    section(
        "Throttling",
        BOTH,
        &[
            flag(
                "throttle.unsafe-da-bytes-lower-threshold",
                Uint,
                "3200000",
                "Unposted bytes above which blocks are limited; 0 disables it",
            ),
            flag(
                "throttle.unsafe-da-bytes-upper-threshold",
                Uint,
                "12800000",
                "Unposted bytes at which the limits are lowest",
            ),
            flag(
                "throttle.tx-size-lower-limit",
                Uint,
                "150",
                "Lowest limit of a transaction, bytes; 0 never limits transactions",
            ),
            flag(
                "throttle.tx-size-upper-limit",
                Uint,
                "20000",
                "Limit of a transaction as throttling begins, bytes",
            ),
            flag(
                "throttle.block-size-lower-limit",
                Uint,
                "2000",
                "Lowest limit of a block, bytes; 0 never limits blocks",
            ),
            flag(
                "throttle.block-size-upper-limit",
                Uint,
                "130000",
                "Limit of a block without throttling, bytes",
            ),
            flag(
                "throttle.controller-type",
                Choice(&["step", "linear", "quadratic", "pid"]),
                "quadratic",
                "How the limits follow unposted bytes between the thresholds; pid is experimental",
            ),
            flag("throttle.pid-kp", Float, "0.33", "Proportional gain of pid"),
            flag("throttle.pid-ki", Float, "0.01", "Integral gain of pid"),
            flag("throttle.pid-kd", Float, "0.05", "Derivative gain of pid"),
            flag(
                "throttle.pid-integral-max",
                Float,
                "1000",
                "Largest integral of pid",
            ),
            flag(
                "throttle.pid-output-max",
                Float,
                "1",
                "Largest intensity of pid, at most 1",
            ),
            flag(
                "throttle.pid-sample-time",
                Duration,
                "2s",
                "Interval of readings of pid",
            ),
            flag(
                "throttle.additional-endpoints",
                List,
                "",
                "Builders that get the limits, besides --l2-eth-rpc",
            ),
            flag(
                "throttle-threshold",
                Uint,
                "1000000",
                "Old name of --throttle.unsafe-da-bytes-lower-threshold",
            )
            .hidden(),
            flag(
                "throttle-tx-size",
                Uint,
                "5000",
                "Old name of --throttle.tx-size-lower-limit",
            )
            .hidden(),
            flag(
                "throttle-block-size",
                Uint,
                "21000",
                "Old name of --throttle.block-size-lower-limit",
            )
            .hidden(),
            flag(
                "throttle-always-block-size",
                Uint,
                "130000",
                "Old name of --throttle.block-size-upper-limit",
            )
            .hidden(),
        ],
    ),
    section(
        "Alt-DA",
        BOTH,
        &[
            flag("altda.enabled", Bool, "false", "Post data on a DA server").refused(NO_ALTDA),
            flag("altda.da-server", Url, "", "Base URL of the DA server").no_effect(NO_DA_SERVER),
            flag(
                "altda.da-service",
                Bool,
                "false",
                "The DA server makes the commitments",
            )
            .no_effect(NO_DA_SERVER),
            flag(
                "altda.verify-on-read",
                Bool,
                "true",
                "Check data against its commitment",
            )
            .no_effect(NO_DA_SERVER),
            flag(
                "altda.get-timeout",
                Duration,
                "0s",
                "Time limit of a read; 0 is none",
            )
            .no_effect(NO_DA_SERVER),
            flag(
                "altda.put-timeout",
                Duration,
                "0s",
                "Time limit of a write; 0 is none",
            )
            .no_effect(NO_DA_SERVER),
            flag(
                "altda.max-concurrent-da-requests",
                Uint,
                "1",
                "DA requests in flight",
            )
            .no_effect(NO_DA_SERVER),
        ],
    ),
    section("RPC", BOTH, process::RPC),
    section("Process", &[Role::Batcher], process::ALONE),
    section("Process", &[Role::Node], process::IN_NODE),
];
