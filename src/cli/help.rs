//! Help texts of the flags for `-h`, `--help` and `--help-all`.

use super::flags::{Effect, Role, RoleFlag, of_role};

/// Detail of a help text: which of a role's options it lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `-h`: only the common options.
    Brief,
    /// `--help`: every option that has an effect and is not hidden.
    Working,
    /// `--help-all`: also the options that are accepted without effect, or refused.
    All,
}

impl Detail {
    /// Detail that a command line requests. `-h` or `--help-all` counts even as the value of
    /// another option, which does no harm: the detail only matters if help is requested.
    pub fn of_line(argv: &[String]) -> Self {
        let has = |word: &str| argv.iter().any(|other| other == word);
        if has("--help-all") || has("-help-all") {
            Self::All
        } else if has("-h") {
            Self::Brief
        } else {
            Self::Working
        }
    }

    /// Whether a help text of this detail lists a flag of `role`.
    pub fn shows(self, role: Role, flag: &RoleFlag) -> bool {
        let works = flag.flag.effect == Effect::Works;
        !flag.flag.hidden
            && match self {
                Self::Brief => works && (!is_long(role) || is_common(role, flag)),
                Self::Working => works,
                Self::All => true,
            }
    }

    /// Last line of a help text: how to see the options that are left out.
    pub fn last_line(self, role: Role) -> Option<String> {
        let name = role.name();
        let without_effect = of_role(role)
            .iter()
            .filter(|flag| !flag.flag.hidden && flag.flag.effect != Effect::Works)
            .count();
        match self {
            Self::Brief if is_long(role) => Some(format!(
                "These are the common options; `starling {name} --help` shows all, and their environment variables."
            )),
            Self::Working if is_long(role) && without_effect > 0 => Some(format!(
                "{without_effect} more options of {} are accepted without effect, or refused; `starling {name} --help-all` lists them.",
                programs(role)
            )),
            _ => None,
        }
    }
}

/// Programs whose options a role accepts.
fn programs(role: Role) -> &'static str {
    match role {
        Role::Rollup => "op-node",
        Role::Batcher => "op-batcher",
        Role::Proposer => "op-proposer",
        _ => "op-node and op-geth",
    }
}

/// Flags that `-h` lists for roles with hundreds of flags; `--help` lists all.
pub const COMMON: [&str; 41] = [
    "l1",
    "l1.beacon",
    "l2",
    "l2.jwt-secret",
    "network",
    "rollup.config",
    "datadir",
    "cache",
    "gcmode",
    "history.state",
    "http",
    "http.addr",
    "http.port",
    "http.api",
    "ws",
    "ws.addr",
    "ws.port",
    "ws.api",
    "rollup.sequencerhttp",
    "authrpc.addr",
    "authrpc.port",
    "authrpc.jwtsecret",
    "sequencer.enabled",
    "sequencer.stopped",
    "sequencer.l1-confs",
    "p2p.sequencer.key.path",
    "p2p.static",
    "p2p.bootnodes",
    "p2p.no-discovery",
    "p2p.listen.ip",
    "p2p.listen.tcp",
    "p2p.priv.path",
    "log.level",
    "log.format",
    "verbosity",
    "metrics",
    "metrics.enabled",
    "metrics.port",
    "dev.period",
    "batcher.enabled",
    "proposer.enabled",
];

/// Flags that `-h` lists for batcher and proposer; `--help` lists all.
pub const COMMON_OF_POSTERS: [&str; 26] = [
    "l1-eth-rpc",
    "l2-eth-rpc",
    "rollup-rpc",
    "poll-interval",
    "max-channel-duration",
    "target-num-frames",
    "compression-algo",
    "batch-type",
    "data-availability-type",
    "stopped",
    "supervisor-rpcs",
    "l2oo-address",
    "game-factory-address",
    "game-type",
    "proposal-interval",
    "allow-non-finalized",
    "private-key.path",
    "mnemonic",
    "hd-path",
    "signer.endpoint",
    "signer.address",
    "num-confirmations",
    "rpc.port",
    "rpc.enable-admin",
    "log.level",
    "metrics.enabled",
];

/// Whether a role has so many flags that `-h` lists only some of them.
pub fn is_long(role: Role) -> bool {
    match role {
        Role::Node | Role::Execution | Role::Rollup | Role::Batcher | Role::Proposer => true,
        Role::Devnet | Role::Init | Role::Import | Role::Export | Role::Db => false,
    }
}

/// Whether `-h` lists this flag of a role for which [`is_long`] is true.
pub fn is_common(role: Role, flag: &RoleFlag) -> bool {
    let common: &[&str] = match role {
        Role::Batcher | Role::Proposer => &COMMON_OF_POSTERS,
        _ => &COMMON,
    };
    common.contains(&flag.name.as_str()) && flag.flag.effect == Effect::Works
}

/// Heading above a flag. Flags without effect are last, under one heading.
pub fn heading(flag: &RoleFlag) -> &'static str {
    match flag.flag.effect {
        Effect::Works => flag.section.title,
        Effect::NoEffect(_) => "Accepted, without effect",
        Effect::Refused(_) => "Known, but not supported",
    }
}

/// Help text of a flag: meaning, reason for having no effect, default, and environment variables,
/// which the brief help leaves out.
pub fn line(flag: &RoleFlag, detail: Detail) -> String {
    let mut line = flag.flag.help.to_string();
    if let Effect::NoEffect(reason) | Effect::Refused(reason) = flag.flag.effect {
        line.push_str(&format!(" ({reason})"));
    }
    if let super::flags::Kind::Choice(choices) = flag.flag.kind {
        line.push_str(&format!(" [one of: {}]", choices.join(", ")));
    }
    if !flag.flag.default.is_empty() {
        line.push_str(&format!(" [default: {}]", flag.flag.default));
    }
    let names = flag.env_names();
    if detail != Detail::Brief && !names.is_empty() {
        line.push_str(&format!(" [env: {}]", names.join(", ")));
    }
    line
}
