//! Reads a role's flags from the command line and the environment. The command line overrides the
//! environment, which overrides the default.

use super::{
    CliError,
    flags::{Effect, Kind, Program, Role, RoleFlag, of_role},
    help::Detail,
    value::{self, Secret, Value},
};
use crate::rollup::http::endpoint_of;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Source of a flag's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    CommandLine,
    Environment(String),
}

/// Function that looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Flags of a role, with their values.
#[derive(Debug)]
pub struct Values {
    role: Role,
    values: BTreeMap<String, Value>,
    sources: BTreeMap<String, Source>,
}

impl Values {
    /// Reads all flags of the role.
    pub fn read(
        role: Role,
        matches: &ArgMatches,
        environment: Environment,
    ) -> Result<Self, CliError> {
        Self::read_flags(role, of_role(role), matches, environment)
    }

    pub(super) fn read_flags(
        role: Role,
        flags: Vec<RoleFlag>,
        matches: &ArgMatches,
        environment: Environment,
    ) -> Result<Self, CliError> {
        let mut read = Self {
            role,
            values: BTreeMap::new(),
            sources: BTreeMap::new(),
        };
        for flag in flags {
            let Some((given, source)) = find(&flag, matches, environment) else {
                continue;
            };
            let value =
                value::read(flag.flag.kind, &given).map_err(|expected| CliError::Value {
                    name: describe(&flag, source.as_ref()),
                    expected,
                    given: match flag.flag.kind {
                        Kind::Secret => "a secret".into(),
                        Kind::Url => format!("\"{}\"", endpoint_of(&given.join(","))),
                        _ => format!("\"{}\"", given.join(",")),
                    },
                })?;
            if let (Effect::Refused(reason), Some(_)) = (flag.flag.effect, &source)
                && !is_default(&flag, &value)
            {
                return Err(CliError::Refused {
                    name: describe(&flag, source.as_ref()),
                    reason,
                });
            }
            if let Some(source) = source {
                read.sources.insert(flag.name.clone(), source);
            }
            read.values.insert(flag.name, value);
        }
        Ok(read)
    }

    /// Values of the flags whose names begin with `prefix`, under their names without `prefix`.
    pub fn scoped(&self, prefix: &str) -> Self {
        fn strip<T: Clone>(map: &BTreeMap<String, T>, prefix: &str) -> BTreeMap<String, T> {
            let named = map.iter().filter_map(|(name, value)| {
                let name = name.strip_prefix(prefix)?;
                Some((name.to_owned(), value.clone()))
            });
            named.collect()
        }
        Self {
            role: self.role,
            values: strip(&self.values, prefix),
            sources: strip(&self.sources, prefix),
        }
    }

    /// Notices to log at start: flags that were given but have no effect.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        for flag in of_role(self.role) {
            if let (Effect::NoEffect(reason), Some(source)) =
                (flag.flag.effect, self.sources.get(&flag.name))
            {
                notices.push(format!(
                    "{} has no effect: {reason}",
                    describe(&flag, Some(source))
                ));
            }
        }
        notices
    }

    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    pub fn bool(&self, name: &'static str) -> Result<bool, CliError> {
        match self.values.get(name) {
            Some(Value::Bool(value)) => Ok(*value),
            _ => Err(CliError::Table(name)),
        }
    }

    /// Text value of a flag; `None` if the flag was not given and has no default.
    pub fn text(&self, name: &'static str) -> Result<Option<String>, CliError> {
        match self.values.get(name) {
            Some(Value::Text(value)) => Ok(Some(value.clone())),
            None => Ok(None),
            _ => Err(CliError::Table(name)),
        }
    }

    /// Text value of a flag that has a default.
    pub fn required_text(&self, name: &'static str) -> Result<String, CliError> {
        self.text(name)?.ok_or(CliError::Table(name))
    }

    pub fn optional_uint(&self, name: &'static str) -> Result<Option<u64>, CliError> {
        match self.values.get(name) {
            Some(Value::Uint(value)) => Ok(Some(*value)),
            None => Ok(None),
            _ => Err(CliError::Table(name)),
        }
    }

    pub fn uint(&self, name: &'static str) -> Result<u64, CliError> {
        self.optional_uint(name)?.ok_or(CliError::Table(name))
    }

    pub fn port(&self, name: &'static str) -> Result<u16, CliError> {
        self.optional_port(name)?.ok_or(CliError::Table(name))
    }

    pub fn optional_port(&self, name: &'static str) -> Result<Option<u16>, CliError> {
        self.optional_uint(name)?
            .map(u16::try_from)
            .transpose()
            .map_err(|_| CliError::Table(name))
    }

    pub fn duration(&self, name: &'static str) -> Result<Duration, CliError> {
        match self.values.get(name) {
            Some(Value::Duration(value)) => Ok(*value),
            _ => Err(CliError::Table(name)),
        }
    }

    pub fn float(&self, name: &'static str) -> Result<f64, CliError> {
        match self.values.get(name) {
            Some(Value::Float(value)) => Ok(*value),
            _ => Err(CliError::Table(name)),
        }
    }

    pub fn list(&self, name: &'static str) -> Result<Vec<String>, CliError> {
        match self.values.get(name) {
            Some(Value::List(value)) => Ok(value.clone()),
            None => Ok(Vec::new()),
            _ => Err(CliError::Table(name)),
        }
    }

    pub fn secret(&self, name: &'static str) -> Result<Option<Secret>, CliError> {
        match self.values.get(name) {
            Some(Value::Secret(value)) => Ok(Some(value.clone())),
            None => Ok(None),
            _ => Err(CliError::Table(name)),
        }
    }
}

/// Texts given for a flag, and their source, which is `None` for the default. An empty value counts
/// as not given: templates, compose files and unit files often contain `--x=` or `X=`.
fn find(
    flag: &RoleFlag,
    matches: &ArgMatches,
    environment: Environment,
) -> Option<(Vec<String>, Option<Source>)> {
    let given: Vec<String> = matches
        .get_many(&flag.name)
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    if given.iter().any(|text| !text.is_empty()) {
        return Some((given, Some(Source::CommandLine)));
    }
    for name in flag.env_names() {
        if let Some(given) = environment(&name).filter(|given| !given.is_empty()) {
            return Some((vec![given], Some(Source::Environment(name))));
        }
    }
    (!flag.flag.default.is_empty()).then(|| (vec![flag.flag.default.to_string()], None))
}

fn is_default(flag: &RoleFlag, value: &Value) -> bool {
    let default = flag.flag.default;
    !default.is_empty() && value::read(flag.flag.kind, &[default.to_string()]).as_ref() == Ok(value)
}

fn describe(flag: &RoleFlag, source: Option<&Source>) -> String {
    match source {
        Some(Source::Environment(name)) => format!("{name} (--{})", flag.name),
        _ => format!("--{}", flag.name),
    }
}

/// The role's subcommand for clap. clap treats every value as text: types, defaults and environment
/// variables come from the flag table.
pub fn command(role: Role, detail: Detail) -> Command {
    let mut command = Command::new(role.name())
        .about(role.about())
        .args_override_self(true);
    if let Some(line) = detail.last_line(role) {
        command = command.after_help(line);
    }
    if super::help::is_long(role) {
        let all = Arg::new("help-all")
            .long("help-all")
            .action(ArgAction::HelpLong)
            .help("Print help with the options that have no effect");
        command = command.arg(all);
    }
    let mut flags = of_role(role);
    // clap orders the headings in the help by their first flag.
    flags.sort_by_key(|flag| match flag.flag.effect {
        Effect::Works => 0,
        Effect::NoEffect(_) => 1,
        Effect::Refused(_) => 2,
    });
    for flag in flags {
        let mut arg = Arg::new(flag.name.clone())
            .long(flag.name.clone())
            .help(super::help::line(&flag, detail))
            .hide(!detail.shows(role, &flag));
        arg = arg
            .value_name(flag.flag.kind.placeholder())
            .help_heading(super::help::heading(&flag))
            .aliases(flag.flag.aliases);
        arg = match flag.flag.kind {
            Kind::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            Kind::List => arg
                .num_args(1)
                .action(ArgAction::Append)
                .allow_hyphen_values(true),
            _ => arg.num_args(1).allow_hyphen_values(true),
        };
        command = command.arg(arg);
    }
    command
}

/// Converts `-http` to `--http`, as Go's flag parsers do, for names that the role knows.
pub fn with_double_dashes(role: Role, argv: impl IntoIterator<Item = String>) -> Vec<String> {
    let flags = of_role(role);
    let known = |name: &str| {
        flags
            .iter()
            .any(|flag| flag.names().any(|other| other == name))
    };
    argv.into_iter()
        .map(|arg| match arg.strip_prefix('-') {
            Some(rest) if known(rest.split('=').next().unwrap_or(rest)) => format!("-{arg}"),
            _ => arg,
        })
        .collect()
}

/// The known flag most similar to an unknown one, if one is similar enough.
pub fn nearest(role: Role, unknown: &str) -> Option<String> {
    let unknown = unknown
        .trim_start_matches('-')
        .split('=')
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let flags = of_role(role).into_iter();
    nearest_of(
        flags.filter(|flag| !flag.flag.hidden).map(|flag| flag.name),
        &unknown,
    )
}

/// The name most similar to an unknown one, if one is similar enough.
fn nearest_of(names: impl Iterator<Item = String>, unknown: &str) -> Option<String> {
    names
        .map(|name| (strsim::damerau_levenshtein(unknown, &name), name))
        .min()
        .filter(|(distance, name)| *distance <= 2 + name.len() / 6)
        .map(|(_, name)| name)
}

/// Notices about environment variables that are not an option of any role, but have the prefix of a
/// program whose options this role accepts. op-node and geth warn of these too. A variable with our
/// own prefix counts only if it is similar to an option, since tests use others.
pub fn unknown_variables(role: Role, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let all = Role::ALL.into_iter().flat_map(of_role);
    let known: BTreeSet<String> = all.flat_map(|flag| flag.env_names()).collect();
    let flags = of_role(role).into_iter();
    let programs: Vec<Program> = flags.map(|flag| flag.section.program).collect();
    let mut notices = Vec::new();
    for name in names.into_iter().filter(|name| !known.contains(name)) {
        let is_prefix = |program: &&Program| name.starts_with(program.env_prefix());
        let Some(program) = programs.iter().find(is_prefix) else {
            continue;
        };
        let prefix = program.env_prefix();
        let alike = known.iter().filter_map(|known| known.strip_prefix(prefix));
        let nearest = nearest_of(alike.map(str::to_owned), &name[prefix.len()..]);
        if *program == Program::Starling && nearest.is_none() {
            continue;
        }
        let hint = nearest.map(|nearest| format!("; did you mean {prefix}{nearest}?"));
        notices.push(format!(
            "no option has the environment variable {name}, which has no effect{}",
            hint.unwrap_or_default()
        ));
    }
    notices
}
