//! Also what other tests of execution stand on: states made of allocs.

use super::*;
use crate::chain::{
    changes::{AccountChange, Changes, StorageChange},
    execute::recover,
    rules::{Eip1559Constants, Rules},
    store::{Identity, Store},
    trie,
    view::{State, View},
};
use alloy_consensus::{SignableTransaction, Signed, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{KECCAK256_EMPTY, Signature, bytes};
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy_consensus::TxDeposit;
use starling_proto::{
    fork::{EthereumSchedule, ForkSchedule},
    l1info::L1InfoFormat,
    payload::Payload,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub const CHAIN: u64 = 901;
pub const GAS_LIMIT: u64 = 60_000_000;
/// Time of the state's block.
pub const TIME: u64 = 1_000;

/// A file of the fixtures as JSON; `None`, recorded as a skip, where they are absent.
pub fn fixture(name: &str) -> Option<serde_json::Value> {
    let mut bytes = std::fs::read(starling_testkit::fixture(name)?).unwrap();
    if name.ends_with(".zst") {
        bytes = zstd::decode_all(bytes.as_slice()).unwrap();
    }
    Some(serde_json::from_slice(&bytes).unwrap())
}

/// An OP chain with every fork up to `last` at genesis.
pub fn op(last: Fork) -> ChainSpec {
    scheduled(ForkSchedule::from_genesis(last))
}

pub fn scheduled(forks: ForkSchedule) -> ChainSpec {
    let eip1559 = Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Optimism { forks, eip1559 },
    }
}

pub fn ethereum() -> ChainSpec {
    let forks = EthereumSchedule {
        shanghai: Some(0),
        cancun: Some(0),
        prague: Some(0),
        ..Default::default()
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Ethereum(forks),
    }
}

/// Initial contents of an account.
#[derive(Clone, Debug, Default)]
pub struct Alloc {
    pub nonce: u64,
    pub balance: U256,
    pub code: Bytes,
    pub storage: BTreeMap<U256, U256>,
}

impl Alloc {
    pub fn ether(ether: u64) -> Self {
        Self {
            balance: U256::from(ether) * U256::from(10).pow(U256::from(18)),
            ..Default::default()
        }
    }

    pub fn code(code: impl Into<Bytes>) -> Self {
        Self {
            nonce: 1,
            code: code.into(),
            ..Default::default()
        }
    }

    pub fn slot(mut self, slot: u64, value: U256) -> Self {
        self.storage.insert(U256::from(slot), value);
        self
    }
}

/// A store with one block whose state is an alloc.
pub struct Ground {
    pub store: Store,
    pub header: Header,
    _dir: tempfile::TempDir,
}

impl Ground {
    pub fn new(alloc: impl IntoIterator<Item = (Address, Alloc)>) -> Self {
        // Extra data of both Holocene forms cannot be given at once: Jovian's it is, tests of
        // Holocene bring their own.
        Self::with_header(
            alloc,
            Header {
                extra_data: bytes!("01 000000fa 00000006 0000000000000000"),
                ..Default::default()
            },
        )
    }

    pub fn with_header(alloc: impl IntoIterator<Item = (Address, Alloc)>, header: Header) -> Self {
        let mut changes = Changes::default();
        for (address, account) in alloc {
            let hash = keccak256(address);
            let code_hash = if account.code.is_empty() {
                KECCAK256_EMPTY
            } else {
                keccak256(&account.code)
            };
            let Alloc {
                nonce,
                balance,
                code,
                storage,
            } = account;
            changes.accounts.insert(
                hash,
                Some(AccountChange {
                    nonce,
                    balance,
                    code_hash,
                }),
            );
            changes.codes.insert(code_hash, code);
            if !storage.is_empty() {
                let slots = storage
                    .into_iter()
                    .map(|(slot, value)| (keccak256(B256::from(slot)), value))
                    .collect();
                changes.storages.insert(
                    hash,
                    StorageChange {
                        wiped: false,
                        slots,
                    },
                );
            }
        }
        let update = trie::genesis(&changes).unwrap();
        let header = Header {
            state_root: update.state_root,
            timestamp: TIME,
            gas_limit: GAS_LIMIT,
            base_fee_per_gas: Some(1_000),
            withdrawals_root: Some(EMPTY_ROOT_HASH),
            excess_blob_gas: Some(0),
            blob_gas_used: Some(0),
            parent_beacon_block_root: Some(B256::ZERO),
            ..header
        };
        let genesis = Payload::sealed(header.clone(), Vec::new());
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            chain_id: CHAIN,
            genesis_hash: genesis.hash,
        };
        let store =
            Store::create(dir.path(), 1 << 20, identity, &genesis, &update.overlay).unwrap();
        Self {
            store,
            header,
            _dir: dir,
        }
    }

    pub fn state(&self) -> State {
        Arc::new(View::new(self.store.snapshot().unwrap(), Vec::new(), None, None).unwrap()).state()
    }
}

fn asking<'a>(
    spec: &'a ChainSpec,
    state: State,
    block: &'a Header,
    input: &'a CallInput,
    overrides: &'a Overrides,
    limit: Duration,
) -> CallRequest<'a> {
    CallRequest {
        spec,
        state: state.into(),
        block,
        input,
        overrides,
        gas_cap: RPC_GAS_CAP,
        deadline: Deadline::after(limit),
    }
}

const LONG: Duration = Duration::from_secs(600);

fn call(
    spec: &ChainSpec,
    state: State,
    block: &Header,
    input: &CallInput,
    overrides: &Overrides,
) -> Result<CallOutcome, CallError> {
    super::call(asking(spec, state, block, input, overrides, LONG))
}

fn estimate_gas(
    spec: &ChainSpec,
    state: State,
    block: &Header,
    input: &CallInput,
    overrides: &Overrides,
) -> Result<u64, EstimateError> {
    super::estimate_gas(asking(spec, state, block, input, overrides, LONG))
}

/// Whether a call to the pairing precompile with `size` zero bytes and all gas succeeds.
fn pairing(spec: &ChainSpec, size: usize) -> CallStatus {
    let ground = Ground::new([]);
    let input = CallInput {
        to: Some(bn254::pair::ADDRESS),
        data: vec![0; size].into(),
        ..Default::default()
    };
    call(
        spec,
        ground.state(),
        &ground.header,
        &input,
        &Overrides::default(),
    )
    .unwrap()
    .status
}

#[test]
fn the_pairing_precompile_takes_what_its_fork_allows() {
    // Whole pairs only: the limit of Jovian is no multiple of 192, that of Karst is 300 pairs.
    assert_eq!(pairing(&op(Fork::Karst), 57_600), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Karst), 57_792), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Karst), 57_601), CallStatus::Success);
    assert_eq!(pairing(&op(Fork::Jovian), 57_792), CallStatus::Success);
    assert_eq!(pairing(&op(Fork::Jovian), 81_984), CallStatus::Success);
    assert_ne!(pairing(&op(Fork::Jovian), 82_176), CallStatus::Success);
}

#[test]
fn karst_brings_osakas_evm() {
    let clz = Address::repeat_byte(1);
    // CLZ of 1, returned.
    let ground = Ground::new([(clz, Alloc::code(bytes!("60 01 1e 5f 52 60 20 5f f3")))]);
    let ask = |fork, to| {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(fork),
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap()
    };
    let precompile = |number: u64| Address::from_word(B256::from(U256::from(number)));
    assert_eq!(
        U256::from_be_slice(&ask(Fork::Karst, clz).output),
        U256::from(255)
    );
    assert!(matches!(ask(Fork::Jovian, clz).status, CallStatus::Halt(_)));
    // MODEXP and P256VERIFY without input: their prices.
    for (fork, modexp, p256) in [(Fork::Jovian, 200, 3_450), (Fork::Karst, 500, 6_900)] {
        assert_eq!(
            ask(fork, precompile(5)).gas_used,
            21_000 + modexp,
            "{fork:?}"
        );
        assert_eq!(
            ask(fork, precompile(0x100)).gas_used,
            21_000 + p256,
            "{fork:?}"
        );
    }
    // Before Fjord there is nothing at 0x100.
    assert_eq!(ask(Fork::Ecotone, precompile(0x100)).gas_used, 21_000);
}

#[test]
fn blob_base_fee_is_one_on_op() {
    // BLOBBASEFEE, stored to memory and returned.
    let code = bytes!("4a 5f 52 60 20 5f f3");
    let at = Address::repeat_byte(1);
    let ground = Ground::new([(at, Alloc::code(code))]);
    let input = CallInput {
        to: Some(at),
        ..Default::default()
    };
    for spec in [op(Fork::Ecotone), op(Fork::Karst), ethereum()] {
        let outcome = call(
            &spec,
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap();
        assert_eq!(U256::from_be_slice(&outcome.output), U256::ONE);
    }
}

/// A transaction signed with a key of this byte repeated, in the form that blocks hold, and its
/// bytes.
pub fn sign<T>(key: u8, tx: T) -> (Recovered<OpTxEnvelope>, Bytes)
where
    T: SignableTransaction<Signature>,
    OpTxEnvelope: From<Signed<T>>,
{
    let key = secp256k1::SecretKey::from_slice(&[key; 32]).unwrap();
    let message = secp256k1::Message::from_digest(tx.signature_hash().0);
    let (id, bytes) = secp256k1::SECP256K1
        .sign_ecdsa_recoverable(&message, &key)
        .serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) != 0);
    let raw = Bytes::from(OpTxEnvelope::from(tx.into_signed(signature)).encoded_2718());
    (recover(0, &raw).unwrap(), raw)
}

/// The address of the key of this byte repeated.
pub fn address_of(key: u8) -> Address {
    sign(key, transfer(0)).0.signer()
}

/// A transfer of one wei.
pub fn transfer(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000,
        max_priority_fee_per_gas: 10,
        to: Address::repeat_byte(0x77).into(),
        value: U256::ONE,
        ..Default::default()
    }
}

/// A deposit that calls `to` with this much gas.
pub fn deposit(to: Address, gas_limit: u64) -> TxDeposit {
    let from = Address::repeat_byte(0xdd);
    TxDeposit {
        source_hash: B256::repeat_byte(7),
        from,
        to: to.into(),
        gas_limit,
        ..Default::default()
    }
}

/// A deposit that passes for the L1 attributes of a Jovian block: all zeros but the scalar of the
/// data footprint.
pub fn l1_attributes(footprint_scalar: u16) -> TxDeposit {
    let jovian = L1InfoFormat::Jovian;
    let mut calldata = jovian.selector().to_vec();
    calldata.resize(jovian.len() - 2, 0);
    calldata.extend(footprint_scalar.to_be_bytes());
    TxDeposit {
        input: calldata.into(),
        ..deposit(Address::repeat_byte(9), 50_000)
    }
}

pub fn deposited(tx: TxDeposit) -> (Recovered<OpTxEnvelope>, Bytes) {
    let raw = Bytes::from(tx.encoded_2718());
    (recover(0, &raw).unwrap(), raw)
}

const ZERO: Address = Address::ZERO;

#[test]
fn calls_are_free_without_a_price_and_checked_with_one() {
    let ground = Ground::new([(address_of(1), Alloc::ether(1))]);
    let ask = |input: CallInput| {
        call(
            &op(Fork::Jovian),
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
    };
    let to = Some(Address::repeat_byte(9));
    assert_eq!(
        ask(CallInput {
            to,
            ..Default::default()
        })
        .unwrap()
        .gas_used,
        21_000
    );
    let ether = U256::from(10).pow(U256::from(18));
    // A value must be there also without a price.
    let text = ask(CallInput {
        to,
        value: ether,
        ..Default::default()
    })
    .unwrap_err()
    .to_string();
    assert_eq!(
        text,
        format!(
            "err: insufficient funds for gas * price + value: address {ZERO} have 0 want {ether} (supplied gas 50000000)"
        )
    );
    assert!(
        ask(CallInput {
            from: address_of(1),
            to,
            value: ether,
            ..Default::default()
        })
        .is_ok()
    );
    // With a price the base fee and the funds for the gas count.
    let priced = CallInput {
        from: address_of(1),
        to,
        gas: Some(30_000),
        gas_price: Some(999),
        ..Default::default()
    };
    let refusal = |input| match ask(input) {
        Err(CallError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        refusal(priced.clone()),
        CallRefusal::FeeBelowBase {
            fee: 999,
            base_fee: 1_000,
            ..
        }
    ));
    assert!(
        ask(CallInput {
            gas_price: Some(1_000),
            ..priced.clone()
        })
        .is_ok()
    );
    assert!(matches!(
        refusal(CallInput {
            gas_price: Some(1_000),
            value: ether,
            ..priced.clone()
        }),
        CallRefusal::Funds { .. }
    ));
    let both = CallInput {
        max_fee_per_gas: Some(1),
        ..priced.clone()
    };
    assert_eq!(
        ask(both).unwrap_err().to_string(),
        "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified"
    );
    let tip = CallInput {
        gas_price: None,
        max_fee_per_gas: Some(2_000),
        max_priority_fee_per_gas: Some(2_001),
        ..priced
    };
    assert!(matches!(refusal(tip), CallRefusal::TipAboveFee { .. }));
    let scarce = CallInput {
        to,
        gas: Some(20_999),
        ..Default::default()
    };
    assert!(matches!(
        refusal(scarce.clone()),
        CallRefusal::IntrinsicGas {
            have: 20_999,
            want: 21_000
        }
    ));
    // Four tokens for each byte, ten gas for each token (EIP-7623).
    let floor = CallInput {
        gas: Some(21_170),
        data: bytes!("ffffffffff"),
        ..scarce
    };
    assert!(matches!(
        refusal(floor),
        CallRefusal::FloorGas {
            have: 21_170,
            want: 21_200
        }
    ));
}

#[test]
fn a_call_ends_in_geths_words() {
    let at = |byte| Address::repeat_byte(byte);
    // REVERT of the first 32 bytes of memory; INVALID; an endless loop; GASPRICE and BASEFEE
    // returned.
    let ground = Ground::new([
        (at(1), Alloc::code(bytes!("60 20 5f fd"))),
        (at(2), Alloc::code(bytes!("fe"))),
        (at(3), Alloc::code(bytes!("5b 5f 56"))),
        (at(4), Alloc::code(bytes!("48 5f 52 60 20 5f f3"))),
    ]);
    let ask = |to| {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(Fork::Jovian),
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .unwrap()
    };
    let reverted = ask(at(1));
    assert_eq!(
        reverted.status,
        CallStatus::Revert("execution reverted".into())
    );
    assert_eq!(reverted.output.len(), 32);
    assert_eq!(
        ask(at(2)).status,
        CallStatus::Halt("invalid opcode: INVALID".into())
    );
    assert_eq!(ask(at(3)).status, CallStatus::Halt("out of gas".into()));
    assert_eq!(ask(at(3)).gas_used, RPC_GAS_CAP);
    // The base fee of a call without a price reads zero.
    assert_eq!(ask(at(4)).output, Bytes::from(B256::ZERO));
}

#[test]
fn reverts_carry_solidity_reasons() {
    let error = bytes!(
        "08c379a0 0000000000000000000000000000000000000000000000000000000000000020"
        "0000000000000000000000000000000000000000000000000000000000000005 68656c6c6f000000000000000000000000000000000000000000000000000000"
    );
    assert_eq!(revert_text(&error), "execution reverted: hello");
    let panic = [
        &bytes!("4e487b71")[..],
        &U256::from(0x11).to_be_bytes::<32>(),
    ]
    .concat();
    assert_eq!(
        revert_text(&panic),
        "execution reverted: arithmetic underflow or overflow"
    );
    assert_eq!(revert_text(&[]), "execution reverted");
    // Lengths that lead out of the data.
    for end in 0..error.len() {
        revert_text(&error[..end]);
    }
    revert_text(&[&bytes!("08c379a0")[..], &[0xff; 64]].concat());
    revert_text(
        &[
            &bytes!("08c379a0")[..],
            &U256::from(usize::MAX).to_be_bytes::<32>(),
            &[0xff; 64],
        ]
        .concat(),
    );
}

#[test]
fn overrides_change_what_a_call_sees() {
    let (contract, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
    // Returns slot 0.
    let code = bytes!("5f 54 5f 52 60 20 5f f3");
    let ground = Ground::new([(
        contract,
        Alloc::code(code.clone())
            .slot(0, U256::from(5))
            .slot(1, U256::from(6)),
    )]);
    let ask = |to, state: serde_json::Value| {
        let overrides = Overrides {
            state: serde_json::from_value(state).unwrap(),
            block: Default::default(),
        };
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        call(
            &op(Fork::Jovian),
            ground.state(),
            &ground.header,
            &input,
            &overrides,
        )
        .map(|it| U256::from_be_slice(&it.output))
    };
    let word = |n: u64| B256::from(U256::from(n));
    assert_eq!(ask(contract, serde_json::json!({})).unwrap(), U256::from(5));
    let diff = |n| serde_json::json!({ contract.to_string(): { "stateDiff": { word(n).to_string(): word(9) } } });
    assert_eq!(ask(contract, diff(0)).unwrap(), U256::from(9));
    assert_eq!(ask(contract, diff(1)).unwrap(), U256::from(5));
    let replaced =
        serde_json::json!({ contract.to_string(): { "state": { word(1).to_string(): word(9) } } });
    assert_eq!(ask(contract, replaced).unwrap(), U256::ZERO);
    let copied = serde_json::json!({ other.to_string(): { "code": code, "stateDiff": { word(0).to_string(): word(3) } } });
    assert_eq!(ask(other, copied).unwrap(), U256::from(3));
    let both = serde_json::json!({ contract.to_string(): { "state": {}, "stateDiff": {} } });
    assert_eq!(
        ask(contract, both).unwrap_err().to_string(),
        format!("account {contract} has both 'state' and 'stateDiff'")
    );
    // Nothing of it stays.
    assert_eq!(ask(contract, serde_json::json!({})).unwrap(), U256::from(5));
}

#[test]
fn block_hashes_are_those_of_the_branch() {
    // BLOCKHASH of 0 and of 7, returned.
    let at = Address::repeat_byte(1);
    let ground = Ground::new([(
        at,
        Alloc::code(bytes!("5f 40 5f 52 60 07 40 60 20 52 60 40 5f f3")),
    )]);
    let block = Header {
        number: 9,
        ..ground.header.clone()
    };
    let input = CallInput {
        to: Some(at),
        ..Default::default()
    };
    let outcome = call(
        &op(Fork::Jovian),
        ground.state(),
        &block,
        &input,
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(&outcome.output[..32], ground.header.hash_slow().as_slice());
    assert_eq!(&outcome.output[32..], B256::ZERO.as_slice());
}

#[test]
fn estimates_are_enough_and_not_much_more() {
    let (writer, passer, loops, reverts) = (
        Address::repeat_byte(1),
        Address::repeat_byte(2),
        Address::repeat_byte(3),
        Address::repeat_byte(4),
    );
    // Writes 40 slots. Calls the writer with all gas and reverts if that fails.
    let write: Vec<u8> = (0..40).flat_map(|slot| [0x43, 0x60, slot, 0x55]).collect();
    let pass = bytes!(
        "5f 5f 5f 5f 5f 73 0101010101010101010101010101010101010101 5a f1 6022 57 5f 5f fd 5b 00"
    );
    let ground = Ground::with_header(
        [
            (writer, Alloc::code(write)),
            (passer, Alloc::code(pass)),
            (loops, Alloc::code(bytes!("5b 5f 56"))),
            (reverts, Alloc::code(bytes!("5f 5f fd"))),
            (
                address_of(1),
                Alloc {
                    balance: U256::from(30_000_000),
                    ..Default::default()
                },
            ),
        ],
        Header {
            number: 5,
            ..Default::default()
        },
    );
    let jovian = op(Fork::Jovian);
    let estimate = |spec: &ChainSpec, input: &CallInput| {
        estimate_gas(
            spec,
            ground.state(),
            &ground.header,
            input,
            &Overrides::default(),
        )
    };
    let succeeds = |input: &CallInput, gas| {
        let input = CallInput {
            gas: Some(gas),
            ..input.clone()
        };
        call(
            &jovian,
            ground.state(),
            &ground.header,
            &input,
            &Overrides::default(),
        )
        .is_ok_and(|it| it.status == CallStatus::Success)
    };
    let plain = CallInput {
        to: Some(Address::repeat_byte(8)),
        ..Default::default()
    };
    assert_eq!(estimate(&jovian, &plain).unwrap(), 21_000);
    for to in [writer, passer] {
        let input = CallInput {
            to: Some(to),
            ..Default::default()
        };
        let gas = estimate(&jovian, &input).unwrap();
        assert!(succeeds(&input, gas), "{gas}");
        assert!(!succeeds(&input, gas - gas * 16 / 1000), "{gas}");
    }
    let input = |to| CallInput {
        to: Some(to),
        ..Default::default()
    };
    assert_eq!(
        estimate(&jovian, &input(loops)).unwrap_err().to_string(),
        "gas required exceeds allowance (50000000)"
    );
    assert!(matches!(
        estimate(&jovian, &input(reverts)),
        Err(EstimateError::Reverted { .. })
    ));
    // From Karst no transaction may ask for more than 2^24; a call may.
    let karst = op(Fork::Karst);
    assert_eq!(
        estimate(&karst, &input(loops)).unwrap_err().to_string(),
        "gas required exceeds allowance (16777216)"
    );
    let looping = call(
        &karst,
        ground.state(),
        &ground.header,
        &input(loops),
        &Overrides::default(),
    )
    .unwrap();
    assert_eq!(looping.gas_used, RPC_GAS_CAP);
    // The balance bounds it: 30,000,000 wei at 1,000 wei per gas.
    let poor = CallInput {
        from: address_of(1),
        gas_price: Some(1_000),
        ..input(loops)
    };
    assert_eq!(
        estimate(&jovian, &poor).unwrap_err().to_string(),
        "gas required exceeds allowance (30000)"
    );
}

/// Code that runs as long as it has gas, each kind by another instruction: loops, calls itself
/// twice over, reads slot after slot.
fn endless() -> [(&'static str, Bytes); 5] {
    [
        ("jumps", bytes!("5b 5f 56")),
        (
            "calls",
            bytes!("5f 5f 5f 5f 5f 30 5a f1 5f 5f 5f 5f 5f 30 5a f1"),
        ),
        (
            "static calls",
            bytes!("5f 5f 5f 5f 30 5a fa 5f 5f 5f 5f 30 5a fa"),
        ),
        (
            "delegate calls",
            bytes!("5f 5f 5f 5f 30 5a f4 5f 5f 5f 5f 30 5a f4"),
        ),
        (
            "code calls",
            bytes!("5f 5f 5f 5f 5f 30 5a f2 5f 5f 5f 5f 5f 30 5a f2"),
        ),
    ]
}

#[test]
fn a_question_ends_with_its_time_whatever_gas_is_left() {
    let target = Address::repeat_byte(0x44);
    for spec in [op(Fork::Jovian), ethereum()] {
        for (name, code) in endless() {
            let ground = Ground::new([(target, Alloc::code(code))]);
            let input = CallInput {
                to: Some(target),
                gas: Some(1 << 50),
                ..Default::default()
            };
            let overrides = Overrides::default();
            let ask = |limit| CallRequest {
                gas_cap: 1 << 50,
                ..asking(
                    &spec,
                    ground.state(),
                    &ground.header,
                    &input,
                    &overrides,
                    limit,
                )
            };
            let aborted =
                |error: CallError| matches!(error, CallError::State(StateError::Aborted(_)));
            let error = super::call(ask(Duration::from_millis(20))).unwrap_err();
            assert_eq!(
                error.to_string(),
                "execution aborted (timeout = 20ms)",
                "{name}"
            );
            assert!(aborted(error));
            assert!(
                aborted(super::create_access_list(ask(Duration::from_millis(20))).unwrap_err()),
                "{name}"
            );
            match super::estimate_gas(CallRequest {
                spec: &op(Fork::Jovian),
                ..ask(Duration::from_millis(20))
            }) {
                Err(EstimateError::Call(error)) => assert!(aborted(error), "{name}"),
                other => panic!("{name}: {other:?}"),
            }
            // So does one for whose answer nobody waits.
            let left = ask(LONG);
            let waiting = left.deadline.cancel_on_drop();
            std::thread::scope(|scope| {
                let running = scope.spawn(|| super::call(left));
                drop(waiting);
                assert!(aborted(running.join().unwrap().unwrap_err()), "{name}");
            });
        }
    }
}

#[test]
fn reads_of_the_state_end_with_the_time_too() {
    let ground = Ground::new([]);
    let deadline = Deadline::after(LONG);
    let mut source = deadline::StateReader::new(ground.state().into(), Some(deadline.clone()));
    let mut read = || -> [bool; 4] {
        [
            source.basic(Address::ZERO).is_ok(),
            source.code_by_hash(KECCAK256_EMPTY).is_ok(),
            source.storage(Address::ZERO, U256::ZERO).is_ok(),
            source.block_hash(0).is_ok(),
        ]
    };
    assert_eq!(read(), [true; 4]);
    drop(deadline.cancel_on_drop());
    assert_eq!(read(), [false; 4]);
}
