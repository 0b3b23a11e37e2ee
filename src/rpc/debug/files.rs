//! Traces written to files, and blocks read from files, only in the folder `traces` of the data
//! directory.
//!
//! Files are kept only if the whole call succeeds, because a call may be restarted. The size of
//! each file and of all files together is bounded; the operator removes old files. One call writes
//! at a time, because two calls would share the free space of the folder.

use super::trace::trace_encoded;
use crate::{
    chain::{
        evm::{Deadline, StateError, StructLogConfig, TraceWriter, Tracer, TracerConfig},
        replay::Replay,
    },
    rpc::{
        context::RpcContext,
        error::RpcError,
        json::read,
        params::{Arg, Args},
        trace_session::{TraceOptions, Traced, replay_by_hash},
    },
};
use alloy_primitives::{B256, Bytes, hex};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    fs,
    io::{self, Write},
    path::{Component, Path},
};
use tempfile::NamedTempFile;

/// Maximum bytes of a file that is written.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Maximum bytes of all files in the folder together.
const MAX_FOLDER_BYTES: u64 = 16 << 30;
/// Maximum bytes of a file that is read: every block is smaller.
const MAX_INPUT_BYTES: u64 = 64 << 20;

/// Options of the `standardTrace` methods.
#[derive(Default)]
struct FileTraceOptions {
    log: StructLogConfig,
    /// Traces only the transaction with this hash.
    tx_hash: Option<B256>,
}

/// The options that the struct logger does not have.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileTraceMembers<'a> {
    tx_hash: Option<B256>,
    #[serde(borrow)]
    overrides: Option<&'a RawValue>,
}

impl Arg for FileTraceOptions {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: FileTraceMembers<'_> = read(json).map_err(|error| error.to_string())?;
        // geth's other tracing methods ignore this member, but here it changes the result.
        if members.overrides.is_some() {
            return Err(
                "blocks are traced by the forks of their chain: leave out `overrides`".into(),
            );
        }
        Ok(Self {
            log: read(json).map_err(|error| error.to_string())?,
            tx_hash: members.tx_hash,
        })
    }
}

fn folder(context: &RpcContext) -> Result<&Path, RpcError> {
    let missing = "this node has no folder for traces";
    context
        .traces
        .as_deref()
        .ok_or_else(|| RpcError::server(missing))
}

fn failed(what: &str) -> impl Fn(io::Error) -> RpcError + '_ {
    move |error| RpcError::server(format!("{what}: {error}"))
}

/// `debug_standardTraceBlockToFile(hash, options)`: writes a file for each transaction of a block.
pub fn trace_block_to_file(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let options = args.optional::<FileTraceOptions>()?;
    let view = context.view();
    let replay = replay_by_hash(context, &view, hash, deadline)?;
    write_files(context, replay, options, deadline, out)
}

/// `debug_standardTraceBadBlockToFile(hash, options)`: like `debug_standardTraceBlockToFile`, for
/// one of the blocks that `debug_getBadBlocks` lists.
pub fn trace_bad_block_to_file(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let options = args.optional::<FileTraceOptions>()?;
    let bad = super::trace::bad_block(context, hash)?;
    let replay = Replay::of_payload(&context.chain.spec, &context.view(), bad, deadline)?;
    write_files(context, replay, options, deadline, out)
}

fn write_files(
    context: &RpcContext,
    mut replay: Replay,
    options: Option<FileTraceOptions>,
    deadline: &Deadline,
    mut out: TraceWriter,
) -> Traced {
    let options = options.unwrap_or_default();
    let folder = folder(context)?;
    fs::create_dir_all(folder).map_err(failed("the folder for traces cannot be made"))?;
    let writing = context.bounds.trace_files.clone().try_acquire_owned();
    let _writing = writing.map_err(|_| {
        RpcError::server("another call writes traces to files: try again when it has ended")
    })?;
    let mut left = space_left(folder)?;
    let wanted = |replay: &Replay, index| {
        let hash = replay.tx_hash(index);
        options.tx_hash.is_none() || options.tx_hash == hash
    };
    if !(0..replay.count()).any(|index| wanted(&replay, index)) {
        let hash = options.tx_hash.unwrap_or_default();
        let text = format!("transaction {hash:#x} not found in block");
        return Err(RpcError::server(text));
    }
    let mut files = Vec::new();
    for index in 0..replay.count() {
        deadline.check()?;
        if !wanted(&replay, index) {
            replay.step()?;
            continue;
        }
        let file = trace_to_file(&mut replay, folder, options.log, &mut left, deadline)?;
        files.push(file);
        if options.tx_hash.is_some() {
            break;
        }
    }
    out.raw("[");
    for (index, file) in files.into_iter().enumerate() {
        let (_, path) = file
            .keep()
            .map_err(|error| RpcError::server(format!("a trace cannot be kept: {error}")))?;
        out.raw(if index == 0 { "" } else { "," });
        out.string(&path.display().to_string());
    }
    out.raw("]");
    Ok(out.finish()?)
}

/// Traces the next transaction of a block to a new file in `folder`. The size of the file is
/// bounded by `left`, the free bytes of the folder, and is then subtracted from `left`.
fn trace_to_file(
    replay: &mut Replay,
    folder: &Path,
    config: StructLogConfig,
    left: &mut u64,
    deadline: &Deadline,
) -> Result<NamedTempFile, RpcError> {
    let index = replay.done();
    let short = |hash: B256| hex::encode_prefixed(&hash[..4]);
    let block = short(replay.payload().hash);
    let tx = short(replay.tx_hash(index).unwrap_or_default());
    let file = tempfile::Builder::new()
        .prefix(&format!("block_{block}-{index}-{tx}-"))
        .tempfile_in(folder)
        .map_err(failed("a file for a trace cannot be made"))?;
    // The clone shares its position with `file`, to which the end of the trace is written.
    let mut writer = file
        .as_file()
        .try_clone()
        .map_err(failed("a file for a trace cannot be opened"))?;
    let (most, deadline) = (MAX_FILE_BYTES.min(*left), deadline.clone());
    let mut size = 0;
    let out = TraceWriter::in_chunks(Box::new(move |chunk| {
        deadline.check()?;
        size += chunk.len() as u64;
        if size > most {
            return Err(StateError::Evm(too_large(most)));
        }
        let written = writer.write_all(&chunk);
        written.map_err(|error| StateError::Evm(format!("a trace cannot be written: {error}")))
    }));
    let mut tracer = Some(Box::new(Tracer::new(TracerConfig::JsonLog(config), out)));
    replay.trace(&mut tracer)?;
    if let Some(tracer) = tracer {
        let rest = tracer.finish()?;
        let mut file = file.as_file();
        let metadata = file.metadata().map_err(failed("a trace cannot be read"))?;
        let size = metadata.len() + rest.len() as u64;
        if size > most {
            return Err(RpcError::server(too_large(most)));
        }
        file.write_all(rest.as_bytes())
            .map_err(failed("a trace cannot be written"))?;
        *left -= size;
    }
    Ok(file)
}

fn too_large(most: u64) -> String {
    format!(
        "the trace is larger than {} MB, which is what one file may take or what is left for all: remove files, or trace one transaction",
        most >> 20
    )
}

/// Bytes that new files in the folder may still take.
fn space_left(folder: &Path) -> Result<u64, RpcError> {
    let entries = fs::read_dir(folder).map_err(failed("the folder for traces cannot be read"))?;
    let sizes = entries.filter_map(|entry| entry.ok()?.metadata().ok());
    let bytes: u64 = sizes.map(|file| file.len()).sum();
    let left = MAX_FOLDER_BYTES.checked_sub(bytes);
    left.ok_or_else(|| {
        RpcError::server(format!(
            "the files in {} take {} MB: remove some of them first",
            folder.display(),
            bytes >> 20
        ))
    })
}

/// `debug_traceBlockFromFile(name, options)`: traces a block that is stored as RLP in the folder
/// for traces.
pub fn trace_block_from_file(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let name: String = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    let folder = folder(context)?;
    let inside = Path::new(&name)
        .strip_prefix(folder)
        .unwrap_or(Path::new(&name));
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.is_empty() || !inside.components().all(plain) {
        return Err(RpcError::server(format!(
            "could not read file: it must be in {}",
            folder.display()
        )));
    }
    let path = folder.join(inside);
    let read = || -> io::Result<Bytes> {
        // A symbolic link could lead out of the folder.
        let path = path.canonicalize()?;
        if !path.starts_with(folder.canonicalize()?) {
            return Err(io::Error::other("it is not in the folder for traces"));
        }
        if fs::metadata(&path)?.len() > MAX_INPUT_BYTES {
            return Err(io::Error::other("it is larger than any block"));
        }
        fs::read(path).map(Bytes::from)
    };
    let rlp = read().map_err(failed("could not read file"))?;
    trace_encoded(context, rlp, &options, deadline, out)
}
