//! `starling rollup`, from configuration to running tasks: a rollup node whose execution core is a
//! separate program, as with op-node.

use super::{
    rollup::{Rollup, RollupCore},
    rollup_config, rpc, serve_metrics,
    swarm::{self, swarm_config},
};
use crate::{
    cli::config::{HttpConfig, RemoteEngineConfig, RollupNodeConfig},
    jwt::JwtSecret,
    rollup::{
        engine::{
            Engine, EngineClient,
            remote::{EngineEndpoint, PeerBlocks},
        },
        signing_log::SigningLog,
        unsafe_signer::SignerMemory,
    },
    rpc::{LateRollupContext, RollupContext, RpcServer, limits::ServerLimits},
    tasks::Tasks,
    version::VERSION,
};
use anyhow::{Context, bail};
use starling_proto::config::RollupConfig;
use std::{
    fs::{File, TryLockError},
    path::Path,
    sync::Arc,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Name of the log of signed blocks, in the data directory.
const SIGNED: &str = "signed";
/// Name of the file of the block signer that L1 named last, in the data directory.
const SIGNER: &str = "unsafe-block-signer";

/// Runs the rollup node until the token is cancelled or a task fails.
pub async fn run_rollup(config: RollupNodeConfig, token: CancellationToken) -> anyhow::Result<()> {
    let tasks = Tasks::new(token.clone());
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let rollup_config = Arc::new(rollup_config(&config.rollup, &config.overrides)?);
    let sequences = config.sequencer.is_some();
    let mut rollup = Rollup::new(&config.l1, sequences, rollup_config.clone())?;
    let _lock = lock(&config.datadir)?;
    let context = LateRollupContext::default();
    serve(&tasks, &config.rpc.http, &context).await?;
    let Some((client, core)) = connect(&config, &rollup_config, &token).await? else {
        return Ok(());
    };
    rollup
        .prepare_driver(&core, &config.l1, &config.derivation)
        .await?;
    let swarm = match &config.p2p {
        Some(p2p) => {
            let blocks = Arc::new(PeerBlocks::new(client.clone()));
            let p2p = swarm_config(&rollup_config, p2p)?;
            Some(swarm::join(blocks, &rollup_config, p2p)?)
        }
        None => None,
    };
    let network = swarm.as_ref().map(|swarm| swarm.network.clone());
    if let Some(sequencing) = &config.sequencer {
        rollup
            .prepare_sequencer(&core, network.clone(), sequencing)
            .await?;
    }
    context.set(RollupContext::new(
        rollup_config.l2_chain_id,
        network.clone(),
        rollup.control.take(),
        rollup.api.take(),
    ));
    tasks.spawn("watch over the execution client", {
        let token = tasks.token();
        async move {
            client.watch(token).await;
            Ok(())
        }
    });
    if let Some(swarm) = swarm {
        let syncing = watch::Sender::new(None);
        swarm::spawn(&tasks, &core.engine, None, swarm, syncing);
    }
    let started = tokio::select! {
        started = rollup.run(&tasks, &core, network, &config.l1) => started,
        () = token.cancelled() => Ok(()),
    };
    if started.is_err() {
        token.cancel();
    }
    let ended = tasks.run_until(std::future::pending()).await;
    started.and(ended)?;
    tracing::info!("the rollup node has stopped; the execution client runs on");
    Ok(())
}

/// Waits for the execution client, and makes the engine that uses it. `None` if the token is
/// cancelled before that.
async fn connect(
    config: &RollupNodeConfig,
    rollup: &Arc<RollupConfig>,
    token: &CancellationToken,
) -> anyhow::Result<Option<(EngineClient, RollupCore)>> {
    let log = match &config.sequencer {
        Some(_) => Some(SigningLog::open_own(&config.datadir.join(SIGNED))?),
        None => None,
    };
    let endpoint = endpoint(&config.engine)?;
    let client = EngineClient::new(&endpoint, rollup.clone(), log.clone())?;
    let source = config.rollup.to_string();
    let connected = client.connect(&source);
    let Some(connected) = token.run_until_cancelled(connected).await else {
        return Ok(None);
    };
    connected?;
    let engine = Engine::Remote(client.clone());
    let head = engine.heads().borrow().head;
    tracing::info!(endpoint = %client.endpoint(), %head, "the execution client is driven");
    let core = RollupCore {
        engine,
        signing_log: log.map(SigningLog::Own),
        signer_memory: SignerMemory::File(config.datadir.join(SIGNER)),
        datadir: config.datadir.clone(),
    };
    Ok(Some((client, core)))
}

fn endpoint(config: &RemoteEngineConfig) -> anyhow::Result<EngineEndpoint> {
    let secret = JwtSecret::load_or_create(&config.jwt_secret).context("--l2.jwt-secret")?;
    Ok(EngineEndpoint {
        url: config.url.clone(),
        secret,
        timeout: config.timeout,
    })
}

/// Locks the data directory for this process, until the returned file is dropped.
fn lock(datadir: &Path) -> anyhow::Result<File> {
    let shown = datadir.display();
    let failed =
        || format!("--datadir: {shown} cannot be used; check the path and its permissions");
    std::fs::create_dir_all(datadir).with_context(failed)?;
    let file = File::create(datadir.join("LOCK")).with_context(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "{shown} is in use by another rollup node: stop it, or give this one a directory of its own with --datadir"
        ),
        Err(TryLockError::Error(error)) => Err(error).with_context(failed),
    }
}

/// Serves the rollup node's JSON-RPC at the address of `--rpc.*`, with an empty context at first:
/// health checks are answered while the node waits for its execution client.
async fn serve(
    tasks: &Tasks,
    config: &HttpConfig,
    context: &LateRollupContext,
) -> anyhow::Result<()> {
    let endpoint = rpc::http_endpoint("--rpc.addr", config).await?;
    let limits = ServerLimits::default();
    let (server, rpc) = RpcServer::bind_rollup_node(endpoint, limits, context).await?;
    tracing::info!(version = VERSION, %rpc, "JSON-RPC is served");
    let token = tasks.token();
    tasks.spawn("JSON-RPC", async move {
        server.run(token).await;
        Ok(())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Invocation};
    use starling_testkit::free_port;
    use std::time::{Duration, Instant};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::sleep,
    };

    /// A rollup node whose L1 and whose execution client do not respond.
    fn lonely(datadir: &Path, port: u16) -> RollupNodeConfig {
        let (datadir, nobody) = (datadir.display(), free_port());
        let line = format!(
            "starling rollup --network=op-sepolia --datadir={datadir} --l2.jwt-secret={datadir}/jwt \
             --l1=http://127.0.0.1:{nobody} --l1.beacon.ignore --l2=http://127.0.0.1:{nobody} \
             --p2p.disable --rpc.addr=127.0.0.1 --rpc.port={port} --rpc.enable-admin"
        );
        let line = line.split_whitespace().map(str::to_owned);
        match cli::parse(line, &|_| None)
            .expect("a command line")
            .invocation
        {
            Invocation::Rollup(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    /// The response to a request, once the server listens.
    async fn exchange(port: u16, request: &str) -> String {
        let began = Instant::now();
        let mut socket = loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(socket) => break socket,
                Err(error) => assert!(began.elapsed().as_secs() < 60, "{error}"),
            }
            sleep(Duration::from_millis(20)).await;
        };
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).await.unwrap();
        response
    }

    async fn call(port: u16, method: &str) -> String {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":[]}}"#);
        let head = "POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        let length = body.len();
        exchange(
            port,
            &format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}"),
        )
        .await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_rpc_is_served_while_the_node_waits_for_its_execution_client() {
        let (datadir, port) = (tempfile::tempdir().unwrap(), free_port());
        let token = CancellationToken::new();
        let running = run_rollup(lonely(datadir.path(), port), token.clone());
        let asking = async {
            let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            let health = exchange(port, request).await;
            assert!(
                health.starts_with("HTTP/1.1 200") && health.contains(VERSION),
                "{health}"
            );
            for method in ["health_status", "optimism_version"] {
                let answer = call(port, method).await;
                assert!(answer.contains(VERSION), "{answer}");
            }
            for method in [
                "optimism_syncStatus",
                "opp2p_peers",
                "admin_sequencerActive",
            ] {
                let answer = call(port, method).await;
                assert!(
                    answer.contains("waits for its execution client"),
                    "{answer}"
                );
            }
            token.cancel();
        };
        let (ended, ()) = tokio::join!(running, asking);
        ended.unwrap();
    }
}
