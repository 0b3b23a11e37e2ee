//! A simulated folder in two states: as the process sees it, and as it is on the disk. Data that
//! were written but not synced may be missing after a power cut.
//!
//! Syncing a file makes its content and its own directory entry durable, as ext4, XFS and btrfs do;
//! syncing a folder makes its entries durable. Nothing else is guaranteed. After a cut a file has
//! some of the sectors written since its last sync, and a folder has some number of the earliest
//! changes to its entries.

use super::trace::{Call, Moment, Trace};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

/// The smallest unit that a disk writes or loses, in bytes.
const SECTOR: u64 = 512;

/// A change of a file's content or length.
enum Change {
    Write { at: u64, bytes: Rc<Vec<u8>> },
    Length(u64),
}

/// Entries of a folder that change together: each is set to a node, or removed.
type Entries = Vec<(String, Option<usize>)>;

enum Node {
    File {
        bytes: Vec<u8>,
        /// The file's durable length; zeros follow `bytes` up to this length.
        length: u64,
        /// The length that the process sees.
        seen: u64,
        unsynced: Vec<(usize, Change)>,
        /// The folder with the file's unsynced entry, and the number of the change that made the
        /// entry.
        entry: Option<(usize, usize)>,
    },
    Folder {
        durable: BTreeMap<String, usize>,
        /// Entries that the process sees.
        seen: BTreeMap<String, usize>,
        unsynced: Vec<(usize, Entries)>,
    },
}

/// An open file or folder. Duplicated descriptors share it.
struct Open {
    node: usize,
    path: PathBuf,
    position: u64,
    appends: bool,
}

/// Data that a power cut loses.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// All changes that were not synced.
    All,
    /// The last changes of each file and folder. The first lost change may be partly written.
    Last,
    /// A random set of unsynced sectors.
    Sectors,
    /// No change is lost: only the process was killed.
    None,
}

pub struct Disk {
    root: PathBuf,
    /// Files and folders; the first one is the root.
    nodes: Vec<Node>,
    open: HashMap<i64, Rc<RefCell<Open>>>,
    /// Running syncs by call number: the synced node, and the number of the next change when the
    /// sync began.
    syncs: HashMap<usize, (usize, usize)>,
    /// Number of the next change.
    next: usize,
}

impl Disk {
    /// Loads a folder from disk; all of it counts as durable.
    pub fn of(root: &Path) -> Self {
        let mut disk = Self {
            root: root.into(),
            nodes: vec![],
            open: HashMap::new(),
            syncs: HashMap::new(),
            next: 0,
        };
        disk.load(root);
        disk
    }

    fn load(&mut self, path: &Path) -> usize {
        let at = self.nodes.len();
        if path.is_dir() {
            self.nodes.push(folder());
            let entries = path
                .read_dir()
                .expect("a folder")
                .map(|entry| entry.expect("an entry"));
            // Leave out sockets.
            let is_kept = |path: &Path| path.is_dir() || path.is_file();
            let found: BTreeMap<_, _> = entries
                .filter(|entry| is_kept(&entry.path()))
                .map(|entry| {
                    (
                        entry.file_name().to_string_lossy().into_owned(),
                        self.load(&entry.path()),
                    )
                })
                .collect();
            self.nodes[at] = Node::Folder {
                durable: found.clone(),
                seen: found,
                unsynced: vec![],
            };
        } else {
            let bytes = fs::read(path).expect("a file");
            let length = bytes.len() as u64;
            self.nodes.push(Node::File {
                bytes,
                length,
                seen: length,
                unsynced: vec![],
                entry: None,
            });
        }
        at
    }

    /// The path of the file whose descriptor is a call's first argument, if the file is on this
    /// disk.
    pub fn path(&self, call: &Call) -> Option<PathBuf> {
        self.open
            .get(&call.number(0)?)
            .map(|open| open.borrow().path.clone())
    }

    /// Applies one moment of the record.
    pub fn advance(&mut self, trace: &Trace, moment: Moment) {
        match moment {
            Moment::Begin(at) => self.begin(at, &trace.calls[at]),
            Moment::End(at) => self.end(at, &trace.calls[at]),
        }
    }

    fn begin(&mut self, at: usize, call: &Call) {
        let Some(fd) = call.number(0) else { return };
        match &*call.name {
            // The descriptor's number can be reused before the call has ended.
            "close" => drop(self.open.remove(&fd)),
            "fsync" | "fdatasync" => {
                self.syncs.extend(
                    self.open
                        .get(&fd)
                        .map(|open| (at, (open.borrow().node, self.next))),
                );
            }
            _ => {}
        }
    }

    fn end(&mut self, at: usize, call: &Call) {
        let fd = call.number(0);
        match &*call.name {
            "open" | "openat" => self.opened(call),
            "fsync" | "fdatasync" => {
                if let Some((node, until)) = self.syncs.remove(&at) {
                    self.settle(node, until);
                }
            }
            "dup" => self.duplicate(call, call.result),
            "dup2" | "dup3" => self.duplicate(call, call.number(1).expect("a descriptor")),
            "fcntl" if call.args.contains("F_DUPFD") => self.duplicate(call, call.result),
            // sync_file_range makes nothing durable.
            "fcntl" | "close" | "sync_file_range" => {}
            "rename" | "renameat" | "renameat2" => self.renamed(call),
            "link" | "linkat" => {
                if let (Some((from, name)), Some((to, new))) =
                    (self.locate(call, 0), self.locate(call, 1))
                {
                    let node = self.entries(from).get(&name).copied();
                    self.change(to, vec![(new, node)]);
                }
            }
            "unlink" | "unlinkat" | "rmdir" => {
                if let Some((folder, name)) = self.locate(call, 0) {
                    self.change(folder, vec![(name, None)]);
                }
            }
            "mkdir" | "mkdirat" => {
                if let Some((parent, name)) = self.locate(call, 0) {
                    self.nodes.push(folder());
                    self.change(parent, vec![(name, Some(self.nodes.len() - 1))]);
                }
            }
            "mmap" => {
                let ours = call.number(4).is_some_and(|fd| self.open.contains_key(&fd));
                assert!(
                    !ours || !call.has("MAP_SHARED") || !call.has("PROT_WRITE"),
                    "not modelled: {call:?}"
                );
            }
            _ => {
                if let Some(open) = fd.and_then(|fd| self.open.get(&fd).cloned()) {
                    self.written(call, &mut open.borrow_mut());
                }
            }
        }
    }

    /// Applies a call that changes an open file, or its position.
    fn written(&mut self, call: &Call, open: &mut Open) {
        let Node::File { seen, .. } = &self.nodes[open.node] else {
            panic!("not modelled: {call:?}")
        };
        let at = match &*call.name {
            "write" | "writev" => {
                if open.appends {
                    *seen
                } else {
                    open.position
                }
            }
            "pwrite64" => call.number(3).expect("an offset") as u64,
            "lseek" => return open.position = call.result as u64,
            "ftruncate" => {
                return self.alter(
                    open.node,
                    Change::Length(call.number(1).expect("a length") as u64),
                );
            }
            name => panic!("not modelled: {name} of {}", open.path.display()),
        };
        let bytes = call.bytes();
        if call.name != "pwrite64" {
            open.position = at + bytes.len() as u64;
        }
        self.alter(
            open.node,
            Change::Write {
                at,
                bytes: Rc::new(bytes),
            },
        );
    }

    fn opened(&mut self, call: &Call) {
        let located = self.locate(call, 0);
        let known = match &located {
            Some((_, name)) if name.is_empty() => Some(0),
            Some((folder, name)) => self.entries(*folder).get(name).copied(),
            None => None,
        };
        let node = match (known, located) {
            (Some(node), _) => node,
            (None, Some((parent, name))) if call.has("O_CREAT") => {
                self.nodes.push(Node::File {
                    bytes: vec![],
                    length: 0,
                    seen: 0,
                    unsynced: vec![],
                    entry: None,
                });
                self.change(parent, vec![(name, Some(self.nodes.len() - 1))]);
                self.nodes.len() - 1
            }
            _ => return drop(self.open.remove(&call.result)),
        };
        if call.has("O_TRUNC") {
            self.alter(node, Change::Length(0));
        }
        let open = Open {
            node,
            path: call.path(0),
            position: 0,
            appends: call.has("O_APPEND"),
        };
        self.open.insert(call.result, Rc::new(RefCell::new(open)));
    }

    fn duplicate(&mut self, call: &Call, to: i64) {
        match call.number(0).and_then(|fd| self.open.get(&fd).cloned()) {
            Some(open) => drop(self.open.insert(to, open)),
            None => drop(self.open.remove(&to)),
        }
    }

    fn renamed(&mut self, call: &Call) {
        let (Some((from, old)), Some((to, new))) = (self.locate(call, 0), self.locate(call, 1))
        else {
            return;
        };
        let node = self.entries(from).get(&old).copied();
        if from == to {
            self.change(from, vec![(old, None), (new, node)]);
        } else {
            self.change(to, vec![(new, node)]);
            self.change(from, vec![(old, None)]);
        }
    }

    /// Resolves a path of a call, the first (0) or second (1) one, to a folder and a name in it.
    /// The root has an empty name.
    fn locate(&self, call: &Call, which: usize) -> Option<(usize, String)> {
        let path = call.path(which);
        // A relative path begins at the folder whose descriptor is the preceding argument.
        let (base, inside) = if path.is_absolute() {
            (0, path.strip_prefix(&self.root).ok()?)
        } else {
            let folder = self.open.get(&call.number(2 * which)?)?;
            (folder.borrow().node, &*path)
        };
        let mut at = base;
        let mut names = inside
            .iter()
            .map(|name| name.to_string_lossy().into_owned());
        let mut name = names.next().unwrap_or_default();
        for next in names {
            at = *self.entries(at).get(&name)?;
            name = next;
        }
        Some((at, name))
    }

    fn entries(&self, folder: usize) -> &BTreeMap<String, usize> {
        match &self.nodes[folder] {
            Node::Folder { seen, .. } => seen,
            Node::File { .. } => panic!("a file where a folder is expected"),
        }
    }

    fn change(&mut self, folder: usize, entries: Entries) {
        let Node::Folder { seen, unsynced, .. } = &mut self.nodes[folder] else {
            panic!("a file where a folder is expected")
        };
        put(seen, &entries);
        let added: Vec<usize> = entries.iter().filter_map(|(_, node)| *node).collect();
        unsynced.push((self.next, entries));
        for node in added {
            if let Node::File { entry, .. } = &mut self.nodes[node] {
                *entry = Some((folder, self.next));
            }
        }
        self.next += 1;
    }

    fn alter(&mut self, file: usize, change: Change) {
        let Node::File { seen, unsynced, .. } = &mut self.nodes[file] else {
            panic!("a folder is written to")
        };
        *seen = match &change {
            Change::Write { at, bytes } => (*seen).max(at + bytes.len() as u64),
            Change::Length(length) => *length,
        };
        unsynced.push((self.next, change));
        self.next += 1;
    }

    /// Makes the node's changes with numbers below `until` durable.
    fn settle(&mut self, node: usize, until: usize) {
        match &mut self.nodes[node] {
            Node::File {
                bytes,
                length,
                unsynced,
                entry,
                ..
            } => {
                let count = unsynced.partition_point(|(number, _)| *number < until);
                unsynced
                    .drain(..count)
                    .for_each(|(_, change)| apply(&change, bytes, length));
                if let Some((folder, change)) = entry.take_if(|(_, change)| *change < until) {
                    self.settle(folder, change + 1);
                }
            }
            Node::Folder {
                durable, unsynced, ..
            } => {
                let count = unsynced.partition_point(|(number, _)| *number < until);
                unsynced
                    .drain(..count)
                    .for_each(|(_, entries)| put(durable, &entries));
            }
        }
    }

    /// Writes the disk's contents after a power cut at this moment to an empty folder.
    pub fn cut(&self, loss: Loss, to: &Path, rng: &mut StdRng) {
        self.write_out(0, loss, to, rng);
    }

    fn write_out(&self, node: usize, loss: Loss, to: &Path, rng: &mut StdRng) {
        let some = |rng: &mut StdRng, all: usize| match loss {
            Loss::All => 0,
            Loss::None => all,
            Loss::Last | Loss::Sectors => rng.random_range(0..=all),
        };
        match &self.nodes[node] {
            Node::Folder {
                durable, unsynced, ..
            } => {
                fs::create_dir_all(to).expect("a folder");
                let (mut entries, kept) = (durable.clone(), some(rng, unsynced.len()));
                unsynced[..kept]
                    .iter()
                    .for_each(|(_, change)| put(&mut entries, change));
                for (name, node) in entries {
                    self.write_out(node, loss, &to.join(name), rng);
                }
            }
            Node::File {
                bytes,
                length,
                unsynced,
                ..
            } => {
                let (mut bytes, mut length) = (bytes.clone(), *length);
                let kept = if matches!(loss, Loss::Sectors) {
                    unsynced.len()
                } else {
                    some(rng, unsynced.len())
                };
                for (_, change) in &unsynced[..kept] {
                    match (loss, change) {
                        (Loss::Sectors, Change::Write { at, bytes: new }) => {
                            sectors(*at, new)
                                .filter(|_| rng.random())
                                .for_each(|part| apply(&part, &mut bytes, &mut length));
                        }
                        _ => apply(change, &mut bytes, &mut length),
                    }
                }
                if let (Loss::Last, Some((_, Change::Write { at, bytes: new }))) =
                    (loss, unsynced.get(kept))
                {
                    let parts: Vec<_> = sectors(*at, new).collect();
                    parts[..rng.random_range(0..parts.len())]
                        .iter()
                        .for_each(|part| apply(part, &mut bytes, &mut length));
                }
                fs::write(to, bytes).expect("a file");
                fs::File::options()
                    .write(true)
                    .open(to)
                    .and_then(|file| file.set_len(length))
                    .expect("a length");
            }
        }
    }
}

fn folder() -> Node {
    Node::Folder {
        durable: BTreeMap::new(),
        seen: BTreeMap::new(),
        unsynced: vec![],
    }
}

fn put(entries: &mut BTreeMap<String, usize>, change: &Entries) {
    for (name, node) in change {
        match node {
            Some(node) => entries.insert(name.clone(), *node),
            None => entries.remove(name),
        };
    }
}

fn apply(change: &Change, bytes: &mut Vec<u8>, length: &mut u64) {
    match change {
        Change::Write { at, bytes: new } => {
            let (from, to) = (*at as usize, *at as usize + new.len());
            bytes.resize(bytes.len().max(to), 0);
            bytes[from..to].copy_from_slice(new);
            *length = (*length).max(to as u64);
        }
        Change::Length(new) => {
            bytes.truncate(*new as usize);
            *length = *new;
        }
    }
}

/// Splits a write into one change per sector.
fn sectors(at: u64, bytes: &[u8]) -> impl Iterator<Item = Change> {
    let end = at + bytes.len() as u64;
    let starts = std::iter::successors(Some(at), move |start| {
        Some((start / SECTOR + 1) * SECTOR).filter(|next| *next < end)
    });
    starts.map(move |start| {
        let to = ((start / SECTOR + 1) * SECTOR).min(end);
        Change::Write {
            at: start,
            bytes: Rc::new(bytes[(start - at) as usize..(to - at) as usize].to_vec()),
        }
    })
}

#[test]
fn a_disk_keeps_what_was_synced_and_parts_of_the_rest() {
    let (root, mut rng) = (
        tempfile::tempdir().expect("a folder"),
        StdRng::seed_from_u64(1),
    );
    fs::write(root.path().join("old"), "old").expect("a file");
    let (trace, mut disk) = (
        Trace::parse(&record_of_a_rename(root.path())),
        Disk::of(root.path()),
    );
    trace
        .moments
        .iter()
        .for_each(|moment| disk.advance(&trace, *moment));
    let mut after = |loss| {
        let cut = tempfile::tempdir().expect("a folder");
        disk.cut(loss, cut.path(), &mut rng);
        let read = |name| fs::read_to_string(cut.path().join(name)).ok();
        (
            read("new").expect("its entry was synced"),
            read("old"),
            read("moved"),
        )
    };
    let old = Some("old".to_owned());
    assert_eq!(after(Loss::All), ("first".into(), old.clone(), None));
    assert_eq!(after(Loss::None), ("firstsecond".into(), None, old));
    for _ in 0..20 {
        for (new, old, moved) in [after(Loss::Last), after(Loss::Sectors)] {
            assert!(
                new.starts_with("first") && old.is_some() != moved.is_some(),
                "{new} {old:?} {moved:?}"
            );
        }
    }
}

/// The record of a process that writes "first" and "second" to `new`, and renames `old`. The second
/// thread writes while the first thread syncs, so that the second write may be lost.
fn record_of_a_rename(root: &Path) -> String {
    let text = |text: &str| {
        let bytes = text.bytes().map(|byte| format!("\\x{byte:02x}"));
        format!("\"{}\"", bytes.collect::<String>())
    };
    let path = |name: &str| text(&root.join(name).display().to_string());
    [
        format!(
            "7 openat(AT_FDCWD, {}, O_WRONLY|O_CREAT|O_EXCL, 0666) = 3",
            path("new")
        ),
        format!("7 write(3, {}, 5) = 5", text("first")),
        "7 fsync(3 <unfinished ...>".into(),
        format!("8 write(3, {}, 6)            = 6", text("second")),
        "7 <... fsync resumed>)          = 0".into(),
        format!("7 openat(AT_FDCWD, {}, O_RDONLY|O_DIRECTORY) = 4", path("")),
        "7 fsync(4)                      = 0".into(),
        format!(
            "7 renameat(AT_FDCWD, {}, AT_FDCWD, {}) = 0",
            path("old"),
            path("moved")
        ),
        format!(
            "7 unlinkat(4, {}, 0)          = -1 ENOENT (No such file or directory)",
            text("none")
        ),
        format!("7 write(3, {}, 5 <unfinished ...>) = ?", text("never")),
        "7 +++ killed by SIGKILL +++".into(),
    ]
    .join("\n")
}
