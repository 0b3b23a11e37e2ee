//! The RPC of batcher and proposer: always health, and with `--rpc.enable-admin` the methods by
//! which operators change a running service. Names are those of op-batcher and op-proposer.

use crate::{
    batcher::{
        handle::BatcherHandle,
        options::{PidOptions, ThrottleCurve},
        throttle::ThrottleHandle,
    },
    cli::{config::ServiceRpcConfig, value::parse_duration},
    proposer::ProposerHandle,
    rpc::{
        RpcServer,
        api::Api,
        error::{Reply, RpcError, reply},
        health,
        params::{Arg, Args, Json},
    },
    tasks::Tasks,
    telemetry,
    txmgr::shell::TxManagerHandle,
};
use futures::FutureExt;
use serde::Deserialize;

/// Names of the transaction manager's methods.
const TX_METHODS: [&str; 14] = [
    "txmgr_getMinBaseFee",
    "txmgr_setMinBaseFee",
    "txmgr_getMinPriorityFee",
    "txmgr_setMinPriorityFee",
    "txmgr_getMinBlobFee",
    "txmgr_setMinBlobFee",
    "txmgr_getFeeThreshold",
    "txmgr_setFeeThreshold",
    "txmgr_getBumpFeeRetryTime",
    "txmgr_setBumpFeeRetryTime",
    "txmgr_getRebroadcastInterval",
    "txmgr_setRebroadcastInterval",
    "txmgr_getBlobTipCapDynamic",
    "txmgr_setBlobTipCapDynamic",
];

/// The service whose RPC is served.
pub(super) enum ServiceRpc {
    Batcher {
        batcher: BatcherHandle,
        throttle: ThrottleHandle,
    },
    Proposer(ProposerHandle),
}

impl ServiceRpc {
    fn name(&self) -> &'static str {
        match self {
            Self::Batcher { .. } => "the batcher's JSON-RPC",
            Self::Proposer(_) => "the proposer's JSON-RPC",
        }
    }

    /// The methods; those of `admin` and `txmgr` only if `admin` is set.
    fn api(self, txs: TxManagerHandle, admin: bool) -> Api {
        if !admin {
            let mut api = Api::of_service(&["health"]);
            health::add_to(&mut api);
            return api;
        }
        let mut api = Api::of_service(&["health", "admin", "txmgr"]);
        health::add_to(&mut api);
        add_log_level(&mut api);
        add_txs(&mut api, &txs);
        match self {
            Self::Batcher { batcher, throttle } => {
                add_batcher(&mut api, &batcher);
                add_throttle(&mut api, &throttle);
            }
            Self::Proposer(proposer) => add_proposer(&mut api, &proposer),
        }
        api
    }
}

/// Binds the endpoint and spawns the server. `flag` is the prefix of the endpoint's options, such
/// as `rpc` or `batcher.rpc`.
pub(super) async fn serve(
    tasks: &Tasks,
    service: ServiceRpc,
    txs: TxManagerHandle,
    config: &ServiceRpcConfig,
    flag: &'static str,
) -> anyhow::Result<()> {
    let (http, name) = (&config.http, service.name());
    let address = super::rpc::resolve(&format!("--{flag}.addr"), &http.addr, http.port).await?;
    let api = service.api(txs, config.admin);
    let (server, address) = RpcServer::bind_service(address, api, flag).await?;
    tracing::info!(%address, admin = config.admin, "{name} is served");
    let token = tasks.token();
    tasks.spawn(name, async move {
        server.run(token).await;
        Ok(())
    });
    Ok(())
}

/// The reply to a call: null, or the text of the refusal.
fn done<E: std::fmt::Display>(result: Result<(), E>) -> Reply {
    match result {
        Ok(()) => reply(()),
        Err(error) => Err(RpcError::server(error.to_string())),
    }
}

/// Adds a method without parameters that waits for the service.
macro_rules! add_call {
    ($api:expr, $name:literal, $service:expr, $method:ident) => {
        let service = $service.clone();
        $api.insert($name, move |args| {
            let service = service.clone();
            async move {
                args.at_most(0)?;
                done(service.$method().await)
            }
            .boxed()
        });
    };
}

fn add_batcher(api: &mut Api, batcher: &BatcherHandle) {
    add_call!(api, "admin_startBatcher", batcher, start);
    add_call!(api, "admin_stopBatcher", batcher, stop);
    add_call!(api, "admin_flushBatcher", batcher, flush);
}

fn add_proposer(api: &mut Api, proposer: &ProposerHandle) {
    add_call!(api, "admin_startProposer", proposer, start);
    add_call!(api, "admin_stopProposer", proposer, stop);
}

/// Adds a method that replies without waiting.
fn add_quick(
    api: &mut Api,
    name: &'static str,
    method: impl Fn(Args) -> Reply + Send + Sync + 'static,
) {
    api.insert(name, move |args| std::future::ready(method(args)).boxed());
}

fn add_log_level(api: &mut Api) {
    add_quick(api, "admin_setLogLevel", |args| {
        let level: String = args.at_most(1)?.required()?;
        done(telemetry::set_level(&level))
    });
}

fn add_throttle(api: &mut Api, throttle: &ThrottleHandle) {
    let (get, set, reset) = (throttle.clone(), throttle.clone(), throttle.clone());
    add_quick(api, "admin_getThrottleController", move |args| {
        args.at_most(0)?;
        reply(get.info())
    });
    add_quick(api, "admin_setThrottleController", move |args| {
        let mut args = args.at_most(2)?;
        let name: String = args.required()?;
        let pid: Option<PidArg> = args.optional()?;
        let curve: ThrottleCurve = name.parse().map_err(|error| {
            RpcError::server(format!("invalid controller type '{name}', {error}"))
        })?;
        done(set.set(curve, pid.map(|PidArg(options)| options)))
    });
    add_quick(api, "admin_resetThrottleController", move |args| {
        args.at_most(0)?;
        reset.reset();
        reply(())
    });
}

/// The PID controller's options as op-batcher's RPC accepts them.
struct PidArg(PidOptions);

#[derive(Deserialize)]
struct PidJson {
    kp: f64,
    ki: f64,
    kd: f64,
    integral_max: f64,
    output_max: f64,
    /// A duration in Go's format.
    sample_time: String,
}

impl Arg for PidArg {
    fn from_json(json: &str) -> Result<Self, String> {
        let Json(pid): Json<PidJson> = Json::from_json(json)?;
        let sample_time = parse_duration(&pid.sample_time)
            .ok_or_else(|| "sample_time is a duration such as 2s".to_owned())?;
        Ok(Self(PidOptions {
            kp: pid.kp,
            ki: pid.ki,
            kd: pid.kd,
            integral_max: pid.integral_max,
            output_max: pid.output_max,
            sample_time,
        }))
    }
}

fn add_txs(api: &mut Api, txs: &TxManagerHandle) {
    for name in TX_METHODS {
        let txs = txs.clone();
        api.insert(name, move |args| {
            let txs = txs.clone();
            async move {
                let answer = txs.api(name.to_owned(), args.to_json()).await;
                let answer = answer.ok_or_else(|| RpcError::server("tx manager is closed"))?;
                answer.map_err(|error| RpcError::new(error.code(), error.to_string()))
            }
            .boxed()
        });
    }
}
