//! One chain with mixed load, built once without waiting for the clock: its L1 blocks, its L2
//! blocks, and a data directory of each, which every mode copies.

use crate::{
    derive::verifier::Verifier,
    derive_actions::{
        author::{Author, user_part},
        l1::{CoreL1, L1Call, MAX_FEE, signed},
        world::{ActionFiles, ActionPlan, USER, account},
    },
    devnet::deposit_transaction,
    l1_blobs::L1,
    net::starling,
};
use alloy_consensus::{TxEip2930, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, hex, keccak256};
use starling::{
    clock,
    devnet::genesis::{L2_CHAIN_ID, PORTAL},
    transfer::block_file,
};
use starling_proto::{config::RollupConfig, l1_config::L1ChainConfig, payload::Payload};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

const L1_PERIOD: u64 = 12;
const L2_PERIOD: u64 = 2;
/// Number of L1 blocks per deposit.
const DEPOSIT_EVERY: u64 = 5;
/// Index of the depositor's account on L1.
const DEPOSITOR: usize = 4;
/// Init code of a contract that returns a number.
const CONTRACT: &str = "600a600c600039600a6000f3602a60005260206000f3";

/// The chain, and the data directories that are copied.
pub struct MadeChain {
    pub rollup: RollupConfig,
    /// L2 blocks from genesis on, indexed by number.
    pub blocks: Vec<Arc<Payload>>,
    /// The chain's files, and the data directories `l1` and `l2`.
    folder: tempfile::TempDir,
}

impl MadeChain {
    /// Builds a chain with `blocks` L2 blocks. The last block's timestamp is four L1 block times
    /// before this call.
    pub fn new(blocks: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let start = clock::unix_now() - blocks * L2_PERIOD - 4 * L1_PERIOD;
        let files = ActionFiles::new(&ActionPlan {
            start,
            l1_period: L1_PERIOD,
            l2_period: L2_PERIOD,
            window: 100_000,
            ..ActionPlan::default()
        });
        files.write(folder.path());
        let mut l1 = CoreL1::start(&files.l1_genesis.to_string(), L1_PERIOD);
        mine(&mut l1, blocks * L2_PERIOD / L1_PERIOD + 2);
        let schedule = L1ChainConfig::from_json(&files.l1_config()).expect("a config");
        let (genesis, rollup) = (files.l2_genesis.to_string(), files.rollup.clone());
        let mut author = Author::new(&genesis, files.rollup, schedule.blobs, account(USER));
        let mut nonce = 0;
        while author.head().number() < blocks {
            let origin = author.next_origin(&l1.chain).expect("enough of L1");
            let user = mixed(author.head().number() + 1, &mut nonce);
            author.append(&l1.chain[origin as usize], &user);
        }
        L1::init(folder.path(), &files.l1_genesis);
        let payloads = l1.chain.iter().skip(1);
        let l1_blocks = payloads.map(|entry| entry.payload.as_ref().expect("a mined block"));
        let file = write_blocks(folder.path(), "l1.rlp", l1_blocks);
        import(&folder.path().join("l1"), &file);
        let file = write_blocks(folder.path(), "l2.rlp", author.chain.iter().skip(1));
        crate::derive::verifier::init(folder.path(), &folder.path().join("l2"));
        import(&folder.path().join("l2"), &file);
        Self {
            rollup,
            blocks: author.chain,
            folder,
        }
    }

    /// Folder with the chain's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Copies the L1's data directory to `to`.
    pub fn copy_l1(&self, to: &Path) {
        crate::campaign::copy(&self.folder().join("l1"), &to.join("l1"));
    }

    /// Starts a node without a swarm that has all L2 blocks as its unsafe chain.
    pub fn holder(&self, l1: &str, options: &[String]) -> Verifier {
        let node = Verifier::stopped(self.folder(), l1, options);
        let data = node.folder.path().join("data");
        fs::remove_dir_all(&data).expect("a folder");
        crate::campaign::copy(&self.folder().join("l2"), &data);
        node.started()
    }

    /// The user transactions of each block above genesis.
    pub fn user_parts(&self) -> impl Iterator<Item = &[Bytes]> {
        self.blocks.iter().skip(1).map(|block| user_part(block))
    }
}

/// Mines L1 up to block number `last`, with deposits.
fn mine(l1: &mut CoreL1, last: u64) {
    for number in 1..=last {
        let to = Address::from_word(keccak256(number.to_be_bytes()));
        let deposit = L1Call {
            from: account(DEPOSITOR),
            to: PORTAL,
            value: 5_000,
            input: deposit_transaction(to).into(),
            blobs: vec![],
        };
        let is_due = number.is_multiple_of(DEPOSIT_EVERY);
        l1.mine(if is_due {
            std::slice::from_ref(&deposit)
        } else {
            &[]
        });
    }
}

/// Pseudo-random bytes, which cannot be compressed.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let words = 0..len.div_ceil(32) as u64;
    let bytes =
        words.flat_map(|word| keccak256([seed.to_be_bytes(), word.to_be_bytes()].concat()).0);
    bytes.take(len).collect()
}

/// User transactions of a block, in three transaction types: none, transfers, contract creations,
/// compressible data, or random data.
fn mixed(number: u64, nonce: &mut u64) -> Vec<Bytes> {
    let seed = u64::from_be_bytes(keccak256(number.to_be_bytes())[..8].try_into().expect("8"));
    let count = if number.is_multiple_of(10) {
        0
    } else {
        seed % 5 + 1
    };
    let transactions = (0..count).map(|index| {
        let raw = transaction(seed.wrapping_add(index), *nonce);
        *nonce += 1;
        raw
    });
    transactions.collect()
}

fn transaction(seed: u64, nonce: u64) -> Bytes {
    let user = account(USER);
    let to = TxKind::Call(Address::from_word(keccak256(seed.to_be_bytes())));
    let value = U256::from(seed % 1_000 + 1);
    let len = (seed >> 16) as usize % 4_000;
    match (seed >> 8) % 6 {
        0 => user.sign(L2_CHAIN_ID, nonce, to, value, Bytes::new(), 21_000),
        1 => {
            let code = hex::decode(CONTRACT).expect("hex");
            user.sign(
                L2_CHAIN_ID,
                nonce,
                TxKind::Create,
                U256::ZERO,
                code.into(),
                200_000,
            )
        }
        2 => {
            let input = b"compressible ".repeat(len / 13);
            user.sign(L2_CHAIN_ID, nonce, to, value, input.into(), 400_000)
        }
        3 => {
            let tx = TxLegacy {
                chain_id: Some(L2_CHAIN_ID),
                nonce,
                gas_price: MAX_FEE,
                gas_limit: 400_000,
                to,
                value,
                input: random(seed, len).into(),
            };
            signed(&user, tx).encoded_2718().into()
        }
        4 => {
            let tx = TxEip2930 {
                chain_id: L2_CHAIN_ID,
                nonce,
                gas_price: MAX_FEE,
                gas_limit: 400_000,
                to,
                value,
                access_list: vec![alloy_eips::eip2930::AccessListItem {
                    address: Address::repeat_byte(7),
                    storage_keys: vec![B256::from(U256::from(seed))],
                }]
                .into(),
                input: random(seed, len / 8).into(),
            };
            signed(&user, tx).encoded_2718().into()
        }
        _ => {
            let input = random(seed, len).into();
            user.sign(L2_CHAIN_ID, nonce, to, value, input, 400_000)
        }
    }
}

fn write_blocks<'a>(
    folder: &Path,
    name: &str,
    blocks: impl Iterator<Item = &'a Arc<Payload>>,
) -> PathBuf {
    let file = folder.join(name);
    let raw: Vec<u8> = blocks.flat_map(|block| block_file::encode(block)).collect();
    fs::write(&file, raw).expect("a file");
    file
}

fn import(datadir: &Path, file: &Path) {
    let import = starling()
        .arg("import")
        .arg(format!("--datadir={}", datadir.display()))
        .arg(file)
        .stdin(Stdio::null())
        .output();
    let import = import.expect("import starts");
    let errors = String::from_utf8_lossy(&import.stderr);
    assert!(import.status.success(), "{errors}");
}
