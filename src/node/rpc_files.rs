//! The node's part of RPC methods that read and write files, or that make a given block the head.

use crate::{
    chain::{Chain, Inserted},
    rpc::{
        CommitBlock,
        node_files::{BlockRange, ExportJob, ImportJob, NodeFiles},
    },
    transfer,
};
use futures::FutureExt;
use starling_p2p::Provenance;
use std::{path::Path, sync::Arc};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// The file functions of a node. Cancelling `token` ends exports and imports.
pub(super) fn node_files(chain: &Chain, datadir: &Path, token: CancellationToken) -> NodeFiles {
    let (exported, imported) = (chain.clone(), chain.clone());
    let stop = token.clone();
    NodeFiles {
        datadir: datadir.to_owned(),
        export: Arc::new(move |job: ExportJob| {
            let (chain, stop) = (exported.clone(), stop.clone());
            let work = tokio::task::spawn_blocking(move || {
                let range = job.range.map(|BlockRange { first, last }| (first, last));
                let written = transfer::export_running(&chain, &job.path, range, &stop);
                drop(job.permit);
                written.map(drop).map_err(|error| error.to_string())
            });
            async {
                work.await
                    .unwrap_or_else(|_| Err("the export crashed".to_owned()))
            }
            .boxed()
        }),
        import: Arc::new(move |job: ImportJob| {
            let (chain, token) = (imported.clone(), token.clone());
            let runtime = Handle::current();
            let work = tokio::task::spawn_blocking(move || {
                let import = transfer::import_running(&chain, &job.path, &token);
                let imported = runtime.block_on(import);
                drop(job.permit);
                imported.map(drop).map_err(|error| error.to_string())
            });
            async {
                work.await
                    .unwrap_or_else(|_| Err("the import crashed".to_owned()))
            }
            .boxed()
        }),
        running: Arc::new(Semaphore::new(1)),
    }
}

/// The function that makes a block built by RPC the head.
pub(super) fn commit_block(chain: &Chain) -> CommitBlock {
    let chain = chain.clone();
    Arc::new(move |payload| {
        let chain = chain.clone();
        async move {
            let hash = payload.hash;
            match chain.insert(payload, Provenance::Engine).await {
                Ok(Inserted::Valid) => {}
                Ok(Inserted::Invalid { reason, .. }) => return Err(reason),
                Ok(Inserted::Syncing | Inserted::NotExecutable) => {
                    return Err("the parent of the block has left the chain".to_owned());
                }
                Err(error) => return Err(error.to_string()),
            }
            let moved = chain.forkchoice(hash, None, None).await;
            moved.map_err(|error| error.to_string())
        }
        .boxed()
    })
}
