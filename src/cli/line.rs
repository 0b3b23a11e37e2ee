//! The words of a command line before clap reads them: the name that the program was called by, the
//! command, and the options in front of the command. Go's flag parsers accept options there, clap
//! only behind it.

use super::{
    CliError, TOOLS,
    flags::{Kind, Role, RoleFlag, of_role},
    parse::nearest,
};
use std::{collections::BTreeMap, path::Path};

/// A command line whose command is in second place.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    pub argv: Vec<String>,
    /// Names of options in front of the command that the command does not have.
    pub unused: Vec<String>,
}

/// Moves the command to second place. A program called under the name of an OP Stack program has
/// that program's role as its command unless the line names another, as in `op-node networks …` or
/// `op-geth --datadir d init …`.
pub fn arrange(argv: Vec<String>) -> Result<CommandLine, CliError> {
    let called = argv.first().map(Path::new);
    let called = called.and_then(Path::file_name).unwrap_or_default();
    let called = called.to_string_lossy().into_owned();
    let linked = Role::of_link(&called);
    let words = argv.get(1..).unwrap_or_default();
    let known = program_options(words, linked);
    let place = place_of_command(words, &known);
    let (front, rest) = words.split_at(place);
    let line = |command: &[&str], options: &[String], rest: &[String]| {
        let command = command.iter().map(|word| word.to_string());
        let words = options.iter().chain(rest).cloned();
        argv.iter()
            .take(1)
            .cloned()
            .chain(command)
            .chain(words)
            .collect()
    };
    let plain = |argv| CommandLine {
        argv,
        unused: Vec::new(),
    };
    match (rest.split_first(), linked) {
        (Some((word, _)), _) if word == "version" => Ok(plain(line(&["--version"], &[], &[]))),
        (Some((word, _)), Some(role)) if word == "help" => {
            Ok(plain(line(&[role.name(), "--help"], &[], &[])))
        }
        (Some((word, rest)), _) if is_command(word) => {
            let (options, unused) = sort_front(front, word, linked, &known)?;
            Ok(CommandLine {
                argv: line(&[word], &options, rest),
                unused,
            })
        }
        // The value of a boolean in a word of its own, which the role's parser reports.
        (Some((word, _)), Some(role)) if !word.starts_with('-') && !is_boolean(word) => {
            // The word may be the value of an option that is misspelt.
            let is_known = |it: &str| known.contains_key(it) || is_universal(it);
            let misspelt = front
                .last()
                .filter(|last| option_name(last).is_some_and(|name| !is_known(name)));
            Err(match misspelt {
                Some(option) => unknown(option, role),
                None => CliError::Usage(not_here(&called, word)),
            })
        }
        (_, Some(role)) => Ok(plain(line(&[role.name()], words, &[]))),
        (Some((word, rest)), None) => Ok(plain(line(&[word], front, rest))),
        (None, None) if front.iter().all(|word| is_universal(word)) => Ok(plain(argv)),
        (None, None) => Err(CliError::Usage(no_command(&called))),
    }
}

/// Kinds of the options by name that may be in front of a command: those of the linked program and
/// of the tools, or of every role. Empty if the line does not begin with an option.
fn program_options(words: &[String], linked: Option<Role>) -> BTreeMap<String, Kind> {
    let roles: Vec<Role> = match (words.first(), linked) {
        (Some(word), _) if option_name(word).is_none() => Vec::new(),
        (_, Some(role)) => [role].into_iter().chain(Role::DATA_TOOLS).collect(),
        (_, None) => Role::ALL.to_vec(),
    };
    let mut kinds = BTreeMap::new();
    for flag in roles.into_iter().flat_map(of_role) {
        for name in flag.names() {
            kinds.entry(name.to_owned()).or_insert(flag.flag.kind);
        }
    }
    kinds
}

/// Whether the value of the option is in a word of its own. An unknown option has no value: it is
/// reported, whatever the next word means.
fn has_value_behind(word: &str, known: &BTreeMap<String, Kind>) -> bool {
    let kind = option_name(word).and_then(|name| known.get(name));
    !word.contains('=') && kind.is_some_and(|kind| *kind != Kind::Bool)
}

/// Number of words in front of the command: options and their values.
fn place_of_command(words: &[String], known: &BTreeMap<String, Kind>) -> usize {
    let mut place = 0;
    while let Some(word) = words.get(place)
        && option_name(word).is_some()
    {
        place += if has_value_behind(word, known) { 2 } else { 1 };
    }
    place.min(words.len())
}

/// Name of the option in a word such as `--http`, `-http` or `--http=true`.
fn option_name(word: &str) -> Option<&str> {
    let name = word.strip_prefix('-')?;
    let name = name.strip_prefix('-').unwrap_or(name);
    let name = name.split('=').next().unwrap_or(name);
    (!name.is_empty()).then_some(name)
}

fn is_command(word: &str) -> bool {
    let mut commands = Role::ALL.map(Role::name).into_iter().chain(TOOLS);
    commands.any(|name| name == word)
}

fn is_boolean(word: &str) -> bool {
    ["true", "false"].contains(&word)
}

/// Whether every command has this option, or the option of this name.
fn is_universal(word: &str) -> bool {
    let name = option_name(word).unwrap_or(word);
    ["help", "h", "help-all", "version", "v"].contains(&name)
}

/// Splits the words in front of `command` into its own options, with their values, and the names
/// of options that only the program has. In Go's parsers these are options of the whole program,
/// and a command that does not read them runs without them.
fn sort_front(
    front: &[String],
    command: &str,
    linked: Option<Role>,
    known: &BTreeMap<String, Kind>,
) -> Result<(Vec<String>, Vec<String>), CliError> {
    let role = Role::ALL.into_iter().find(|role| role.name() == command);
    let of_command = role.map(of_role).unwrap_or_default();
    let (mut own, mut unused) = (Vec::new(), Vec::new());
    let mut words = front.iter();
    while let Some(word) = words.next() {
        let name = option_name(word).unwrap_or_default();
        let value = has_value_behind(word, known)
            .then(|| words.next())
            .flatten();
        let is_own = |flag: &RoleFlag| flag.names().any(|other| other == name);
        if is_universal(word) || of_command.iter().any(is_own) {
            own.extend([word].into_iter().chain(value).cloned());
        } else if known.contains_key(name) {
            unused.push(name.to_owned());
        } else {
            return Err(unknown(word, linked.or(role).unwrap_or(Role::Node)));
        }
    }
    Ok((own, unused))
}

/// The error for an option that `role` does not have.
fn unknown(word: &str, role: Role) -> CliError {
    CliError::Unknown {
        nearest: nearest(role, word),
        given: word.to_owned(),
        role: role.name(),
    }
}

/// Error message for a command of the linked program that Starling does not have.
fn not_here(link: &str, word: &str) -> String {
    let instead = match word {
        "attach" | "console" | "js" => {
            "there is no console here, and that of geth attaches to the socket of a running node, <datadir>/geth.ipc"
        }
        "removedb" => "delete the data directory while no node is using it",
        "dumpgenesis" | "dumpconfig" => "keep the files that the node was given",
        "show-deprecated-flags" => "the log names each deprecated option that is given",
        "license" => "the files LICENSE-MIT and LICENSE-APACHE are beside the source",
        "account" | "download-era" | "dump" | "export-history" | "export-preimages"
        | "import-history" | "import-preimages" | "prune-history" | "snapshot" | "verkle"
        | "version-check" | "wallet" | "doc" | "genesis" => "Starling has no such tool",
        _ => return format!("there is no command {word}; see `{link} help`"),
    };
    format!("{link} has the command {word}, which is left out here: {instead}")
}

/// Error message for options without a command, under a name that stands for no command.
fn no_command(called: &str) -> String {
    let names: Vec<&str> = Role::LINKS.iter().map(|(name, _)| *name).collect();
    format!(
        "no command is given: write one behind the program's name, as in `starling node`. Only links that are called {} run without a command, and this one is called {called}; see `starling help`",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests;
