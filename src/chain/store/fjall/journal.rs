//! fjall's journals.
//!
//! At open fjall replays its journals too leniently: at bytes that are no entry it cuts a journal
//! and continues with the next one, so batches in the middle would be missing without an error. A
//! killed process leaves only one kind of damage: an unfinished batch at the end of the newest
//! journal. This module reports any other damage, so that the open fails; `starling db repair` cuts
//! it off.
//!
//! A journal is a sequence of batches, then nothing or zeros: start (tag 1, count u32, sequence
//! number u64), entries (tag 2: type, compression, keyspace u64, key length u16, value length u32,
//! compressed length u32, key, compressed value; or tag 4: keyspace u64), end (tag 3, XXH3 of the
//! entries u64, trailer). Little-endian.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::Xxh3;

const TRAILER: &[u8; 4] = b"FJL\x03";
/// Tags: the start of a batch, an entry, the end of a batch, and an entry that clears a keyspace.
const START: u8 = 1;
const ENTRY: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Extension of the files that keep the original journals. fjall ignores such files.
const CUT: &str = "cut";

/// The reason why a journal cannot be replayed as it is.
#[derive(Debug, thiserror::Error)]
#[error("the journal {} is damaged at byte {at}: {reason}", path.display())]
pub struct DamagedJournal {
    pub path: PathBuf,
    /// Offset at which the journal's last whole batch ends.
    pub at: u64,
    pub reason: &'static str,
    /// Newer journals. They build on the lost batches, so they are set aside too.
    newer: Vec<PathBuf>,
}

/// The state of a journal after its last whole batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JournalRest {
    Nothing,
    /// The beginning of a batch: its writer was killed.
    Unfinished,
    Damaged(&'static str),
}

/// Checks all journals of a database, oldest first. Returns the first one with damage that a killed
/// process cannot have caused.
pub fn check(database: &Path) -> io::Result<Option<DamagedJournal>> {
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
        // fjall numbers journals consecutively and removes the oldest first, so none may be missing
        // between two others.
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
            JournalRest::Nothing => continue,
            JournalRest::Unfinished if newest => continue,
            JournalRest::Unfinished => {
                "it ends in the middle of a batch, and there is a newer journal"
            }
            JournalRest::Damaged(reason) => reason,
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
    /// Cuts the journal at its last whole batch and sets newer journals aside. The original
    /// journals are saved beside it, at the paths that are returned.
    pub fn cut(self) -> io::Result<Vec<PathBuf>> {
        let beside = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".");
            name.push(CUT);
            PathBuf::from(name)
        };
        let mut kept = vec![];
        // A journal without a whole batch is set aside altogether. It may follow a missing journal,
        // and the gap in the numbers would be reported again if it stayed.
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

/// Returns the offset at which the last whole batch ends, and the kind of bytes after it.
/// `sequence` is the sequence number of the last batch read so far, in this journal or an earlier
/// one.
fn read(path: &Path, sequence: &mut Option<u64>) -> io::Result<(u64, JournalRest)> {
    let file = File::open(path)?;
    let mut reader = JournalReader {
        file: BufReader::with_capacity(1 << 20, file),
        hash: Xxh3::new(),
        at: 0,
    };
    loop {
        let start = reader.at;
        let damaged = match reader.batch()? {
            JournalBatch::Whole(number) if sequence.is_none_or(|last| number > last) => {
                *sequence = Some(number);
                continue;
            }
            JournalBatch::Whole(_) => "its batches are out of order",
            JournalBatch::Broken(reason) => reason,
        };
        // The batch at `start` is not valid. If another batch ends later in the journal, this is
        // damage, not a batch that a kill interrupted.
        reader.file.seek(SeekFrom::Start(start))?;
        let rest = match classify_tail(&mut reader.file)? {
            JournalTail::Zeros => JournalRest::Nothing,
            JournalTail::Other if damaged != OUT_OF_DATA => JournalRest::Damaged(damaged),
            JournalTail::Other => JournalRest::Unfinished,
            JournalTail::End => JournalRest::Damaged(damaged),
        };
        return Ok((start, rest));
    }
}

/// The reason reported if the start or the end of a batch is missing, mostly because the file ends
/// or zeros begin.
const OUT_OF_DATA: &str = "a batch is not whole, and another follows it";

enum JournalBatch {
    /// A complete batch, with its sequence number.
    Whole(u64),
    /// An incomplete or invalid batch, with the reason.
    Broken(&'static str),
}

/// Reads the batches of a journal one by one.
struct JournalReader {
    file: BufReader<File>,
    hash: Xxh3,
    at: u64,
}

impl JournalReader {
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

    /// Hashes the next `count` bytes of the file; returns false if the file has fewer.
    fn hash_next(&mut self, mut count: u64) -> io::Result<bool> {
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

    /// Reads the next batch: to its end, or to the first byte that cannot belong to a batch.
    fn batch(&mut self) -> io::Result<JournalBatch> {
        const NO_ENTRY: &str =
            "a batch holds bytes that are no entry, and another batch follows it";
        let out_of_data = Ok(JournalBatch::Broken(OUT_OF_DATA));
        let Some([START]) = self.take()? else {
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
                Some([ENTRY]) => {
                    let Some(head) = self.take::<20>()? else {
                        return out_of_data;
                    };
                    self.hash.update(&[ENTRY]);
                    self.hash.update(&head);
                    let key = u64::from(u16::from_le_bytes([head[10], head[11]]));
                    let value =
                        u64::from(u32::from_le_bytes([head[16], head[17], head[18], head[19]]));
                    if !self.hash_next(key + value)? {
                        return out_of_data;
                    }
                }
                Some([CLEAR]) => {
                    self.hash.update(&[CLEAR]);
                    if !self.hash_next(8)? {
                        return out_of_data;
                    }
                }
                Some([0]) | None => return out_of_data,
                Some(_) => return Ok(JournalBatch::Broken(NO_ENTRY)),
            }
        }
        let sum = match self.take::<13>()? {
            Some(end) if end[0] == END && end[9..] == *TRAILER => {
                u64::from_le_bytes(std::array::from_fn(|i| end[1 + i]))
            }
            Some(end) if end[0] != END && end[0] != 0 => return Ok(JournalBatch::Broken(NO_ENTRY)),
            _ => return out_of_data,
        };
        Ok(if sum == self.hash.digest() {
            JournalBatch::Whole(number)
        } else {
            JournalBatch::Broken("the checksum of a batch is wrong")
        })
    }
}

/// Kinds of bytes after the last whole batch of a journal.
enum JournalTail {
    /// Nothing, or zeros.
    Zeros,
    /// Bytes without the trailer of a batch.
    Other,
    /// Bytes that include the trailer of a batch.
    End,
}

/// Classifies the bytes after the last whole batch.
fn classify_tail(file: &mut impl Read) -> io::Result<JournalTail> {
    let (mut buffer, empty) = (vec![0; 1 << 18], vec![0; 1 << 18]);
    let (mut zeros, mut carried) = (true, 0);
    loop {
        // A trailer may span two reads, so the last bytes of each read are searched again.
        let read = file.read(&mut buffer[carried..])?;
        if read == 0 {
            return Ok(if zeros {
                JournalTail::Zeros
            } else {
                JournalTail::Other
            });
        }
        let filled = carried + read;
        // Most of a journal is zeros, and a comparison of slices is much faster than a loop over
        // bytes.
        zeros = zeros && buffer[carried..filled] == empty[..read];
        if !zeros
            && buffer[..filled]
                .windows(TRAILER.len())
                .any(|window| window == TRAILER)
        {
            return Ok(JournalTail::End);
        }
        carried = filled.min(TRAILER.len() - 1);
        buffer.copy_within(filled - carried..filled, 0);
    }
}

#[cfg(test)]
mod tests;
