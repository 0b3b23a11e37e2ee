//! Limits on clients: `--txpool.*` and the limits among `--rpc.*`.

use crate::{
    chain::pool::PoolConfig,
    cli::{CliError, parse::Values},
};
use alloy_primitives::{U256, utils::parse_ether};
use std::time::Duration;

/// Limits of JSON-RPC. 0 means no limit for the flags that op-geth also has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcLimits {
    /// Gas of one run of the EVM.
    pub gas_cap: u64,
    /// Timeout of a call.
    pub evm_timeout: Duration,
    /// Calls in one batch.
    pub batch: usize,
    /// Bytes of results in one batch.
    pub batch_response: usize,
    /// Connections of all public endpoints, at least 1.
    pub connections: usize,
    /// WebSockets among them.
    pub websockets: usize,
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
            // geth's number for no limit: what is left can be added to.
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
        })
    }
}

/// The pool's limits. As with geth, what cannot be zero is its default then.
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

fn fee_cap(values: &Values) -> Result<U256, CliError> {
    let name = "rpc.txfeecap";
    // A float is printed without an exponent.
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
