//! The version that a build reports.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Runs the build script, compiled separately, for a folder. Returns the `STARLING_` variables that
/// it sets.
fn told(script: &Path, root: &Path, profile: &str) -> Vec<String> {
    let output = Command::new(script)
        .env("CARGO_MANIFEST_DIR", root)
        .env("CARGO_PKG_VERSION", "1.2.3")
        .env("PROFILE", profile)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .filter_map(|line| {
            line.strip_prefix("cargo:rustc-env=STARLING_")
                .map(str::to_owned)
        })
        .collect()
}

fn git(root: &Path, arguments: &[&str]) -> String {
    let identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ];
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(identity)
        .args(arguments)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

#[test]
fn a_release_from_a_repository_names_its_commit_and_a_tarball_builds_without() {
    let temp = tempfile::tempdir().expect("a folder");
    let [script, repository, tarball] =
        ["script", "repository", "repository/tarball"].map(|name| temp.path().join(name));
    let source: PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs").into();
    let built = Command::new("rustc")
        .args(["--edition=2024", "-o"])
        .args([&script, &source])
        .status()
        .expect("rustc runs");
    assert!(built.success());
    std::fs::create_dir_all(&tarball).expect("folders");
    git(&repository, &["init", "-q"]);
    let unknown = ["VERSION=1.2.3", "COMMIT=00000000"];
    assert_eq!(
        told(&script, &repository, "release"),
        unknown,
        "before the first commit"
    );
    git(&repository, &["commit", "-q", "--allow-empty", "-m", "one"]);
    let commit = git(&repository, &["rev-parse", "HEAD"])[..8].to_owned();
    assert_eq!(
        told(&script, &repository, "release"),
        [
            format!("VERSION=1.2.3-{commit}"),
            format!("COMMIT={commit}")
        ]
    );
    assert_eq!(told(&script, &repository, "debug"), unknown);
    assert_eq!(
        told(&script, &tarball, "release"),
        unknown,
        "the repository around a tarball is not its own"
    );
}
