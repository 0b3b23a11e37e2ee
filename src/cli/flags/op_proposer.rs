//! Options of a proposer, with op-proposer's names. Its transaction options are in
//! [`super::txmgr`].

use super::{Flag, Kind::*, Program, Role, Section, flag, process};

const BOTH: &[Role] = &[Role::Proposer, Role::Node];

const fn section(title: &'static str, roles: &'static [Role], flags: &'static [Flag]) -> Section {
    Section {
        title,
        program: Program::OpProposer,
        roles,
        flags,
    }
}

/// Options for the addresses of L2 nodes, which a proposer in the node's process does not use.
macro_rules! l2 {
    ($($effect:tt)*) => {
        &[
            flag("rollup-rpc", List, "", "JSON-RPC endpoints of rollup nodes; of several, the active sequencer's is used") $($effect)*,
            flag("active-sequencer-check-duration", Duration, "2m0s", "Interval at which the active sequencer is looked up") $($effect)*,
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
    section("L2", &[Role::Proposer], l2!()),
    section(
        "L2",
        &[Role::Node],
        l2!(.no_effect("the proposer reads the outputs of this process")),
    ),
    section(
        "Proposals",
        BOTH,
        &[
            flag(
                "supervisor-rpcs",
                List,
                "",
                "JSON-RPC endpoints of supervisors, for games on super roots; the first that answers is used",
            ),
            flag(
                "l2oo-address",
                Text,
                "",
                "Address of an L2OutputOracle; not with --game-factory-address",
            ),
            flag(
                "game-factory-address",
                Text,
                "",
                "Address of a DisputeGameFactory; needs --proposal-interval",
            ),
            flag(
                "game-type",
                Uint,
                "0",
                "Type of the games to create; 4 and 5 need --supervisor-rpcs",
            ),
            flag(
                "proposal-interval",
                Duration,
                "0s",
                "Least age of our last game, by L1's clock, before a new one",
            ),
            flag(
                "poll-interval",
                Duration,
                "12s",
                "Interval of checks for a new output",
            ),
            flag(
                "allow-non-finalized",
                Bool,
                "false",
                "Propose safe blocks that are not final yet",
            ),
            flag(
                "wait-node-sync",
                Bool,
                "false",
                "Wait at start until the rollup node has read L1 to its head",
            ),
        ],
    ),
    section("RPC", BOTH, process::RPC),
    section("Process", &[Role::Proposer], process::ALONE),
    section("Process", &[Role::Node], process::IN_NODE),
];
