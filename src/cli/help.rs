//! How a flag looks in `--help`.

use super::flags::{Effect, RoleFlag};

/// The heading a flag stands under. What has no effect stands last, together.
pub fn heading(flag: &RoleFlag) -> &'static str {
    match flag.flag.effect {
        Effect::Works => flag.section.title,
        Effect::NoEffect(_) => "Accepted, without effect",
        Effect::Refused(_) => "Known, but not supported",
    }
}

/// Meaning, reason for no effect, default and environment.
pub fn line(flag: &RoleFlag) -> String {
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
    if !names.is_empty() {
        line.push_str(&format!(" [env: {}]", names.join(", ")));
    }
    line
}
