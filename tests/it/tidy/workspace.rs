//! The repository as the rules read it: crates, the text of all Rust files, and manifests.

use super::{
    facts::Facts,
    manifest::Manifest,
    source::{Crate, Resolved},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// For each crate: its name in paths, the folder of the package, the folder of its sources.
const CRATES: &[(&str, &str, &str)] = &[
    ("starling_proto", "proto", "proto/src"),
    ("starling_p2p", "p2p", "p2p/src"),
    ("starling", "", "src"),
    ("starling_netsim", "netsim", "netsim/src"),
    ("starling_fuzz", "fuzz", "fuzz/src"),
    ("starling_testkit", "testkit", "testkit/src"),
];

/// Folders of a package that are compiled separately from its sources, and whether they contain
/// tests.
const BESIDE: &[(&str, bool)] = &[("tests", true), ("benches", true), ("fuzz_targets", false)];

pub struct Package {
    pub source: Crate,
    pub manifest: Manifest,
    /// Crates that the package's sources name outside of test code.
    pub named: BTreeSet<String>,
    /// Crates that the package's tests, benches and unit tests name.
    pub named_in_tests: BTreeSet<String>,
}

pub struct Workspace {
    pub packages: Vec<Package>,
    /// The manifest of the workspace.
    pub manifest: Manifest,
    /// The text of all Rust files, by their path from the root.
    pub files: BTreeMap<String, String>,
}

impl Workspace {
    /// The repository that this test belongs to, read once.
    pub fn get() -> &'static Self {
        static WORKSPACE: OnceLock<Workspace> = OnceLock::new();
        WORKSPACE.get_or_init(Self::read)
    }

    fn read() -> Self {
        let manifest = |folder: &str| {
            let file = root().join(folder).join("Cargo.toml");
            Manifest::parse(&fs::read_to_string(file).expect("a manifest"))
        };
        let package = |(name, folder, sources): &(&str, &str, &str)| {
            Package::new(
                Crate::read(name, sources),
                manifest(folder),
                &beside(folder),
            )
        };
        let mut files = BTreeMap::new();
        for folder in [
            "src", "tests", "benches", "proto", "p2p", "netsim", "fuzz", "testkit",
        ] {
            rust_files(folder, &mut files);
        }
        Self {
            packages: CRATES.iter().map(package).collect(),
            manifest: manifest(""),
            files,
        }
    }

    /// The crate whose sources are in `folder`.
    pub fn source(&self, folder: &str) -> &Crate {
        let found = self.sources().find(|source| source.folder == folder);
        found.unwrap_or_else(|| panic!("no crate in {folder}"))
    }

    pub fn sources(&self) -> impl Iterator<Item = &Crate> {
        self.packages.iter().map(|package| &package.source)
    }
}

impl Package {
    /// `beside` has the text of tests, benches and binaries, each with a flag for tests.
    pub fn new(source: Crate, manifest: Manifest, beside: &[(String, bool)]) -> Self {
        let (mut named, mut named_in_tests) = (BTreeSet::new(), BTreeSet::new());
        for name in source.names() {
            if let Resolved::Outside(path) = source.resolve(name) {
                let set = if name.place.test {
                    &mut named_in_tests
                } else {
                    &mut named
                };
                set.extend(path.into_iter().next());
            }
        }
        for (text, test) in beside {
            let facts = Facts::of("beside", text, *test);
            let set = if *test {
                &mut named_in_tests
            } else {
                &mut named
            };
            let imports = facts.imports.into_iter().map(|import| import.name);
            set.extend(
                imports
                    .chain(facts.names)
                    .map(|mut name| name.segments.swap_remove(0)),
            );
        }
        Self {
            source,
            manifest,
            named,
            named_in_tests,
        }
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn beside(package: &str) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    for (folder, test) in BESIDE {
        let mut files = BTreeMap::new();
        let folder = Path::new(package).join(folder);
        if root().join(&folder).is_dir() {
            rust_files(folder.to_str().expect("a path in UTF-8"), &mut files);
        }
        out.extend(files.into_values().map(|text| (text, *test)));
    }
    out
}

/// Collects the Rust files below `folder`, except in build output, packages and hidden folders.
fn rust_files(folder: &str, out: &mut BTreeMap<String, String>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(root().join(folder))
        .unwrap_or_else(|error| panic!("{folder}: {error}"))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inner = format!("{folder}/{name}");
        if path.is_dir() {
            let foreign = ["target", "node_modules"].contains(&&*name) || name.starts_with('.');
            if !foreign {
                rust_files(&inner, out);
            }
        } else if name.ends_with(".rs") {
            out.insert(inner, fs::read_to_string(&path).expect("a source file"));
        }
    }
}
