//! Encodes calls to L2OutputOracle, DisputeGameFactory and dispute games in the Solidity ABI, and
//! decodes the responses. Responses that are too short, or have a value beyond its type, are
//! errors. Pure functions.
//!
//! Signatures are those of the published contracts (specs: withdrawals, proposals; fault proof,
//! dispute game interface).

#[cfg(test)]
mod tests;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};

/// Bytes of an ABI word.
const WORD: usize = 32;
/// Largest number of characters kept of a contract's version.
const MAX_TEXT: usize = 64;
/// Bytes of a permissioned game's immutable arguments, and the position of the proposer in them:
/// after prestate (32), VM (20), registry (20), WETH (20) and chain id (32).
const PERMISSIONED_ARGS: usize = 164;
const PROPOSER_AT: usize = 124;

/// The reason why a response does not match the contract's ABI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractResponseError {
    /// The response of every account without code.
    #[error("an empty response: there is no such contract")]
    Empty,
    #[error("{have} bytes where at least {need} were expected")]
    Short { have: usize, need: usize },
    #[error("{0} is not a value of the type {1}")]
    Range(B256, &'static str),
    #[error("the text does not lie in the response")]
    Offset,
}

/// The first four bytes of a call (Solidity ABI: the signature's hash).
fn selector(signature: &str) -> [u8; 4] {
    let hash = keccak256(signature);
    [hash[0], hash[1], hash[2], hash[3]]
}

fn call(signature: &str, words: &[B256]) -> Bytes {
    let mut data = selector(signature).to_vec();
    for word in words {
        data.extend_from_slice(word.as_slice());
    }
    data.into()
}

fn number(value: impl Into<u64>) -> B256 {
    U256::from(value.into()).into()
}

/// `version()`, of every contract.
pub fn version() -> Bytes {
    call("version()", &[])
}

/// `nextBlockNumber()` of the oracle.
pub fn next_block_number() -> Bytes {
    call("nextBlockNumber()", &[])
}

/// `PROPOSER()` of the oracle, in all of its versions.
pub fn oracle_proposer() -> Bytes {
    call("PROPOSER()", &[])
}

/// `proposer()` of the oracle's newer versions and of permissioned games.
pub fn proposer() -> Bytes {
    call("proposer()", &[])
}

/// `proposeL2Output`: the transaction reverts unless L1's block `l1_number` has the hash `l1_hash`.
pub fn propose_output(root: B256, l2_block: u64, l1_hash: B256, l1_number: u64) -> Bytes {
    call(
        "proposeL2Output(bytes32,uint256,bytes32,uint256)",
        &[root, number(l2_block), l1_hash, number(l1_number)],
    )
}

/// `gameCount()` of the factory.
pub fn game_count() -> Bytes {
    call("gameCount()", &[])
}

/// `gameAtIndex(index)` of the factory.
pub fn game_at_index(index: u64) -> Bytes {
    call("gameAtIndex(uint256)", &[number(index)])
}

/// `gameImpls(type)` of the factory.
pub fn game_implementation(game_type: u32) -> Bytes {
    call("gameImpls(uint32)", &[number(game_type)])
}

/// `gameArgs(type)` of the factory's newer versions.
pub fn game_arguments(game_type: u32) -> Bytes {
    call("gameArgs(uint32)", &[number(game_type)])
}

/// `initBonds(type)` of the factory.
pub fn init_bond(game_type: u32) -> Bytes {
    call("initBonds(uint32)", &[number(game_type)])
}

/// `claimData(0)` of a game: the data of its root claim.
pub fn root_claim_data() -> Bytes {
    call("claimData(uint256)", &[B256::ZERO])
}

/// `gameCreator()` of any game.
pub fn game_creator() -> Bytes {
    call("gameCreator()", &[])
}

/// `games(type, claim, extra)` of the factory.
pub fn games(game_type: u32, claim: B256, extra: &[u8]) -> Bytes {
    game_call("games(uint32,bytes32,bytes)", game_type, claim, extra)
}

/// `create(type, claim, extra)` of the factory, payable with the bond.
pub fn create_game(game_type: u32, claim: B256, extra: &[u8]) -> Bytes {
    game_call("create(uint32,bytes32,bytes)", game_type, claim, extra)
}

fn game_call(signature: &str, game_type: u32, claim: B256, extra: &[u8]) -> Bytes {
    // The ABI puts the `bytes` value after the head's three words: length, content, padding.
    let offset = number(3 * WORD as u64);
    let head = [number(game_type), claim, offset, number(extra.len() as u64)];
    let mut data = call(signature, &head).to_vec();
    data.extend_from_slice(extra);
    let padding = extra.len().next_multiple_of(WORD) - extra.len();
    data.resize(data.len() + padding, 0);
    data.into()
}

/// A game in the factory's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedGame {
    pub game_type: u32,
    /// Timestamp of the L1 block that created the game, in Unix seconds.
    pub created: u64,
    pub address: Address,
}

/// Decodes the response to [`game_at_index`].
pub fn read_listed_game(answer: &[u8]) -> Result<ListedGame, ContractResponseError> {
    Ok(ListedGame {
        game_type: read_u32(answer, 0)?,
        created: read_u64(answer, 1)?,
        address: read_address(answer, 2)?,
    })
}

/// Decodes the game's creator from the response to [`root_claim_data`].
pub fn read_claimant(answer: &[u8]) -> Result<Address, ContractResponseError> {
    // Require the whole tuple: parent, countered by, claimant, bond, claim, position, clock.
    read_word(answer, 6)?;
    read_address(answer, 2)
}

/// Decodes the game's address from the response to [`games`]; `None` if there is no such game.
pub fn read_game(answer: &[u8]) -> Result<Option<Address>, ContractResponseError> {
    read_u64(answer, 1)?;
    let address = read_address(answer, 0)?;
    Ok((!address.is_zero()).then_some(address))
}

/// Decodes the only account that may create games from the response to [`game_arguments`]; `None`
/// if every account may.
pub fn read_permitted(answer: &[u8]) -> Result<Option<Address>, ContractResponseError> {
    let arguments = read_bytes(answer)?;
    if arguments.len() != PERMISSIONED_ARGS {
        return Ok(None);
    }
    let proposer = &arguments[PROPOSER_AT..PROPOSER_AT + 20];
    Ok(Some(Address::from_slice(proposer)))
}

/// The word at `index` of a response.
pub fn read_word(answer: &[u8], index: usize) -> Result<B256, ContractResponseError> {
    if answer.is_empty() {
        return Err(ContractResponseError::Empty);
    }
    let need = (index + 1) * WORD;
    let word = answer.get(need - WORD..need);
    word.map(B256::from_slice)
        .ok_or(ContractResponseError::Short {
            have: answer.len(),
            need,
        })
}

/// Decodes the word at `index` as a number of 256 bits.
pub fn read_u256(answer: &[u8], index: usize) -> Result<U256, ContractResponseError> {
    Ok(U256::from_be_bytes(read_word(answer, index)?.0))
}

/// Decodes the word at `index` as a number of 64 bits, which is enough for any block number.
pub fn read_u64(answer: &[u8], index: usize) -> Result<u64, ContractResponseError> {
    let word = read_word(answer, index)?;
    let value = U256::from_be_bytes(word.0);
    value
        .try_into()
        .map_err(|_| ContractResponseError::Range(word, "uint64"))
}

fn read_u32(answer: &[u8], index: usize) -> Result<u32, ContractResponseError> {
    let word = read_word(answer, index)?;
    let value = U256::from_be_bytes(word.0);
    value
        .try_into()
        .map_err(|_| ContractResponseError::Range(word, "uint32"))
}

/// Decodes the word at `index` as an address.
pub fn read_address(answer: &[u8], index: usize) -> Result<Address, ContractResponseError> {
    let word = read_word(answer, index)?;
    if word[..12].iter().any(|byte| *byte != 0) {
        return Err(ContractResponseError::Range(word, "address"));
    }
    Ok(Address::from_word(word))
}

/// Decodes a `string` that is the only value, for use in logs: keeps at most 64 characters and
/// removes control characters.
pub fn read_text(answer: &[u8]) -> Result<String, ContractResponseError> {
    let bytes = read_bytes(answer)?;
    let text = String::from_utf8_lossy(bytes);
    let plain = text.chars().filter(|character| !character.is_control());
    Ok(plain.take(MAX_TEXT).collect())
}

/// Decodes a `bytes` or `string` that is the only value.
fn read_bytes(answer: &[u8]) -> Result<&[u8], ContractResponseError> {
    let place = |word: B256| usize::try_from(U256::from_be_bytes(word.0)).ok();
    let start = place(read_word(answer, 0)?).ok_or(ContractResponseError::Offset)?;
    let body = answer.get(start..).ok_or(ContractResponseError::Offset)?;
    if body.len() < WORD {
        return Err(ContractResponseError::Offset);
    }
    let (length, rest) = body.split_at(WORD);
    let length = place(B256::from_slice(length)).ok_or(ContractResponseError::Offset)?;
    rest.get(..length).ok_or(ContractResponseError::Offset)
}
