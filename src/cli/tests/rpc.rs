//! Options of JSON-RPC and of the transaction pool.

use super::*;
use crate::{
    chain::pool::{PoolConfig, journal::JournalConfig},
    rpc::bounds::{GasOracle, SyncTimeouts},
    secret::Secret,
};
use alloy_primitives::U256;

#[test]
fn the_rollup_nodes_rpc_is_served_by_default() -> Result<(), CliError> {
    let served = |line: &str, env: &[(&'static str, &'static str)]| {
        let (config, notices) = node(line, env)?;
        assert_eq!(notices, Vec::<String>::new());
        let rpc = config.rpc.rollup.expect("a node has it");
        Ok::<_, CliError>((rpc.http.addr, rpc.http.port, rpc.http.api, rpc.port_given))
    };
    let named = |names: &[&str]| {
        names
            .iter()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    let (addr, api) = (
        "0.0.0.0".to_owned(),
        named(&["optimism", "superroot", "opp2p", "health"]),
    );
    let default = (addr.clone(), 9545, api.clone(), false);
    assert_eq!(served("", &[])?, default);
    assert_eq!(served("--http", &[])?, default);
    assert_eq!(
        served("--rpc.port 7545", &[])?,
        (addr.clone(), 7545, api.clone(), true)
    );
    assert_eq!(
        served("--rpc.port 9545", &[])?,
        (addr.clone(), 9545, api.clone(), true)
    );
    let here = [("OP_NODE_RPC_ADDR", "127.0.0.1")];
    assert_eq!(
        served("", &here)?,
        ("127.0.0.1".to_owned(), 9545, api, false)
    );
    let with_admin = named(&["optimism", "superroot", "opp2p", "health", "admin"]);
    assert_eq!(
        served("--rpc.enable-admin", &[])?,
        (addr, 9545, with_admin, false)
    );
    Ok(())
}

/// Limits of JSON-RPC if no option is given.
fn default_limits() -> RpcLimits {
    let server = crate::rpc::limits::ServerLimits::default();
    let logs = crate::rpc::bounds::LogLimits::default();
    RpcLimits {
        gas_cap: crate::chain::evm::RPC_GAS_CAP,
        evm_timeout: crate::rpc::bounds::HEAVY_TIMEOUT,
        batch: server.batch,
        batch_response: server.batch_response,
        connections: server.connections,
        websockets: server.ws_connections,
        log_query: logs.query,
        log_blocks: logs.blocks,
        trace_blocks: 100,
        logs: logs.logs,
        sync_timeouts: Default::default(),
    }
}

#[test]
fn limits_without_options_are_those_of_geth() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert_eq!(config.pool, PoolConfig::default());
    let limits = default_limits();
    assert!(limits.connections >= 10_000 && limits.websockets >= 2_000);
    assert_eq!(config.rpc.limits, limits);
    assert!(config.rpc.js_tracers);
    assert!(!node("--rpc.jstracers=false", &[])?.0.rpc.js_tracers);
    assert_eq!(config.rpc.gas_oracle, GasOracle::default());
    Ok(())
}

#[test]
fn each_limit_has_its_option() -> Result<(), CliError> {
    let line = "--txpool.pricelimit=7 --txpool.pricebump=20 --txpool.accountslots=3 --txpool.globalslots=30 --txpool.accountqueue=4 \
        --txpool.globalqueue=40 --txpool.lifetime=1m --txpool.maxtxgas=1000000 --rpc.txfeecap=0.25 --rpc.allow-unprotected-txs \
        --rpc.gascap=9 --rpc.evmtimeout=300ms --rpc.batch-request-limit=5 --rpc.batch-response-max-size=6 \
        --rpc.max-connections=70 --rpc.max-websockets=8 --rpc.logquerylimit=9 --rpc.max-blocks-per-filter=11 \
        --rpc.max-logs-per-response=12 --rpc.max-trace-filter-blocks=13 --rpc.txsync.defaulttimeout=3s --rpc.txsync.maxtimeout=4s --gpo.blocks=2 --gpo.percentile=50 \
        --gpo.maxprice=900 --gpo.ignoreprice=3 --gpo.minsuggestedpriorityfee=5";
    let (config, notices) = node(line, &[])?;
    let pool = PoolConfig {
        min_tip: 7,
        price_bump: 20,
        account_slots: 3,
        global_slots: 30,
        account_queue: 4,
        global_queue: 40,
        lifetime: 60,
        max_gas: Some(1_000_000),
        tx_fee_cap: U256::from(250_000_000_000_000_000u64),
        allow_unprotected: true,
    };
    assert_eq!(config.pool, pool);
    let limits = RpcLimits {
        gas_cap: 9,
        evm_timeout: Duration::from_millis(300),
        batch: 5,
        batch_response: 6,
        connections: 70,
        websockets: 8,
        log_query: 9,
        log_blocks: 11,
        trace_blocks: 13,
        logs: 12,
        sync_timeouts: SyncTimeouts {
            default: Duration::from_secs(3),
            most: Duration::from_secs(4),
        },
    };
    assert_eq!(config.rpc.limits, limits);
    let oracle = GasOracle {
        blocks: 2,
        percentile: 50,
        most: 900,
        ignored: 3,
        least: 5,
    };
    assert_eq!(config.rpc.gas_oracle, oracle);
    assert_eq!(notices, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_limit_of_zero_is_no_limit_or_the_default() -> Result<(), CliError> {
    let line = "--txpool.pricelimit=0 --txpool.pricebump=0 --txpool.accountslots=0 --txpool.globalslots=0 --txpool.accountqueue=0 \
        --txpool.globalqueue=0 --txpool.lifetime=0s --rpc.txfeecap=0 --rpc.gascap=0 --rpc.evmtimeout=0 \
        --rpc.batch-request-limit=0 --rpc.batch-response-max-size=0 --rpc.logquerylimit=0 --rpc.max-blocks-per-filter=0 \
        --rpc.max-logs-per-response=0 --rpc.max-trace-filter-blocks=0";
    let (config, _) = node(line, &[])?;
    let pool = PoolConfig {
        tx_fee_cap: U256::ZERO,
        ..Default::default()
    };
    assert_eq!(config.pool, pool);
    let unlimited = RpcLimits {
        gas_cap: u64::MAX / 2,
        evm_timeout: Duration::MAX,
        batch: usize::MAX,
        batch_response: usize::MAX,
        log_query: usize::MAX,
        log_blocks: u64::MAX,
        trace_blocks: u64::MAX,
        logs: usize::MAX,
        ..default_limits()
    };
    assert_eq!(config.rpc.limits, unlimited);
    Ok(())
}

#[test]
fn limits_out_of_range_are_refused() {
    assert!(matches!(
        node("--rpc.max-connections=0", &[]),
        Err(CliError::Invalid {
            name: "rpc.max-connections",
            ..
        })
    ));
    assert!(matches!(
        node("--rpc.txfeecap=-1", &[]),
        Err(CliError::Invalid {
            name: "rpc.txfeecap",
            ..
        })
    ));
}

#[test]
fn the_local_socket_is_in_the_data_directory_unless_a_path_is_given() -> Result<(), CliError> {
    let ipc = |line: &str| {
        let (config, _) = node(&format!("--datadir=/d {line}"), &[])?;
        Ok::<_, CliError>(config.rpc.ipc.map(|ipc| (ipc.path, ipc.given)))
    };
    assert_eq!(ipc("")?, Some(("/d/geth.ipc".into(), false)));
    assert_eq!(ipc("--ipcpath=x")?, Some(("/d/x".into(), true)));
    assert_eq!(ipc("--ipcpath=/run/x")?, Some(("/run/x".into(), true)));
    assert_eq!(ipc("--ipcdisable")?, None);
    Ok(())
}

#[test]
fn prefixes_of_paths_begin_with_a_slash() -> Result<(), CliError> {
    let (config, _) = node("--http --http.rpcprefix=/a --ws --ws.rpcprefix=/b", &[])?;
    assert_eq!(config.rpc.http.map(|http| http.prefix), Some("/a".into()));
    assert_eq!(config.rpc.ws.map(|ws| ws.prefix), Some("/b".into()));
    for line in [
        "--http.rpcprefix=a",
        "--ws.rpcprefix=/a?b",
        "--http.rpcprefix=/#",
    ] {
        assert!(
            matches!(node(line, &[]), Err(CliError::Invalid { .. })),
            "{line}"
        );
    }
    Ok(())
}

#[test]
fn conditional_transactions_have_a_rate_where_they_are_served() -> Result<(), CliError> {
    let rate = |line: &str| Ok::<_, CliError>(node(line, &[])?.0.rpc.conditional_rate);
    let served = "--rollup.sequencertxconditionalenabled";
    assert_eq!(rate("")?, None);
    assert_eq!(rate(served)?, Some(5000));
    let line = format!("{served} --rollup.sequencertxconditionalcostratelimit=7");
    assert_eq!(rate(&line)?, Some(7));
    Ok(())
}

#[test]
fn the_journal_keeps_all_transactions_or_those_of_locals() -> Result<(), CliError> {
    let journal = |line: &str| {
        let (config, _) = node(&format!("--datadir=/d {line}"), &[])?;
        Ok::<_, CliError>(config.rpc.journal)
    };
    let default = JournalConfig {
        path: "/d/geth/transactions.rlp".into(),
        rewrite: Duration::from_secs(3600),
        all: true,
        locals: vec![],
    };
    assert_eq!(journal("")?, Some(default.clone()));
    assert_eq!(journal("--txpool.nolocals")?, None);
    let local = alloy_primitives::Address::repeat_byte(1);
    let line = format!(
        "--txpool.nolocals --txpool.locals={local} --txpool.journal=/j --txpool.rejournal=1ms"
    );
    assert_eq!(
        journal(&line)?,
        Some(JournalConfig {
            path: "/j".into(),
            rewrite: Duration::from_secs(1),
            all: false,
            locals: vec![local],
        })
    );
    assert!(journal("--txpool.locals=x").is_err());
    Ok(())
}

#[test]
fn pending_history_and_budgets_have_their_options() -> Result<(), CliError> {
    let (plain, _) = node("", &[])?;
    assert_eq!(plain.rpc.pending, PendingConfig::Latest);
    assert!(plain.rpc.access.is_none() && plain.rpc.historical.is_none());
    assert_eq!(plain.rpc.historical_timeout, Duration::from_secs(5));
    let line = "--rpc.limits limits.toml --rollup.historicalrpc http://past:8545 \
        --rollup.historicalrpctimeout 2s --rollup.computependingblock";
    let (config, notices) = node(line, &[])?;
    assert_eq!(config.rpc.access, Some("limits.toml".into()));
    let historical = config.rpc.historical.map(|url| url.expose().to_owned());
    assert_eq!(historical.as_deref(), Some("http://past:8545"));
    assert_eq!(config.rpc.historical_timeout, Duration::from_secs(2));
    assert_eq!(config.rpc.pending, PendingConfig::Built);
    assert_eq!(notices, Vec::<String>::new());
    let url = "ws://sequencer:8548/ws";
    let (config, _) = node(&format!("--flashblocks-url {url}"), &[])?;
    let flashblocks = PendingConfig::Flashblocks(Secret::new(url));
    assert_eq!(config.rpc.pending, flashblocks);
    for refused in [
        "--flashblocks-url http://sequencer:8548",
        "--flashblocks-url ws://sequencer:8548 --rollup.computependingblock",
    ] {
        assert!(node(refused, &[]).is_err(), "{refused}");
    }
    Ok(())
}

#[test]
fn an_unknown_namespace_is_refused_and_one_of_geth_is_left_out() -> Result<(), CliError> {
    let served = |line: &str| {
        let (config, notices) = node(line, &[])?;
        Ok::<_, CliError>((config.rpc.http.expect("HTTP").api, notices))
    };
    // The line of the OP Stack's tutorial.
    let (api, notices) = served("--http --http.api=web3,debug,eth,txpool,net,engine")?;
    assert_eq!(api, ["web3", "debug", "eth", "txpool", "net"]);
    assert_eq!(
        notices,
        [
            "--http.api: the namespace engine is left out: the Engine API is served with a JWT secret only (--authrpc.port)"
        ]
    );
    let (api, notices) = served("--http --http.api=,")?;
    assert_eq!((api.len(), notices.len()), (3, 0));
    for (line, said) in [
        (
            "--http.api=eth,debg",
            "--http.api: there is no namespace debg; did you mean debug?; known are admin, ",
        ),
        (
            "--ws.api=Eth",
            "--ws.api: there is no namespace Eth; did you mean eth?; known are admin, ",
        ),
        (
            "--http.api=everything",
            "--http.api: there is no namespace everything; known are admin, ",
        ),
    ] {
        let error = node(line, &[]).expect_err(line).to_string();
        assert!(error.starts_with(said), "{error}");
    }
    Ok(())
}

#[test]
fn one_port_of_http_and_websocket_has_one_address() {
    for (line, is_accepted) in [
        ("--ws.port=8545", true),
        ("--ws.port=8545 --http.addr=0.0.0.0 --ws.addr=0.0.0.0", true),
        (
            "--ws.port=8545 --http.addr=127.0.0.1 --ws.addr=127.0.0.2",
            true,
        ),
        ("--ws.port=8545 --ws.addr=0.0.0.0", false),
        ("--ws.port=8545 --http.addr=::", false),
        ("--ws.port=0 --http.port=0 --ws.addr=0.0.0.0", true),
        ("--ws.addr=0.0.0.0", true),
    ] {
        let parsed = node(&format!("--http --ws {line}"), &[]);
        assert_eq!(parsed.is_ok(), is_accepted, "{line}");
        if let Err(error) = parsed {
            let said = error.to_string();
            assert!(
                said.contains("share the port 8545, and have the addresses"),
                "{said}"
            );
        }
    }
}
