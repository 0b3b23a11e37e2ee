//! System calls of a process, recorded with strace and read back in order.
//!
//! A call has a beginning and an end, because calls of several threads overlap: what a call wrote
//! counts from its end, what a sync covers had ended when the sync began, and what is sent may be
//! read by others from the beginning of the call.

use crate::net::wait;
use std::{
    collections::HashMap,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Everything that changes files, or sends. Names that a platform does not have are passed over.
const CALLS: &str = "trace=?open,?openat,?openat2,?creat,?close,?dup,?dup2,?dup3,?fcntl,?write,?pwrite64,?writev,?pwritev,?pwritev2,\
    ?lseek,?ftruncate,?truncate,?fallocate,?fsync,?fdatasync,?sync_file_range,?syncfs,?sync,?rename,?renameat,?renameat2,?unlink,\
    ?unlinkat,?mkdir,?mkdirat,?rmdir,?link,?linkat,?symlink,?symlinkat,?copy_file_range,?sendfile,?mmap,?sendto,?sendmsg";

/// Time for a recorder to write what it has.
const DEADLINE: Duration = Duration::from_secs(120);

/// The command line that records what the program after it does. The recorder is no parent of the
/// program: a killed program is dead, and the recorder ends with it.
pub fn recorder(to: &Path) -> Vec<String> {
    let mut line: Vec<String> = [
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-xx",
        "-s",
        "33554432",
        "-e",
        CALLS,
        "-o",
    ]
    .map(Into::into)
    .into();
    line.push(to.display().to_string());
    line
}

/// Whether processes can be recorded here; if not, the reason.
pub fn is_possible() -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a folder");
    let line = recorder(&dir.path().join("trace"));
    let out = Command::new(&line[0])
        .args(&line[1..])
        .arg("true")
        .output()
        .map_err(|error| format!("strace: {error}"))?;
    if !out.status.success() {
        let told = String::from_utf8_lossy(&out.stderr);
        return Err(told.trim().replace('\n', "; "));
    }
    Ok(())
}

/// A call that did not fail.
#[derive(Debug)]
pub struct Call {
    pub name: String,
    /// Arguments as strace prints them, with strings left out.
    pub args: String,
    /// The strings among the arguments.
    pub strings: Vec<Vec<u8>>,
    pub result: i64,
}

impl Call {
    /// The argument at this place, if it is a number.
    pub fn number(&self, at: usize) -> Option<i64> {
        self.args.split(", ").nth(at)?.parse().ok()
    }

    /// The path at this place among the strings.
    pub fn path(&self, at: usize) -> PathBuf {
        String::from_utf8_lossy(&self.strings[at])
            .into_owned()
            .into()
    }

    /// Whether a flag or a word is among the arguments.
    pub fn has(&self, word: &str) -> bool {
        self.args.split([',', '|', ' ']).any(|part| part == word)
    }

    /// Bytes that a writing or sending call has written.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.strings.concat();
        bytes.truncate(usize::try_from(self.result).unwrap_or_default());
        bytes
    }
}

/// A line of the record. The number is that of the call in [`Trace::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Begin(usize),
    End(usize),
}

/// The recorded calls of a process.
#[derive(Debug, Default)]
pub struct Trace {
    pub calls: Vec<Call>,
    pub moments: Vec<Moment>,
}

impl Trace {
    /// Waits until the process with this number has ended, and reads its record.
    pub fn read(record: &Path, pid: u32) -> Self {
        wait("the end of the record", DEADLINE, || {
            let tail = tail(record).ok()?;
            tail.lines().any(|line| ends(line, pid)).then_some(())
        });
        Self::parse(&fs::read_to_string(record).expect("a record"))
    }

    pub fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        // Calls that have begun, by thread: the call's number, and whether its arguments are known
        // only at its end.
        let mut open: HashMap<&str, (usize, &str)> = HashMap::new();
        for (thread, line) in text.lines().filter_map(|line| line.split_once(' ')) {
            let line = line.trim_start();
            if let Some((name, begun)) = line
                .strip_suffix(" <unfinished ...>")
                .and_then(|line| line.split_once('('))
            {
                open.insert(thread, (trace.begin(name, begun), begun));
            } else if let Some((_, rest)) = line
                .strip_prefix("<... ")
                .and_then(|line| line.split_once(" resumed>"))
            {
                if let Some((call, begun)) = open.remove(thread) {
                    (trace.calls[call].args, trace.calls[call].strings) =
                        parse(&format!("{begun}{rest}"));
                    trace.end(call, rest);
                }
            } else if let Some((name, rest)) = line
                .split_once('(')
                .filter(|_| !line.starts_with(['+', '-']))
            {
                let call = trace.begin(name, rest);
                trace.end(call, rest);
            }
        }
        trace
    }

    fn begin(&mut self, name: &str, rest: &str) -> usize {
        let (args, strings) = parse(rest);
        self.calls.push(Call {
            name: name.to_owned(),
            args,
            strings,
            result: -1,
        });
        self.moments.push(Moment::Begin(self.calls.len() - 1));
        self.calls.len() - 1
    }

    /// Failed calls, and those that a kill cut off, have no end.
    fn end(&mut self, at: usize, rest: &str) {
        let result = rest
            .rsplit_once(" = ")
            .and_then(|(_, result)| result.split(' ').next());
        // Addresses are of no interest.
        let result = result.and_then(|word| {
            if word.starts_with("0x") {
                Some(0)
            } else {
                word.parse::<i64>().ok()
            }
        });
        if let Some(result) = result.filter(|result| *result >= 0) {
            self.calls[at].result = result;
            self.moments.push(Moment::End(at));
        }
    }
}

/// Whether a line is the last one of this thread. strace pads its number to five columns.
fn ends(line: &str, pid: u32) -> bool {
    line.split_once(' ').is_some_and(|(thread, rest)| {
        let rest = rest.trim_start();
        thread == pid.to_string() && rest.starts_with("+++ ") && rest.ends_with("+++")
    })
}

#[test]
fn the_end_of_a_thread_is_known_by_numbers_of_any_width() {
    assert!(ends("123456 +++ killed by SIGKILL +++", 123_456));
    assert!(ends("3027  +++ exited with 0 +++", 3027));
    assert!(!ends("3027  +++ exited with 0 +++", 302));
    assert!(!ends("3027  exit_group(0) = ?", 3027));
}

/// The last part of a file.
fn tail(file: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(file)?;
    let from = file.metadata()?.len().saturating_sub(1 << 14);
    file.seek(SeekFrom::Start(from))?;
    let mut text = vec![];
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The arguments without their strings, up to the closing bracket, and the strings, whose bytes are
/// all printed as `\x..`.
fn parse(printed: &str) -> (String, Vec<Vec<u8>>) {
    let (mut args, mut strings) = (String::new(), vec![]);
    for (i, part) in printed.split('"').enumerate() {
        assert!(
            i == 0 || !part.starts_with("..."),
            "a string is cut off after {args}"
        );
        match i % 2 {
            0 => args.push_str(part),
            _ => strings.push(
                part.as_bytes()
                    .chunks(4)
                    .map(|byte| (digit(byte[2]) << 4) | digit(byte[3]))
                    .collect(),
            ),
        }
    }
    args.truncate(args.rfind(')').unwrap_or(args.len()));
    (args, strings)
}

fn digit(char: u8) -> u8 {
    (char as char).to_digit(16).expect("hex") as u8
}
