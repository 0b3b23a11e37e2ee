//! How a flag looks in `--help`.

use super::flags::{Effect, Role, RoleFlag};

/// Flags that `-h` shows of roles that have hundreds of them; `--help` shows all.
pub const COMMON: [&str; 38] = [
    "l1",
    "rollup.config",
    "datadir",
    "cache",
    "gcmode",
    "history.state",
    "http",
    "http.addr",
    "http.port",
    "http.api",
    "http.corsdomain",
    "http.vhosts",
    "ws",
    "ws.addr",
    "ws.port",
    "ws.api",
    "ws.origins",
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
];

/// Whether a role has so many flags that `-h` shows only some.
pub fn is_long(role: Role) -> bool {
    matches!(role, Role::Node | Role::Execution)
}

/// Whether `-h` shows a flag of such a role.
pub fn is_common(flag: &RoleFlag) -> bool {
    COMMON.contains(&flag.flag.name) && flag.flag.effect == Effect::Works
}

/// The heading a flag stands under. What has no effect stands last, together.
pub fn heading(flag: &RoleFlag) -> &'static str {
    match flag.flag.effect {
        Effect::Works => flag.section.title,
        Effect::NoEffect(_) => "Accepted, without effect",
        Effect::Refused(_) => "Known, but not supported",
    }
}

/// Meaning, reason for no effect, default, and, unless it is to be `brief`, environment.
pub fn line(flag: &RoleFlag, brief: bool) -> String {
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
    if !brief && !names.is_empty() {
        line.push_str(&format!(" [env: {}]", names.join(", ")));
    }
    line
}
