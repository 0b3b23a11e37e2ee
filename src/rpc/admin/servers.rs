//! Methods that start and stop servers, such as `admin_startHTTP`, with geth's parameters. A
//! parameter that is left out keeps its value from the command line.

use crate::rpc::{
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::{Args, Count},
    server_control::{ServerHandle, ServerKind, ServerStartError, StartRequest},
};
use futures::{FutureExt, future::BoxFuture};
use std::sync::Arc;

impl From<ServerStartError> for RpcError {
    fn from(error: ServerStartError) -> Self {
        Self::server(error.to_string())
    }
}

fn servers(context: &RpcContext) -> Result<&ServerHandle, RpcError> {
    let missing = || RpcError::server("this server cannot start or stop others");
    context.servers.as_ref().ok_or_else(missing)
}

fn host_and_port(args: &mut Args) -> Result<StartRequest, RpcError> {
    let host = args.optional()?;
    let port = args.optional::<Count>()?.map(|Count(port)| {
        u16::try_from(port)
            .map_err(|_| RpcError::invalid_params(format!("{port} is no port: give at most 65535")))
    });
    Ok(StartRequest {
        host,
        port: port.transpose()?,
        ..StartRequest::default()
    })
}

/// `admin_startHTTP(host, port, cors, apis, vhosts)`: starts the HTTP server.
pub fn start_http(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let mut args = args.at_most(5)?;
        let request = host_and_port(&mut args)?;
        let request = StartRequest {
            origins: args.optional()?,
            api: args.optional()?,
            vhosts: args.optional()?,
            ..request
        };
        servers(&context)?.start(ServerKind::Http, request).await?;
        reply(true)
    }
    .boxed()
}

/// `admin_startWS(host, port, origins, apis)`: starts the WebSocket server.
pub fn start_ws(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let mut args = args.at_most(4)?;
        let request = host_and_port(&mut args)?;
        let request = StartRequest {
            origins: args.optional()?,
            api: args.optional()?,
            ..request
        };
        servers(&context)?.start(ServerKind::Ws, request).await?;
        reply(true)
    }
    .boxed()
}

pub fn stop_http(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    stop(context, args, ServerKind::Http)
}

pub fn stop_ws(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    stop(context, args, ServerKind::Ws)
}

fn stop(context: Arc<RpcContext>, args: Args, kind: ServerKind) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        servers(&context)?.stop(kind).await;
        reply(true)
    }
    .boxed()
}
