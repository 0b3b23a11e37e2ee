//! `eth_config` (EIP-7910): the rules of the current fork, of the next fork and of the last
//! scheduled fork. On an OP chain, the forks of the OP Stack count too.

use crate::{
    chain::{evm, rules::ChainSpec},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        params::Args,
    },
};
use alloy_eip2124::ForkHash;
use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, eip7840::BlobParams,
};
use alloy_primitives::{Address, FixedBytes, U64};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Serialize)]
struct ConfigJson {
    current: ForkJson,
    next: Option<ForkJson>,
    last: Option<ForkJson>,
}

/// The rules that apply from an activation time on.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ForkJson {
    activation_time: u64,
    /// Null on an OP chain, which has no blobs.
    blob_schedule: Option<BlobScheduleJson>,
    chain_id: U64,
    fork_id: FixedBytes<4>,
    precompiles: BTreeMap<String, Address>,
    system_contracts: BTreeMap<&'static str, Address>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlobScheduleJson {
    target: u64,
    max: u64,
    base_fee_update_fraction: u64,
}

impl From<BlobParams> for BlobScheduleJson {
    fn from(params: BlobParams) -> Self {
        Self {
            target: params.target_blob_count,
            max: params.max_blob_count,
            base_fee_update_fraction: params.update_fraction.try_into().unwrap_or(u64::MAX),
        }
    }
}

/// The forks of a chain, as its fork id counts them (EIP-2124, EIP-6122).
struct Forks<'a> {
    spec: &'a ChainSpec,
    /// The `config` object of the genesis file.
    config: &'a Value,
    /// Activation times of the forks after genesis, ascending.
    times: Vec<u64>,
}

impl<'a> Forks<'a> {
    fn new(spec: &'a ChainSpec, config: &'a Value) -> Self {
        let times: BTreeSet<u64> = spec.fork_times().into_iter().collect();
        Self {
            spec,
            config,
            times: times
                .into_iter()
                .filter(|time| *time > spec.genesis_time)
                .collect(),
        }
    }

    /// Activation blocks of the forks after genesis that activate at a block number, ascending.
    fn blocks(&self) -> BTreeSet<u64> {
        let members = self.config.as_object().into_iter().flatten();
        let blocks = members.filter(|(name, _)| name.ends_with("Block"));
        blocks
            .filter_map(|(_, block)| block.as_u64())
            .filter(|block| *block > 0)
            .collect()
    }

    /// The rules of the fork that is active from `time` on; 0 stands for genesis.
    fn at(&self, time: u64) -> ForkJson {
        let spec = self.spec;
        let rules_at = time.max(spec.genesis_time);
        let mut id = ForkHash::from(spec.genesis_hash);
        for block in self.blocks() {
            id += block;
        }
        for passed in self.times.iter().filter(|passed| **passed <= time) {
            id += *passed;
        }
        ForkJson {
            activation_time: time,
            blob_schedule: spec.blob_params(rules_at).map(Into::into),
            chain_id: U64::from(spec.chain_id),
            fork_id: FixedBytes(id.0),
            precompiles: evm::precompiles(spec, rules_at),
            system_contracts: self.system_contracts(rules_at),
        }
    }

    /// System contracts that blocks call. The contracts of execution-layer requests are left out on
    /// an OP chain, which processes no such requests.
    fn system_contracts(&self, time: u64) -> BTreeMap<&'static str, Address> {
        let active = self.spec.at(time);
        let mut contracts = BTreeMap::new();
        if active.cancun {
            contracts.insert("BEACON_ROOTS_ADDRESS", BEACON_ROOTS_ADDRESS);
        }
        if active.prague {
            contracts.insert("HISTORY_STORAGE_ADDRESS", HISTORY_STORAGE_ADDRESS);
        }
        if active.prague && !self.spec.is_optimism() {
            let deposits = self.config["depositContractAddress"].as_str();
            let deposits = deposits.and_then(|address| address.parse().ok());
            contracts.extend([
                ("DEPOSIT_CONTRACT_ADDRESS", deposits.unwrap_or_default()),
                (
                    "WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS",
                    WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
                ),
                (
                    "CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS",
                    CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
                ),
            ]);
        }
        contracts
    }

    fn config(&self, head_time: u64) -> ConfigJson {
        let current = self.times.iter().rev().find(|time| **time <= head_time);
        let mut later = self.times.iter().filter(|time| **time > head_time);
        let next = later.next();
        let last = later.next_back().or(next);
        ConfigJson {
            current: self.at(current.copied().unwrap_or(0)),
            next: next.map(|time| self.at(*time)),
            last: last.map(|time| self.at(*time)),
        }
    }
}

pub fn config(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    let config = (context.chain.config)().map_err(|error| RpcError::server(error.to_string()))?;
    let forks = Forks::new(&context.chain.spec, &config);
    reply(forks.config(context.view().header().timestamp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::rules::{Eip1559Constants, Rules};
    use alloy_primitives::B256;
    use starling_proto::fork::{Fork, ForkSchedule};

    fn spec() -> ChainSpec {
        ChainSpec {
            chain_id: 901,
            genesis_hash: B256::ZERO,
            genesis_time: 100,
            rules: Rules::Optimism {
                forks: ForkSchedule::from_genesis(Fork::Granite)
                    .with(Fork::Holocene, Some(200))
                    .with(Fork::Isthmus, Some(300))
                    .with(Fork::Jovian, Some(400)),
                eip1559: Eip1559Constants {
                    elasticity: 6,
                    denominator: 50,
                    denominator_canyon: 250,
                },
            },
        }
    }

    #[test]
    fn current_next_and_last_forks_follow_the_head() {
        let spec = spec();
        let none = Value::Null;
        let forks = Forks::new(&spec, &none);
        let times = |head| {
            let config = forks.config(head);
            let time = |fork: Option<ForkJson>| fork.map(|fork| fork.activation_time);
            (
                config.current.activation_time,
                time(config.next),
                time(config.last),
            )
        };
        assert_eq!(times(100), (0, Some(200), Some(400)));
        assert_eq!(times(250), (200, Some(300), Some(400)));
        assert_eq!(times(300), (300, Some(400), Some(400)));
        assert_eq!(times(1000), (400, None, None));
    }

    #[test]
    fn contracts_and_precompiles_are_those_of_the_fork() {
        let spec = spec();
        let none = Value::Null;
        let forks = Forks::new(&spec, &none);
        let (genesis, isthmus) = (forks.at(0), forks.at(300));
        assert_eq!(
            genesis.system_contracts.keys().collect::<Vec<_>>(),
            [&"BEACON_ROOTS_ADDRESS"]
        );
        assert_eq!(
            isthmus.system_contracts.keys().collect::<Vec<_>>(),
            [&"BEACON_ROOTS_ADDRESS", &"HISTORY_STORAGE_ADDRESS"]
        );
        assert_eq!(isthmus.precompiles.len(), genesis.precompiles.len() + 7);
        assert!(genesis.precompiles.contains_key("P256VERIFY"));
        assert!(isthmus.precompiles.contains_key("BLS12_PAIRING_CHECK"));
        assert_ne!(genesis.fork_id, isthmus.fork_id);
        assert!(isthmus.blob_schedule.is_none());
    }

    /// The expected values are those of go-ethereum's `core/forkid` for Mainnet's genesis and first
    /// fork.
    #[test]
    fn fork_ids_are_the_checksums_of_eip_2124() {
        let genesis = "d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3";
        let spec = ChainSpec {
            genesis_hash: genesis.parse().unwrap(),
            ..spec()
        };
        let config = serde_json::json!({ "homesteadBlock": 1_150_000 });
        let of = |config: &Value| Forks::new(&spec, config).at(0).fork_id;
        assert_eq!(of(&Value::Null).0, [0xfc, 0x64, 0xec, 0x04]);
        assert_eq!(of(&config).0, [0x97, 0xc2, 0xc3, 0x4c]);
    }
}
