//! Parses a genesis file (geth's `genesis.json`) of either rule set into the chain's rules, its
//! first header and its first state.
//!
//! Operators supply these files, so errors name the field and the problem. The state root is
//! computed here. The work grows with the size of the alloc.

mod before_merge;
mod fields;
#[cfg(test)]
mod tests;

use crate::chain::{
    changes::{AccountChange, Changes, KeyName, StorageChange},
    rows::Overlay,
    rules::{
        Active, ChainSpec, Eip1559Constants, ExtraData, INITIAL_BASE_FEE, MESSAGE_PASSER,
        NumberedFork, Rules,
    },
    trie::{self, Update},
};
use alloy_consensus::Header;
use alloy_eips::{
    eip7594::MAX_BLOBS_PER_TX_FUSAKA,
    eip7685::EMPTY_REQUESTS_HASH,
    eip7840::{BLOB_BASE_COST, BlobParams},
    eip7892::BlobScheduleBlobParams,
};
use alloy_primitives::{Address, B64, B256, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use fields::GenesisFields;
use serde_json::Value;
use starling_proto::{
    config::RollupConfig,
    fork::{EthereumSchedule, Fork, ForkSchedule},
    l1_config::BlobEntry,
    payload::Payload,
};
use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

/// Gas limit of the genesis block if the file sets none.
const DEFAULT_GAS_LIMIT: u64 = 4_712_388;
/// Highest maximum of blobs per block that a genesis file may set. Bounds the memory of a block's
/// blobs at 16 MiB.
const MAX_BLOBS_PER_BLOCK: u64 = 128;
/// Difficulty of the genesis block if the file sets neither difficulty nor mix hash.
const DEFAULT_DIFFICULTY: u64 = 131_072;
/// The config fields of Ethereum's upgrades by timestamp, and the OP fork that includes each
/// upgrade.
const ETHEREUM_FORKS: [(&str, Fork); 4] = [
    ("shanghaiTime", Fork::Canyon),
    ("cancunTime", Fork::Ecotone),
    ("pragueTime", Fork::Isthmus),
    ("osakaTime", Fork::Karst),
];

/// The config fields of upgrades after Osaka that change only the blob schedule (EIP-7892), without
/// the suffix `Time`.
const BLOB_FORKS: [&str; 5] = ["bpo1", "bpo2", "bpo3", "bpo4", "bpo5"];

/// The config fields of Ethereum's upgrades by block number, without the suffix `Block`. All of
/// them precede Bedrock.
const BLOCK_FORKS: [&str; 14] = [
    "homestead",
    "eip150",
    "eip155",
    "eip158",
    "byzantium",
    "constantinople",
    "petersburg",
    "istanbul",
    "muirGlacier",
    "berlin",
    "london",
    "arrowGlacier",
    "grayGlacier",
    "mergeNetsplit",
];

/// A parsed genesis file: rules, first header and first state of a chain.
#[derive(Clone, Debug)]
pub struct Genesis {
    pub spec: ChainSpec,
    pub header: Header,
    /// The file's `config` object, from which [`spec_of_config`] reads the rules again when the chain
    /// is opened.
    pub config: String,
    /// The genesis state, as rows of the store.
    pub overlay: Overlay,
}

impl Genesis {
    /// The genesis block as a payload.
    pub fn payload(&self) -> Payload {
        Payload::sealed(self.header.clone(), Vec::new())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum GenesisError {
    #[error("invalid genesis file: {0}")]
    Json(#[from] serde_json::Error),
    #[error("invalid genesis file: {field} {problem}")]
    Field { field: String, problem: String },
    #[error("invalid genesis file: {0}")]
    State(#[from] trie::TrieError),
}

/// Maximum bytes of a genesis file, unpacked.
const MAX_FILE: u64 = 2 << 30;

/// Reads the text of a file, and unpacks it if the name ends in `.zst`.
pub fn read_file(path: &Path) -> io::Result<String> {
    let file = BufReader::new(File::open(path)?);
    let mut text = String::new();
    let packed = path.extension().is_some_and(|extension| extension == "zst");
    let mut reader: Box<dyn Read> = if packed {
        Box::new(zstd::Decoder::with_buffer(file)?)
    } else {
        Box::new(file)
    };
    if reader
        .by_ref()
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)? as u64
        > MAX_FILE
    {
        return Err(io::Error::other("it is larger than 2 GiB"));
    }
    Ok(text)
}

/// Parses a genesis file. If it has no `config`, the `config` is derived from the rollup config.
pub fn parse_with_rollup(json: &str, rollup: &RollupConfig) -> Result<Genesis, GenesisError> {
    let mut file: Value = serde_json::from_str(json)?;
    if let Some(file) = file.as_object_mut()
        && file.get("config").is_none_or(Value::is_null)
    {
        file.insert("config".to_owned(), config_of_rollup(rollup)?);
        return parse(&Value::from(file.clone()).to_string());
    }
    parse(json)
}

/// The `config` object that a genesis file for this rollup config has.
pub fn config_of_rollup(rollup: &RollupConfig) -> Result<Value, GenesisError> {
    let missing = || GenesisError::Field {
        field: "config".to_owned(),
        problem: "is missing, and the rollup config has no chain_op_config to make one from"
            .to_owned(),
    };
    let mut config = serde_json::json!({
        "chainId": rollup.l2_chain_id,
        "bedrockBlock": 0,
        "terminalTotalDifficulty": 0,
        "terminalTotalDifficultyPassed": true,
        "optimism": rollup.chain_op_config.ok_or_else(missing)?,
    });
    for name in BLOCK_FORKS {
        config[format!("{name}Block")] = 0.into();
    }
    let op = Fork::ALL
        .into_iter()
        .skip(1)
        .map(|fork| (format!("{}Time", fork.name()), fork));
    for (name, fork) in op.chain(ETHEREUM_FORKS.map(|(name, fork)| (name.to_owned(), fork))) {
        if let Some(time) = rollup.forks.time(fork) {
            config[name] = time.into();
        }
    }
    if let Some(time) = rollup.forks.lagoon() {
        config["lagoonTime"] = time.into();
    }
    Ok(config)
}

/// Parses a genesis file and computes its state root.
pub fn parse(json: &str) -> Result<Genesis, GenesisError> {
    let raw: Value = serde_json::from_str(json)?;
    let file = GenesisFields::new("", &raw)?;
    let config = file.object("config")?.ok_or_else(|| {
        file.error(
            "config",
            "is missing: a rollup config, or an alloc alone, is no genesis file",
        )
    })?;
    let number = file.u64("number")?.unwrap_or(0);
    let rules = rules(&config, number)?;
    let timestamp = file.u64("timestamp")?.unwrap_or(0);
    let mut spec = ChainSpec {
        chain_id: config
            .u64("chainId")?
            .ok_or_else(|| config.error("chainId", "is missing"))?,
        genesis_hash: B256::ZERO,
        genesis_time: timestamp,
        rules,
    };
    let (update, changes) = state(&file)?;
    let mut header = header(&file, &spec, number, timestamp)?;
    header.state_root = match (file.b256("stateHash")?, changes.accounts.is_empty()) {
        (Some(_), false) => return Err(file.error("stateHash", "is given beside an alloc")),
        (Some(root), true) => root,
        (None, _) => update.state_root,
    };
    let active = spec.at(timestamp);
    let mut overlay = update.overlay;
    before_merge::add_total_difficulty(&file, &spec, &header, &mut overlay)?;
    let passer = update.storage_roots.get(&keccak256(MESSAGE_PASSER));
    add_fork_fields(&file, &active, passer.copied(), &mut header)?;
    // The next block's base fee is computed from the extra data, so it must be valid.
    if active.is_op(Fork::Holocene) {
        ExtraData::decode(&header.extra_data, &active)
            .map_err(|error| file.error("extraData", &format!("is invalid: {error}")))?;
    }
    spec.genesis_hash = header.hash_slow();
    let config = serde_json::to_string(&raw["config"])?;
    Ok(Genesis {
        spec,
        header,
        config,
        overlay,
    })
}

/// Adds the header fields of the forks that are active at genesis. `passer` is the storage root of
/// `L2ToL1MessagePasser`, if it has storage.
fn add_fork_fields(
    file: &GenesisFields<'_>,
    active: &Active,
    passer: Option<B256>,
    header: &mut Header,
) -> Result<(), GenesisError> {
    if active.shanghai {
        let root = passer.filter(|_| active.is_op(Fork::Isthmus));
        header.withdrawals_root = Some(root.unwrap_or(EMPTY_ROOT_HASH));
    }
    if active.cancun {
        header.parent_beacon_block_root = Some(B256::ZERO);
        header.blob_gas_used = Some(file.u64("blobGasUsed")?.unwrap_or(0));
        header.excess_blob_gas = Some(file.u64("excessBlobGas")?.unwrap_or(0));
    }
    if active.prague {
        header.requests_hash = Some(EMPTY_REQUESTS_HASH);
    }
    Ok(())
}

/// Parses the rules from the `config` object of a genesis file, for a chain with this genesis
/// header.
pub fn spec_of_config(config: &[u8], genesis: &Header) -> Result<ChainSpec, GenesisError> {
    let config: Value = serde_json::from_slice(config)?;
    let config = GenesisFields::new("config.", &config)?;
    Ok(ChainSpec {
        chain_id: config
            .u64("chainId")?
            .ok_or_else(|| config.error("chainId", "is missing"))?,
        genesis_hash: genesis.hash_slow(),
        genesis_time: genesis.timestamp,
        rules: rules(&config, genesis.number)?,
    })
}

fn rules(config: &GenesisFields<'_>, number: u64) -> Result<Rules, GenesisError> {
    match config.object("optimism")? {
        Some(optimism) => optimism_rules(config, &optimism, number),
        None => ethereum_rules(config),
    }
}

fn optimism_rules(
    config: &GenesisFields<'_>,
    optimism: &GenesisFields<'_>,
    number: u64,
) -> Result<Rules, GenesisError> {
    if config
        .u64("bedrockBlock")?
        .is_some_and(|block| block > number)
    {
        return Err(config.error(
            "bedrockBlock",
            "is after the genesis block, but this node begins at Bedrock",
        ));
    }
    let lagoon = config.u64("lagoonTime")?.or(config.u64("interopTime")?);
    let mut forks = ForkSchedule::from_times([]).with_lagoon(lagoon);
    // op-geth's config has no time for Delta, which changed nothing in execution. Files of deployment
    // tools may have one, in any order with the others, and op-geth ignores it.
    let timed = |fork: &Fork| ![Fork::Bedrock, Fork::Delta].contains(fork);
    for fork in Fork::ALL.into_iter().filter(timed) {
        forks = forks.with(fork, config.u64(&format!("{}Time", fork.name()))?);
    }
    for (name, fork) in ETHEREUM_FORKS {
        if let Some(time) = config.u64(name)?
            && forks.time(fork) != Some(time)
        {
            return Err(config.error(
                name,
                &format!("is {time} and differs from {}Time", fork.name()),
            ));
        }
    }
    let ecotone = forks.time(Fork::Ecotone);
    forks = forks.with(Fork::Delta, ecotone);
    forks
        .validate()
        .map_err(|error| config.error("fork times", &format!("are out of order: {error}")))?;
    let constant = |name: &str| match optimism.u64(name)? {
        Some(0) | None => Err(optimism.error(name, "is missing or zero")),
        Some(value) => Ok(value),
    };
    let denominator = constant("eip1559Denominator")?;
    let eip1559 = Eip1559Constants {
        elasticity: constant("eip1559Elasticity")?,
        denominator,
        denominator_canyon: match forks.time(Fork::Canyon) {
            Some(_) => constant("eip1559DenominatorCanyon")?,
            None => optimism
                .u64("eip1559DenominatorCanyon")?
                .unwrap_or(denominator),
        },
    };
    Ok(Rules::Optimism { forks, eip1559 })
}

fn ethereum_rules(config: &GenesisFields<'_>) -> Result<Rules, GenesisError> {
    let before_merge = before_merge::read(config)?;
    let time = |name| config.u64(name);
    let forks = EthereumSchedule {
        shanghai: time("shanghaiTime")?,
        cancun: time("cancunTime")?,
        prague: time("pragueTime")?,
        osaka: time("osakaTime")?,
    };
    let times = [forks.shanghai, forks.cancun, forks.prague, forks.osaka];
    if times
        .windows(2)
        .any(|pair| pair[1].is_some_and(|later| pair[0].is_none_or(|earlier| earlier > later)))
    {
        return Err(config.error("fork times", "are out of order"));
    }
    let blobs = blob_schedule(config, &forks)?;
    Ok(Rules::Ethereum {
        forks,
        blobs,
        deposit_contract: config
            .address("depositContractAddress")?
            .unwrap_or_default(),
        before_merge,
    })
}

/// The blob schedule of an Ethereum chain: the file's `blobSchedule`, or else mainnet's.
fn blob_schedule(
    config: &GenesisFields<'_>,
    forks: &EthereumSchedule,
) -> Result<BlobScheduleBlobParams, GenesisError> {
    let schedule = config.object("blobSchedule")?;
    let entry = |fork: &str, default: BlobParams| match &schedule {
        Some(schedule) => blob_params(schedule, fork, default),
        None => Ok(None),
    };
    let mainnet = BlobScheduleBlobParams::mainnet();
    let or_default = |fork, default| -> Result<BlobParams, GenesisError> {
        Ok(entry(fork, default)?.unwrap_or(default))
    };
    let mut blobs = BlobScheduleBlobParams {
        cancun: or_default("cancun", mainnet.cancun)?,
        prague: or_default("prague", mainnet.prague)?,
        osaka: or_default("osaka", mainnet.osaka)?,
        scheduled: Vec::new(),
    };
    let mut earliest = forks.osaka;
    for fork in BLOB_FORKS {
        let field = format!("{fork}Time");
        let Some(time) = config.u64(&field)? else {
            continue;
        };
        if earliest.is_none_or(|earliest| time < earliest) {
            return Err(config.error(&field, "is before Osaka or an earlier blob fork"));
        }
        let params = entry(fork, mainnet.osaka)?
            .ok_or_else(|| config.error(&field, "is set, but blobSchedule has no entry for it"))?;
        blobs.scheduled.push((time, params));
        earliest = Some(time);
    }
    Ok(blobs)
}

/// An entry of `blobSchedule`. Rules that the entry does not contain come from the fork of
/// `default`. Before Osaka, a transaction may have as many blobs as a block.
fn blob_params(
    schedule: &GenesisFields<'_>,
    fork: &str,
    default: BlobParams,
) -> Result<Option<BlobParams>, GenesisError> {
    let Some(entry) = schedule.get(fork) else {
        return Ok(None);
    };
    let invalid = |problem: &str| schedule.error(fork, &format!("is invalid: {problem}"));
    let entry = BlobEntry::from_json(entry).map_err(|error| invalid(&error.to_string()))?;
    let target = entry.target.ok_or_else(|| invalid("target is missing"))?;
    let max = entry.max.ok_or_else(|| invalid("max is missing"))?;
    if target > max || !(1..=MAX_BLOBS_PER_BLOCK).contains(&max) {
        let problem = format!("max is not between the target and {MAX_BLOBS_PER_BLOCK}");
        return Err(invalid(&problem));
    }
    let osaka = default.blob_base_cost == BLOB_BASE_COST;
    Ok(Some(BlobParams {
        target_blob_count: target,
        max_blob_count: max,
        update_fraction: entry.base_fee_update_fraction.into(),
        max_blobs_per_tx: if osaka { MAX_BLOBS_PER_TX_FUSAKA } else { max },
        ..default
    }))
}

/// The header without roots, and without the fields that forks after London have added.
fn header(
    file: &GenesisFields<'_>,
    spec: &ChainSpec,
    number: u64,
    timestamp: u64,
) -> Result<Header, GenesisError> {
    let mix_hash = file.b256("mixHash")?.unwrap_or_default();
    let difficulty = match file.u256("difficulty")? {
        Some(difficulty) => difficulty,
        None if mix_hash.is_zero() => U256::from(DEFAULT_DIFFICULTY),
        None => U256::ZERO,
    };
    let before_london = spec
        .before_merge()
        .is_some_and(|rules| !rules.is_active(NumberedFork::London, number));
    let base_fee = file.u64("baseFeePerGas")?.unwrap_or(INITIAL_BASE_FEE);
    let base_fee = (!before_london).then_some(base_fee);
    Ok(Header {
        parent_hash: file.b256("parentHash")?.unwrap_or_default(),
        beneficiary: file.address("coinbase")?.unwrap_or_default(),
        difficulty,
        number,
        gas_limit: file
            .u64("gasLimit")?
            .filter(|limit| *limit > 0)
            .unwrap_or(DEFAULT_GAS_LIMIT),
        gas_used: file.u64("gasUsed")?.unwrap_or(0),
        timestamp,
        extra_data: file.bytes("extraData")?.unwrap_or_default(),
        mix_hash,
        nonce: B64::from(file.u64("nonce")?.unwrap_or(0)),
        base_fee_per_gas: base_fee,
        ..Default::default()
    })
}

/// The state of the alloc. It includes empty accounts, but not slots with value zero.
fn state(file: &GenesisFields<'_>) -> Result<(Update, Changes), GenesisError> {
    let mut changes = Changes::default();
    for (address, account) in file
        .object("alloc")?
        .ok_or_else(|| file.error("alloc", "is missing"))?
        .entries()?
    {
        let address = fields::fixed::<20>(&address)
            .map(Address::from)
            .map_err(|problem| account.error("", &problem))?;
        let hash = keccak256(address);
        changes.names.push(KeyName::Address(address));
        let code = account.bytes("code")?.unwrap_or_default();
        let code_hash = if code.is_empty() {
            KECCAK256_EMPTY
        } else {
            keccak256(&code)
        };
        let nonce = account.u64("nonce")?.unwrap_or(0);
        let balance = account
            .u256("balance")?
            .ok_or_else(|| account.error("balance", "is missing"))?;
        changes.accounts.insert(
            hash,
            Some(AccountChange {
                nonce,
                balance,
                code_hash,
            }),
        );
        if !code.is_empty() {
            changes.codes.insert(code_hash, code);
        }
        let mut storage = StorageChange::default();
        if let Some(slots) = account.object("storage")? {
            for slot in slots.keys() {
                let key = fields::padded(slot).map_err(|problem| slots.error(slot, &problem))?;
                let value = slots.word(slot)?;
                if !value.is_zero() {
                    changes.names.push(KeyName::Slot(key.into()));
                    storage.slots.insert(keccak256(key), value);
                }
            }
        }
        if !storage.slots.is_empty() {
            changes.storages.insert(hash, storage);
        }
    }
    Ok((trie::genesis(&changes)?, changes))
}
