//! Random chains for tests of the store, of import and export, and of `starling db`.

use super::{attributes, datadir, open};
use crate::chain::{
    Chain,
    evm::tests::{address_of, deposited, l1_attributes, sign, transfer},
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, hex, keccak256};
use op_alloy_consensus::TxDeposit;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Code that creates a contract. Called with input, the contract stores the second word in the slot
/// of the first word, and logs the first word as a topic. Called without input, it destroys itself.
fn create() -> Bytes {
    // The contract's code: if calldatasize { sstore(calldataload(0), calldataload(32)); log1(0, 0,
    // calldataload(0)) } else { selfdestruct(caller) }
    let runtime = hex!("36600657 33 ff 5b 602035600035 55 60003560006000 a1 00");
    let mut init = vec![0x60 + runtime.len() as u8 - 1];
    init.extend_from_slice(&runtime);
    // The init code: mstore(0, runtime), return(32 - length, length)
    init.extend_from_slice(&[
        0x60,
        0,
        0x52,
        0x60,
        runtime.len() as u8,
        0x60,
        32 - runtime.len() as u8,
        0xf3,
    ]);
    init.into()
}

/// Adds blocks with payments to new accounts, contracts that are created and destroyed, and slots
/// that are written and cleared.
pub(crate) async fn grow(chain: &Chain, seed: u64, blocks: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let sender = address_of(1);
    for _ in 0..blocks {
        let view = chain.view();
        let next = view
            .state()
            .account(sender)
            .unwrap()
            .map_or(0, |account| account.nonce);
        let mut transactions = vec![];
        for nonce in next..next + rng.random_range(0..4) {
            // The sender's first transactions create these contracts.
            let contract = sender.create(rng.random_range(0..4));
            let word = |value: u64| B256::from(U256::from(value));
            let (to, input) = match if nonce < 4 { 1 } else { rng.random_range(0..8) } {
                0 => (
                    TxKind::Call(Address::from_word(keccak256(nonce.to_be_bytes()))),
                    Bytes::new(),
                ),
                1 => (TxKind::Create, create()),
                2 => (TxKind::Call(contract), Bytes::new()),
                kind => {
                    let value = if kind == 3 {
                        0
                    } else {
                        rng.random_range(0..1000)
                    };
                    let input = [word(rng.random_range(0..40)), word(value)].concat();
                    (TxKind::Call(contract), input.into())
                }
            };
            let value = U256::from(u8::from(input.is_empty()));
            let paid = alloy_consensus::TxEip1559 {
                to,
                input,
                value,
                gas_limit: 200_000,
                ..transfer(nonce)
            };
            transactions.push(sign(1, paid).1);
        }
        // Every deposit has another source hash, as on a real chain.
        let source_hash = rng.random::<[u8; 32]>().into();
        let deposit = TxDeposit {
            source_hash,
            ..l1_attributes(0)
        };
        transactions.insert(0, deposited(deposit).1);
        let mut attributes = attributes(view.header(), rng.random(), []);
        attributes.transactions = Some(transactions);
        let id = chain.start(view.head().hash, attributes).await.unwrap();
        let block = chain.seal(id).await.unwrap();
        chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .unwrap();
    }
}

/// A data directory with a random chain made by `grow`. The chain is closed.
pub(crate) async fn grown(seed: u64, blocks: usize) -> tempfile::TempDir {
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    chain.keep_addresses(true);
    grow(&chain, seed, blocks).await;
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    dir
}
