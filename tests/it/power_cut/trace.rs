//! System calls of a process, recorded with strace and parsed in order.
//!
//! A call has a beginning and an end, because calls of several threads overlap. Written data count
//! from the end of the write. A sync covers the writes that had ended when the sync began. Sent
//! data may be read by the receiver from the beginning of the call.

use crate::net::wait;
use std::{
    collections::HashMap,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// System calls that change files or send data. With `?` strace ignores names that a platform
/// lacks.
const CALLS: &str = "trace=?open,?openat,?openat2,?creat,?close,?dup,?dup2,?dup3,?fcntl,?write,?pwrite64,?writev,?pwritev,?pwritev2,\
    ?lseek,?ftruncate,?truncate,?fallocate,?fsync,?fdatasync,?sync_file_range,?syncfs,?sync,?rename,?renameat,?renameat2,?unlink,\
    ?unlinkat,?mkdir,?mkdirat,?rmdir,?link,?linkat,?symlink,?symlinkat,?copy_file_range,?sendfile,?mmap,?sendto,?sendmsg";

/// Longest wait until the recorder has written the whole record.
const DEADLINE: Duration = Duration::from_secs(120);

/// The command line that records the system calls of the program appended to it. strace runs as a
/// grandchild (`-D`), so that a kill hits the program itself, and strace then exits.
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

/// Checks that strace can record processes here. `Err` is the reason why not.
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

/// A recorded system call. Its result is -1 if the call failed or did not end.
#[derive(Debug)]
pub struct Call {
    pub name: String,
    /// Arguments as strace prints them, without the strings.
    pub args: String,
    /// The strings among the arguments, in order.
    pub strings: Vec<Vec<u8>>,
    pub result: i64,
}

impl Call {
    /// The argument at index `at`, if it is a number.
    pub fn number(&self, at: usize) -> Option<i64> {
        self.args.split(", ").nth(at)?.parse().ok()
    }

    /// The string at index `at` as a path.
    pub fn path(&self, at: usize) -> PathBuf {
        String::from_utf8_lossy(&self.strings[at])
            .into_owned()
            .into()
    }

    /// Whether the arguments contain this flag or word.
    pub fn has(&self, word: &str) -> bool {
        self.args.split([',', '|', ' ']).any(|part| part == word)
    }

    /// The bytes that a write or send call has written.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.strings.concat();
        bytes.truncate(usize::try_from(self.result).unwrap_or_default());
        bytes
    }
}

/// Beginning or end of a call, given by its index in [`Trace::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Begin(usize),
    End(usize),
}

/// The recorded system calls of a process.
#[derive(Debug, Default)]
pub struct Trace {
    pub calls: Vec<Call>,
    pub moments: Vec<Moment>,
}

impl Trace {
    /// Waits until the process with this id has ended, and parses its record.
    pub fn read(record: &Path, pid: u32) -> Self {
        wait("the end of the record", DEADLINE, || {
            let tail = tail(record).ok()?;
            tail.lines().any(|line| ends(line, pid)).then_some(())
        });
        Self::parse(&fs::read_to_string(record).expect("a record"))
    }

    pub fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        // Unfinished calls by thread: the call's index, and the text of its arguments, which may
        // continue at its end.
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

    /// Records the end of a call. A call that failed, or that a kill interrupted, gets no end.
    fn end(&mut self, at: usize, rest: &str) {
        let result = rest
            .rsplit_once(" = ")
            .and_then(|(_, result)| result.split(' ').next());
        // Results that are addresses count as 0.
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

/// Whether a line reports the end of this thread. strace pads thread ids to five columns.
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

/// The last 16 KiB of a file.
fn tail(file: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(file)?;
    let from = file.metadata()?.len().saturating_sub(1 << 14);
    file.seek(SeekFrom::Start(from))?;
    let mut text = vec![];
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Splits printed arguments, up to the closing bracket, into the text without strings and the
/// strings. strace prints all bytes of strings as `\x..`.
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
