//! The one table of flags. The command line, its help, the environment and the typed configuration
//! are all made from it, so a flag is added in one place. Plain data: nothing here parses or reads
//! anything.

mod op_batcher;
mod op_geth;
mod op_geth_unused;
mod op_node;
mod op_proposer;
mod own;
mod process;
mod txmgr;

/// The program that an option comes from; decides the prefix of its environment variable and its
/// spelling in `starling node`.
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

    /// The role of a program whose name a link to this one has.
    pub fn of_link(program: &str) -> Option<Self> {
        match program {
            "op-node" => Some(Role::Rollup),
            "op-geth" => Some(Role::Execution),
            "op-batcher" => Some(Role::Batcher),
            "op-proposer" => Some(Role::Proposer),
            _ => None,
        }
    }

    /// The subcommand.
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

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--x=true`, `--x=false`.
    Bool,
    Text,
    Path,
    Url,
    Ip,
    Port,
    Uint,
    Float,
    /// Go's form: `1h0m0s`, `300ms`, `1.5s`. Not above zero means off.
    Duration,
    /// Bytes, or with a unit: `20GB`, `512MB`, `1GiB`.
    Size,
    /// Comma separated, repeated, or both.
    List,
    Choice(&'static [&'static str]),
    /// A private key. Its value is shown nowhere.
    Secret,
}

impl Kind {
    /// The placeholder in the help.
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

/// Whether a flag does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Works,
    /// Accepted so that existing command lines keep working; the reason is said at start.
    NoEffect(&'static str),
    /// A value other than the default makes the node refuse to start, since ignoring it would do
    /// harm. The text says why, and what to do instead.
    Refused(&'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    /// Other spellings of the name.
    pub aliases: &'static [&'static str],
    /// Environment variables where they do not follow from the name.
    pub env: Option<&'static [&'static str]>,
    pub kind: Kind,
    /// As it would be typed; empty is none.
    pub default: &'static str,
    pub help: &'static str,
    pub effect: Effect,
    /// Left out of the help.
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

    /// The environment variables that stand for this flag, in the order they are asked.
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

/// Flags of one program that the help shows together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: &'static str,
    pub program: Program,
    pub roles: &'static [Role],
    pub flags: &'static [Flag],
}

/// The whole table.
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

/// A flag as one role knows it.
#[derive(Clone, Debug)]
pub struct RoleFlag {
    pub flag: &'static Flag,
    pub section: &'static Section,
    /// The long name on this role's command line.
    pub name: String,
}

impl RoleFlag {
    pub fn env_names(&self) -> Vec<String> {
        self.flag.env_names(self.section.program)
    }
}

/// Prefix of the options of a program in `node`, whose bare names are those of a rollup node and of
/// an execution client.
pub const fn prefix_in_node(program: Program) -> &'static str {
    match program {
        Program::OpBatcher => "batcher.",
        Program::OpProposer => "proposer.",
        Program::OpNode | Program::OpGeth | Program::Starling => "",
    }
}

/// Every flag of a role. In `node` a bare name is op-node's; an option of the execution client that
/// has an op-node namesake takes the prefix `execution.`, and options of batcher and proposer have
/// the prefixes of [`prefix_in_node`].
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
