//! Planted violations: each kind of rule reports the violation in a small source text, and nothing
//! in a sound one.

use super::{
    graph::Graph,
    manifest::{Manifest, crate_name},
    rules::{self, Findings},
    source::Crate,
    workspace::Package,
};
use std::collections::{BTreeMap, BTreeSet};

fn library(text: &str) -> Crate {
    Crate::planted("planted", "src", &[("lib.rs", text)])
}

fn files(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter()
        .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
        .collect()
}

/// Checks that the rule reports something in each of `wrong` and nothing in each of `sound`.
fn finds(rule: impl Fn(&Crate) -> Findings, wrong: &[&str], sound: &[&str]) {
    for text in wrong {
        assert!(!rule(&library(text)).is_empty(), "overlooked:\n{text}");
    }
    for text in sound {
        assert_eq!(
            rule(&library(text)),
            Findings::new(),
            "a false alarm:\n{text}"
        );
    }
}

#[test]
fn a_banned_crate_is_found_in_every_form() {
    finds(
        |source| rules::naming(source, &["fjall", "std::net", "crate::rpc"], &[]),
        &[
            "use fjall::Keyspace;",
            "use fjall;",
            "use ::fjall as database;",
            "fn f() -> fjall::Result<()> { Ok(()) }",
            "use std::{io, net::TcpStream};",
            "use std::net; fn f(s: net::TcpStream) {}",
            "fn f() { println!(\"{}\", fjall::VERSION); }",
            "#[derive(fjall::Row)] struct A;",
            "#[serde(with = \"fjall::hex\")] struct A;",
            "mod rpc { pub struct A; } mod b { use super::rpc::A; }",
            "mod rpc { pub struct A; } pub use rpc::A; mod b { use crate::A; }",
            "#[cfg(test)] mod tests {} use fjall::Keyspace;",
            "impl A { #[cfg(test)] fn f() {} fn g() { fjall::open(); } }",
            "#[cfg(not(test))] use fjall::Keyspace;",
        ],
        &[
            "#[cfg(test)] mod tests { use fjall::Keyspace; }",
            "#[cfg(all(test, unix))] use fjall::Keyspace;",
            "#[test] fn f() { fjall::open(); }",
            "impl A { #[cfg(test)] fn f() { fjall::open(); } }",
            "mod fjall { pub fn open() {} } fn f() { fjall::open(); }",
            "/// As [`fjall::Keyspace`].\nstruct A;",
            "use fjall_like::Keyspace;",
            "#[cfg(test)] use fjall::K; mod a { #[cfg(test)] use fjall::K; } use a::K as B;",
            "struct A { fjall: u8 } fn f(a: A) -> u8 { a.fjall }",
        ],
    );
}

#[test]
fn places_that_may_name_a_crate_are_left_out() {
    let source = Crate::planted(
        "planted",
        "src",
        &[
            ("lib.rs", "mod store; mod stores;"),
            ("store.rs", "mod inner; use fjall::A;"),
            ("store/inner.rs", "use fjall::A;"),
            ("stores.rs", "use fjall::A;"),
        ],
    );
    let found = rules::naming(&source, &["fjall"], &["src/store.rs", "src/store"]);
    assert_eq!(found, ["src/stores.rs:1: fjall::A"]);
}

#[test]
fn async_code_is_found() {
    finds(
        rules::asynchronous,
        &[
            "async fn f() {}",
            "struct A; impl A { async fn f() {} }",
            "fn f() { let _ = async {}; }",
        ],
        &["fn f() {}", "#[cfg(test)] mod tests { async fn f() {} }"],
    );
}

#[test]
fn a_comparison_with_the_time_of_a_fork_is_found() {
    finds(
        |source| rules::fork_times(source, &[]),
        &[
            "fn f() { forks.time(Fork::Canyon); }",
            "fn f() { assert!(forks.time(Fork::Canyon).is_some()); }",
            "fn f() { chain.is_canyon_active_at_timestamp(5); }",
            "fn f() -> bool { block.time >= config.ecotone_time }",
            "fn f() -> bool { config.shanghai_time() < time }",
        ],
        &[
            "fn f() { clock.time(Zone::Utc); }",
            "fn f() -> bool { block.time >= config.genesis_time }",
            "fn f() { forks.is_active(Fork::Canyon, time); }",
        ],
    );
}

#[test]
fn tasks_and_threads_are_found() {
    let banned = ["tokio::spawn", "std::thread::spawn", "std::thread::Builder"];
    finds(
        |source| rules::naming(source, &banned, &[]),
        &[
            "fn f() { tokio::spawn(run()); }",
            "use tokio::spawn;",
            "use std::thread; fn f() { thread::spawn(run); }",
            "use std::thread::Builder; fn f() { Builder::new().spawn(run); }",
            "fn f() { tokio::select! { _ = a => { tokio::spawn(run()); } } }",
        ],
        &[
            "fn f() { tokio::task::spawn_blocking(run); }",
            "fn f() { tokio::select! {} }",
        ],
    );
    finds(
        |source| rules::named_tasks(source, &[]),
        &[
            "fn f() { tasks.spawn(\"pool\", run()); }",
            "fn f() { tokio::select! { _ = a => { tasks.spawn(\"pool\", run()); } } }",
        ],
        &[
            "fn f() { connections.spawn(run()); }",
            "fn f() { command.spawn(); }",
        ],
    );
}

#[test]
fn an_unbounded_channel_is_found() {
    finds(
        rules::unbounded,
        &[
            "fn f() { tokio::sync::mpsc::unbounded_channel(); }",
            "use tokio::sync::mpsc; fn f() { mpsc::unbounded_channel(); }",
            "use std::sync::mpsc as std_mpsc; fn f() { std_mpsc::channel(); }",
            "use futures::channel::mpsc::unbounded;",
            "use tokio::sync::mpsc::UnboundedSender;",
        ],
        &[
            "use tokio::sync::mpsc; fn f() { mpsc::channel(5); }",
            "use std::sync::mpsc; fn f() { mpsc::sync_channel(1); }",
            "fn f() { lru::LruCache::unbounded(); }",
        ],
    );
}

#[test]
fn a_second_type_of_a_name_is_found() {
    let twice =
        |text: &str| rules::same_names(&[&library(text), &library("pub enum Rules {}")], &[]);
    assert_eq!(twice("struct Rules;"), ["Rules: src/lib.rs:1 src/lib.rs:1"]);
    assert_eq!(twice("struct GateRules;"), Findings::new());
    assert_eq!(
        twice("#[cfg(test)] mod tests { struct Rules; }"),
        Findings::new()
    );
    let sources = [&library(
        "mod a { struct Rules; } mod b { type Rules = u8; }",
    )];
    assert_eq!(rules::same_names(&sources, &[]).len(), 1);
    assert_eq!(
        rules::same_names(&sources, &[("Rules", "a reason")]),
        Findings::new()
    );
}

#[test]
fn a_function_of_61_lines_is_found() {
    // The lines of `fn` and of the closing brace are counted, too.
    let of_lines = |lines: usize| format!("fn long() {{{}\n}}", "\n    f();".repeat(lines - 2));
    let found = |text: &str| rules::long_functions(&files(&[("tests/it/a.rs", text)]));
    let long = of_lines(61);
    for wrong in [
        long.clone(),
        format!("impl A {{\n{long}\n}}"),
        format!("trait A {{\n{long}\n}}"),
        format!("#[cfg(test)]\nmod tests {{\n#[test]\n{long}\n}}"),
        format!("proptest! {{ #[test] {long} }}"),
        format!("fn short() {{ proptest!(|(a: u8)| {{ {long} }}); }}"),
    ] {
        assert!(!found(&wrong).is_empty(), "overlooked:\n{wrong}");
    }
    let many = format!("{0}\nproptest! {{ {0} {0} }}", of_lines(60));
    assert_eq!(found(&many), Findings::new());
    assert_eq!(found(&long), ["tests/it/a.rs:1: long has 61 lines"]);
}

#[test]
fn a_match_on_a_bool_is_found() {
    let found = |text: &str| rules::bool_matches(&files(&[("tests/it/a.rs", text)]));
    for wrong in [
        "fn f() { match a { true => 1, false => 2 }; }",
        "fn f() { match a { true => 1, _ => 2 }; }",
        "#[cfg(test)] mod tests { #[test] fn f() { match a { true => 1, false => 2 }; } }",
        "fn f() { tokio::select! { _ = a => { match b { true => 1, false => 2 } } } }",
        "fn f() { match (a, b) { (true, _) => 1, (false, true) => 2, (false, false) => 3 }; }",
        "fn f() { match (a, b, c) { (true, ..) => 1, (_, true, _) => 2, _ => 3 }; }",
    ] {
        assert!(!found(wrong).is_empty(), "overlooked:\n{wrong}");
    }
    for sound in [
        "fn f() { match a { Some(true) => 1, _ => 2 }; }",
        "fn f() { match (a, b) { (None, true) => 1, (_, false) => 2, _ => 3 }; }",
        "fn f() { match (a, b) { (FORK, true) => 1, (_, true) => 2, (_, false) => 3 }; }",
        "fn f() { if a { 1 } else { 2 }; }",
    ] {
        assert_eq!(found(sound), Findings::new(), "a false alarm:\n{sound}");
    }
}

#[test]
fn comments_without_a_subject_are_found() {
    let found = |text: &str| rules::headless_comments(&files(&[("src/a.rs", text)])).len();
    assert_eq!(
        found("/// What is left.\nstruct A;\n// Of a peer.\n//! Who waits.\n"),
        3
    );
    assert_eq!(
        found("/// Blocks that are left.\n/// Whatever is left.\n// Italic\nWhat!();\n"),
        0
    );
    let one_in_a_hundred = "/// A block.\n".repeat(99) + "/// That of a peer.\n";
    assert_eq!(found(&one_in_a_hundred), 0);
}

#[test]
fn a_cycle_between_rooms_is_found() {
    let of = |files: &[(&str, &str)]| {
        rules::cycles(&Crate::planted("planted", "src", files), "src", &[], &[]).len()
    };
    let root = ("lib.rs", "mod a; mod b; mod c; pub use c::D;");
    let sound = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c;"),
        ("c.rs", ""),
    ];
    assert_eq!(of(&sound), 0);
    let closed = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use super::c;"),
        ("c.rs", "fn f(a: crate::a::A) {}"),
    ];
    assert_eq!(of(&closed), 3);
    let in_tests = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "#[cfg(test)] use super::a;"),
        ("c.rs", ""),
    ];
    assert_eq!(of(&in_tests), 0);
    let by_visibility = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "pub(in crate::a) struct B;"),
        ("c.rs", ""),
    ];
    assert_eq!(of(&by_visibility), 0);
    // An item re-exported at the root counts as an item of the module that defines it.
    let by_name = [
        root,
        ("a.rs", ""),
        ("b.rs", "use super::D;"),
        ("c.rs", "pub struct D; use crate::b::B;"),
    ];
    assert_eq!(of(&by_name), 2);
    // The parent module's own file is a node, too.
    let with_parent = [
        ("lib.rs", "mod a; struct A; use a::B;"),
        ("a.rs", "use super::A;"),
    ];
    assert_eq!(of(&with_parent), 2);
    let edges = [("src", "c", "a", "a reason")];
    let closed = Crate::planted("planted", "src", &closed);
    assert_eq!(rules::cycles(&closed, "src", &[], &edges), Findings::new());
}

#[test]
fn the_graph_is_written_from_the_ground_up() {
    let source = Crate::planted(
        "planted",
        "src",
        &[
            ("lib.rs", "pub mod top; mod a; mod b; mod ground;"),
            ("main.rs", "fn main() { planted::top::run(); }"),
            ("top.rs", "use crate::{a::A, ground::G};"),
            ("a.rs", "mod inner; use crate::b::B;"),
            ("a/inner.rs", "use super::super::ground; use super::X;"),
            ("b.rs", "use crate::a::A;"),
            ("ground.rs", ""),
        ],
    );
    let text = Graph::of(&source, &[]).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "ground",
            "lib",
            "a      -> b ground (cycle 1)",
            "b      -> a (cycle 1)",
            "top    -> a ground",
            "main   -> top"
        ]
    );
}

#[test]
fn a_dependency_that_nothing_names_is_found() {
    let manifest = Manifest::parse(
        "[package]\nname = \"planted\"\n\n# serde = 1\n[dependencies]\nserde.workspace = true\n\
         fjall = \"3\"\nethereum_ssz = { version = \"0.10\" }\n\n[dev-dependencies.base64]\nversion = \"1\"\n",
    );
    let source = library("use serde::Serialize; #[cfg(test)] mod tests { use fjall::A; }");
    let beside = [("use base64::Engine;".to_owned(), true)];
    let package = Package::new(source, manifest, &beside);
    let unused = |section: &str, named: &BTreeSet<String>, reasons: &[(&str, &str)]| {
        rules::unused("planted", package.manifest.section(section), named, reasons).len()
    };
    assert_eq!(package.manifest.section("dependencies").len(), 3);
    assert_eq!(unused("dependencies", &package.named, &[]), 2);
    assert_eq!(
        unused("dependencies", &package.named, &[("fjall", "a reason")]),
        1
    );
    assert_eq!(unused("dev-dependencies", &package.named_in_tests, &[]), 0);
    assert_eq!(crate_name("igd-next"), "igd_next");
}

#[test]
fn files_out_of_order_are_found() {
    let found =
        |file: &str, text: &str| rules::files_without_a_purpose(&files(&[(file, text)])).len();
    assert_eq!(found("src/a.rs", "use b;"), 1);
    assert_eq!(found("src/a/mod.rs", "//! A module."), 1);
    assert_eq!(found("src/a.rs", "//! A module."), 0);
    assert_eq!(found("src/a/tests.rs", "use super::*;"), 0);
    assert_eq!(found("tests/it/a.rs", "use b;"), 1);

    let source = Crate::planted("planted", "src", &[("lib.rs", "mod a;"), ("a.rs", "")]);
    let all = files(&[
        ("src/lib.rs", ""),
        ("src/a.rs", ""),
        ("src/b.rs", ""),
        ("p2p/c.rs", ""),
    ]);
    assert_eq!(
        rules::orphans(&source, &all),
        ["src/b.rs: no `mod` declaration leads to it"]
    );
}

#[test]
fn words_in_lines_are_found() {
    let found = |text: &str, comments: bool| {
        rules::lines_with(&files(&[("src/a.rs", text)]), &["later!("], comments).len()
    };
    assert_eq!(
        found("#[cfg(test)]\nmod tests {}\nfn f() { later!() }\n", false),
        1
    );
    assert_eq!(found("// later!()\n", false), 0);
    assert_eq!(found("// later!()\n", true), 1);
}

#[test]
#[should_panic(expected = "no src/a.rs")]
fn a_declared_module_without_a_file_is_found() {
    library("mod a;");
}
