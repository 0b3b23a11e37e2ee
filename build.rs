//! Sets the program's version: the package's version, and in a release build from a git repository
//! also the commit. A tarball has no commit. A debug build leaves the commit out, since naming it
//! would recompile the crate after every commit.

use std::{env, path::Path, process::Command};

/// Hex digits of the commit in the Engine API's client version.
const DIGITS: usize = 8;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let package = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = release.then(|| commit(Path::new(&root))).flatten();
    let version = commit
        .as_ref()
        .map_or(package.clone(), |commit| format!("{package}-{commit}"));
    println!("cargo:rustc-env=STARLING_VERSION={version}");
    println!(
        "cargo:rustc-env=STARLING_COMMIT={}",
        commit.unwrap_or("0".repeat(DIGITS))
    );
}

/// Commit of this work tree; `None` if there is no git repository.
fn commit(root: &Path) -> Option<String> {
    // Without this check, git would return the commit of any repository around an unpacked tarball.
    root.join(".git").exists().then_some(())?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(root)
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Rebuild when this log changes: every commit and every checkout adds a line.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        .map(|log| root.join(log))
        .filter(|log| log.exists())
    {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    git(&["rev-parse", "HEAD"])?
        .get(..DIGITS)
        .map(str::to_owned)
}
