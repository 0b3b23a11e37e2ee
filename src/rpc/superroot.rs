//! The `superroot` namespace: the super root at a timestamp of a set that has only this chain, in op-node's shape. It
//! commits to the output root of the chain's block at that time. Programs that dispute proposals
//! read it.

use super::{
    api::{Method, Namespace},
    context::RollupContext,
    error::{Reply, RpcError, reply},
    optimism::{rollup, within},
    params::{Args, Quantity},
};
use crate::rollup::{
    handle::RollupHandle,
    output::{self, CanonicalBlock, OutputError, RollupOutput},
    status::RollupStatus,
};
use alloy_primitives::{B256, U64, U256, keccak256};
use futures::{FutureExt, future::BoxFuture};
use serde::Serialize;
use starling_proto::{config::RollupConfig, l1info::L2BlockRef, payload::BlockId};
use std::{collections::BTreeMap, sync::Arc};

pub const NAMESPACE: Namespace = Namespace {
    name: "superroot",
    methods: &[("superroot_atTimestamp", Method::RollupAsync(at_timestamp))],
    subscriptions: &[],
};

/// Version of the only form of super roots.
const VERSION: u8 = 1;

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct OutputPreimageJson {
    state_root: B256,
    message_passer_storage_root: B256,
    block_hash: B256,
}

#[derive(Serialize)]
struct OptimisticOutputJson {
    output: OutputPreimageJson,
    output_root: B256,
    required_l1: BlockId,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ChainOutputJson {
    #[serde(rename = "ChainID")]
    chain_id: String,
    output: B256,
}

#[derive(Serialize)]
struct SuperJson {
    timestamp: U64,
    chains: [ChainOutputJson; 1],
}

#[derive(Serialize)]
struct SuperRootDataJson {
    verified_required_l1: BlockId,
    #[serde(rename = "super")]
    preimage: SuperJson,
    super_root: B256,
}

/// The response of `superroot_atTimestamp`. Without a safe block at the timestamp it has the heads
/// alone.
#[derive(Serialize)]
struct SuperRootJson {
    current_l1: BlockId,
    safe_timestamp: u64,
    local_safe_timestamp: u64,
    finalized_timestamp: u64,
    optimistic_at_timestamp: BTreeMap<String, OptimisticOutputJson>,
    chain_ids: [String; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<SuperRootDataJson>,
}

impl SuperRootJson {
    fn of_heads(status: &RollupStatus, chain_id: u64) -> Self {
        let time = |head: Option<L2BlockRef>| head.map_or(0, |head| head.time);
        let current = status.current_l1.unwrap_or_default();
        Self {
            current_l1: BlockId {
                hash: current.hash,
                number: current.number,
            },
            safe_timestamp: time(status.safe_l2),
            local_safe_timestamp: time(status.local_safe_l2),
            finalized_timestamp: time(status.finalized_l2),
            optimistic_at_timestamp: BTreeMap::new(),
            chain_ids: [chain_id.to_string()],
            data: None,
        }
    }

    /// Adds the output of the chain's block at `timestamp`, which `required_l1` made safe.
    fn add(&mut self, output: &RollupOutput, chain_id: u64, timestamp: u64, required_l1: BlockId) {
        let optimistic = OptimisticOutputJson {
            output: OutputPreimageJson {
                state_root: output.state_root,
                message_passer_storage_root: output.withdrawal_root,
                block_hash: output.block.id.hash,
            },
            output_root: output.root,
            required_l1,
        };
        let id = chain_id.to_string();
        self.optimistic_at_timestamp.insert(id.clone(), optimistic);
        self.data = Some(SuperRootDataJson {
            verified_required_l1: required_l1,
            preimage: SuperJson {
                timestamp: U64::from(timestamp),
                chains: [ChainOutputJson {
                    chain_id: id,
                    output: output.root,
                }],
            },
            super_root: super_root(timestamp, chain_id, output.root),
        });
    }
}

/// The super root of one chain: the hash of version, timestamp, chain id and output root.
fn super_root(timestamp: u64, chain_id: u64, output: B256) -> B256 {
    let chain_id = U256::from(chain_id).to_be_bytes::<32>();
    keccak256(
        [
            &[VERSION][..],
            &timestamp.to_be_bytes(),
            &chain_id,
            output.as_slice(),
        ]
        .concat(),
    )
}

/// The number of the block at a timestamp, rounded down.
fn number_at(config: &RollupConfig, timestamp: u64) -> Result<u64, String> {
    let genesis = config.genesis.l2_time;
    let elapsed = timestamp.checked_sub(genesis);
    let elapsed = elapsed.ok_or_else(|| format!("did not reach genesis time ({genesis}) yet"))?;
    Ok(config
        .genesis
        .l2
        .number
        .saturating_add(elapsed / config.block_time))
}

/// The L1 block that made a block safe. The genesis block is safe at L1 block 0, since contracts
/// may be older than the rollup.
fn required_l1(rollup: &RollupHandle, block: BlockId) -> Result<BlockId, RpcError> {
    if block == rollup.config.genesis.l2 {
        return Ok(BlockId::default());
    }
    let step = format!("l1AtSafeHead@{}:{}", block.hash, block.number);
    let Some(records) = &rollup.safe_db else {
        return Err(within(&step)("safe head database not enabled"));
    };
    records.l1_of(block.number).map_err(within(&step))
}

/// `superroot_atTimestamp(timestamp)`: the super root at a time that the chain has reached safely.
fn at_timestamp(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let Quantity(timestamp) = args.required()?;
        args.at_most(1)?;
        let rollup = rollup(&context)?;
        let chain_id = rollup.config.l2_chain_id;
        let target = format!("target block number for timestamp {timestamp}");
        let number = number_at(&rollup.config, timestamp).map_err(within(&target))?;
        let _permit = context.read_permit().await?;
        let status = rollup.driver.status();
        let mut response = SuperRootJson::of_heads(&status, chain_id);
        let block = match output::block_at(rollup, number).await {
            Err(OutputError::NotFound(_)) => return reply(response),
            block => block.map_err(within(&format!("blockRefWithStatus@{number}")))?,
        };
        if number > status.local_safe_l2.map_or(0, |head| head.id.number) {
            return reply(response);
        }
        let output = output_of(rollup, &block).await?;
        let required = required_l1(rollup, block.reference.id)?;
        response.add(&output, chain_id, timestamp, required);
        reply(response)
    }
    .boxed()
}

async fn output_of(
    rollup: &RollupHandle,
    block: &CanonicalBlock,
) -> Result<RollupOutput, RpcError> {
    let BlockId { hash, number } = block.reference.id;
    let output = output::of_block(rollup, block).await;
    output.map_err(within(&format!("outputV0AtBlock@{hash}:{number}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::l1::L1Block;

    /// The JSON that op-node v1.19.6 writes for these values, without and with a safe block.
    const HEADS: &str = r#"{"current_l1":{"hash":"0x0505050505050505050505050505050505050505050505050505050505050505","number":80},"safe_timestamp":10,"local_safe_timestamp":12,"finalized_timestamp":8,"optimistic_at_timestamp":{},"chain_ids":["901"]}"#;
    const WHOLE: &str = r#"{"current_l1":{"hash":"0x0505050505050505050505050505050505050505050505050505050505050505","number":80},"safe_timestamp":10,"local_safe_timestamp":12,"finalized_timestamp":8,"optimistic_at_timestamp":{"901":{"output":{"stateRoot":"0x0101010101010101010101010101010101010101010101010101010101010101","messagePasserStorageRoot":"0x0202020202020202020202020202020202020202020202020202020202020202","blockHash":"0x0303030303030303030303030303030303030303030303030303030303030303"},"output_root":"0xfa846ba062c4f02c422636c114d4c22c219e0d7f9db2db9621eb6f655ac8a51f","required_l1":{"hash":"0x0404040404040404040404040404040404040404040404040404040404040404","number":77}}},"chain_ids":["901"],"data":{"verified_required_l1":{"hash":"0x0404040404040404040404040404040404040404040404040404040404040404","number":77},"super":{"timestamp":"0x65920080","chains":[{"ChainID":"901","Output":"0xfa846ba062c4f02c422636c114d4c22c219e0d7f9db2db9621eb6f655ac8a51f"}]},"super_root":"0x00b3497df81fa8f736eb1d9c8f71f82d76741935e9f0ae5998ef0481dae3b30d"}}"#;

    fn block_ref(hash: u8, time: u64) -> L2BlockRef {
        let hash = B256::repeat_byte(hash);
        L2BlockRef {
            id: BlockId { hash, number: 6 },
            parent_hash: B256::ZERO,
            time,
            origin: BlockId::default(),
            sequence_number: 0,
        }
    }

    #[test]
    fn responses_are_written_as_by_op_node() {
        let status = RollupStatus {
            current_l1: Some(L1Block {
                hash: B256::repeat_byte(5),
                number: 80,
                ..L1Block::default()
            }),
            local_safe_l2: Some(block_ref(9, 12)),
            safe_l2: Some(block_ref(9, 10)),
            finalized_l2: Some(block_ref(9, 8)),
            ..RollupStatus::default()
        };
        let mut response = SuperRootJson::of_heads(&status, 901);
        assert_eq!(serde_json::to_string(&response).unwrap(), HEADS);
        let (state, passer) = (B256::repeat_byte(1), B256::repeat_byte(2));
        let output = RollupOutput::new(block_ref(3, 1_704_067_200), state, passer);
        let l1 = BlockId {
            hash: B256::repeat_byte(4),
            number: 77,
        };
        response.add(&output, 901, 1_704_067_200, l1);
        assert_eq!(serde_json::to_string(&response).unwrap(), WHOLE);
    }
}
