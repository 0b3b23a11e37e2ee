//! Reads the contracts on L1. All values of one reading, except the nonce with pending
//! transactions, are from the same block, whichever endpoint responds.

#[cfg(test)]
mod tests;

use super::{
    contracts::{self, ContractResponseError},
    options::ProposalTarget,
    schedule::{ContractReading, L1Head, L1Reading, Proposal},
};
use crate::{
    rollup::l1::{L1Client, L1Error, L1Response, RpcCall, RpcCause},
    txmgr::shell::TxCandidate,
};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Games in the first request of a walk: few, because the newest game is usually ours.
const FIRST_GAMES: u64 = 4;
/// Games in each later request.
const MAX_GAMES: u64 = 16;
/// Largest number of games that are read for one decision. Each game costs its creator a bond.
const MAX_WALK: u64 = 10_000;
/// Wei per ether, for the metric of the balance.
const ETHER: f64 = 1e18;

/// The reason why a reading of L1 fails.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error("{0} of the contract at {1}: {2}")]
    Call(&'static str, Address, RpcCause),
    #[error("{0} of the contract at {1}: {2}")]
    Answer(&'static str, Address, ContractResponseError),
    #[error("L1's response to {0} is missing or malformed")]
    Missing(&'static str),
    #[error("L1's responses contradict each other: {0}")]
    Untrue(String),
    #[error(
        "none of the newest {MAX_WALK} games is ours or older than --proposal-interval: lower --proposal-interval"
    )]
    TooManyGames,
}

impl ReaderError {
    /// Whether the configured address has no contract.
    pub fn is_wrong_contract(&self) -> bool {
        matches!(self, Self::Answer(_, _, ContractResponseError::Empty))
    }
}

/// The right of an account to propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// Only this account may propose.
    OnlyFor(Address),
    /// The factory has no implementation of the game type.
    NoGame,
}

/// The reason why a proposal is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalRefusal {
    /// A game with the same claim exists already, at this address.
    Exists(Address),
    /// At the height that the rollup node has derived up to, L1 has a different block.
    OtherL1,
}

/// A reading of L1 for the schedule and the metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccountState {
    pub l1: L1Reading,
    /// Balance of the account, in ether.
    pub balance: f64,
}

#[derive(Deserialize)]
struct L1HeadJson {
    number: U64,
    hash: B256,
    timestamp: U64,
}

/// A call to a contract, with its name for use in errors.
struct NamedCall {
    name: &'static str,
    to: Address,
    data: Bytes,
}

/// The responses to calls at one block.
struct NamedResponses {
    calls: Vec<NamedCall>,
    responses: Vec<L1Response>,
}

/// Reads the target contract for one account.
#[derive(Clone)]
pub struct ContractReader {
    l1: L1Client,
    target: ProposalTarget,
    account: Address,
}

impl ContractReader {
    pub fn new(l1: L1Client, target: ProposalTarget, account: Address) -> Self {
        Self {
            l1,
            target,
            account,
        }
    }

    /// The contract's version.
    pub async fn version(&self) -> Result<String, ReaderError> {
        let to = self.target.address();
        let calls = vec![NamedCall::new("version()", to, contracts::version())];
        let responses = self.call_all(calls, json!("latest")).await?;
        responses.read(0, contracts::read_text)
    }

    /// Whether the account may propose, as of L1's latest block.
    pub async fn permission(&self) -> Result<Permission, ReaderError> {
        let only = match self.target {
            ProposalTarget::Oracle(oracle) => {
                let call = NamedCall::new("PROPOSER()", oracle, contracts::oracle_proposer());
                let responses = self.call_all(vec![call], json!("latest")).await?;
                Some(responses.read(0, |answer| contracts::read_address(answer, 0))?)
            }
            ProposalTarget::Factory {
                address, game_type, ..
            } => {
                let implementation = contracts::game_implementation(game_type);
                let arguments = contracts::game_arguments(game_type);
                let calls = vec![
                    NamedCall::new("gameImpls()", address, implementation),
                    NamedCall::new("gameArgs()", address, arguments),
                ];
                let responses = self.call_all(calls, json!("latest")).await?;
                let game = responses.read(0, |answer| contracts::read_address(answer, 0))?;
                if game.is_zero() {
                    return Ok(Permission::NoGame);
                }
                match responses.read(1, contracts::read_permitted) {
                    Ok(Some(permitted)) => Some(permitted),
                    // Older factories have no arguments: the game's implementation names the
                    // proposer.
                    _ => self.proposer_of(game).await?,
                }
            }
        };
        Ok(match only.filter(|only| *only != self.account) {
            Some(other) => Permission::OnlyFor(other),
            None => Permission::Granted,
        })
    }

    /// The only account that may propose, by a game's implementation; `None` if every account may.
    async fn proposer_of(&self, game: Address) -> Result<Option<Address>, ReaderError> {
        let call = NamedCall::new("proposer()", game, contracts::proposer());
        match self.call_all(vec![call], json!("latest")).await {
            Ok(responses) => {
                let proposer = responses.read(0, |answer| contracts::read_address(answer, 0));
                Ok(proposer.ok().filter(|proposer| !proposer.is_zero()))
            }
            // The implementation of a permissionless game has no such function.
            Err(ReaderError::L1(L1Error {
                cause: RpcCause::Refused { .. },
                ..
            })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the contract and the account at L1's head.
    pub async fn read(&self) -> Result<AccountState, ReaderError> {
        let params = json!(["latest", false]);
        let head: L1HeadJson = self.l1.plain_call("eth_getBlockByNumber", params).await?;
        let head = L1Head {
            number: head.number.to(),
            hash: head.hash,
            time: head.timestamp.to(),
        };
        let to = self.target.address();
        let call = match self.target {
            ProposalTarget::Oracle(_) => {
                NamedCall::new("nextBlockNumber()", to, contracts::next_block_number())
            }
            ProposalTarget::Factory { .. } => {
                NamedCall::new("gameCount()", to, contracts::game_count())
            }
        };
        let at = at_block(head.hash);
        let nonce =
            |block: &Value| RpcCall::new("eth_getTransactionCount", json!([self.account, block]));
        let calls = [
            call.at(&at),
            nonce(&at),
            nonce(&json!("pending")),
            RpcCall::new("eth_getBalance", json!([self.account, at])),
        ];
        let responses = self.l1.plain_batch(&calls).await?;
        let mined: U64 = value(&responses, 1, "eth_getTransactionCount")?;
        // If L1's node has no pool, no transaction is pending.
        let pending = value(&responses, 2, "eth_getTransactionCount").unwrap_or(mined);
        let balance: U256 = value(&responses, 3, "eth_getBalance")?;
        let responses = NamedResponses {
            calls: vec![call],
            responses,
        };
        let number = responses.read(0, |answer| contracts::read_u64(answer, 0))?;
        let contract = match self.target {
            ProposalTarget::Oracle(_) => ContractReading::Oracle { next_block: number },
            ProposalTarget::Factory { .. } => ContractReading::Factory {
                newest: self.newest_game(number, &head).await?,
            },
        };
        Ok(AccountState {
            l1: L1Reading {
                head,
                in_flight: pending > mined,
                contract,
            },
            balance: f64::from(balance) / ETHER,
        })
    }

    /// Creation time, by L1's clock, of our newest game of the configured type; `None` if it is
    /// older than the interval, or we have none. The factory lists games in the order of creation.
    async fn newest_game(&self, count: u64, head: &L1Head) -> Result<Option<u64>, ReaderError> {
        let ProposalTarget::Factory {
            address,
            game_type,
            interval,
        } = self.target
        else {
            return Ok(None);
        };
        let cutoff = head.time.saturating_sub(interval);
        let (mut end, mut newer) = (count, head.time);
        while end > 0 {
            let size = if end == count { FIRST_GAMES } else { MAX_GAMES };
            let start = end.saturating_sub(size);
            if count - start > MAX_WALK {
                return Err(ReaderError::TooManyGames);
            }
            let call =
                |index| NamedCall::new("gameAtIndex()", address, contracts::game_at_index(index));
            let calls = (start..end).rev().map(call).collect();
            let responses = self.call_all(calls, at_block(head.hash)).await?;
            let mut games = Vec::new();
            for index in 0..responses.calls.len() {
                let game = responses.read(index, contracts::read_listed_game)?;
                if game.created > newer {
                    let text = format!("a game of {} follows one of {newer}", game.created);
                    return Err(ReaderError::Untrue(text));
                }
                newer = game.created;
                if game.created >= cutoff && game.game_type == game_type {
                    games.push((game.address, game.created));
                }
            }
            if let Some(created) = self.own_of(&games, head).await? {
                return Ok(Some(created));
            }
            if newer < cutoff {
                return Ok(None);
            }
            end = start;
        }
        Ok(None)
    }

    /// The creation time of the first of these games that our account created.
    async fn own_of(
        &self,
        games: &[(Address, u64)],
        head: &L1Head,
    ) -> Result<Option<u64>, ReaderError> {
        if games.is_empty() {
            return Ok(None);
        }
        let claim = |(game, _): &(Address, u64)| {
            NamedCall::new("claimData()", *game, contracts::root_claim_data())
        };
        let creator = |(game, _): &(Address, u64)| {
            NamedCall::new("gameCreator()", *game, contracts::game_creator())
        };
        let calls = games.iter().map(creator).chain(games.iter().map(claim));
        let calls = calls.collect();
        let responses = self.call_any(calls, at_block(head.hash)).await?;
        for (index, (_, created)) in games.iter().enumerate() {
            // The creator is the claimant of the root claim. Games without claims have the function
            // `gameCreator`.
            let claimant = responses.read(games.len() + index, contracts::read_claimant);
            let creator = || responses.read(index, |answer| contracts::read_address(answer, 0));
            if claimant.or_else(|_| creator())? == self.account {
                return Ok(Some(*created));
            }
        }
        Ok(None)
    }

    /// The transaction for a proposal, or the reason not to send one.
    pub async fn candidate(
        &self,
        proposal: &Proposal,
    ) -> Result<Result<TxCandidate, ProposalRefusal>, ReaderError> {
        let (data, value) = match self.target {
            ProposalTarget::Oracle(_) => {
                let block = proposal.current_l1;
                if !self.is_canonical(block.number, block.hash).await? {
                    return Ok(Err(ProposalRefusal::OtherL1));
                }
                let (root, number) = (proposal.root, proposal.sequence);
                let data = contracts::propose_output(root, number, block.hash, block.number);
                (data, U256::ZERO)
            }
            ProposalTarget::Factory {
                address, game_type, ..
            } => {
                let (claim, extra) = (proposal.root, &proposal.extra);
                let games = contracts::games(game_type, claim, extra);
                let bond = contracts::init_bond(game_type);
                let calls = vec![
                    NamedCall::new("initBonds()", address, bond),
                    NamedCall::new("games()", address, games),
                ];
                let responses = self.call_all(calls, json!("latest")).await?;
                if let Some(game) = responses.read(1, contracts::read_game)? {
                    return Ok(Err(ProposalRefusal::Exists(game)));
                }
                let bond = responses.read(0, |answer| contracts::read_u256(answer, 0))?;
                (contracts::create_game(game_type, claim, extra), bond)
            }
        };
        Ok(Ok(TxCandidate {
            to: Some(self.target.address()),
            data,
            blobs: Vec::new(),
            gas_limit: 0,
            value,
        }))
    }

    async fn is_canonical(&self, number: u64, hash: B256) -> Result<bool, ReaderError> {
        let params = json!([U64::from(number), false]);
        let block: Option<L1HeadJson> = self.l1.plain_call("eth_getBlockByNumber", params).await?;
        Ok(block.is_some_and(|block| block.hash == hash))
    }

    /// Sends calls at a block as one batch, of which at least the first call must succeed.
    async fn call_all(
        &self,
        calls: Vec<NamedCall>,
        at: Value,
    ) -> Result<NamedResponses, ReaderError> {
        let plain: Vec<RpcCall> = calls.iter().map(|call| call.at(&at)).collect();
        let responses = self.l1.plain_batch(&plain).await?;
        Ok(NamedResponses { calls, responses })
    }

    /// Sends calls at a block, of which any may fail, in batches of a size that endpoints accept.
    async fn call_any(
        &self,
        calls: Vec<NamedCall>,
        at: Value,
    ) -> Result<NamedResponses, ReaderError> {
        let mut responses = Vec::with_capacity(calls.len());
        for part in calls.chunks(MAX_GAMES as usize) {
            // The client requires the first call of a batch to succeed, so begin with one that
            // does.
            let mut plain: Vec<RpcCall> = vec![RpcCall::new("eth_chainId", json!([]))];
            plain.extend(part.iter().map(|call| call.at(&at)));
            responses.extend(self.l1.plain_batch(&plain).await?.into_iter().skip(1));
        }
        Ok(NamedResponses { calls, responses })
    }
}

impl NamedCall {
    fn new(name: &'static str, to: Address, data: Bytes) -> Self {
        Self { name, to, data }
    }

    fn at(&self, at: &Value) -> RpcCall {
        RpcCall::new(
            "eth_call",
            json!([{ "to": self.to, "data": self.data }, at]),
        )
    }
}

impl NamedResponses {
    fn read<T>(
        &self,
        index: usize,
        read: impl FnOnce(&[u8]) -> Result<T, ContractResponseError>,
    ) -> Result<T, ReaderError> {
        let call = &self.calls[index];
        let response = self.responses.get(index);
        let response = response.ok_or(ReaderError::Missing(call.name))?;
        let failed = |cause: &RpcCause| ReaderError::Call(call.name, call.to, cause.clone());
        let json = response.as_ref().map_err(failed)?;
        let answer: Bytes =
            serde_json::from_str(json.get()).map_err(|_| ReaderError::Missing(call.name))?;
        read(&answer).map_err(|error| ReaderError::Answer(call.name, call.to, error))
    }
}

fn value<T: DeserializeOwned>(
    responses: &[L1Response],
    index: usize,
    name: &'static str,
) -> Result<T, ReaderError> {
    let json = responses
        .get(index)
        .and_then(|response| response.as_ref().ok());
    let value = json.and_then(|json| serde_json::from_str(json.get()).ok());
    value.ok_or(ReaderError::Missing(name))
}

/// A block by its hash (EIP-1898): the endpoint responds from this block or with an error.
fn at_block(hash: B256) -> Value {
    json!({ "blockHash": hash })
}
