//! Builds both genesis files and the rollup config of a development network without other programs.
//! Contract creation code, published or our own, runs in a scratch EVM, and the resulting state
//! becomes the alloc.

use super::{accounts, l1_config::BLOCK_FORKS};
use crate::chain::{
    evm::deploy::{Scratch, ScratchError},
    genesis::{self, GenesisError},
};
use alloy_primitives::{Address, B256, Bytes, U256, address, b256, keccak256};
use serde_json::{Map, Value, json};
use starling_proto::{
    config::{ChainOpConfig, RollupConfig, RollupGenesis},
    fork::{Fork, ForkSchedule},
    payload::BlockId,
    system_config::{Eip1559Params, FeeScalars, SystemConfig},
};

/// Sequencing window in L1 blocks: 14 days of 6-second blocks. The window is long because a network
/// may run without a batcher, and after the window blocks without a batch are replaced by empty
/// ones.
const SEQ_WINDOW: u64 = 200_000;

pub const L1_CHAIN_ID: u64 = 900;
pub const L2_CHAIN_ID: u64 = 901;

/// Addresses of the L1 contracts: arbitrary, but easy to recognise in a log.
pub const PORTAL: Address = address!("de90de90de90de90de90de90de90de90de900001");
pub const SYSTEM_CONFIG: Address = address!("de90de90de90de90de90de90de90de90de900002");
pub const OUTPUT_ORACLE: Address = address!("de90de90de90de90de90de90de90de90de900003");
const BATCH_INBOX: Address = address!("ff00000000000000000000000000000000000901");

/// L2 predeploys (specs: predeploys).
pub const GAS_PRICE_ORACLE: Address = address!("420000000000000000000000000000000000000F");
pub const L1_BLOCK: Address = address!("4200000000000000000000000000000000000015");
pub const MESSAGE_PASSER: Address = address!("4200000000000000000000000000000000000016");
pub const OPERATOR_FEE_VAULT: Address = address!("420000000000000000000000000000000000001B");

/// Addresses of system contracts, fixed by the EIPs.
const BEACON_ROOTS: Address = address!("000F3df6D732807Ef1319fB7B8bB8522d0Beac02");
const BLOCK_HASHES: Address = address!("0000F90827F1C53a10cb7A02335B175320002935");

/// Storage slot of a proxy's admin (EIP-1967).
const PROXY_ADMIN_SLOT: B256 =
    b256!("b53127684a568b3173ae13b9f8a6016e243e63b6e8ee1178d6a717850b5d6103");

/// Sender of the L1 attributes transaction, which may also enable forks in the gas price oracle
/// (specs: deposits).
pub const DEPOSITOR: Address = address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001");

const GAS_LIMIT: u64 = 60_000_000;
const L1_GAS_LIMIT: u64 = 30_000_000;
const FEE_SCALARS: FeeScalars = FeeScalars {
    base_fee: 1_368,
    blob_base_fee: 810_949,
};
const EIP1559: Eip1559Params = Eip1559Params {
    denominator: 250,
    elasticity: 6,
};
const CONSTANTS: ChainOpConfig = ChainOpConfig {
    eip1559_elasticity: 6,
    eip1559_denominator: 50,
    eip1559_denominator_canyon: Some(250),
};
/// Number of L2 blocks between two outputs.
const SUBMISSION_INTERVAL: u64 = 10;
/// Time in seconds during which an output can still be deleted, and between the proof of a withdrawal
/// and its payment. Two L1 blocks: long enough to see both states, and short for whoever waits.
const FINALIZATION_PERIOD: u64 = 12;
const INITIAL_BASE_FEE: &str = "0x3b9aca00";

#[derive(Debug, thiserror::Error)]
pub enum GenesisBuildError {
    #[error("a contract of the genesis cannot be built: {0}")]
    Contract(#[from] ScratchError),
    #[error("the contract at {0} has no code")]
    NoCode(Address),
    #[error("the program's own bytecode is damaged: {0}")]
    Hex(#[from] hex::FromHexError),
    #[error("the program cannot read the genesis it made: {0}")]
    Genesis(#[from] GenesisError),
}

/// Parameters of a new network.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Timestamp of both genesis blocks, in Unix seconds.
    pub time: u64,
    /// Block time of the L2, in seconds.
    pub l2_block_time: u64,
    /// Address that signs L2 blocks.
    pub sequencer: Address,
}

/// Contents of a network's files.
#[derive(Clone, Debug)]
pub struct Files {
    pub l1_genesis: Value,
    pub l2_genesis: Value,
    pub rollup: RollupConfig,
}

/// Builds the files. Deterministic: the same plan gives byte-identical files.
pub fn build(plan: &Plan) -> Result<Files, GenesisBuildError> {
    let l1_genesis = l1_genesis(plan)?;
    let l2_genesis = l2_genesis(plan)?;
    let block = |file: &Value| {
        Ok::<_, GenesisBuildError>(BlockId {
            number: 0,
            hash: genesis::parse(&file.to_string())?.header.hash_slow(),
        })
    };
    let rollup = RollupConfig {
        genesis: RollupGenesis {
            l1: block(&l1_genesis)?,
            l2: block(&l2_genesis)?,
            l2_time: plan.time,
            system_config: SystemConfig {
                batcher_addr: accounts::batcher(),
                overhead: B256::ZERO,
                scalar: FEE_SCALARS.encode(),
                gas_limit: GAS_LIMIT,
                eip1559: EIP1559,
                ..Default::default()
            },
        },
        block_time: plan.l2_block_time,
        max_sequencer_drift: 600,
        seq_window_size: SEQ_WINDOW,
        channel_timeout: 300,
        l1_chain_id: L1_CHAIN_ID,
        l2_chain_id: L2_CHAIN_ID,
        forks: ForkSchedule::from_genesis(Fork::Jovian),
        batch_inbox_address: BATCH_INBOX,
        deposit_contract_address: PORTAL,
        l1_system_config_address: SYSTEM_CONFIG,
        chain_op_config: Some(CONSTANTS),
        ..Default::default()
    };
    Ok(Files {
        l1_genesis,
        l2_genesis,
        rollup,
    })
}

/// Runs the creation code of the contracts in the L1's genesis.
pub fn l1_contracts(plan: &Plan) -> Result<Scratch, GenesisBuildError> {
    let mut scratch = Scratch::default();
    scratch.deploy(PORTAL, portal()?)?;
    let words = [
        accounts::owner().into_word(),
        accounts::batcher().into_word(),
        plan.sequencer.into_word(),
        number(GAS_LIMIT),
        number(FEE_SCALARS.base_fee.into()),
        number(FEE_SCALARS.blob_base_fee.into()),
        number(EIP1559.denominator.into()),
        number(EIP1559.elasticity.into()),
    ];
    let system_config = creation(include_str!("contracts/SystemConfig.hex"), &words)?;
    scratch.deploy(SYSTEM_CONFIG, system_config)?;
    scratch.deploy(OUTPUT_ORACLE, output_oracle(plan)?)?;
    scratch.deploy(BEACON_ROOTS, code(include_str!("data/eip4788.hex"))?)?;
    Ok(scratch)
}

/// Creation code of the output oracle, with its constructor arguments.
fn output_oracle(plan: &Plan) -> Result<Bytes, GenesisBuildError> {
    let words = [
        number(SUBMISSION_INTERVAL),
        number(plan.l2_block_time),
        number(0),
        number(plan.time),
        accounts::proposer().into_word(),
        accounts::owner().into_word(),
        number(FINALIZATION_PERIOD),
    ];
    creation(include_str!("contracts/OutputOracle.hex"), &words)
}

/// Creation code of the portal, with its constructor argument.
fn portal() -> Result<Bytes, GenesisBuildError> {
    let words = [OUTPUT_ORACLE.into_word()];
    creation(include_str!("contracts/Portal.hex"), &words)
}

/// Creation code with constructor arguments of 32 bytes each.
fn creation(text: &str, arguments: &[B256]) -> Result<Bytes, GenesisBuildError> {
    let mut creation = code(text)?.to_vec();
    creation.extend(arguments.iter().flat_map(|word| word.0));
    Ok(creation.into())
}

/// Runs the creation code of the predeploys, for an L2 with every fork through Jovian active at
/// genesis.
pub fn l2_contracts() -> Result<Scratch, GenesisBuildError> {
    let mut scratch = Scratch::default();
    scratch.deploy(L1_BLOCK, code(include_str!("data/jovian-l1-block.hex"))?)?;
    scratch.deploy(
        GAS_PRICE_ORACLE,
        code(include_str!("data/jovian-gas-price-oracle.hex"))?,
    )?;
    scratch.deploy(
        OPERATOR_FEE_VAULT,
        code(include_str!("data/isthmus-operator-fee-vault.hex"))?,
    )?;
    scratch.deploy(
        MESSAGE_PASSER,
        code(include_str!("contracts/MessagePasser.hex"))?,
    )?;
    scratch.deploy(BEACON_ROOTS, code(include_str!("data/eip4788.hex"))?)?;
    scratch.deploy(BLOCK_HASHES, code(include_str!("data/eip2935.hex"))?)?;
    // Upgrade the oracle fork by fork, as the upgrade transactions of a running chain do.
    for fork in ["setEcotone()", "setFjord()", "setIsthmus()", "setJovian()"] {
        scratch.call(
            DEPOSITOR,
            GAS_PRICE_ORACLE,
            U256::ZERO,
            Bytes::copy_from_slice(&keccak256(fork)[..4]),
        )?;
    }
    Ok(scratch)
}

fn l1_genesis(plan: &Plan) -> Result<Value, GenesisBuildError> {
    let mut alloc = alloc(
        &l1_contracts(plan)?,
        &[PORTAL, SYSTEM_CONFIG, OUTPUT_ORACLE, BEACON_ROOTS],
    )?;
    // The portal holds all ether of L2, so that the ether of L2's genesis can be withdrawn too.
    let on_l2 = accounts::BALANCE * U256::from(accounts::all().len());
    alloc[&PORTAL.to_string()]["balance"] = format!("{on_l2:#x}").into();
    // As on Mainnet, the zero address has ether: viem's `buildInitiateWithdrawal` estimates the gas
    // of the payment on L1 for a sender that it does not name.
    let nobody = json!({"balance": format!("{:#x}", accounts::BALANCE)});
    alloc.insert(Address::ZERO.to_string(), nobody);
    let mut file = l1_genesis_of(L1_CHAIN_ID, alloc);
    file["timestamp"] = format!("{:#x}", plan.time).into();
    Ok(file)
}

/// Genesis of an L1 with Cancun's rules and this alloc, at timestamp 0.
pub fn l1_genesis_of(chain_id: u64, alloc: Map<String, Value>) -> Value {
    let mut config = ethereum_config(chain_id);
    config.insert("shanghaiTime".into(), 0.into());
    config.insert("cancunTime".into(), 0.into());
    config.insert(
        "blobSchedule".into(),
        json!({"cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477}}),
    );
    genesis_file(config, 0, L1_GAS_LIMIT, &Bytes::new(), alloc)
}

fn l2_genesis(plan: &Plan) -> Result<Value, GenesisBuildError> {
    let mut config = ethereum_config(L2_CHAIN_ID);
    config.insert("bedrockBlock".into(), 0.into());
    for key in ["shanghaiTime", "cancunTime", "pragueTime"] {
        config.insert(key.into(), 0.into());
    }
    for fork in Fork::ALL
        .into_iter()
        .filter(|fork| (Fork::Regolith..=Fork::Jovian).contains(fork) && *fork != Fork::Delta)
    {
        config.insert(format!("{}Time", fork.name()), 0.into());
    }
    config.insert("optimism".into(), json!(CONSTANTS));
    // Extra data in Jovian's format: version, denominator, elasticity, minimum base fee (specs:
    // jovian, exec engine).
    let mut extra_data = vec![1];
    extra_data.extend(EIP1559.denominator.to_be_bytes());
    extra_data.extend(EIP1559.elasticity.to_be_bytes());
    extra_data.extend(0u64.to_be_bytes());
    let contracts = [
        L1_BLOCK,
        GAS_PRICE_ORACLE,
        OPERATOR_FEE_VAULT,
        MESSAGE_PASSER,
        BEACON_ROOTS,
        BLOCK_HASHES,
    ];
    let mut alloc = alloc(&l2_contracts()?, &contracts)?;
    // Give the message passer a storage entry. The published message passer is a proxy, so its
    // storage is never empty, and op-node relies on this. op-node encodes a block with an empty
    // withdrawals root as a block before Isthmus, and then refuses the block in its own gossip
    // validation.
    let admin = accounts::owner().into_word().to_string();
    alloc[&MESSAGE_PASSER.to_string()]["storage"][PROXY_ADMIN_SLOT.to_string()] = admin.into();
    Ok(genesis_file(
        config,
        plan.time,
        GAS_LIMIT,
        &extra_data.into(),
        alloc,
    ))
}

/// Chain config with the merge and all block-numbered forks active at genesis.
fn ethereum_config(chain_id: u64) -> Map<String, Value> {
    let mut config = Map::new();
    config.insert("chainId".into(), chain_id.into());
    // Leave out the DAO fork, which would require its refunds in the state.
    for name in BLOCK_FORKS.into_iter().filter(|name| *name != "daoFork") {
        config.insert(format!("{name}Block"), 0.into());
    }
    config.insert("terminalTotalDifficulty".into(), 0.into());
    config.insert("terminalTotalDifficultyPassed".into(), true.into());
    config
}

fn genesis_file(
    config: Map<String, Value>,
    time: u64,
    gas_limit: u64,
    extra_data: &Bytes,
    alloc: Map<String, Value>,
) -> Value {
    json!({
        "config": config,
        "nonce": "0x0",
        "timestamp": format!("{time:#x}"),
        "extraData": extra_data.to_string(),
        "gasLimit": format!("{gas_limit:#x}"),
        "difficulty": "0x0",
        "mixHash": B256::ZERO.to_string(),
        "coinbase": Address::ZERO.to_string(),
        "number": "0x0",
        "gasUsed": "0x0",
        "parentHash": B256::ZERO.to_string(),
        "baseFeePerGas": INITIAL_BASE_FEE,
        "excessBlobGas": "0x0",
        "blobGasUsed": "0x0",
        "alloc": alloc,
    })
}

/// Alloc of the contracts in the scratch EVM and the funded development accounts.
fn alloc(
    scratch: &Scratch,
    contracts: &[Address],
) -> Result<Map<String, Value>, GenesisBuildError> {
    let mut alloc = Map::new();
    for address in contracts {
        let contract = scratch
            .contract(*address)
            .ok_or(GenesisBuildError::NoCode(*address))?;
        let storage: Map<String, Value> = contract
            .storage
            .iter()
            .map(|(slot, value)| {
                (
                    B256::from(*slot).to_string(),
                    B256::from(*value).to_string().into(),
                )
            })
            .collect();
        let entry = json!({
            "balance": "0x0",
            "nonce": format!("{:#x}", contract.nonce),
            "code": contract.code.to_string(),
            "storage": storage,
        });
        alloc.insert(address.to_string(), entry);
    }
    for account in accounts::all() {
        alloc.insert(
            account.address.to_string(),
            json!({"balance": format!("{:#x}", accounts::BALANCE)}),
        );
    }
    Ok(alloc)
}

fn number(value: u64) -> B256 {
    U256::from(value).into()
}

fn code(text: &str) -> Result<Bytes, hex::FromHexError> {
    hex::decode(text.trim()).map(Bytes::from)
}

#[cfg(test)]
mod tests;
