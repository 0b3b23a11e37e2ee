//! The commands `netsim model` and `netsim compare`, as a user runs them.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn netsim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsim"));
    command.args(arguments).output().expect("netsim runs")
}

fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn small(seed: &str, folder: &Path, joins: &str) -> Output {
    let out = folder.display().to_string();
    netsim(&[
        "model",
        "--nodes",
        "60,90",
        "--blocks",
        "10",
        "--block-size",
        "5k,100k",
        "--joins",
        joins,
        "--seed",
        seed,
        "--out",
        &out,
    ])
}

#[test]
fn a_model_writes_reports_pictures_and_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let (table, error) = printed(&small("3", folder.path(), "2"));
    assert_eq!(error, "");
    assert!(
        table.contains("60 nodes, 100 KB blocks, transatlantic"),
        "{table}"
    );
    assert!(table.contains("duplicates per node and block") && table.contains("synced after, s"));
    let mut files: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files.len(), 10, "{files:?}");
    for name in files.iter().filter(|name| !name.ends_with(".json")) {
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        // Nothing but the name of the SVG form may look like a request to somewhere.
        let rest = text.replace("http://www.w3.org/2000/svg", "");
        for reference in ["http:", "https:", "url(", "@import", "<script", "src="] {
            assert!(!rest.contains(reference), "{name} has {reference}");
        }
        assert!(text.contains("prefers-color-scheme:dark"), "{name}");
        assert!(!text.contains("NaN") && !rest.contains("inf"), "{name}");
    }
}

#[test]
fn one_seed_prints_one_report_in_two_processes() {
    let arguments = [
        "model", "--nodes", "80", "--blocks", "5", "--json", "--joins", "3", "--silent", "0.2",
    ];
    let with = |seed| printed(&netsim(&[&arguments[..], &["--seed", seed]].concat())).0;
    assert_eq!(with("9"), with("9"));
    assert_ne!(with("9"), with("10"));
}

#[test]
fn a_comparison_says_what_moved() {
    let [before, after] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    small("3", before.path(), "0");
    small("4", after.path(), "0");
    let path =
        |folder: &tempfile::TempDir, name: &str| folder.path().join(name).display().to_string();
    let [a, b] = [&before, &after].map(|folder| path(folder, "model-60-5kb.json"));
    let (same, _) = printed(&netsim(&["compare", &a, &a]));
    assert!(same.contains("Figures that moved: 0;"), "{same}");
    let (text, error) = printed(&netsim(&["compare", &a, &b]));
    assert!(
        error.is_empty() && text.contains("propagation p50, ms"),
        "{text}"
    );
    let (text, _) = printed(&netsim(&[
        "compare",
        &a,
        &path(&before, "model-90-5kb.json"),
    ]));
    assert!(text.contains("setting nodes: 60 → 90"), "{text}");
}

fn refused(folder: &Path, content: &str) -> String {
    let path = folder.join("bad.json").display().to_string();
    fs::write(&path, content).unwrap();
    let output = netsim(&["compare", &path, &path]);
    assert!(!output.status.success(), "{content}");
    let (text, error) = printed(&output);
    assert_eq!(text, "");
    assert!(error.contains("bad.json"), "{error}");
    error
}

#[test]
fn files_that_are_no_reports_are_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let bad = |content: &str| refused(folder.path(), content);
    assert!(bad("").contains("does not contain a report: EOF"));
    assert!(bad("{\"schema\":1,").contains("does not contain a report"));
    assert!(bad("[]").contains("Name a JSON file that `netsim` wrote"));
    assert!(bad("{}").contains("missing field `schema`"));
    let other = r#"{"schema":2,"name":"a","layer":"lab","seed":1,"heads":7}"#;
    assert!(bad(other).contains("invalid type: integer `7`"));
    let newer = r#"{"schema":3,"name":"a","layer":"lab","seed":1}"#;
    assert!(bad(newer).contains("has report format 3, and this netsim reads format 2"));
    let older = r#"{"schema":1,"name":"a","layer":"lab","seed":1,"hostile":[{"peer":"x"}]}"#;
    assert!(
        bad(older).contains("has report format 1"),
        "fields of other formats may differ"
    );
    let absent = netsim(&["compare", "nowhere.json", "nowhere.json"]);
    assert!(printed(&absent).1.contains("nowhere.json cannot be read"));
}

#[test]
fn networks_that_cannot_exist_are_refused_with_a_sentence() {
    for (arguments, sentence) in [
        (["--nodes", "1"], "nodes of 1 is outside of 2 to 100000"),
        (
            ["--mesh-d", "4"],
            "a mesh with D 4, lo 6, hi 12, lazy 6 cannot be",
        ),
        (
            ["--links", "dial-up"],
            "`dial-up` is no network of the ladder",
        ),
        (
            ["--links", "lan=0"],
            "`lan=0` has no weight from 0.000001 to",
        ),
        (
            ["--links", "lan=1e308,home-dsl=1e308"],
            "`lan=1e308` has no weight",
        ),
        (
            ["--block-size", "5g"],
            "write a number of bytes, such as 5120, 5k or 1m",
        ),
        (
            ["--silent", "1"],
            "a silent share of 1 is outside of 0 to 0.9",
        ),
    ] {
        let output = netsim(&[&["model"][..], &arguments].concat());
        let (_, error) = printed(&output);
        assert!(
            !output.status.success() && error.contains(sentence),
            "{error}"
        );
    }
}
