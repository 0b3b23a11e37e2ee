//! The table of all flags. The command line, its help, the environment variables and the typed
//! configuration are all made from this table, so a flag is defined in one place only. Plain data:
//! this module parses nothing.

mod op_batcher;
mod op_geth;
mod op_geth_unused;
mod op_node;
mod op_proposer;
mod own;
mod process;
mod txmgr;

/// The program that a flag comes from. It determines the prefix of the flag's environment variable
/// and of its name in `starling node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    OpNode,
    OpGeth,
    OpBatcher,
    OpProposer,
    Starling,
}

impl Program {
    pub const fn env_prefix(self) -> &'static str {
        match self {
            Program::OpNode => "OP_NODE_",
            Program::OpGeth => "GETH_",
            Program::OpBatcher => "OP_BATCHER_",
            Program::OpProposer => "OP_PROPOSER_",
            Program::Starling => "STARLING_",
        }
    }
}

/// A subcommand that takes flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Node,
    Execution,
    Rollup,
    Batcher,
    Proposer,
    Devnet,
    Init,
    Import,
    Export,
    Db,
}

impl Role {
    pub const ALL: [Role; 10] = [
        Role::Node,
        Role::Execution,
        Role::Rollup,
        Role::Batcher,
        Role::Proposer,
        Role::Devnet,
        Role::Init,
        Role::Import,
        Role::Export,
        Role::Db,
    ];

    /// The commands for data directories.
    pub const DATA_TOOLS: [Role; 4] = [Role::Init, Role::Import, Role::Export, Role::Db];

    /// Names of links to the program, and the role that runs under each.
    pub const LINKS: [(&str, Role); 5] = [
        ("op-geth", Role::Execution),
        ("geth", Role::Execution),
        ("op-node", Role::Rollup),
        ("op-batcher", Role::Batcher),
        ("op-proposer", Role::Proposer),
    ];

    /// The role to run if the program is called under this name, through a link.
    pub fn of_link(program: &str) -> Option<Self> {
        let mut links = Self::LINKS.into_iter();
        links.find_map(|(name, role)| (name == program).then_some(role))
    }

    /// Name of the subcommand.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Execution => "execution",
            Role::Rollup => "rollup",
            Role::Batcher => "batcher",
            Role::Proposer => "proposer",
            Role::Devnet => "devnet",
            Role::Init => "init",
            Role::Import => "import",
            Role::Export => "export",
            Role::Db => "db",
        }
    }

    pub const fn about(self) -> &'static str {
        match self {
            Role::Node => {
                "Run a rollup node and its execution core in one process: a replica, or the sequencer"
            }
            Role::Execution => {
                "Run an execution core alone; its genesis decides whether it is an OP Stack or an Ethereum chain"
            }
            Role::Rollup => {
                "Run a rollup node that drives an execution client in another process, as op-node does"
            }
            Role::Batcher => "Post the blocks of a sequencer on L1",
            Role::Proposer => "Propose outputs of the chain on L1, for withdrawals",
            Role::Devnet => {
                "Run a private network on this machine: an L1, a sequencer, replicas, a batcher and a proposer"
            }
            Role::Init => "Write a genesis block into a data directory",
            Role::Import => {
                "Execute the blocks of files (RLP as geth exports it; .gz and .zst are unpacked)"
            }
            Role::Export => {
                "Write blocks to a file (RLP as geth imports it; .gz and .zst are packed); a range is appended"
            }
            Role::Db => "Look after the database of a data directory that no node is using",
        }
    }
}

/// Type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Boolean: `--x`, `--x=true`, `--x=false`.
    Bool,
    Text,
    Path,
    Url,
    Ip,
    Port,
    Uint,
    Float,
    /// Duration in Go's format, such as `1h0m0s`, `300ms`, `1.5s`. Zero or less means off.
    Duration,
    /// Bytes as a number, or with a unit: `20GB`, `512MB`, `1GiB`.
    Size,
    /// List: values separated by commas, or a repeated flag, or both.
    List,
    Choice(&'static [&'static str]),
    /// A private key, whose value is never shown.
    Secret,
}

impl Kind {
    /// Placeholder for the value in the help.
    pub const fn placeholder(self) -> &'static str {
        match self {
            Kind::Bool => "BOOL",
            Kind::Text => "TEXT",
            Kind::Path => "PATH",
            Kind::Url => "URL",
            Kind::Ip => "ADDR",
            Kind::Port => "PORT",
            Kind::Uint => "N",
            Kind::Float => "NUMBER",
            Kind::Duration => "DURATION",
            Kind::Size => "SIZE",
            Kind::List => "LIST",
            Kind::Choice(_) => "CHOICE",
            Kind::Secret => "KEY",
        }
    }
}

/// Whether a flag has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Works,
    /// The flag is accepted, so that existing command lines keep working. The reason is logged at
    /// start.
    NoEffect(&'static str),
    /// A value other than the default is an error at start, since ignoring it would do harm. The
    /// text says why, and what to do instead.
    Refused(&'static str),
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    /// Alternative names of the flag.
    pub aliases: &'static [&'static str],
    /// Environment variables, if they do not follow from the name.
    pub env: Option<&'static [&'static str]>,
    pub kind: Kind,
    /// Default value, as a user would type it; empty if there is none.
    pub default: &'static str,
    pub help: &'static str,
    pub effect: Effect,
    /// Whether the help leaves the flag out.
    pub hidden: bool,
}

pub(super) const fn flag(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        aliases: &[],
        env: None,
        kind,
        default,
        help,
        effect: Effect::Works,
        hidden: false,
    }
}

impl Flag {
    const fn env(mut self, names: &'static [&'static str]) -> Self {
        self.env = Some(names);
        self
    }

    const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.aliases = names;
        self
    }

    const fn no_effect(mut self, reason: &'static str) -> Self {
        self.effect = Effect::NoEffect(reason);
        self
    }

    const fn refused(mut self, reason: &'static str) -> Self {
        self.effect = Effect::Refused(reason);
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Environment variables of this flag. The first one that is set counts.
    pub fn env_names(&self, program: Program) -> Vec<String> {
        match self.env {
            Some(names) => names.iter().map(|name| name.to_string()).collect(),
            None => vec![format!(
                "{}{}",
                program.env_prefix(),
                self.name.to_uppercase().replace(['.', '-'], "_")
            )],
        }
    }
}

/// Flags of one program that the help lists together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: &'static str,
    pub program: Program,
    pub roles: &'static [Role],
    pub flags: &'static [Flag],
}

/// All sections of the table.
pub fn sections() -> impl Iterator<Item = &'static Section> {
    let programs = [
        op_node::SECTIONS,
        op_geth::SECTIONS,
        op_geth_unused::SECTIONS,
        op_batcher::SECTIONS,
        op_proposer::SECTIONS,
        txmgr::SECTIONS,
        own::SECTIONS,
    ];
    programs.into_iter().flatten()
}

/// A flag with its name for one role.
#[derive(Clone, Debug)]
pub struct RoleFlag {
    pub flag: &'static Flag,
    pub section: &'static Section,
    /// Long name of the flag on this role's command line.
    pub name: String,
}

impl RoleFlag {
    /// The long name and its alternatives.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.flag.aliases.iter().copied();
        [self.name.as_str()].into_iter().chain(aliases)
    }

    pub fn env_names(&self) -> Vec<String> {
        self.flag.env_names(self.section.program)
    }
}

/// Prefix of a program's options in `starling node`. Options of the rollup node and of the
/// execution client have no prefix.
pub const fn prefix_in_node(program: Program) -> &'static str {
    match program {
        Program::OpBatcher => "batcher.",
        Program::OpProposer => "proposer.",
        Program::OpNode | Program::OpGeth | Program::Starling => "",
    }
}

/// All flags of a role. In `starling node`, the names without prefix are op-node's. An execution
/// client's option with the same name as one of op-node has the prefix `execution.`, and options of
/// batcher and proposer have the prefixes of [`prefix_in_node`].
pub fn of_role(role: Role) -> Vec<RoleFlag> {
    let mut flags: Vec<RoleFlag> = Vec::new();
    for section in sections().filter(|section| section.roles.contains(&role)) {
        let prefix = match role {
            Role::Node => prefix_in_node(section.program),
            _ => "",
        };
        for flag in section.flags {
            let taken = flags.iter().any(|other| other.name == flag.name);
            let name = if !prefix.is_empty() {
                format!("{prefix}{}", flag.name)
            } else if taken {
                format!("execution.{}", flag.name)
            } else {
                flag.name.to_string()
            };
            flags.push(RoleFlag {
                flag,
                section,
                name,
            });
        }
    }
    flags
}

#[cfg(test)]
mod tests;
