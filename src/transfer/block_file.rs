//! Files of blocks: one RLP block after the other, as geth's `export` writes them. A file is
//! compressed if its name ends in `.gz` or `.zst`.
//!
//! [`block_rlp`](crate::chain::block_rlp) defines the encoding of a block. Files are untrusted:
//! memory grows with the bytes read, never with a length prefix, and every error names its position
//! in the file.

pub use crate::chain::block_rlp::encode;
use crate::chain::block_rlp::{BlockRlpError, decode};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use starling_proto::payload::Payload;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Maximum bytes of a block that is read, more than the gas limits in use allow.
const MAX_BLOCK: u64 = 256 << 20;

/// The reason why a file cannot be read any further, and the position.
#[derive(Debug, thiserror::Error)]
#[error("{}, byte {offset}{}: {cause}", path.display(), if *.compressed { " of the unpacked file" } else { "" })]
pub struct BlockFileError {
    pub path: PathBuf,
    /// Offset of the block that cannot be read, in the unpacked file.
    pub offset: u64,
    pub compressed: bool,
    pub cause: Cause,
}

#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error("the file ends in the middle of a block")]
    Truncated,
    #[error("there is no block here: {0}")]
    NoBlock(&'static str),
    #[error("a block of {0} bytes is larger than any can be")]
    TooLarge(u64),
    #[error(transparent)]
    Block(#[from] BlockRlpError),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(path: &Path) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// A file that counts the bytes read from the disk, before unpacking.
struct CountingFile {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for CountingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Reads a file block by block.
pub struct BlockReader {
    path: PathBuf,
    packing: Packing,
    input: Box<dyn Read + Send>,
    offset: u64,
    read: Arc<AtomicU64>,
    /// Whether an error occurred. Nothing is read after an error.
    failed: bool,
}

/// A block and its offset in the unpacked file.
#[derive(Debug)]
pub struct FileBlock {
    pub offset: u64,
    pub payload: Payload,
}

impl BlockReader {
    pub fn open(path: &Path) -> io::Result<Self> {
        let read = Arc::<AtomicU64>::default();
        let packing = Packing::of(path);
        let file = BufReader::with_capacity(
            1 << 20,
            CountingFile {
                file: File::open(path)?,
                read: read.clone(),
            },
        );
        let input: Box<dyn Read + Send> = match packing {
            Packing::None => Box::new(file),
            // A file to which exports were appended consists of several gzip members.
            Packing::Gzip => Box::new(BufReader::with_capacity(1 << 20, MultiGzDecoder::new(file))),
            Packing::Zstd => Box::new(BufReader::with_capacity(
                1 << 20,
                zstd::Decoder::with_buffer(file)?,
            )),
        };
        Ok(Self {
            path: path.to_owned(),
            packing,
            input,
            offset: 0,
            read,
            failed: false,
        })
    }

    /// The number of bytes read from the disk so far. The reader keeps it up to date.
    pub fn position(&self) -> Arc<AtomicU64> {
        self.read.clone()
    }

    /// Offset of the end of the last complete block that was read, in the unpacked file.
    pub fn end(&self) -> u64 {
        self.offset
    }

    /// Whether the file is compressed. An incomplete block cannot be cut off the end of such a
    /// file.
    pub fn is_packed(&self) -> bool {
        self.packing != Packing::None
    }

    /// Reads the next block and its length in bytes; `None` at the end of the file.
    fn read_block(&mut self) -> Result<Option<(u64, Payload)>, Cause> {
        let mut first = [0; 1];
        if self
            .input
            .by_ref()
            .take(1)
            .read(&mut first)
            .map_err(io_cause)?
            == 0
        {
            return Ok(None);
        }
        let mut rlp = first.to_vec();
        let length = match first[0] {
            short @ 0xc0..=0xf7 => u64::from(short - 0xc0),
            long @ 0xf8.. => {
                let mut length = [0; 8];
                let digits = &mut length[8 - usize::from(long - 0xf7)..];
                self.input.read_exact(digits).map_err(io_cause)?;
                rlp.extend_from_slice(digits);
                u64::from_be_bytes(length)
            }
            _ => return Err(Cause::NoBlock("it would begin with a list")),
        };
        if length > MAX_BLOCK {
            return Err(Cause::TooLarge(length));
        }
        let read = self
            .input
            .by_ref()
            .take(length)
            .read_to_end(&mut rlp)
            .map_err(io_cause)?;
        if (read as u64) < length {
            return Err(Cause::Truncated);
        }
        let length = rlp.len() as u64;
        Ok(Some((length, decode(rlp.into())?)))
    }
}

impl Iterator for BlockReader {
    type Item = Result<FileBlock, BlockFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match self.read_block() {
            Ok(None) => None,
            Ok(Some((length, payload))) => {
                let offset = self.offset;
                self.offset += length;
                Some(Ok(FileBlock { offset, payload }))
            }
            Err(cause) => {
                self.failed = true;
                let (path, compressed) = (self.path.clone(), self.packing != Packing::None);
                Some(Err(BlockFileError {
                    path,
                    offset: self.offset,
                    compressed,
                    cause,
                }))
            }
        }
    }
}

fn io_cause(error: io::Error) -> Cause {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Cause::Truncated,
        _ => Cause::Io(error),
    }
}

/// Writes a file block by block.
pub enum BlockWriter {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl BlockWriter {
    /// Opens a file for writing. With `append` its contents are kept, otherwise they are removed.
    pub fn create(path: &Path, append: bool) -> io::Result<Self> {
        let file = File::options()
            .create(true)
            .write(true)
            .append(append)
            .truncate(!append)
            .open(path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(match Packing::of(path) {
            Packing::None => Self::Plain(file),
            Packing::Gzip => Self::Gzip(GzEncoder::new(file, Compression::default())),
            Packing::Zstd => Self::Zstd(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?),
        })
    }

    pub fn write(&mut self, payload: &Payload) -> io::Result<()> {
        let block = encode(payload);
        match self {
            Self::Plain(file) => file.write_all(&block),
            Self::Gzip(file) => file.write_all(&block),
            Self::Zstd(file) => file.write_all(&block),
        }
    }

    /// Writes all buffered bytes and syncs the file to disk.
    pub fn finish(self) -> io::Result<()> {
        let file = match self {
            Self::Plain(file) => file,
            Self::Gzip(file) => file.finish()?,
            Self::Zstd(file) => file.finish()?,
        };
        file.into_inner()
            .map_err(|error| error.into_error())?
            .sync_all()
    }
}

#[cfg(test)]
mod tests;
