//! The rules. Each rule returns its findings; the tree is sound if all lists are empty.

use super::{
    exceptions::{EDGES, FEATURES_ONLY, SAME_NAME},
    facts::{Facts, Place},
    graph::Graph,
    manifest::crate_name,
    source::{Crate, Resolved},
    workspace::Workspace,
};
use std::collections::{BTreeMap, BTreeSet};

/// Findings of a rule, each with location and reason, in one or more lines.
pub type Findings = Vec<String>;

/// Largest number of lines of a function, from `fn` to its closing brace.
pub const LINES: usize = 60;

/// First words of a comment that hide its subject.
const HEADLESS: [&str; 6] = ["What", "Who", "Whose", "Of", "That", "It"];

/// Forks whose activation times are fields called `<name>_time`.
const FORKS: [&str; 15] = [
    "regolith", "canyon", "delta", "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian",
    "karst", "interop", "shanghai", "cancun", "prague", "osaka",
];

/// Groups of modules whose graph must have no cycle: label, folder of the crate, path of the
/// module.
pub const GROUPS: &[(&str, &str, &[&str])] = &[
    ("proto", "proto/src", &[]),
    ("p2p", "p2p/src", &[]),
    ("src", "src", &[]),
    ("chain", "src", &["chain"]),
    ("rollup", "src", &["rollup"]),
    ("rpc", "src", &["rpc"]),
    ("netsim", "netsim/src", &[]),
    ("link", "netsim/src", &["link"]),
];

fn found(place: &Place, what: impl AsRef<str>) -> String {
    format!("{}:{}: {}", place.file, place.line, what.as_ref())
}

/// Whether `file` is one of `places` or below one of them.
fn is_in(file: &str, places: &[&str]) -> bool {
    places.iter().any(|place| {
        let rest = file.strip_prefix(place);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Full paths that production code names: `crate::rollup::l1` or `tokio::net::TcpStream`.
/// Names of other crates that a module re-exports belong to that module.
fn paths(source: &Crate) -> impl Iterator<Item = (&Place, String)> {
    source.production_names().filter_map(|name| {
        let path = match source.resolve(name) {
            Resolved::Inside(path) => format!("crate::{}", path.join("::")),
            Resolved::Outside(path) => path.join("::"),
            Resolved::Reexported(_) => return None,
        };
        Some((&name.place, path))
    })
}

/// Paths below one of `banned` that are named outside of the files `allowed`.
pub fn naming(source: &Crate, banned: &[&str], allowed: &[&str]) -> Findings {
    let below = |path: &str, ban: &str| {
        let rest = path.strip_prefix(ban);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let mut findings: Findings = paths(source)
        .filter(|(place, path)| {
            !is_in(&place.file, allowed) && banned.iter().any(|ban| below(path, ban))
        })
        .map(|(place, path)| found(place, path))
        .collect();
    findings.dedup();
    findings
}

/// Applies [`naming`] to one folder of the crate.
fn naming_in(source: &Crate, folder: &str, banned: &[&str]) -> Findings {
    let findings = naming(source, banned, &[]);
    let own = [format!("{folder}/"), format!("{folder}.rs:")];
    findings
        .into_iter()
        .filter(|line| own.iter().any(|own| line.starts_with(own)))
        .collect()
}

pub fn asynchronous(source: &Crate) -> Findings {
    let functions = source
        .facts
        .functions
        .iter()
        .filter(|function| function.is_async);
    let places = functions.map(|function| &function.place);
    places
        .chain(&source.facts.async_blocks)
        .filter(|place| !place.test)
        .map(|place| found(place, "async"))
        .collect()
}

pub fn proto_has_no_io_no_clock_no_async(tree: &Workspace) -> Findings {
    let proto = tree.source("proto/src");
    let banned = [
        "tokio",
        "libp2p",
        "revm",
        "fjall",
        "sled",
        "std::net",
        "std::fs",
        "std::io::stdin",
        "std::thread",
        "std::time::SystemTime",
        "std::time::Instant::now",
    ];
    let mut findings = naming(proto, &banned, &[]);
    findings.extend(asynchronous(proto));
    findings
}

pub fn p2p_sees_no_chain(tree: &Workspace) -> Findings {
    let banned = [
        "revm",
        "op_revm",
        "alloy_evm",
        "fjall",
        "lsm_tree",
        "jsonrpsee",
        "starling",
    ];
    naming(tree.source("p2p/src"), &banned, &[])
}

pub fn chain_knows_no_network_and_no_l1_client(tree: &Workspace) -> Findings {
    let banned = [
        "libp2p",
        "starling_p2p",
        "jsonrpsee",
        "reqwest",
        "hyper",
        "crate::rollup",
        "crate::rpc",
        "std::net",
        "tokio::net",
    ];
    naming_in(tree.source("src"), "src/chain", &banned)
}

pub fn rollup_knows_no_libp2p_and_no_revm(tree: &Workspace) -> Findings {
    naming_in(
        tree.source("src"),
        "src/rollup",
        &["libp2p", "revm", "op_revm", "alloy_evm"],
    )
}

pub fn only_the_store_and_the_payload_log_name_fjall(tree: &Workspace) -> Findings {
    let allowed = [
        "src/chain/store.rs",
        "src/chain/store",
        "src/chain/payload_log.rs",
        "src/chain/payload_log",
    ];
    naming(tree.source("src"), &["fjall", "lsm_tree"], &allowed)
}

pub fn only_the_peerstore_names_sled(tree: &Workspace) -> Findings {
    let allowed = ["p2p/src/peerstore.rs", "p2p/src/peers/store.rs"];
    tree.sources()
        .flat_map(|source| naming(source, &["sled"], &allowed))
        .collect()
}

pub fn only_evm_names_revm(tree: &Workspace) -> Findings {
    let banned = ["revm", "op_revm", "alloy_evm", "alloy_op_evm"];
    naming(
        tree.source("src"),
        &banned,
        &["src/chain/evm.rs", "src/chain/evm"],
    )
}

/// Parameters of requests have names in any case, which `rpc::json::read` knows and serde_json does
/// not.
pub fn only_rpc_json_reads_requests(tree: &Workspace) -> Findings {
    let allowed = ["src/rpc/json.rs", "src/rpc/json"];
    let mut findings = naming(tree.source("src"), &["serde_json::from_str"], &allowed);
    findings.retain(|finding| finding.starts_with("src/rpc"));
    findings
}

/// Allowed are: the command line, which reads addresses and keys; the node, which passes these to
/// the swarm; the `opp2p` methods, which print peers; and the devnet.
pub fn only_the_edges_of_the_swarm_name_libp2p(tree: &Workspace) -> Findings {
    let allowed = [
        "src/cli",
        "src/cli.rs",
        "src/node.rs",
        "src/node",
        "src/rpc/opp2p.rs",
        "src/rpc/opp2p",
    ];
    let allowed = [&allowed[..], &["src/devnet", "src/devnet.rs"]].concat();
    naming(tree.source("src"), &["libp2p"], &allowed)
}

pub fn fork_times(source: &Crate, allowed: &[&str]) -> Findings {
    let is_fork = |name: &Option<String>| {
        let fork = name.as_deref().and_then(|name| name.strip_suffix("_time"));
        fork.is_some_and(|fork| FORKS.contains(&fork))
    };
    let methods = source.facts.methods.iter().filter(|method| {
        let fork = method
            .argument
            .as_deref()
            .is_some_and(|argument| argument.starts_with("Fork::"));
        (method.name == "time" && fork) || method.name.ends_with("active_at_timestamp")
    });
    let methods = methods.map(|method| (&method.place, format!(".{}(…)", method.name)));
    let comparisons = source.facts.comparisons.iter();
    let comparisons = comparisons.filter(|it| is_fork(&it.left) || is_fork(&it.right));
    methods
        .chain(comparisons.map(|it| (&it.place, "compares a fork's time".to_owned())))
        .filter(|(place, _)| !place.test && !is_in(&place.file, allowed))
        .map(|(place, what)| found(place, what))
        .collect()
}

pub fn only_fork_rs_compares_fork_times(tree: &Workspace) -> Findings {
    let allowed = [
        "proto/src/fork.rs",
        "proto/src/config.rs",
        "proto/src/network/overrides.rs",
        "src/chain/evm.rs",
        "src/chain/evm",
        "src/chain/genesis.rs",
        "src/chain/genesis",
        "src/devnet/genesis.rs",
    ];
    ["proto/src", "p2p/src", "src"]
        .into_iter()
        .flat_map(|folder| fork_times(tree.source(folder), &allowed))
        .collect()
}

/// Method calls such as `tasks.spawn("name", …)`, which spawn a named task, outside of the files
/// `allowed`.
pub fn named_tasks(source: &Crate, allowed: &[&str]) -> Findings {
    let methods = source.facts.methods.iter().filter(|method| {
        method.name == "spawn"
            && method
                .argument
                .as_deref()
                .is_some_and(|it| it.starts_with('"'))
    });
    methods
        .filter(|method| !method.place.test && !is_in(&method.place.file, allowed))
        .map(|method| found(&method.place, ".spawn(\"…\")"))
        .collect()
}

pub fn only_the_node_spawns_long_lived_tasks(tree: &Workspace) -> Findings {
    let allowed = ["src/node.rs", "src/node"];
    let banned = [
        "tokio::spawn",
        "tokio::task::spawn",
        "tokio::task::spawn_local",
    ];
    let mut findings = naming(tree.source("src"), &banned, &allowed);
    findings.extend(named_tasks(tree.source("src"), &allowed));
    findings.extend(naming(tree.source("p2p/src"), &banned, &[]));
    findings
}

/// Allowed are: the chain's executor, persister and builder; the file reader of an import; the
/// process watch of a devnet; the script host; the threads of heavy calls, whose priority is low; and
/// the search for a vanity peer id on all cores.
pub fn only_owners_start_threads(tree: &Workspace) -> Findings {
    let banned = [
        "std::thread::spawn",
        "std::thread::Builder",
        "std::thread::scope",
        "rayon::spawn",
    ];
    let allowed = [
        "src/chain.rs",
        "src/chain/handle.rs",
        "src/chain/execute",
        "src/transfer/import.rs",
        "src/devnet/processes.rs",
        "src/rpc/heavy/threads.rs",
        // A separate process, whose single thread needs a large stack.
        "src/script_host.rs",
        "p2p/src/identity.rs",
        "p2p/src/host/identity.rs",
    ];
    let folders = ["proto/src", "p2p/src", "src"];
    folders
        .iter()
        .flat_map(|folder| naming(tree.source(folder), &banned, &allowed))
        .collect()
}

pub fn unbounded(source: &Crate) -> Findings {
    let ends = ["unbounded_channel", "UnboundedSender", "UnboundedReceiver"];
    let makers = [
        "mpsc",
        "channel",
        "crossbeam_channel",
        "async_channel",
        "flume",
    ];
    paths(source)
        .filter(|(_, path)| {
            let (parent, last) = path.rsplit_once("::").unwrap_or_default();
            let parent = parent.rsplit("::").next().unwrap_or_default();
            let maker = last == "unbounded" && makers.contains(&parent);
            maker || ends.contains(&last) || path == "std::sync::mpsc::channel"
        })
        .map(|(place, path)| found(place, path))
        .collect()
}

pub fn no_unbounded_channel(tree: &Workspace) -> Findings {
    tree.sources().flat_map(unbounded).collect()
}

/// Types that share a name, except those with a reason.
pub fn same_names(sources: &[&Crate], reasons: &[(&str, &str)]) -> Findings {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources {
        for (place, name) in source.facts.types.iter().filter(|(place, _)| !place.test) {
            places
                .entry(name)
                .or_default()
                .push(format!("{}:{}", place.file, place.line));
        }
    }
    let double = places.iter().filter(|(name, places)| {
        places.len() > 1 && !reasons.iter().any(|(known, _)| known == *name)
    });
    double
        .map(|(name, places)| format!("{name}: {}", places.join(" ")))
        .collect()
}

pub fn one_name_one_type(tree: &Workspace) -> Findings {
    same_names(&tree.sources().collect::<Vec<_>>(), SAME_NAME)
}

/// Functions of more than [`LINES`] lines, including test functions.
pub fn long_functions(files: &BTreeMap<String, String>) -> Findings {
    files
        .iter()
        .flat_map(|(file, text)| Facts::of(file, text, false).functions)
        .filter(|function| function.lines > LINES)
        .map(|it| found(&it.place, format!("{} has {} lines", it.name, it.lines)))
        .collect()
}

pub fn no_function_above_60_lines(tree: &Workspace) -> Findings {
    long_functions(&tree.files)
}

/// `match` on a bool or on a tuple of bools, including test code.
pub fn bool_matches(files: &BTreeMap<String, String>) -> Findings {
    files
        .iter()
        .flat_map(|(file, text)| Facts::of(file, text, false).bool_matches)
        .map(|place| found(&place, "`match` on a bool: write `if`"))
        .collect()
}

pub fn no_match_on_a_bool(tree: &Workspace) -> Findings {
    bool_matches(&tree.files)
}

/// Comment lines that begin with a word in [`HEADLESS`], if these are more than one in a hundred.
pub fn headless_comments(files: &BTreeMap<String, String>) -> Findings {
    let mut comments = 0;
    let mut findings = Findings::new();
    for (file, text) in files {
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                continue;
            };
            comments += 1;
            let words = comment.trim_start_matches(['/', '!']).trim_start();
            let first = words
                .split(|c: char| !c.is_alphanumeric())
                .next()
                .unwrap_or_default();
            if HEADLESS.contains(&first) {
                findings.push(format!("{file}:{}: {words}", number + 1));
            }
        }
    }
    if findings.len() * 100 <= comments {
        Findings::new()
    } else {
        findings
    }
}

pub fn comments_begin_with_a_noun(tree: &Workspace) -> Findings {
    headless_comments(&tree.files)
}

pub fn cycles(
    source: &Crate,
    label: &str,
    module: &[&str],
    edges: &[(&str, &str, &str, &str)],
) -> Findings {
    let mut graph = Graph::of(source, module);
    for (_, from, to, _) in edges.iter().filter(|(group, ..)| *group == label) {
        graph = graph.without(from, to);
    }
    graph.cycle_lines()
}

fn cycles_of(tree: &Workspace, label: &str) -> Findings {
    let group = GROUPS.iter().find(|(name, ..)| *name == label);
    let (_, folder, module) = group.expect("a group of modules");
    cycles(tree.source(folder), label, module, EDGES)
}

pub fn no_cycle_in_proto(tree: &Workspace) -> Findings {
    cycles_of(tree, "proto")
}

pub fn no_cycle_in_p2p(tree: &Workspace) -> Findings {
    cycles_of(tree, "p2p")
}

pub fn no_cycle_in_src(tree: &Workspace) -> Findings {
    cycles_of(tree, "src")
}

pub fn no_cycle_in_chain(tree: &Workspace) -> Findings {
    cycles_of(tree, "chain")
}

pub fn no_cycle_in_rollup(tree: &Workspace) -> Findings {
    cycles_of(tree, "rollup")
}

pub fn no_cycle_in_rpc(tree: &Workspace) -> Findings {
    cycles_of(tree, "rpc")
}

pub fn no_cycle_in_netsim(tree: &Workspace) -> Findings {
    cycles_of(tree, "netsim")
}

pub fn no_cycle_in_link(tree: &Workspace) -> Findings {
    cycles_of(tree, "link")
}

/// Dependencies in `wanted` that no source names, except those with a reason.
pub fn unused(
    label: &str,
    wanted: &[String],
    named: &BTreeSet<String>,
    reasons: &[(&str, &str)],
) -> Findings {
    let known = |package: &str| reasons.iter().any(|(name, _)| *name == package);
    wanted
        .iter()
        .filter(|package| !known(package) && !named.contains(&crate_name(package)))
        .map(|package| format!("{label}: {package} is named nowhere: remove it from Cargo.toml"))
        .collect()
}

pub fn every_dependency_is_named(tree: &Workspace) -> Findings {
    let mut findings = Findings::new();
    let mut wanted = BTreeSet::new();
    for package in &tree.packages {
        for (section, named) in [
            ("dependencies", &package.named),
            ("dev-dependencies", &package.named_in_tests),
        ] {
            let dependencies = package.manifest.section(section);
            wanted.extend(dependencies.iter().cloned());
            let label = format!("{} [{section}]", package.source.name);
            findings.extend(unused(&label, dependencies, named, FEATURES_ONLY));
        }
    }
    let shared = tree.manifest.section("workspace.dependencies");
    let left = shared.iter().filter(|package| !wanted.contains(*package));
    findings.extend(left.map(|package| format!("the workspace: no package depends on {package}")));
    findings
}

/// Whether the file is a unit test file, next to the module that it tests.
fn is_test_file(file: &str) -> bool {
    !file.starts_with("tests/") && (file.ends_with("tests.rs") || file.contains("/tests/"))
}

pub fn files_without_a_purpose(files: &BTreeMap<String, String>) -> Findings {
    let mut findings = Findings::new();
    for (file, text) in files {
        if !is_test_file(file) && !text.starts_with("//!") {
            findings.push(format!("{file}: does not begin with what it is for"));
        }
        if file.ends_with("/mod.rs") {
            findings.push(format!("{file}: a module is name.rs beside name/"));
        }
    }
    findings
}

pub fn every_file_says_what_it_is_for(tree: &Workspace) -> Findings {
    files_without_a_purpose(&tree.files)
}

/// Files in a crate's source folder that no `mod` declaration includes.
pub fn orphans(source: &Crate, files: &BTreeMap<String, String>) -> Findings {
    let folder = format!("{}/", source.folder);
    files
        .keys()
        .filter(|file| file.starts_with(&folder) && !source.files.contains_key(*file))
        .map(|file| format!("{file}: no `mod` declaration leads to it"))
        .collect()
}

pub fn every_file_is_a_module(tree: &Workspace) -> Findings {
    tree.sources()
        .flat_map(|source| orphans(source, &tree.files))
        .collect()
}

/// Lines that contain one of `words`. Comment lines are included only if `comments`.
pub fn lines_with(files: &BTreeMap<String, String>, words: &[&str], comments: bool) -> Findings {
    let mut findings = Findings::new();
    for (file, text) in files {
        for (number, line) in text.lines().enumerate() {
            let skipped = !comments && line.trim_start().starts_with("//");
            if !skipped && words.iter().any(|word| line.contains(word)) {
                findings.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    findings
}

pub fn nothing_unfinished(tree: &Workspace) -> Findings {
    let words = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
    ];
    lines_with(&tree.files, &words, true)
}

/// Finds tests that look for shared data, or report a skip, without `starling-testkit`. The summary
/// line that `starling-testkit` prints at the end would not count them.
pub fn every_skipped_test_is_counted(tree: &Workspace) -> Findings {
    let words = [concat!("/sha", "red"), concat!("\"skip", "ped")];
    let counts = |file: &str| file.starts_with("testkit/") || file == "fuzz/src/fixtures.rs";
    let files = tree.files.iter().filter(|(file, _)| !counts(file));
    let files = files
        .map(|(file, text)| (file.clone(), text.clone()))
        .collect();
    lines_with(&files, &words, false)
}
