//! Methods that may be about history before Bedrock: the historical RPC is queried first. If the
//! history is not needed, the method runs on this node.

use super::{bounds::blocking, context::RpcContext, error::Reply, historical::Asked, params::Args};
use std::sync::Arc;

/// The reply to a request for history that this node does not have; `None` if this node has to
/// execute the request.
pub(super) async fn forward(
    context: &Arc<RpcContext>,
    method: &'static str,
    args: &Args,
) -> Option<Reply> {
    let past = context.historical.as_ref()?;
    past.forward(method, args, async |asked| {
        is_known(context, method, asked).await
    })
    .await
}

/// Whether this node knows a hash. A failed read counts as known, so that this node executes the
/// request.
async fn is_known(context: &Arc<RpcContext>, method: &'static str, asked: Asked) -> bool {
    let (own, reads) = (context.clone(), context.bounds.reads.clone());
    let read = blocking(method, reads, move || {
        let view = own.view();
        Ok(match asked {
            Asked::Number(_) => true,
            Asked::BlockHash(hash) => view.number_of(hash)?.is_some(),
            Asked::Transaction(hash) => {
                view.transaction(hash)?.is_some() || own.chain.pool.get(&hash).is_some()
            }
        })
    });
    read.await.unwrap_or(true)
}
