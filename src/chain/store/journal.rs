//! The engine's journals, read before the engine reads them.
//!
//! At open the engine replays its journals and forgives too much: at bytes that are no entry it cuts a journal and goes on with the
//! next one, so that batches in the middle would be missing and nobody would know. A killed process leaves one thing only: an
//! unfinished batch at the end of the newest journal. Everything else is refused here, and cut by `starling db repair`.
//!
//! A journal is a row of batches, then nothing or zeros: start (tag 1, count u32, sequence number u64), entries (tag 2: type, packing,
//! keyspace u64, key length u16, value length u32, packed length u32, key, packed value; or tag 4: keyspace u64), end (tag 3, XXH3 of
//! the entries u64, trailer). Little-endian.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::Xxh3;

const TRAILER: &[u8; 4] = b"FJL\x03";
/// Ends the name of what is cut off a journal. The engine does not look at such files.
const CUT: &str = "cut";

/// Why a journal cannot be replayed as it is.
#[derive(Debug, thiserror::Error)]
#[error("the journal {} is damaged at byte {at}: {reason}", path.display())]
pub struct DamagedJournal {
    pub path: PathBuf,
    /// The end of its last whole batch.
    pub at: u64,
    pub reason: &'static str,
    /// Newer journals, which build on what is lost here.
    newer: Vec<PathBuf>,
}

/// What stands after the whole batches of a journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    /// Zeros follow the beginning of a batch: its writer was killed.
    Unfinished,
    Damaged(&'static str),
}

/// Looks at all journals of a database, oldest first, for the first that a killed process cannot have left.
pub(in crate::chain) fn check(database: &Path) -> io::Result<Option<DamagedJournal>> {
    let mut journals = Vec::new();
    for entry in database.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl")
            && let Some(number) = path
                .file_stem()
                .and_then(|stem| stem.to_str()?.parse::<u64>().ok())
        {
            journals.push((number, path));
        }
    }
    journals.sort();
    let (mut sequence, mut before) = (None, None);
    let mut rest = journals.into_iter();
    while let Some((number, path)) = rest.next() {
        let newest = rest.len() == 0;
        let newer = |rest: std::vec::IntoIter<(u64, PathBuf)>| rest.map(|(_, path)| path).collect();
        // The engine numbers them one by one and removes the oldest first.
        if before
            .replace(number)
            .is_some_and(|before| number != before + 1)
        {
            return Ok(Some(DamagedJournal {
                path,
                at: 0,
                reason: "the journal before it is missing",
                newer: newer(rest),
            }));
        }
        let (at, found) = read(&path, &mut sequence)?;
        let reason = match found {
            Rest::Nothing => continue,
            Rest::Unfinished if newest => continue,
            Rest::Unfinished => "it ends in the middle of a batch, and there is a newer journal",
            Rest::Damaged(reason) => reason,
        };
        return Ok(Some(DamagedJournal {
            path,
            at,
            reason,
            newer: newer(rest),
        }));
    }
    Ok(None)
}

impl DamagedJournal {
    /// Cuts the journal at its last whole batch and takes newer ones away. What is cut off is kept beside it, under names that are
    /// returned.
    pub(in crate::chain) fn cut(self) -> io::Result<Vec<PathBuf>> {
        let beside = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".");
            name.push(CUT);
            PathBuf::from(name)
        };
        let mut kept = vec![];
        // Of a journal without a whole batch nothing is left: it goes with its number, which may be the one behind a gap.
        if self.at > 0 {
            kept.push(beside(&self.path));
            std::fs::copy(&self.path, &kept[0])?;
        }
        for newer in (self.at == 0)
            .then_some(&self.path)
            .into_iter()
            .chain(&self.newer)
        {
            let to = beside(newer);
            std::fs::rename(newer, &to)?;
            kept.push(to);
        }
        if self.at > 0 {
            let file = File::options().write(true).open(&self.path)?;
            file.set_len(self.at)?;
            file.sync_all()?;
        }
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(kept)
    }
}

/// The end of the last whole batch, and what stands after it. `sequence` is the number of the last batch so far.
fn read(path: &Path, sequence: &mut Option<u64>) -> io::Result<(u64, Rest)> {
    let file = File::open(path)?;
    let mut input = Input {
        file: BufReader::with_capacity(1 << 20, file),
        hash: Xxh3::new(),
        at: 0,
    };
    loop {
        let start = input.at;
        let damaged = match input.batch()? {
            Batch::Whole(number) if sequence.is_none_or(|last| number > last) => {
                *sequence = Some(number);
                continue;
            }
            Batch::Whole(_) => "its batches are out of order",
            Batch::Broken(reason) => reason,
        };
        // A batch was being written, or the end was reached: then no batch ends after here.
        input.file.seek(SeekFrom::Start(start))?;
        let rest = match after(&mut input.file)? {
            After::Zeros => Rest::Nothing,
            After::Something if damaged != OUT_OF_DATA => Rest::Damaged(damaged),
            After::Something => Rest::Unfinished,
            After::End => Rest::Damaged(damaged),
        };
        return Ok((start, rest));
    }
}

/// The reason when an entry is not there, or not as a whole.
const OUT_OF_DATA: &str = "a batch is not whole, and another follows it";

enum Batch {
    Whole(u64),
    Broken(&'static str),
}

struct Input {
    file: BufReader<File>,
    hash: Xxh3,
    at: u64,
}

impl Input {
    fn take<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.file.read_exact(&mut bytes) {
            Ok(()) => {
                self.at += N as u64;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hashes that many bytes; false if there are not so many.
    fn pass(&mut self, mut count: u64) -> io::Result<bool> {
        use io::BufRead;
        while count > 0 {
            let buffer = self.file.fill_buf()?;
            let part = buffer
                .len()
                .min(usize::try_from(count).unwrap_or(usize::MAX));
            if part == 0 {
                return Ok(false);
            }
            self.hash.update(&buffer[..part]);
            self.file.consume(part);
            self.at += part as u64;
            count -= part as u64;
        }
        Ok(true)
    }

    fn batch(&mut self) -> io::Result<Batch> {
        const NO_ENTRY: &str = "a batch holds what is no entry, and is followed by another";
        let out_of_data = Ok(Batch::Broken(OUT_OF_DATA));
        let Some([1]) = self.take()? else {
            return out_of_data;
        };
        let (Some(count), Some(number)) = (
            self.take()?.map(u32::from_le_bytes),
            self.take()?.map(u64::from_le_bytes),
        ) else {
            return out_of_data;
        };
        self.hash.reset();
        for _ in 0..count {
            match self.take::<1>()? {
                Some([2]) => {
                    let Some(head) = self.take::<20>()? else {
                        return out_of_data;
                    };
                    self.hash.update(&[2]);
                    self.hash.update(&head);
                    let key = u64::from(u16::from_le_bytes([head[10], head[11]]));
                    let value =
                        u64::from(u32::from_le_bytes([head[16], head[17], head[18], head[19]]));
                    if !self.pass(key + value)? {
                        return out_of_data;
                    }
                }
                Some([4]) => {
                    self.hash.update(&[4]);
                    if !self.pass(8)? {
                        return out_of_data;
                    }
                }
                Some([0]) | None => return out_of_data,
                Some(_) => return Ok(Batch::Broken(NO_ENTRY)),
            }
        }
        let sum = match self.take::<13>()? {
            Some(end) if end[0] == 3 && end[9..] == *TRAILER => {
                u64::from_le_bytes(std::array::from_fn(|i| end[1 + i]))
            }
            Some(end) if end[0] != 3 && end[0] != 0 => return Ok(Batch::Broken(NO_ENTRY)),
            _ => return out_of_data,
        };
        Ok(match sum == self.hash.digest() {
            true => Batch::Whole(number),
            false => Batch::Broken("the checksum of a batch is wrong"),
        })
    }
}

enum After {
    Zeros,
    Something,
    /// The end of a batch.
    End,
}

/// What the rest of a journal holds.
fn after(file: &mut impl Read) -> io::Result<After> {
    let (mut buffer, empty) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let (mut zeros, mut carried) = (true, 0);
    loop {
        // Trailers may lie across two reads.
        let read = file.read(&mut buffer[carried..])?;
        if read == 0 {
            return Ok(if zeros {
                After::Zeros
            } else {
                After::Something
            });
        }
        let filled = carried + read;
        // Compared as memory is, since most of a journal is this.
        zeros = zeros && buffer[carried..filled] == empty[..read];
        if !zeros
            && buffer[..filled]
                .windows(TRAILER.len())
                .any(|window| window == TRAILER)
        {
            return Ok(After::End);
        }
        carried = filled.min(TRAILER.len() - 1);
        buffer.copy_within(filled - carried..filled, 0);
    }
}

#[cfg(test)]
mod tests;
