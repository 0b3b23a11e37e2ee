//! Limits on clients: `--txpool.*`, and the limits among `--rpc.*`.

use crate::{
    chain::pool::{PoolConfig, journal::JournalConfig},
    cli::{CliError, config::expand_home, parse::Values},
    rpc::bounds::{GasOracle, SyncTimeouts},
};
use alloy_primitives::{Address, U256, utils::parse_ether};
use std::{path::Path, time::Duration};

/// Limits of JSON-RPC. For flags that op-geth also has, 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcLimits {
    /// Maximum gas of one EVM execution.
    pub gas_cap: u64,
    /// Timeout of one call.
    pub evm_timeout: Duration,
    /// Maximum number of calls in a batch.
    pub batch: usize,
    /// Maximum bytes of results in a batch.
    pub batch_response: usize,
    /// Maximum number of connections over all public endpoints, at least 1.
    pub connections: usize,
    /// Maximum number of WebSockets among the connections.
    pub websockets: usize,
    /// Maximum number of addresses in a log query, and of topics in each position.
    pub log_query: usize,
    /// Maximum number of blocks in the range of a log query.
    pub log_blocks: u64,
    /// Maximum number of blocks in the range of `trace_filter`.
    pub trace_blocks: u64,
    /// Maximum number of logs in the result of a log query.
    pub logs: usize,
    pub sync_timeouts: SyncTimeouts,
}

impl RpcLimits {
    pub fn read(values: &Values) -> Result<Self, CliError> {
        let most = |name| {
            values
                .uint(name)
                .map(|value| if value == 0 { usize::MAX } else { size(value) })
        };
        let (connections, websockets) = (
            size(values.uint("rpc.max-connections")?),
            size(values.uint("rpc.max-websockets")?),
        );
        if connections == 0 {
            let reason = "0 connections would serve nobody: give at least 1".into();
            return Err(CliError::Invalid {
                name: "rpc.max-connections",
                reason,
            });
        }
        Ok(Self {
            // geth's number for no limit. It is half the maximum, so that sums with it do not
            // overflow.
            gas_cap: Some(values.uint("rpc.gascap")?)
                .filter(|gas| *gas > 0)
                .unwrap_or(u64::MAX / 2),
            evm_timeout: Some(values.duration("rpc.evmtimeout")?)
                .filter(|time| !time.is_zero())
                .unwrap_or(Duration::MAX),
            batch: most("rpc.batch-request-limit")?,
            batch_response: most("rpc.batch-response-max-size")?,
            connections,
            websockets,
            log_query: most("rpc.logquerylimit")?,
            log_blocks: log_blocks(values)?,
            trace_blocks: most("rpc.max-trace-filter-blocks")? as u64,
            logs: most("rpc.max-logs-per-response")?,
            sync_timeouts: SyncTimeouts {
                default: values.duration("rpc.txsync.defaulttimeout")?,
                most: values.duration("rpc.txsync.maxtimeout")?,
            },
        })
    }
}

/// Most blocks in the range of a log query. op-geth's option counts the blocks after the first one.
fn log_blocks(values: &Values) -> Result<u64, CliError> {
    let by_range = Some(values.uint("rpc.rangelimit")?).filter(|blocks| *blocks > 0);
    Ok(
        match (by_range, values.uint("rpc.max-blocks-per-filter")?) {
            (Some(after_first), _) => after_first.saturating_add(1),
            (None, 0) => u64::MAX,
            (None, blocks) => blocks,
        },
    )
}

/// Reads the gas price oracle's options. As in geth, an amount of 0 wei means the default, and 0
/// blocks means 1.
pub fn gas_oracle(values: &Values) -> Result<GasOracle, CliError> {
    let defaults = GasOracle::default();
    let wei = |name, default: u128| {
        values
            .uint(name)
            .map(|value| if value == 0 { default } else { value.into() })
    };
    Ok(GasOracle {
        blocks: values.uint("gpo.blocks")?.clamp(1, GasOracle::MAX_BLOCKS),
        percentile: values.uint("gpo.percentile")?.min(100),
        most: wei("gpo.maxprice", defaults.most)?,
        ignored: wei("gpo.ignoreprice", defaults.ignored)?,
        least: wei("gpo.minsuggestedpriorityfee", defaults.least)?,
    })
}

/// Reads the limits of the transaction pool. As in geth, 0 means the default if an option must not
/// be 0.
pub fn pool(values: &Values) -> Result<PoolConfig, CliError> {
    let defaults = PoolConfig::default();
    let number = |name, default: usize| {
        values
            .uint(name)
            .map(|value| if value == 0 { default } else { size(value) })
    };
    let lifetime = values.duration("txpool.lifetime")?.as_secs();
    Ok(PoolConfig {
        min_tip: values.uint("txpool.pricelimit")?.max(1).into(),
        price_bump: Some(values.uint("txpool.pricebump")?)
            .filter(|bump| *bump > 0)
            .map_or(defaults.price_bump, u128::from),
        account_slots: number("txpool.accountslots", defaults.account_slots)?,
        global_slots: number("txpool.globalslots", defaults.global_slots)?,
        account_queue: number("txpool.accountqueue", defaults.account_queue)?,
        global_queue: number("txpool.globalqueue", defaults.global_queue)?,
        lifetime: if lifetime == 0 {
            defaults.lifetime
        } else {
            lifetime
        },
        max_gas: Some(values.uint("txpool.maxtxgas")?).filter(|gas| *gas > 0),
        tx_fee_cap: fee_cap(values)?,
        allow_unprotected: values.bool("rpc.allow-unprotected-txs")?,
    })
}

/// Configuration of the journal of local transactions; `None` if it is disabled. As in geth, a
/// relative path is below `geth` in the data directory, and the minimum interval is a second.
pub fn journal(values: &Values, datadir: &Path) -> Result<Option<JournalConfig>, CliError> {
    let path = values.text("txpool.journal")?.unwrap_or_default();
    let locals = values.list("txpool.locals")?;
    let name = "txpool.locals";
    let address = |text: &String| {
        let reason = || format!("{text} is no address: an address is 20 bytes in hex");
        text.trim()
            .parse::<Address>()
            .map_err(|_| CliError::Invalid {
                name,
                reason: reason(),
            })
    };
    let locals = locals.iter().map(address).collect::<Result<Vec<_>, _>>()?;
    let all = !values.bool("txpool.nolocals")?;
    if path.is_empty() || (!all && locals.is_empty()) {
        return Ok(None);
    }
    Ok(Some(JournalConfig {
        path: datadir.join("geth").join(expand_home(&path)),
        rewrite: values
            .duration("txpool.rejournal")?
            .max(Duration::from_secs(1)),
        all,
        locals,
    }))
}

fn fee_cap(values: &Values) -> Result<U256, CliError> {
    let name = "rpc.txfeecap";
    // `to_string` of a float never uses an exponent, so its text can be parsed as ether.
    let ether = values.float(name)?;
    Some(ether)
        .filter(|ether| *ether >= 0.0)
        .and_then(|ether| parse_ether(&ether.to_string()).ok())
        .ok_or_else(|| CliError::Invalid {
            name,
            reason: "it is no amount of ether: not negative, at most 18 decimals".into(),
        })
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
