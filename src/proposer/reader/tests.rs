//! Tests of the reader against a stand-in L1 with true and with wrong responses.

use super::*;
use crate::{
    proposer::stand_in::{BOND, CONTRACT, FakeGame, FakeL1, STEP, l1_hash, root_at, signer},
    rollup::l1::L1Config,
};
use starling_proto::payload::BlockId;

const INTERVAL: u64 = 600;
const GAME: u32 = 1;

fn reader(l1: &FakeL1, target: ProposalTarget) -> ContractReader {
    let client = L1Client::new(&L1Config::new(l1.server.url())).unwrap();
    ContractReader::new(client, target, signer().address())
}

fn oracle(l1: &FakeL1) -> ContractReader {
    reader(l1, ProposalTarget::Oracle(CONTRACT))
}

fn factory(l1: &FakeL1) -> ContractReader {
    let target = ProposalTarget::Factory {
        address: CONTRACT,
        game_type: GAME,
        interval: INTERVAL,
    };
    reader(l1, target)
}

/// A game of the configured type, created by our account.
fn game(created: u64) -> FakeGame {
    FakeGame {
        game_type: GAME,
        created,
        creator: signer().address(),
        claim: B256::with_last_byte(created as u8),
        has_claims: true,
    }
}

fn stranger() -> Address {
    Address::repeat_byte(0x55)
}

async fn newest(reader: &ContractReader) -> Option<u64> {
    match reader.read().await.unwrap().l1.contract {
        ContractReading::Factory { newest } => newest,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_oracle_and_the_account_are_read_at_one_block() {
    let l1 = FakeL1::start().await;
    let reader = oracle(&l1);
    assert_eq!(reader.version().await.unwrap(), "1.2.3");
    let state = reader.read().await.unwrap();
    assert_eq!(
        state.l1.contract,
        ContractReading::Oracle { next_block: STEP }
    );
    assert_eq!((state.l1.head.number, state.l1.in_flight), (1_000, false));
    assert_eq!(state.l1.head.time, l1.chain.lock().time());
    assert_eq!(state.balance, 1.0);
    l1.chain.lock().foreign_pool = 1;
    assert!(reader.read().await.unwrap().l1.in_flight);
    // The calls name the block by its hash.
    let asked = l1.server.requests.lock().join("\n");
    let by_hash = json!({ "blockHash": l1_hash(1_000) }).to_string();
    assert_eq!(asked.matches(&by_hash).count(), 6, "{asked}");
}

#[tokio::test]
async fn own_games_are_found_newest_first_in_batches() {
    let l1 = FakeL1::start().await;
    let reader = factory(&l1);
    assert_eq!(newest(&reader).await, None);
    let time = l1.chain.lock().time();
    let mut games = vec![game(time - 500), game(time - 400)];
    // Later games: by other accounts, of other types, and without claims.
    for index in 0..30 {
        let mut other = game(time - 300 + index);
        match index % 2 {
            0 => other.creator = stranger(),
            _ => other.game_type = GAME + 1,
        }
        other.has_claims = index % 4 != 0;
        games.push(other);
    }
    l1.chain.lock().games = games;
    let before = l1.server.count();
    assert_eq!(newest(&reader).await, Some(time - 400));
    // Expected requests: the head, the account, and two for each step of 4, 16 and 12 games.
    assert_eq!(l1.server.count() - before, 8);
    l1.chain.lock().games[1].has_claims = false;
    assert_eq!(newest(&reader).await, Some(time - 400), "by its creator");
    l1.chain.lock().games.truncate(2);
    l1.chain.lock().head += 50;
    assert_eq!(newest(&reader).await, None, "too old by L1's clock");
}

#[tokio::test]
async fn the_walk_ends_at_the_interval() {
    let l1 = FakeL1::start().await;
    let time = l1.chain.lock().time();
    let old = |_| FakeGame {
        creator: stranger(),
        ..game(time - INTERVAL - 1)
    };
    l1.chain.lock().games = (0..200).map(old).collect();
    let reader = factory(&l1);
    assert_eq!(newest(&reader).await, None);
    assert_eq!(l1.server.count(), 3, "head, account, and four games");
    l1.chain.lock().games[199] = game(time - INTERVAL);
    assert_eq!(newest(&reader).await, Some(time - INTERVAL));
}

#[tokio::test]
async fn lies_about_games_are_errors_and_end() {
    let l1 = FakeL1::start().await;
    let time = l1.chain.lock().time();
    l1.chain.lock().games = vec![game(time), game(time - 5)];
    let error = factory(&l1).read().await.unwrap_err();
    assert!(matches!(error, ReaderError::Untrue(_)), "{error}");
    // An endless list of games, all created just now by other accounts.
    let count: B256 = U256::from(u64::MAX).into();
    l1.lie(&contracts::game_count(), json!(count));
    let words = [
        U256::from(GAME),
        U256::from(time),
        stranger().into_word().into(),
    ];
    let listed: Vec<u8> = words.iter().flat_map(U256::to_be_bytes::<32>).collect();
    l1.lie(&contracts::game_at_index(0), json!(Bytes::from(listed)));
    l1.lie(
        &contracts::root_claim_data(),
        json!(Bytes::from(vec![0; 224])),
    );
    let error = factory(&l1).read().await.unwrap_err();
    assert!(matches!(error, ReaderError::TooManyGames), "{error}");
}

#[tokio::test]
async fn answers_that_are_no_values_are_errors() {
    let l1 = FakeL1::start().await;
    let reader = oracle(&l1);
    let wrong = [
        json!("0x"),
        json!("0x00"),
        json!(B256::repeat_byte(0xff)),
        json!("many"),
        Value::Null,
    ];
    for answer in wrong {
        l1.lie(&contracts::next_block_number(), answer.clone());
        let error = reader.read().await.unwrap_err();
        let is_empty = answer == json!("0x");
        assert_eq!(error.is_wrong_contract(), is_empty, "{answer}: {error}");
    }
    l1.chain.lock().lies.clear();
    for method in ["eth_getTransactionCount", "eth_getBalance"] {
        let lies = &l1.chain;
        lies.lock().lies.insert(method.into(), json!("x"));
        assert!(reader.read().await.is_err(), "{method}");
        lies.lock().lies.clear();
    }
    assert!(reader.read().await.is_ok());
}

#[tokio::test]
async fn the_permitted_proposer_is_named() {
    let l1 = FakeL1::start().await;
    assert_eq!(oracle(&l1).permission().await.unwrap(), Permission::Granted);
    l1.chain.lock().proposer = stranger();
    let other = Permission::OnlyFor(stranger());
    assert_eq!(oracle(&l1).permission().await.unwrap(), other);

    // A factory without `gameArgs`, and a game without `proposer`.
    let reader = factory(&l1);
    assert_eq!(reader.permission().await.unwrap(), Permission::Granted);
    l1.lie(&contracts::proposer(), json!(stranger().into_word()));
    assert_eq!(reader.permission().await.unwrap(), other);
    // A factory with game arguments.
    let mut arguments = vec![0u8; 64 + 164];
    arguments[31] = 32;
    arguments[63] = 164;
    arguments[64 + 124..64 + 144].copy_from_slice(signer().address().as_slice());
    let arguments = json!(Bytes::from(arguments));
    l1.lie(&contracts::game_arguments(0), arguments);
    assert_eq!(reader.permission().await.unwrap(), Permission::Granted);
    l1.lie(&contracts::game_implementation(0), json!(B256::ZERO));
    assert_eq!(reader.permission().await.unwrap(), Permission::NoGame);
}

#[tokio::test]
async fn a_proposal_becomes_a_transaction_or_is_refused() {
    let l1 = FakeL1::start().await;
    let block = BlockId {
        hash: l1_hash(999),
        number: 999,
    };
    let proposal = Proposal::of_output(STEP, root_at(STEP), block);
    let sent = oracle(&l1).candidate(&proposal).await.unwrap().unwrap();
    let expected = contracts::propose_output(root_at(STEP), STEP, block.hash, 999);
    assert_eq!((sent.data, sent.value), (expected, U256::ZERO));
    let other = Proposal {
        current_l1: BlockId {
            hash: B256::ZERO,
            ..block
        },
        ..proposal.clone()
    };
    let refused = oracle(&l1).candidate(&other).await.unwrap();
    assert_eq!(refused, Err(ProposalRefusal::OtherL1));

    let sent = factory(&l1).candidate(&other).await.unwrap().unwrap();
    let expected = contracts::create_game(GAME, other.root, &other.extra);
    assert_eq!((sent.data, sent.value), (expected, U256::from(BOND)));
    let time = l1.chain.lock().time();
    l1.chain.lock().games = vec![FakeGame {
        claim: other.root,
        ..game(time)
    }];
    let refused = factory(&l1).candidate(&other).await.unwrap();
    assert!(matches!(refused, Err(ProposalRefusal::Exists(_))));
}
