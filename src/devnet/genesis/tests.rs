use super::*;
use alloy_primitives::{Log, TxKind, b256, hex};
use starling_proto::deposit::deposit_from_log;

mod withdrawals;

const SEQUENCER: Address = address!("00000000000000000000000000000000005e9e4c");
const PLAN: Plan = Plan {
    time: 1_700_000_000,
    l2_block_time: 2,
    sequencer: SEQUENCER,
};

fn selector(signature: &str) -> Vec<u8> {
    keccak256(signature)[..4].to_vec()
}

fn ask(scratch: &mut Scratch, contract: Address, signature: &str) -> U256 {
    let outcome = scratch.call(
        Address::ZERO,
        contract,
        U256::ZERO,
        selector(signature).into(),
    );
    U256::from_be_slice(&outcome.expect(signature).output)
}

/// Calldata: the selector of `signature`, then `words`.
fn call(signature: &str, words: &[B256]) -> Bytes {
    let mut data = selector(signature);
    data.extend(words.iter().flat_map(|word| word.0));
    data.into()
}

#[test]
fn the_gas_price_oracle_answers_from_the_first_block_on() {
    let mut scratch = l2_contracts().expect("contracts");
    for fork in ["isEcotone()", "isFjord()", "isIsthmus()", "isJovian()"] {
        assert_eq!(
            ask(&mut scratch, GAS_PRICE_ORACLE, fork),
            U256::ONE,
            "{fork}"
        );
    }
    // Send a Jovian L1 attributes transaction (specs: jovian, L1 attributes). The oracle must then
    // return its values.
    let mut attributes = hex!("3db6be2b").to_vec();
    attributes.extend(7u32.to_be_bytes()); // base fee scalar
    attributes.extend(11u32.to_be_bytes()); // blob base fee scalar
    attributes.extend([0; 24]); // sequence number, time, number
    attributes.extend(U256::from(13).to_be_bytes::<32>());
    attributes.extend(U256::from(17).to_be_bytes::<32>());
    attributes.extend([0; 64]); // hash, batcher
    attributes.extend([0; 14]); // operator fee, data footprint scalar
    assert_eq!(attributes.len(), 178);
    scratch
        .call(DEPOSITOR, L1_BLOCK, U256::ZERO, attributes.into())
        .expect("attributes");
    assert_eq!(
        ask(&mut scratch, GAS_PRICE_ORACLE, "baseFeeScalar()"),
        U256::from(7)
    );
    assert_eq!(
        ask(&mut scratch, GAS_PRICE_ORACLE, "blobBaseFeeScalar()"),
        U256::from(11)
    );
    assert_eq!(
        ask(&mut scratch, GAS_PRICE_ORACLE, "l1BaseFee()"),
        U256::from(13)
    );
    assert_eq!(
        ask(&mut scratch, GAS_PRICE_ORACLE, "blobBaseFee()"),
        U256::from(17)
    );
    // Only the depositor may set the attributes.
    assert!(
        scratch
            .call(SEQUENCER, L1_BLOCK, U256::ZERO, hex!("3db6be2b").into())
            .is_err()
    );
}

#[test]
fn an_op_node_that_sequences_on_the_genesis_can_gossip_its_blocks() {
    let plan = Plan {
        time: 1_700_000_000,
        l2_block_time: 2,
        sequencer: SEQUENCER,
    };
    let genesis =
        genesis::parse(&build(&plan).expect("files").l2_genesis.to_string()).expect("a genesis");
    // op-node encodes a block with the empty withdrawals root as a block before Isthmus.
    let empty = b256!("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");
    assert!(
        genesis
            .header
            .withdrawals_root
            .is_some_and(|root| root != empty),
        "{:?}",
        genesis.header
    );
}

#[test]
fn the_vault_has_its_published_code() {
    let scratch = l2_contracts().expect("contracts");
    for address in [
        OPERATOR_FEE_VAULT,
        MESSAGE_PASSER,
        BEACON_ROOTS,
        BLOCK_HASHES,
    ] {
        assert!(
            scratch
                .contract(address)
                .is_some_and(|contract| contract.code.len() > 20),
            "{address}"
        );
    }
    // EIP-2935 and EIP-4788 specify the code that results from their creation transactions.
    let code = |address| {
        scratch
            .contract(address)
            .map(|contract| hex::encode(&contract.code[..8]))
    };
    assert_eq!(code(BEACON_ROOTS).as_deref(), Some("3373ffffffffffff"));
    assert_eq!(code(BLOCK_HASHES).as_deref(), Some("3373ffffffffffff"));
}

#[test]
fn the_system_config_says_what_the_rollup_config_says() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    for (getter, expected) in [
        ("gasLimit()", U256::from(GAS_LIMIT)),
        ("basefeeScalar()", U256::from(FEE_SCALARS.base_fee)),
        ("blobbasefeeScalar()", U256::from(FEE_SCALARS.blob_base_fee)),
        ("scalar()", FEE_SCALARS.encode().into()),
        ("overhead()", U256::ZERO),
        ("batcherHash()", accounts::batcher().into_word().into()),
        ("owner()", accounts::owner().into_word().into()),
        ("unsafeBlockSigner()", SEQUENCER.into_word().into()),
        ("eip1559Denominator()", U256::from(EIP1559.denominator)),
        ("eip1559Elasticity()", U256::from(EIP1559.elasticity)),
        ("operatorFeeScalar()", U256::ZERO),
        ("operatorFeeConstant()", U256::ZERO),
        ("minBaseFee()", U256::ZERO),
        ("daFootprintGasScalar()", U256::ZERO),
    ] {
        assert_eq!(
            ask(&mut scratch, SYSTEM_CONFIG, getter),
            expected,
            "{getter}"
        );
    }
    let slot = b256!("65a7ed542fb37fe237fdfbdd70b31598523fe5b32879e307bae27a0bd9581c08");
    let storage = scratch.contract(SYSTEM_CONFIG).expect("contract").storage;
    assert_eq!(
        storage.get(&slot.into()),
        Some(&SEQUENCER.into_word().into())
    );
}

/// A setter of the SystemConfig contract, with the log that the specs require.
struct Setter {
    /// Type of the update: the log's last topic.
    kind: u8,
    call: Bytes,
    /// Words of the log's inner data, without its length.
    words: Vec<U256>,
}

/// All setters, with small distinct arguments.
fn setters() -> Vec<Setter> {
    let ecotone = (U256::ONE << 248) | (U256::from(6) << 32) | U256::from(5);
    [
        ("setBatcherHash(bytes32)", vec![9], vec![U256::from(9)]),
        (
            "setGasConfigEcotone(uint32,uint32)",
            vec![5, 6],
            vec![U256::ZERO, ecotone],
        ),
        ("setGasLimit(uint64)", vec![7], vec![U256::from(7)]),
        (
            "setUnsafeBlockSigner(address)",
            vec![8],
            vec![U256::from(8)],
        ),
        (
            "setEIP1559Params(uint32,uint32)",
            vec![50, 6],
            vec![(U256::from(50) << 32) | U256::from(6)],
        ),
        (
            "setOperatorFeeScalars(uint32,uint64)",
            vec![3, 4],
            vec![(U256::from(3) << 64) | U256::from(4)],
        ),
        ("setMinBaseFee(uint64)", vec![2], vec![U256::from(2)]),
        (
            "setDAFootprintGasScalar(uint16)",
            vec![400],
            vec![U256::from(400)],
        ),
    ]
    .into_iter()
    .zip(0..)
    .map(|((signature, arguments, words), kind)| {
        let arguments: Vec<B256> = arguments.into_iter().map(number).collect();
        Setter {
            kind,
            call: call(signature, &arguments),
            words,
        }
    })
    .collect()
}

/// Calls the setter as the owner, and checks its log.
fn update(scratch: &mut Scratch, Setter { kind, call, words }: Setter) -> Log {
    let outcome = scratch
        .call(accounts::owner(), SYSTEM_CONFIG, U256::ZERO, call)
        .expect("setter");
    let [log]: [Log; 1] = outcome.logs.try_into().expect("one log");
    let topics = [
        b256!("1d2b0bda21d56b8bd12d4f94ebacffdfb35f5e226f84b461103bb8beab6353be"),
        B256::ZERO,
        number(kind.into()),
    ];
    assert_eq!(log.topics(), topics);
    let mut expected = vec![U256::from(32), U256::from(32 * words.len())];
    expected.extend(words);
    let expected: Vec<u8> = expected
        .iter()
        .flat_map(|word| word.to_be_bytes::<32>())
        .collect();
    assert_eq!(log.data.data, expected, "update {kind}");
    log
}

/// Derivation can parse the log of every setter.
#[test]
fn config_updates_are_encoded_as_the_specs_say() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let mut derived = SystemConfig::default();
    for setter in setters() {
        let log = update(&mut scratch, setter);
        derived
            .apply_log(&log, true)
            .expect("an update that derivation reads");
    }
    let expected = SystemConfig {
        batcher_addr: Address::with_last_byte(9),
        overhead: B256::ZERO,
        scalar: FeeScalars {
            base_fee: 5,
            blob_base_fee: 6,
        }
        .encode(),
        gas_limit: 7,
        eip1559: Eip1559Params {
            denominator: 50,
            elasticity: 6,
        },
        operator_fee_scalar: 3,
        operator_fee_constant: 4,
        min_base_fee: 2,
        da_footprint_gas_scalar: 400,
    };
    assert_eq!(derived, expected);
}

#[test]
fn config_updates_by_strangers_and_without_a_denominator_are_refused() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let mut refused = |sender, call| {
        scratch
            .call(sender, SYSTEM_CONFIG, U256::ZERO, call)
            .is_err()
    };
    for Setter { kind, call, .. } in setters() {
        assert!(refused(SEQUENCER, call), "update {kind} by a stranger");
    }
    let zero = call("setEIP1559Params(uint32,uint32)", &[number(0), number(6)]);
    assert!(refused(accounts::owner(), zero));
}

#[test]
fn the_output_oracle_has_the_functions_of_the_published_one() {
    let path = "devnet/abi/L2OutputOracle.json";
    let Some(path) = starling_testkit::fixture(path) else {
        return;
    };
    let text = std::fs::read_to_string(path).expect("a file");
    let abi: Value = serde_json::from_str(&text).expect("JSON");
    let functions = abi.as_array().expect("a list").iter();
    let functions = functions.filter(|entry| entry["type"] == "function");
    let scratch = l1_contracts(&PLAN).expect("contracts");
    let code = scratch.contract(OUTPUT_ORACLE).expect("a contract").code;
    let mut found = 0;
    for function in functions {
        let inputs = function["inputs"].as_array().expect("a list").iter();
        let types: Vec<&str> = inputs.filter_map(|input| input["type"].as_str()).collect();
        let name = function["name"].as_str().expect("a name");
        // Our oracle has no proxy: its constructor does the work of `initialize`.
        if name == "initialize" {
            continue;
        }
        let selector = selector(&format!("{name}({})", types.join(",")));
        // The code pushes each selector for comparison without its leading zero bytes.
        let pushed = selector.iter().skip_while(|byte| **byte == 0);
        let pushed: Vec<u8> = pushed.copied().collect();
        let has = code.windows(pushed.len()).any(|window| window == pushed);
        assert!(has, "{name}({})", types.join(","));
        found += 1;
    }
    assert_eq!(found, 23);
}

#[test]
fn the_oracle_takes_outputs_of_the_proposer_in_order() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    assert_eq!(
        ask(&mut scratch, OUTPUT_ORACLE, "startingTimestamp()"),
        U256::from(PLAN.time)
    );
    let propose = |block: u64| {
        call(
            "proposeL2Output(bytes32,uint256,bytes32,uint256)",
            &[number(1), number(block), B256::ZERO, number(0)],
        )
    };
    let proposer = accounts::proposer();
    let mut send = |from, data| scratch.call(from, OUTPUT_ORACLE, U256::ZERO, data);
    let stranger = send(SEQUENCER, propose(SUBMISSION_INTERVAL));
    assert!(stranger.is_err());
    assert!(send(proposer, propose(SUBMISSION_INTERVAL + 1)).is_err());
    // The block's time is later than the EVM's clock.
    assert!(send(proposer, propose(SUBMISSION_INTERVAL)).is_err());
    let next = ask(&mut scratch, OUTPUT_ORACLE, "nextBlockNumber()");
    assert_eq!(next, U256::from(SUBMISSION_INTERVAL));
    let zero = Plan {
        time: 0,
        l2_block_time: 0,
        ..PLAN
    };
    let mut scratch = l1_contracts(&zero).expect("contracts");
    for count in 1..=3 {
        let data = propose(SUBMISSION_INTERVAL * count);
        let outcome = scratch.call(proposer, OUTPUT_ORACLE, U256::ZERO, data);
        let log = &outcome.expect("an output").logs[0];
        let topics = [
            keccak256("OutputProposed(bytes32,uint256,uint256,uint256)"),
            number(1),
            number(count - 1),
            number(SUBMISSION_INTERVAL * count),
        ];
        assert_eq!(log.topics(), topics);
    }
    let after = call("getL2OutputIndexAfter(uint256)", &[number(11)]);
    let outcome = scratch.call(SEQUENCER, OUTPUT_ORACLE, U256::ZERO, after);
    let index = U256::from_be_slice(&outcome.expect("an index").output);
    assert_eq!(index, U256::ONE);
}

/// Calldata of `depositTransaction(address,uint256,uint64,bool,bytes)`.
fn deposit(to: Address, value: u64, gas: u64, creation: bool, data: &[u8]) -> Bytes {
    let words = [
        to.into_word(),
        number(value),
        number(gas),
        number(creation.into()),
        number(160),
        number(data.len() as u64),
    ];
    let mut call = call(
        "depositTransaction(address,uint256,uint64,bool,bytes)",
        &words,
    )
    .to_vec();
    call.extend(data);
    call.resize(call.len().next_multiple_of(32) + 4, 0);
    call.into()
}

#[test]
fn a_deposit_is_logged_in_the_packed_form() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let from = accounts::owner();
    scratch.fund(from, U256::from(1_000));
    let to = address!("00000000000000000000000000000000000000aa");
    let outcome = scratch
        .call(
            from,
            PORTAL,
            U256::from(10),
            deposit(to, 4, 50_000, false, b"hello"),
        )
        .expect("deposit");
    let [log]: [Log; 1] = outcome.logs.try_into().expect("one log");
    let topic = b256!("b3813568d9991fc951961fcb4c784893574240a28925604d09fc577c55bb7c32");
    assert_eq!(
        log.topics(),
        [topic, from.into_word(), to.into_word(), B256::ZERO]
    );
    let mut opaque = U256::from(10).to_be_bytes::<32>().to_vec();
    opaque.extend(U256::from(4).to_be_bytes::<32>());
    opaque.extend(50_000u64.to_be_bytes());
    opaque.push(0);
    opaque.extend(b"hello");
    let mut data = [number(32), number(opaque.len() as u64)].concat();
    data.extend(&opaque);
    data.resize(data.len().next_multiple_of(32), 0);
    assert_eq!(log.data.data, data);
    let transaction =
        deposit_from_log(&log, B256::ZERO, 0).expect("a deposit that derivation reads");
    assert_eq!(
        (transaction.from, transaction.to, transaction.mint),
        (from, TxKind::Call(to), 10)
    );
    assert_eq!(
        (
            transaction.value,
            transaction.gas_limit,
            &transaction.input[..]
        ),
        (U256::from(4), 50_000, &b"hello"[..])
    );
}

#[test]
fn ether_sent_to_the_portal_is_deposited_for_its_sender() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let from = accounts::owner();
    scratch.fund(from, U256::from(1_000));
    let outcome = scratch
        .call(from, PORTAL, U256::from(3), Bytes::new())
        .expect("plain deposit");
    assert_eq!(outcome.logs[0].topics()[2], from.into_word());
}

#[test]
fn deposits_with_too_little_gas_and_creations_with_a_target_are_refused() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    let from = accounts::owner();
    let to = address!("00000000000000000000000000000000000000aa");
    let mut refused = |data: Bytes| scratch.call(from, PORTAL, U256::ZERO, data).is_err();
    assert!(
        refused(deposit(to, 0, 20_999, false, b"")),
        "too little gas"
    );
    assert!(
        refused(deposit(to, 0, 21_039, false, b"x")),
        "too little gas for its data"
    );
    assert!(!refused(deposit(to, 0, 21_040, false, b"x")));
    assert!(
        refused(deposit(to, 0, 100_000, true, b"")),
        "a creation has no target"
    );
}

#[test]
fn a_contracts_deposit_comes_from_its_alias() {
    let mut scratch = l1_contracts(&PLAN).expect("contracts");
    // Code that forwards its calldata to the portal: CALLDATACOPY, then CALL.
    let mut runtime = hex!("365f5f375f5f365f5f73").to_vec();
    runtime.extend(PORTAL.0);
    runtime.extend(hex!("5af1005f"));
    let mut creation = vec![
        0x60,
        runtime.len() as u8,
        0x80,
        0x60,
        0x0a,
        0x5f,
        0x39,
        0x5f,
        0xf3,
        0x00,
    ];
    creation.extend(&runtime);
    let relay = address!("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee0001");
    scratch.deploy(relay, creation.into()).expect("relay");
    let outcome = scratch
        .call(
            accounts::owner(),
            relay,
            U256::ZERO,
            deposit(Address::ZERO, 0, 100_000, false, b""),
        )
        .expect("relayed");
    // The address alias wraps around at 2^160.
    let alias = address!("ffffeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee1112");
    assert_eq!(outcome.logs[0].topics()[1], alias.into_word());
}

#[test]
fn a_withdrawal_is_remembered() {
    let mut scratch = l2_contracts().expect("contracts");
    let from = accounts::owner();
    scratch.fund(from, U256::from(1_000));
    let target = address!("00000000000000000000000000000000000000aa");
    let nonce = |count: u64| -> U256 { (U256::ONE << 240) | U256::from(count) };
    for count in 0..2 {
        assert_eq!(
            ask(&mut scratch, MESSAGE_PASSER, "messageNonce()"),
            nonce(count)
        );
        let data = call(
            "initiateWithdrawal(address,uint256,bytes)",
            &[target.into_word(), number(50_000), number(96), number(0)],
        );
        let outcome = scratch
            .call(from, MESSAGE_PASSER, U256::from(5), data)
            .expect("withdrawal");
        let words = [
            nonce(count).into(),
            from.into_word(),
            target.into_word(),
            number(5),
            number(50_000),
            number(192),
            number(0),
        ];
        let hash = keccak256(words.concat());
        let topic =
            keccak256("MessagePassed(uint256,address,address,uint256,uint256,bytes,bytes32)");
        assert_eq!(
            outcome.logs[0].topics(),
            [
                topic,
                nonce(count).into(),
                from.into_word(),
                target.into_word()
            ]
        );
        assert_eq!(outcome.logs[0].data.data[96..128], hash[..]);
        // A withdrawal proof on L1 proves this storage slot (specs: withdrawals).
        let slot = keccak256([hash, B256::ZERO].concat());
        let storage = scratch.contract(MESSAGE_PASSER).expect("contract").storage;
        assert_eq!(storage.get(&slot.into()), Some(&U256::ONE));
    }
}

#[test]
fn the_same_plan_gives_the_same_network() {
    let plan = Plan {
        time: 1_800_000_000,
        l2_block_time: 2,
        sequencer: SEQUENCER,
    };
    let (one, two) = (build(&plan).expect("files"), build(&plan).expect("files"));
    assert_eq!(
        (&one.l1_genesis, &one.l2_genesis, &one.rollup),
        (&two.l1_genesis, &two.l2_genesis, &two.rollup)
    );
    assert_ne!(one.rollup.genesis.l1.hash, one.rollup.genesis.l2.hash);
    let later = build(&Plan {
        time: plan.time + 1,
        ..plan
    })
    .expect("files");
    assert_ne!(one.rollup.genesis.l2.hash, later.rollup.genesis.l2.hash);
}

#[test]
fn other_programs_read_the_genesis_files() {
    let files = build(&Plan {
        time: 1_800_000_000,
        l2_block_time: 2,
        sequencer: SEQUENCER,
    })
    .expect("files");
    for (file, chain_id, others) in [
        // Four contracts, and the zero address.
        (files.l1_genesis, L1_CHAIN_ID, 5),
        (files.l2_genesis, L2_CHAIN_ID, 6),
    ] {
        let read: alloy_genesis::Genesis = serde_json::from_value(file).expect("a genesis");
        assert_eq!(
            (read.config.chain_id, read.timestamp),
            (chain_id, 1_800_000_000)
        );
        assert_eq!(read.alloc.len(), accounts::all().len() + others);
        assert_eq!(read.config.cancun_time, Some(0));
        assert_eq!(
            read.config.prague_time,
            (chain_id == L2_CHAIN_ID).then_some(0)
        );
        assert!(
            read.config
                .terminal_total_difficulty
                .is_some_and(|difficulty| difficulty.is_zero())
        );
        assert_eq!(read.alloc[&accounts::owner()].balance, accounts::BALANCE);
    }
    let rollup = RollupConfig::from_json(&files.rollup.to_json()).expect("a rollup config");
    assert_eq!(rollup, files.rollup);
}
