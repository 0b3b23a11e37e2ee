//! Runs of the `netsim` program with real networks: runs that pass, one whose node dies, and runs
//! that are interrupted or killed. The program `starling` is that of STARLING_BINARY, or the one
//! beside `netsim`.

mod ends;
mod hostile;
mod runs;

use starling_netsim::{
    guard::MARK,
    report::{self, RunReport},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const NETSIM: &str = env!("CARGO_BIN_EXE_netsim");

/// The `starling` program; `None`, recorded as a skip, if it is not built.
fn starling() -> Option<PathBuf> {
    let named = std::env::var_os("STARLING_BINARY").map(PathBuf::from);
    let path = named.unwrap_or_else(|| Path::new(NETSIM).with_file_name("starling"));
    let what = "the program (cargo build --bin starling)";
    starling_testkit::require(path.exists().then_some(path), what)
}

/// Whether mount namespaces are allowed, which some verbs need; otherwise recorded as a skip.
fn can_mount() -> bool {
    let unshared = Command::new("unshare").args(["--mount", "true"]).status();
    let allowed = unshared.is_ok_and(|status| status.success());
    let what = "the right to make a mount namespace (run as root)";
    starling_testkit::require(allowed.then_some(()), what).is_some()
}

/// A run of `netsim` in a folder of its own, which also has its temporary files.
struct LabRun {
    child: Child,
    folder: tempfile::TempDir,
}

impl LabRun {
    /// Starts `netsim run` with a scenario; `None` if there is no program.
    fn start(scenario: &str) -> Option<Self> {
        Self::start_with(scenario, &[])
    }

    /// Starts `netsim run` like [`Self::start`], with further options.
    fn start_with(scenario: &str, options: &[&str]) -> Option<Self> {
        let starling = starling()?;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("scenario.toml");
        fs::write(&file, scenario).expect("a file");
        let output = fs::File::create(folder.path().join("output")).expect("a file");
        let child = Command::new(NETSIM)
            .arg("run")
            .arg(&file)
            .arg("--seed=7")
            .args(options)
            .arg(format!("--out={}", folder.path().join("reports").display()))
            .env("TMPDIR", folder.path())
            .env("STARLING_BINARY", starling)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file"))
            .stderr(output)
            .spawn();
        let child = child.expect("netsim starts");
        Some(Self { child, folder })
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    fn report(&self) -> RunReport {
        self.report_of("scenario")
    }

    fn report_of(&self, name: &str) -> RunReport {
        let path = format!("reports/{name}.json");
        report::read(&self.folder.path().join(path)).expect("a report")
    }

    /// Waits for the end. Returns the exit code, which a killed process does not have.
    fn code(&mut self) -> Option<i32> {
        self.child.wait().expect("it runs").code()
    }

    /// Waits until the output has a text.
    fn prints(&mut self, text: &str) {
        wait(&format!("{text} in the output"), || {
            let ended = self.child.try_wait().expect("it runs");
            assert!(ended.is_none(), "ended early: {}", self.output());
            self.output().contains(text)
        });
    }

    /// Temporary folders of the run.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path())
            .expect("a folder")
            .flatten();
        let is_run = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("netsim-")
        };
        entries.map(|entry| entry.path()).filter(is_run).collect()
    }

    /// Command lines of the run's processes, with their ids: those with the run's mark in their
    /// environment, as the guard finds them, and those that name the folder of the run. The
    /// controller and its guard are not counted.
    fn nodes(&self) -> Vec<(i32, String)> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mark = format!("{MARK}={folder}/netsim-");
        let mut nodes = Vec::new();
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            let is_marked = variables.any(|it| it.starts_with(mark.as_bytes()));
            let own = ["/netsim run ", "/netsim guard "];
            let is_own = own.iter().any(|it| line.contains(it));
            let is_node = is_marked || (line.contains(&folder) && !is_own);
            nodes.extend(pid.filter(|_| is_node).map(|pid| (pid, line)));
        }
        nodes
    }

    /// The namespaces of a kind in which the run's processes are, except that of this process. The
    /// open files keep their numbers from being given to other namespaces.
    fn namespaces(&self, kind: &str) -> BTreeMap<PathBuf, fs::File> {
        let own = namespace("self", kind).expect("Linux");
        let mut found = BTreeMap::new();
        for (pid, _) in self.nodes() {
            let file = fs::File::open(format!("/proc/{pid}/ns/{kind}")).ok();
            let namespace = namespace(&pid.to_string(), kind);
            found.extend(namespace.filter(|it| *it != own).zip(file));
        }
        found
    }

    /// Asserts that neither a process nor a folder is left a moment later.
    fn leaves_nothing(&self) {
        wait("no process and no folder", || {
            self.nodes().is_empty() && self.folders().is_empty()
        });
    }
}

/// The namespace of a process; `None` if the process has just ended.
fn namespace(process: &str, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// Asserts that no process on this machine is in one of these namespaces.
fn assert_unused(namespaces: &BTreeMap<PathBuf, fs::File>, kind: &str) {
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let process = entry.file_name().to_string_lossy().into_owned();
        let found = namespace(&process, kind);
        let is_inside = found.is_some_and(|it| namespaces.contains_key(&it));
        assert!(!is_inside, "{process} is in a namespace of the run");
    }
}

fn wait(what: &str, mut probe: impl FnMut() -> bool) {
    let start = Instant::now();
    while !probe() {
        assert!(
            start.elapsed() < Duration::from_secs(180),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
