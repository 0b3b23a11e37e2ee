//! The commands that maintain a data directory, run as an operator runs them: their output, and
//! their exit status.

use crate::{
    campaign::world::{World, datadir},
    net::starling,
};
use rand::{SeedableRng, rngs::StdRng};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output},
    sync::mpsc,
    time::Duration,
};

fn run(dir: &Path, line: &str) -> (Output, String, String) {
    let words: Vec<_> = line.split(' ').collect();
    let (command, operands) = words.split_at(1);
    let out = starling()
        .args(command)
        .arg("--datadir")
        .arg(dir)
        .args(operands)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, errors) = (text(&out.stdout), text(&out.stderr));
    (out, told, errors)
}

/// Runs a command on a data directory, which must succeed. Returns its output.
pub fn succeeds(dir: &Path, line: &str) -> String {
    let (out, told, errors) = run(dir, line);
    assert!(out.status.success(), "{line}: {told}\n{errors}");
    told
}

fn fails(dir: &Path, line: &str) -> String {
    let (out, told, errors) = run(dir, line);
    assert_eq!(out.status.code(), Some(1), "{line}: {told}\n{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

#[test]
fn blocks_go_out_and_come_in_and_the_database_is_looked_after() {
    let (source, target, files) = (datadir(), datadir(), tempfile::tempdir().unwrap());
    let world = World::open(source.path(), None);
    world.extend(&mut StdRng::seed_from_u64(1), 60);
    refused_while_in_use(source.path());
    drop(world);
    export_and_import(
        source.path(),
        target.path(),
        &files.path().join("blocks.rlp.gz"),
    );

    let told = succeeds(target.path(), "db prune --history.state 10");
    assert!(told.contains("oldest state: block 50 "), "{told}");
    let told = succeeds(target.path(), "db stats");
    for part in [
        "chain id               901",
        "oldest state           50",
        "state history",
        "unwind records",
        "payload log",
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    assert!(
        succeeds(target.path(), "db repair")
            .contains("0 trie rows, 0 index rows, receipts of 0 blocks")
    );
    assert!(
        fails(target.path(), "export x 1 61").contains("block number 61 larger than head block 60")
    );
    assert!(fails(files.path(), "db verify").contains("there is no database in"));
}

/// Checks that commands which need the directory for themselves are refused. The error must name
/// the process that uses the directory, which is the test itself.
fn refused_while_in_use(dir: &Path) {
    for line in [
        "db verify",
        "db stats",
        "db prune",
        "db repair",
        "export x",
        "import x",
    ] {
        let error = fails(dir, line);
        assert!(
            error.contains(&format!("by process {}", std::process::id())),
            "{line}: {error}"
        );
    }
}

/// Exports 60 blocks and imports them again, first from a truncated file.
fn export_and_import(source: &Path, target: &Path, file: &Path) {
    let name = file.to_str().unwrap();
    succeeds(source, &format!("export {name}"));
    let whole = fs::read(file).unwrap();
    fs::write(file, &whole[..whole.len() * 2 / 3]).unwrap();
    let error = fails(target, &format!("import {name}"));
    for part in [name, "byte ", "the import stops after block "] {
        assert!(error.contains(part), "{error}");
    }
    assert!(succeeds(target, "db verify").contains("nothing is damaged"));
    fs::write(file, &whole).unwrap();
    succeeds(target, &format!("import {name} --history.state 20"));
    let told = succeeds(target, "db verify");
    assert!(
        told.contains("nothing is damaged")
            && told
                .lines()
                .any(|line| line.starts_with("head ") && line.ends_with(" 60")),
        "{told}"
    );
}

/// The head's number that `db stats` prints.
fn head(dir: &Path) -> u64 {
    let told = succeeds(dir, "db stats");
    let line = told
        .lines()
        .find(|line| line.starts_with("head "))
        .expect("a head");
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{line}"))
}

/// Starts an import from a pipe that delivers only `bytes`, and kills the import after a while.
fn import_and_kill(target: &Path, pipe: &Path, bytes: Vec<u8>, after: Duration) {
    let ((written, is_written), (ended, has_ended)) = (mpsc::channel(), mpsc::channel::<()>());
    let path = pipe.to_owned();
    let writer = std::thread::spawn(move || {
        let mut pipe = fs::File::options()
            .write(true)
            .open(path)
            .expect("the import reads");
        pipe.write_all(&bytes).expect("the import reads");
        written.send(()).expect("the test waits");
        // Keep the pipe open: closing it would end the file.
        let _ = has_ended.recv();
    });
    let mut import = starling()
        .arg("import")
        .arg("--datadir")
        .arg(target)
        .arg(pipe)
        .spawn()
        .expect("it starts");
    is_written
        .recv_timeout(Duration::from_secs(240))
        .expect("the import reads");
    std::thread::sleep(after);
    import.kill().expect("it waits for more");
    import.wait().expect("it is dead");
    drop(ended);
    writer.join().expect("it has written");
}

/// Kills an import at its start, during its work, and while it waits for the rest of the file.
#[test]
fn an_import_killed_again_and_again_goes_on_and_loses_nothing() {
    const BLOCKS: u64 = 1_000;
    let (source, files) = (datadir(), tempfile::tempdir().unwrap());
    World::open(source.path(), None).extend(&mut StdRng::seed_from_u64(7), BLOCKS as usize);
    for name in ["blocks.rlp", "blocks.rlp.gz", "blocks.rlp.zst"] {
        let target = datadir();
        let [file, pipe] = ["", "pipe-"].map(|start| files.path().join(format!("{start}{name}")));
        succeeds(source.path(), &format!("export {}", file.display()));
        let whole = fs::read(&file).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .expect("mkfifo runs")
                .success()
        );
        let mut reached = 0;
        for part in [2, 3] {
            let mut after = Duration::from_millis(20);
            loop {
                import_and_kill(
                    target.path(),
                    &pipe,
                    whole[..whole.len() * part / 4].to_vec(),
                    after,
                );
                assert!(succeeds(target.path(), "db verify").contains("nothing is damaged"));
                let now = head(target.path());
                assert!((reached..BLOCKS).contains(&now), "{now} after {reached}");
                if now > reached {
                    println!("{name}: killed after {after:?} at block {now}");
                    reached = now;
                    break;
                }
                after *= 2;
                assert!(
                    after < Duration::from_secs(100),
                    "no block of {name} in {after:?}"
                );
            }
        }
        let out = run(target.path(), &format!("import {}", file.display())).2;
        for count in [
            format!(" executed={} ", BLOCKS - reached),
            format!(" known={} ", reached + 1),
        ] {
            assert!(out.contains(&count), "no{count}in {out}");
        }
        assert_eq!(head(target.path()), BLOCKS);
        assert!(succeeds(target.path(), "db verify").contains("nothing is damaged"));
    }
}
