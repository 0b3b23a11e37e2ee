//! Real blocks, rebuilt and validated by the production code over the witnesses recorded with them.
//!
//! Fixtures of `exec-blocks` that run here:
//! - `op-sepolia`: ten Holocene blocks. The builder executes their attributes over the witness and
//!   must get the published block hash, which proves every root, the L1 fee, the bloom and the
//!   extra data. Validation of the same payload must succeed. A payload with a flipped byte of a
//!   transaction, and a witness with a different balance, must be rejected.
//! - `celo-sepolia`: an Isthmus block, and the block that activates Jovian. Both blocks contain
//!   only deposits, so that Celo's own fees do not matter. The test sets Celo's base fee floor in
//!   the header of the Isthmus block; the Jovian block needs no such change.
//! - `op-mainnet-headers`: two Jovian headers and the first Bedrock header. Checked are hash, extra
//!   data, and the EIP-2935 slot that links the Jovian headers, read through the witness. The
//!   fixture has no state besides these proofs, so nothing is executed.
//! - `op-test-vectors-t8n`: single transactions over an alloc. The tool that made them was no OP
//!   client (base fee burnt, no L1 attributes, state root zero), so balances and state roots cannot
//!   be compared. Gas, logs and therefore the receipts root can. Only `GovernanceTokenPrecompile`
//!   of the two files is run: the alloc of `Multicall3Preinstall` lacks the code of the called
//!   contract.
//!
//! [`traces`] compares tracers on the `op-sepolia` blocks.

pub mod traces;

use alloy_consensus::Header;
use alloy_eips::{eip2718::Encodable2718, eip2935::HISTORY_STORAGE_ADDRESS};
use alloy_primitives::{B256, Bytes, U256, hex, keccak256};
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::TrieAccount;
use op_alloy_consensus::OpTxEnvelope;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::Value;
use starling::chain::{
    build::{BlockBuilder, BuildError},
    evm::{ParentState, WitnessState},
    execute::{BlockExecution, ValidateError, recover, validate},
    genesis::{self, Genesis},
    receipt::receipts_root,
    rules::{ChainSpec, Eip1559Constants, ExtraData, Rules},
    store::{Identity, Store},
    trie::Witness,
    view::{ExecutedBlock, View},
};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::Payload,
    system_config::Eip1559Params,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Lowest base fee on Celo, in wei.
const CELO_BASE_FEE_FLOOR: u64 = 25_000_000_000;

/// The files of a fixture folder; `None`, recorded as a skip, if the fixtures are absent.
fn files(folder: &str) -> Option<Vec<PathBuf>> {
    let folder = starling_testkit::fixture(&format!("exec-blocks/{folder}"))?;
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    Some(files)
}

/// One block with all data needed to build it.
struct Fixture {
    spec: Arc<ChainSpec>,
    parent: Header,
    attributes: OpPayloadAttributes,
    expected: B256,
    preimages: Vec<Bytes>,
}

impl Fixture {
    fn read(path: &Path) -> Self {
        let json = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
        let mut json: Value = serde_json::from_slice(&json).unwrap();
        // Another program wrote these files: only the settings that execution needs are read.
        let rollup = &json["rollup_config"];
        let times = Fork::ALL
            .into_iter()
            .map(|fork| (fork, rollup[format!("{}_time", fork.name())].as_u64()));
        // The config of a chain that began after Regolith may omit Regolith.
        let forks = ForkSchedule::from_times(times.filter(|(_, time)| time.is_some()))
            .with(Fork::Regolith, Some(0));
        // Older files have the same constants in another form.
        let constant =
            |name: &str, (params, field): (&str, &str)| match &rollup["chain_op_config"][name] {
                Value::Null => serde_json::from_value::<U256>(rollup[params][field].clone())
                    .unwrap()
                    .to(),
                value => value.as_u64().unwrap(),
            };
        let eip1559 = Eip1559Constants {
            elasticity: constant(
                "eip1559Elasticity",
                ("base_fee_params", "elasticity_multiplier"),
            ),
            denominator: constant(
                "eip1559Denominator",
                ("base_fee_params", "max_change_denominator"),
            ),
            denominator_canyon: constant(
                "eip1559DenominatorCanyon",
                ("canyon_base_fee_params", "max_change_denominator"),
            ),
        };
        let spec = ChainSpec {
            // Celo's files lack the chain id, and name the chain instead.
            chain_id: rollup["l2_chain_id"].as_u64().unwrap_or(11_142_220),
            genesis_hash: serde_json::from_value(rollup["genesis"]["l2"]["hash"].clone()).unwrap(),
            genesis_time: rollup["genesis"]["l2_time"].as_u64().unwrap(),
            rules: Rules::Optimism { forks, eip1559 },
        };
        let mut attributes = json["executing_payload"].take();
        // The files omit the empty list of withdrawals that every block since Canyon has.
        attributes["withdrawals"] = Value::Array(Vec::new());
        let preimages = json["witness"].as_object().unwrap().values();
        let preimages = preimages
            .map(|bytes| hex::decode(bytes.as_str().unwrap()).unwrap().into())
            .collect();
        Self {
            spec: Arc::new(spec),
            parent: serde_json::from_value(json["parent_header"].take()).unwrap(),
            attributes: serde_json::from_value(attributes).unwrap(),
            expected: serde_json::from_value(json["expected_block_hash"].clone()).unwrap(),
            preimages,
        }
    }

    fn state(&self) -> ParentState {
        let witness = Witness::new(self.preimages.iter().cloned());
        WitnessState {
            witness,
            header: self.parent.clone(),
        }
        .into()
    }

    fn build(&self) -> Result<ExecutedBlock, BuildError> {
        Ok(
            BlockBuilder::start(self.spec.clone(), self.state(), self.attributes.clone())?
                .finish()?,
        )
    }

    fn validate(&self, payload: &Payload) -> Result<ExecutedBlock, ValidateError> {
        validate(&self.spec, self.state(), Arc::new(payload.clone()))
    }
}

#[test]
fn op_sepolia_blocks_have_their_hashes() {
    let Some(files) = files("op-sepolia") else {
        return;
    };
    assert_eq!(files.len(), 10);
    for path in files {
        let fixture = Fixture::read(&path);
        let built = fixture
            .build()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            built.payload.hash,
            fixture.expected,
            "{}: {:#?}",
            path.display(),
            built.payload.header
        );
        let judged = fixture.validate(&built.payload).unwrap();
        assert_eq!(judged.payload.hash, fixture.expected);
        assert_eq!(judged.receipts, built.receipts);
        assert_eq!(judged.senders, built.senders);
    }
}

#[test]
fn a_flipped_transaction_byte_is_noticed() {
    let Some(files) = files("op-sepolia") else {
        return;
    };
    let mut fixture = Fixture::read(&files[0]);
    let good = fixture.build().unwrap().payload;
    for index in 0..good.transactions.len() {
        let mut transactions = good.transactions.clone();
        let mut raw = transactions[index].to_vec();
        let last = raw.len() - 1;
        raw[last] ^= 1;
        transactions[index] = raw.into();
        let mut bad = Payload::sealed(good.header.clone(), transactions.clone());
        let error = fixture.validate(&bad).unwrap_err().to_string();
        assert!(error.starts_with("transactions root"), "{error}");
        // The flipped transaction is invalid even if the header has its transactions root.
        bad.header.transactions_root = alloy_trie::root::ordered_trie_root_encoded(&transactions);
        assert!(fixture.validate(&bad).is_err(), "transaction {index}");
        fixture.attributes.transactions = Some(transactions);
        match fixture.build() {
            Ok(built) => assert_ne!(built.payload.hash, fixture.expected),
            Err(BuildError::Forced { index: at, .. }) => assert_eq!(at, index),
            // The changed signature recovers another sender, whose account is not in the witness.
            Err(BuildError::State(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_changed_balance_is_noticed() {
    let Some(files) = files("op-sepolia") else {
        return;
    };
    let mut fixture = Fixture::read(&files[0]);
    let good = fixture.build().unwrap();
    let (state_root, changed) = richer(&fixture, good.senders[1]);
    fixture.preimages = changed;
    // Under the true state root the forged trie node is not found.
    let error = fixture.validate(&good.payload).unwrap_err();
    assert!(matches!(error, ValidateError::Read(_)), "{error}");
    // Under the forged state root the node is found, and the block's hash differs.
    fixture.parent.state_root = state_root;
    assert_ne!(fixture.build().unwrap().payload.hash, fixture.expected);
}

/// The witness with one wei more in an account, and its new root: every node on the account's path
/// is replaced.
fn richer(fixture: &Fixture, address: alloy_primitives::Address) -> (B256, Vec<Bytes>) {
    let account = |rlp: &[u8]| -> Option<TrieAccount> {
        let list = Vec::<Bytes>::decode(&mut &*rlp)
            .ok()
            .filter(|list| list.len() == 2)?;
        TrieAccount::decode(&mut list[1].as_ref()).ok()
    };
    let known = fixture.state().account(address).unwrap().unwrap();
    let mut preimages = fixture.preimages.clone();
    let leaf = preimages.iter().position(|rlp| {
        account(rlp).is_some_and(|a| {
            (a.nonce, a.balance, a.storage_root) == (known.nonce, known.balance, known.storage_root)
        })
    });
    let mut at = leaf.unwrap();
    let mut list = Vec::<Bytes>::decode(&mut preimages[at].as_ref()).unwrap();
    let mut value = account(&preimages[at]).unwrap();
    value.balance += U256::ONE;
    list[1] = alloy_rlp::encode(value).into();
    let mut node = Vec::new();
    list.encode(&mut node);
    loop {
        let (old, new) = (keccak256(&preimages[at]), keccak256(&node));
        preimages[at] = node.into();
        if old == fixture.parent.state_root {
            return (new, preimages);
        }
        at = preimages
            .iter()
            .position(|rlp| rlp.windows(32).any(|window| window == old.as_slice()))
            .unwrap();
        let start = preimages[at]
            .windows(32)
            .position(|window| window == old.as_slice())
            .unwrap();
        node = preimages[at].to_vec();
        node[start..start + 32].copy_from_slice(new.as_slice());
    }
}

#[test]
fn celo_sepolia_blocks_of_deposits_have_their_hashes() {
    let Some(files) = files("celo-sepolia") else {
        return;
    };
    for path in files {
        let fixture = Fixture::read(&path);
        let built = fixture.build().unwrap();
        fixture.validate(&built.payload).unwrap();
        let mut header = built.payload.header.clone();
        // Celo's base fee floor, which our builder does not know, applies to the block before
        // Jovian. From Jovian on the minimum base fee replaces it.
        if header.base_fee_per_gas < Some(CELO_BASE_FEE_FLOOR) && header.extra_data.len() == 9 {
            header.base_fee_per_gas = Some(CELO_BASE_FEE_FLOOR);
        }
        assert_eq!(
            header.hash_slow(),
            fixture.expected,
            "{}: {header:#?}",
            path.display()
        );
    }
}

#[test]
fn op_mainnet_headers_hash_and_carry_jovian_parameters() {
    let Some(files) = files("op-mainnet-headers") else {
        return;
    };
    let read = |name: &str| -> Value {
        let path = files.iter().find(|path| path.ends_with(name)).unwrap();
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let bytes = |hex: &Value| -> Bytes { hex::decode(hex.as_str().unwrap()).unwrap().into() };
    let header = |rlp: &Value| Header::decode(&mut bytes(rlp).as_ref()).unwrap();
    let bedrock = read("bedrock-105235063.json");
    assert_eq!(
        header(&bedrock["rlp"]).hash_slow().to_string(),
        bedrock["hash"].as_str().unwrap()
    );

    let proof = read("eip2935_header_by_number.json");
    let step = &proof["steps"][0];
    let (head, target) = (
        header(&proof["safe_head_header_rlp"]),
        header(&step["resolved_block_header_rlp"]),
    );
    assert_eq!(
        target.hash_slow().to_string(),
        proof["target_block_hash"].as_str().unwrap()
    );
    for header in [&head, &target] {
        let spec = spec_of_jovian();
        let extra = ExtraData::decode(&header.extra_data, &spec.at(header.timestamp)).unwrap();
        let params = Eip1559Params {
            denominator: extra.params.denominator.try_into().unwrap(),
            elasticity: extra.params.elasticity.try_into().unwrap(),
        };
        let again = ExtraData::encode(&spec, header.timestamp, params, extra.min_base_fee).unwrap();
        assert_eq!(again, header.extra_data);
    }
    // The history contract stores the target's hash, so that the hash is proven like any state.
    let nodes = ["account_proof", "storage_proof"].map(|name| {
        step[name]
            .as_array()
            .unwrap()
            .iter()
            .map(bytes)
            .collect::<Vec<_>>()
    });
    let witness = Witness::new(nodes.concat());
    let slot = U256::from(target.number % 8191);
    let stored = witness
        .storage(head.state_root, HISTORY_STORAGE_ADDRESS, slot)
        .unwrap();
    assert_eq!(B256::from(stored), target.hash_slow());
}

fn spec_of_jovian() -> ChainSpec {
    let eip1559 = Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    let rules = Rules::Optimism {
        forks: ForkSchedule::from_genesis(Fork::Jovian),
        eip1559,
    };
    ChainSpec {
        chain_id: 10,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules,
    }
}

#[test]
fn a_t8n_transaction_has_its_receipt() {
    let Some(files) = files("op-test-vectors-t8n") else {
        return;
    };
    for path in files
        .iter()
        .filter(|path| path.ends_with("GovernanceTokenPrecompile.json"))
    {
        let vector: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let genesis = t8n_genesis(&vector);
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            chain_id: 10,
            genesis_hash: genesis.spec.genesis_hash,
        };
        let store = Store::create(
            dir.path(),
            1 << 20,
            identity,
            &genesis.payload(),
            &genesis.overlay,
        )
        .unwrap();
        let state =
            Arc::new(View::new(store.snapshot().unwrap(), Vec::new(), None, None).unwrap()).state();
        let quantity =
            |name: &str| -> U256 { serde_json::from_value(vector["env"][name].clone()).unwrap() };
        let header = Header {
            number: quantity("currentNumber").to(),
            timestamp: quantity("currentTimestamp").to(),
            gas_limit: genesis.header.gas_limit,
            base_fee_per_gas: Some(0),
            ..Default::default()
        };
        let mut execution = BlockExecution::begin(&genesis.spec, &header, state.into()).unwrap();
        for (index, tx) in vector["txs"].as_array().unwrap().iter().enumerate() {
            let mut tx = tx["EIP1559"].clone();
            tx["type"] = "0x2".into();
            let tx: OpTxEnvelope = serde_json::from_value(tx).unwrap();
            let raw = Bytes::from(tx.encoded_2718());
            execution
                .transact(&recover(index, &raw).unwrap(), &raw)
                .unwrap();
        }
        let execution = execution.finish();
        let root: B256 = serde_json::from_value(vector["result"]["receiptRoot"].clone()).unwrap();
        assert_eq!(
            receipts_root(&execution.receipts, Some(Fork::Fjord)),
            root,
            "{}: {:?}",
            path.display(),
            execution.receipts
        );
    }
}

/// Genesis of a chain at Fjord with the vector's alloc.
fn t8n_genesis(vector: &Value) -> Genesis {
    let file = serde_json::json!({
        "config": {
            "chainId": 10,
            "regolithTime": 0, "canyonTime": 0, "deltaTime": 0, "ecotoneTime": 0, "fjordTime": 0,
            "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
        },
        "difficulty": 0, "gasLimit": vector["env"]["currentGasLimit"], "alloc": vector["alloc"], "timestamp": 1,
    });
    genesis::parse(&file.to_string()).unwrap()
}
