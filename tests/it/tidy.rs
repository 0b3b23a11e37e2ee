//! The invariants of the architecture, each one line. They read the source as text: a rule that fails names the file and the line.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir)
            .expect("a source folder")
            .map(|e| e.expect("an entry").path())
        {
            if entry.is_dir() {
                walk(&entry, out);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&entry).expect("a source file");
                out.push((entry, text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = Vec::new();
    walk(&root.join(folder), &mut out);
    assert!(!out.is_empty(), "{folder} has no sources");
    out
}

/// A file of tests beside the module it tests.
fn is_test(path: &Path) -> bool {
    path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
}

/// The code of a file: no comments, and nothing from the test module on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(n, line)| (n + 1, line))
}

fn never(folder: &str, words: &[&str], allowed: &[&str]) {
    let mut found = Vec::new();
    for (path, text) in sources(folder) {
        if folder != "tests"
            && is_test(
                path.strip_prefix(env!("CARGO_MANIFEST_DIR"))
                    .unwrap_or(&path),
            )
        {
            continue;
        }
        if allowed
            .iter()
            .any(|a| path.ends_with(a) || path.to_string_lossy().contains(&format!("/{a}/")))
        {
            continue;
        }
        for (n, line) in code(&text) {
            for word in words.iter().filter(|word| line.contains(*word)) {
                found.push(format!("{}:{n}: {word}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "not allowed here:\n{}", found.join("\n"));
}

#[test]
fn proto_has_no_io_no_clock_no_async() {
    let words = [
        "tokio",
        "libp2p",
        "revm",
        "std::net",
        "std::fs",
        "std::io::stdin",
        "SystemTime",
        "Instant::now",
        "async fn",
        "fjall",
        "sled",
    ];
    never("proto/src", &words, &[]);
}

#[test]
fn p2p_sees_no_chain() {
    never("p2p/src", &["revm", "fjall", "jsonrpsee"], &[]);
}

#[test]
fn chain_knows_no_network_and_no_l1_client() {
    never(
        "src/chain",
        &[
            "libp2p",
            "jsonrpsee",
            "reqwest",
            "crate::rollup",
            "crate::rpc",
            "std::net",
            "tokio::net",
        ],
        &[],
    );
}

#[test]
fn rollup_knows_no_libp2p_and_no_revm() {
    never("src/rollup", &["libp2p", "revm"], &[]);
}

#[test]
fn only_the_store_and_the_payload_log_name_fjall() {
    never(
        "src",
        &["fjall"],
        &[
            "src/chain/store.rs",
            "src/chain/payload_log.rs",
            "chain/store",
        ],
    );
}

#[test]
fn only_the_peerstore_names_sled() {
    for folder in ["src", "p2p/src", "netsim/src"] {
        never(folder, &["sled::"], &["peerstore.rs"]);
    }
}

#[test]
fn only_evm_names_revm() {
    never("src", &["revm::"], &["src/chain/evm.rs", "chain/evm"]);
}

#[test]
fn only_fork_rs_compares_fork_times() {
    let words = [
        "_time <=",
        "_time >=",
        "<= time",
        ".time(Fork",
        "active_at_timestamp(",
    ];
    never("proto/src", &words[3..], &["fork.rs", "config.rs"]);
    never(
        "src",
        &words[3..],
        &["chain/evm", "src/chain/evm.rs", "genesis.rs"],
    );
}

#[test]
fn only_the_node_spawns_long_lived_tasks() {
    never(
        "src",
        &["tasks.spawn(\"", "tokio::spawn("],
        &["src/node.rs"],
    );
}

#[test]
fn no_unbounded_channel() {
    let words = [
        "unbounded_channel",
        "mpsc::unbounded",
        "crossbeam_channel::unbounded",
        "std::sync::mpsc::channel(",
        "std_mpsc::channel(",
    ];
    for folder in ["src", "p2p/src", "proto/src"] {
        never(folder, &words, &[]);
    }
}

#[test]
fn nothing_unfinished() {
    let words = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
    ];
    for folder in ["src", "p2p/src", "proto/src", "netsim/src", "fuzz", "tests"] {
        never(folder, &words, &[]);
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for folder in ["src", "p2p/src", "proto/src", "netsim/src", "fuzz", "tests"] {
        for (path, text) in sources(folder) {
            let tests = folder != "tests"
                && is_test(
                    path.strip_prefix(env!("CARGO_MANIFEST_DIR"))
                        .unwrap_or(&path),
                );
            assert!(
                tests || text.starts_with("//!"),
                "{} does not begin with what it is for",
                path.display()
            );
            assert!(
                !path.ends_with("mod.rs"),
                "{}: a module is name.rs beside name/",
                path.display()
            );
        }
    }
}

#[test]
fn every_skipped_test_is_counted() {
    // Who looks for shared data or reports a skip alone would be missing from the closing line.
    let words = [concat!("/sha", "red"), concat!("\"skip", "ped")];
    let mut found = Vec::new();
    for folder in ["src", "p2p", "proto", "netsim", "fuzz", "tests"] {
        for (path, text) in sources(folder)
            .into_iter()
            .filter(|(path, _)| !path.ends_with("fuzz/src/fixtures.rs"))
        {
            let lines = text
                .lines()
                .enumerate()
                .filter(|(_, line)| words.iter().any(|word| line.contains(word)));
            let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
            found.extend(
                code.map(|(n, line)| format!("{}:{}: {}", path.display(), n + 1, line.trim())),
            );
        }
    }
    assert!(
        found.is_empty(),
        "use starling_testkit:\n{}",
        found.join("\n")
    );
}

#[test]
fn ci_requires_what_tests_need() {
    let ci = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/run"))
        .expect("the script of CI");
    assert!(
        ci.lines()
            .any(|line| line == "STARLING_FIXTURES=required cargo test --workspace"),
        "{ci}"
    );
}
