//! `admin_datadir`, `admin_exportChain` and `admin_importChain`.

use crate::rpc::{
    context::RpcContext,
    error::{Reply, RpcError, reply},
    node_files::{BlockRange, ExportJob, FilePathError, ImportJob, NodeFiles},
    params::{Args, Count},
};
use futures::{FutureExt, future::BoxFuture};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::OwnedSemaphorePermit;

impl From<FilePathError> for RpcError {
    fn from(error: FilePathError) -> Self {
        Self::server(error.to_string())
    }
}

fn files(context: &RpcContext) -> Result<&NodeFiles, RpcError> {
    let missing = || RpcError::server("this server has no data directory");
    context.files.as_ref().ok_or_else(missing)
}

pub fn datadir(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(&files(context)?.datadir)
}

/// Acquires the permit of one export or import.
fn begin(files: &NodeFiles) -> Result<OwnedSemaphorePermit, RpcError> {
    let permit = files.running.clone().try_acquire_owned();
    permit
        .map_err(|_| RpcError::server("another export or import runs: try again when it has ended"))
}

/// `admin_exportChain(file, first, last)`: writes blocks to a new file below `traces` in the data
/// directory. Without `first` and `last` it writes all blocks.
pub fn export_chain(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let mut args = args.at_most(3)?;
        let name: String = args.required()?;
        let first = args.optional::<Count>()?.map(|Count(number)| number);
        let last = args.optional::<Count>()?.map(|Count(number)| number);
        let range = match (first, last) {
            (None, Some(_)) => {
                return Err(RpcError::server("last cannot be specified without first"));
            }
            (None, None) => None,
            (Some(first), last) => Some(BlockRange {
                first,
                last: last.unwrap_or_else(|| context.view().head().number),
            }),
        };
        let files = files(&context)?;
        let permit = begin(files)?;
        let job = ExportJob {
            path: files.new_file(&name)?,
            range,
            permit,
        };
        (files.export)(job).await.map_err(RpcError::server)?;
        reply(true)
    }
    .boxed()
}

/// `admin_importChain(file)`: imports the blocks of a file.
pub fn import_chain(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let path: String = args.at_most(1)?.required()?;
        let files = files(&context)?;
        let job = ImportJob {
            permit: begin(files)?,
            path: PathBuf::from(path),
        };
        (files.import)(job).await.map_err(RpcError::server)?;
        reply(true)
    }
    .boxed()
}
