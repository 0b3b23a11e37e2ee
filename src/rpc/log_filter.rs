//! Log filters: the logs that match a query, in a range of blocks or in each block as the chain
//! moves.
//!
//! The `eth` namespace reads ranges of blocks with filters; [`filters`](super::filters) and
//! subscriptions follow the chain with them. The memory of reported logs could overload the node,
//! so it is bounded for each follower and for all followers together.

use super::{
    block_tag::BlockTag,
    bounds::Bounds,
    error::RpcError,
    json::read,
    memory::KIB,
    params::{Arg, bytes, object},
};
use crate::chain::{
    abandoned::Abandoned,
    heads::Step,
    receipt::{MAX_TOPICS, MinedLog, mined_logs},
    view::{LogSearch, View},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bloom, Bytes, Log, U64, keccak256};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use starling_proto::payload::BlockId;
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The JSON of a log, in a receipt or on its own.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogJson {
    pub address: Address,
    pub topics: Vec<B256>,
    pub data: Bytes,
    pub block_number: U64,
    pub transaction_hash: B256,
    pub transaction_index: U64,
    pub block_hash: B256,
    pub block_timestamp: U64,
    pub log_index: U64,
    /// Whether a reorg has removed the block from the chain.
    pub removed: bool,
}

impl LogJson {
    /// Bytes of the log's topics and data.
    pub fn weight(&self) -> usize {
        self.topics.len() * 32 + self.data.len()
    }

    pub fn new(
        log: &Log,
        block: BlockId,
        timestamp: u64,
        tx_index: usize,
        tx_hash: B256,
        log_index: usize,
    ) -> Self {
        Self {
            address: log.address,
            topics: log.topics().to_vec(),
            data: log.data.data.clone(),
            block_number: U64::from(block.number),
            transaction_hash: tx_hash,
            transaction_index: U64::from(tx_index),
            block_hash: block.hash,
            block_timestamp: U64::from(timestamp),
            log_index: U64::from(log_index),
            removed: false,
        }
    }
}

/// The members of a filter object, not yet parsed. The range is no part of a subscription.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogFilterMembers<'a> {
    #[serde(borrow)]
    block_hash: Option<&'a RawValue>,
    #[serde(borrow)]
    from_block: Option<&'a RawValue>,
    #[serde(borrow)]
    to_block: Option<&'a RawValue>,
    address: Option<Value>,
    topics: Option<Value>,
}

/// A filter that matches the logs of some addresses, with some topics in each position. An empty
/// list matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    pub addresses: Vec<Address>,
    pub topics: Vec<Vec<B256>>,
    /// Bloom bits of each address and topic, computed once because a filter is matched against many
    /// blocks.
    blooms: OnceLock<Vec<Vec<BloomBits>>>,
}

/// The three bits that a value sets in a bloom, each as a byte index and a mask.
type BloomBits = [(u8, u8); 3];

fn bits(value: &[u8]) -> BloomBits {
    let hash = keccak256(value);
    std::array::from_fn(|i| {
        let bit = u16::from_be_bytes([hash[2 * i], hash[2 * i + 1]]) & 2047;
        (255 - (bit >> 3) as u8, 1 << (bit & 7))
    })
}

impl LogFilter {
    pub fn matches(&self, address: &Address, topics: &[B256]) -> bool {
        (self.addresses.is_empty() || self.addresses.contains(address))
            && self.topics.len() <= topics.len()
            && self
                .topics
                .iter()
                .zip(topics)
                .all(|(wanted, topic)| wanted.is_empty() || wanted.contains(topic))
    }

    /// Whether a block with this bloom can hold a matching log.
    pub fn may_match(&self, bloom: &Bloom) -> bool {
        let set = |bits: &BloomBits| {
            bits.iter()
                .all(|(byte, mask)| bloom[usize::from(*byte)] & mask != 0)
        };
        self.blooms
            .get_or_init(|| self.blooms())
            .iter()
            .all(|wanted| wanted.is_empty() || wanted.iter().any(set))
    }

    fn blooms(&self) -> Vec<Vec<BloomBits>> {
        let addresses = self.addresses.iter();
        let mut blooms: Vec<Vec<BloomBits>> =
            vec![addresses.map(|address| bits(address.as_slice())).collect()];
        blooms.extend(
            self.topics
                .iter()
                .map(|wanted| wanted.iter().map(|topic| bits(topic.as_slice())).collect()),
        );
        blooms
    }

    /// The search for blocks that may hold matching logs.
    pub fn search(&self) -> LogSearch {
        LogSearch::new(&self.addresses, &self.topics)
    }

    /// Refuses a filter with more than `limit` addresses, or more than `limit` topics in one
    /// position.
    pub fn check_size(&self, limit: usize) -> Result<(), RpcError> {
        let topics = self.topics.iter().map(Vec::len).max().unwrap_or(0);
        if self.addresses.len().max(topics) > limit {
            return Err(RpcError::server(
                "exceed max addresses or topics per search position",
            ));
        }
        Ok(())
    }

    /// Bytes that the filter takes in memory.
    fn bytes(&self) -> usize {
        let topics: usize = self.topics.iter().map(Vec::len).sum();
        size_of::<Self>()
            + self.addresses.len() * (20 + size_of::<BloomBits>())
            + topics * (32 + size_of::<BloomBits>())
    }

    /// The matching logs of the block with this number and header.
    pub fn logs(
        &self,
        view: &View,
        number: u64,
        header: &Header,
    ) -> Result<Vec<LogJson>, RpcError> {
        if !self.may_match(&header.logs_bloom) {
            return Ok(vec![]);
        }
        let missing = || RpcError::server("header not found");
        let found = view
            .logs(number, &|address, topics| self.matches(address, topics))?
            .ok_or_else(missing)?;
        if found.is_empty() {
            return Ok(vec![]);
        }
        let block = BlockId {
            number,
            hash: view.hash_of(number)?.ok_or_else(missing)?,
        };
        let json = |(mined, hash): (MinedLog, B256)| {
            LogJson::new(
                &mined.log,
                block,
                header.timestamp,
                mined.index,
                hash,
                mined.log_index,
            )
        };
        Ok(found.into_iter().map(json).collect())
    }

    fn parse(address: Option<Value>, topics: Option<Value>) -> Result<Self, String> {
        let addresses = match address {
            None => vec![],
            Some(Value::Array(list)) => {
                let address = |(index, one): (usize, &Value)| {
                    let text = one
                        .as_str()
                        .ok_or_else(|| format!("non-string address at index {index}"))?;
                    self::address(text)
                        .map_err(|problem| format!("invalid address at index {index}: {problem}"))
                };
                list.iter()
                    .enumerate()
                    .map(address)
                    .collect::<Result<_, String>>()?
            }
            Some(Value::String(one)) => {
                vec![self::address(&one).map_err(|problem| format!("invalid address: {problem}"))?]
            }
            Some(_) => return Err("invalid addresses in query".into()),
        };
        let alternatives = |position: &Value| match position {
            Value::Null => Ok(vec![]),
            // A null among the alternatives matches anything.
            Value::Array(list) if list.contains(&Value::Null) => Ok(vec![]),
            Value::Array(list) => list.iter().map(topic).collect(),
            one => Ok(vec![topic(one)?]),
        };
        let topics: Vec<Vec<B256>> = match topics {
            None => vec![],
            Some(Value::Array(list)) => list
                .iter()
                .map(alternatives)
                .collect::<Result<_, String>>()?,
            Some(_) => return Err("invalid topic(s)".into()),
        };
        if topics.len() > MAX_TOPICS {
            return Err("exceed max topics".into());
        }
        Ok(Self {
            addresses,
            topics,
            blooms: OnceLock::new(),
        })
    }
}

/// Decodes a `0x` string of exactly `N` bytes. `what` names the value in the error.
fn decode<const N: usize>(text: &str, what: &str) -> Result<[u8; N], String> {
    let found = bytes(text)?;
    let length = found.len();
    found.try_into().map_err(|_| {
        format!("hex has invalid length {length} after decoding; expected {N} for {what}")
    })
}

fn address(text: &str) -> Result<Address, String> {
    decode(text, "address").map(Address::new)
}

fn topic(value: &Value) -> Result<B256, String> {
    decode(value.as_str().ok_or("invalid topic(s)")?, "topic").map(B256::new)
}

impl Arg for LogFilter {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: LogFilterMembers<'_> = read(json).map_err(|error| error.to_string())?;
        Self::parse(members.address, members.topics)
    }
}

/// Parameters of `eth_getLogs` and `eth_newFilter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuery {
    pub(super) filter: LogFilter,
    pub(super) blocks: LogRange,
}

/// The blocks of a query: one by its hash, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogRange {
    Hash(B256),
    Range(BlockTag, BlockTag),
}

impl LogQuery {
    /// Refuses a range of two numbers whose first is above the second.
    pub fn check_order(&self) -> Result<(), RpcError> {
        match self.blocks {
            LogRange::Range(BlockTag::Number(from), BlockTag::Number(to)) if from > to => {
                Err(bad_range())
            }
            _ => Ok(()),
        }
    }

    /// A follower of the new blocks in the query's range. A number bounds the range; a tag leaves
    /// that end of the range open. A query for one block by its hash matches no new block.
    pub fn follower(&self, bounds: &Bounds, head: BlockId) -> Result<LogFollower, RpcError> {
        let bound = |tag, open| match tag {
            BlockTag::Number(number) => number,
            _ => open,
        };
        let (first, last) = match self.blocks {
            LogRange::Hash(_) => (u64::MAX, 0),
            LogRange::Range(from, to) => (bound(from, 0), bound(to, u64::MAX)),
        };
        Ok(LogFollower {
            first,
            last,
            ..LogFollower::new(self.filter.clone(), bounds, head)?
        })
    }
}

/// The error of a range whose first block is above its last.
pub fn bad_range() -> RpcError {
    RpcError::invalid_params("invalid block range params")
}

/// Number of blocks below the head whose logs a follower keeps, to report them as removed after a
/// reorg.
const REMEMBERED: u64 = 512;
/// Maximum bytes of the logs that one follower keeps.
const REMEMBERED_BYTES: usize = 1 << 20;
/// Bytes of a kept log in addition to its topics and data.
const LOG: usize = 256;

/// Takes permits for `bytes` bytes; `None` if they are not free.
fn reserve(memory: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    memory
        .clone()
        .try_acquire_many_owned(u32::try_from(bytes.div_ceil(KIB)).ok()?)
        .ok()
}

/// Reports the logs of each block that joins the chain, and reports them again with `removed` when
/// the block leaves the chain.
pub struct LogFollower {
    filter: LogFilter,
    /// Numbers of the lowest and the highest block whose logs are reported.
    first: u64,
    last: u64,
    /// Reported logs that are kept, by block, oldest block first.
    reported: VecDeque<ReportedLogs>,
    /// Blocks up to this number may have matching logs that are not in `reported`. The follower
    /// began above these blocks, or has dropped their logs.
    forgotten: u64,
    /// Free memory for kept logs, in KiB (one permit each). All followers share it.
    memory: Arc<Semaphore>,
    _permit: OwnedSemaphorePermit,
}

/// The logs of a block as they were reported.
struct ReportedLogs {
    block: BlockId,
    logs: Vec<LogJson>,
    bytes: usize,
    _permit: OwnedSemaphorePermit,
}

impl LogFollower {
    /// A follower of the blocks after `head`. It is refused if all filters together take too much
    /// memory. The logs that followers keep do not count for that limit.
    pub fn new(filter: LogFilter, bounds: &Bounds, head: BlockId) -> Result<Self, RpcError> {
        let permit = reserve(&bounds.filters, filter.bytes())
            .ok_or_else(|| RpcError::server("too many filters: retry later"))?;
        Ok(Self {
            filter,
            first: 0,
            last: u64::MAX,
            reported: VecDeque::new(),
            forgotten: head.number,
            memory: bounds.reported_logs.clone(),
            _permit: permit,
        })
    }

    /// Keeps the reported logs of a block, within [`REMEMBERED_BYTES`] and the free memory for kept
    /// logs. If the logs do not fit, this follower drops all logs that it keeps, so that a follower
    /// of many blocks does not take the memory from others.
    fn remember(&mut self, block: BlockId, logs: &[LogJson]) {
        let bytes = logs.iter().map(|log| LOG + log.weight()).sum();
        while self.reported.iter().map(|old| old.bytes).sum::<usize>() + bytes > REMEMBERED_BYTES {
            let Some(oldest) = self.reported.pop_front() else {
                break;
            };
            self.forgotten = self.forgotten.max(oldest.block.number);
        }
        match reserve(&self.memory, bytes).filter(|_| bytes <= REMEMBERED_BYTES) {
            Some(_permit) => self.reported.push_back(ReportedLogs {
                block,
                logs: logs.to_vec(),
                bytes,
                _permit,
            }),
            None => {
                self.reported.clear();
                self.forgotten = self.forgotten.max(block.number);
            }
        }
    }

    /// The logs to report for a step of the chain. Keeps the logs of an added block, and drops
    /// those of a removed block.
    pub fn apply(&mut self, view: &View, step: Step) -> Result<Vec<LogJson>, RpcError> {
        match step {
            Step::Added(BlockId { number, .. }) if number < self.first || number > self.last => {
                Ok(vec![])
            }
            Step::Added(BlockId { number, .. }) => {
                while let Some(old) = self
                    .reported
                    .pop_front_if(|old| old.block.number + REMEMBERED <= number)
                {
                    self.forgotten = self.forgotten.max(old.block.number);
                }
                let header = view
                    .header_of(number)?
                    .ok_or_else(|| RpcError::server("header not found"))?;
                let logs = self.filter.logs(view, number, &header)?;
                if let Some(log) = logs.first() {
                    self.remember(
                        BlockId {
                            number,
                            hash: log.block_hash,
                        },
                        &logs,
                    );
                }
                Ok(logs)
            }
            Step::Removed(block) => {
                let logs = self.removed(block)?;
                Ok(logs
                    .into_iter()
                    .rev()
                    .map(|log| LogJson {
                        removed: true,
                        ..log
                    })
                    .collect())
            }
        }
    }

    /// The logs of an abandoned block, as they were reported. If the follower began above the block
    /// or has dropped its logs, they are read from the receipts, because op-geth reports such logs
    /// too.
    fn removed(
        &mut self,
        Abandoned { payload, receipts }: Abandoned,
    ) -> Result<Vec<LogJson>, RpcError> {
        let BlockId { hash, number } = payload.id();
        if let Some(block) = self
            .reported
            .pop_back_if(|newest| newest.block.hash == hash)
        {
            return Ok(block.logs);
        }
        let outside = number < self.first || number > self.last;
        if outside || number > self.forgotten || !self.filter.may_match(&payload.header.logs_bloom)
        {
            return Ok(vec![]);
        }
        let unknown = "blocks were removed whose logs are no longer known: request the logs again with eth_getLogs";
        let receipts = receipts.ok_or_else(|| RpcError::server(unknown))?;
        let (block, time) = (payload.id(), payload.timestamp());
        let json = |mined: MinedLog| {
            let hash = payload
                .transactions
                .get(mined.index)
                .map(keccak256)
                .unwrap_or_default();
            LogJson::new(&mined.log, block, time, mined.index, hash, mined.log_index)
        };
        let found = mined_logs(&receipts, &|address, topics| {
            self.filter.matches(address, topics)
        });
        Ok(found.into_iter().map(json).collect())
    }
}

impl Arg for LogQuery {
    fn from_json(json: &str) -> Result<Self, String> {
        let members: LogFilterMembers<'_> =
            read(object(json)).map_err(|error| error.to_string())?;
        let tag =
            |tag: Option<&RawValue>| tag.map(|tag| BlockTag::from_json(tag.get())).transpose();
        let range = (tag(members.from_block)?, tag(members.to_block)?);
        let blocks = match (members.block_hash, range.0, range.1) {
            (Some(hash), None, None) => LogRange::Hash(B256::from_json(hash.get())?),
            (Some(_), _, _) => {
                return Err(
                    "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other"
                        .into(),
                );
            }
            (None, from, to) => LogRange::Range(
                from.unwrap_or(BlockTag::Latest),
                to.unwrap_or(BlockTag::Latest),
            ),
        };
        Ok(Self {
            filter: LogFilter::parse(members.address, members.topics)?,
            blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(topics: &[u8]) -> Log {
        Log::new_unchecked(
            Address::repeat_byte(1),
            topics.iter().map(|n| B256::repeat_byte(*n)).collect(),
            Bytes::new(),
        )
    }

    fn filter(json: Value) -> LogFilter {
        LogFilter::from_json(&json.to_string()).unwrap()
    }

    #[test]
    fn topics_match_by_position_with_alternatives_and_gaps() {
        let (a, b, c) = (
            B256::repeat_byte(0xa),
            B256::repeat_byte(0xb),
            B256::repeat_byte(0xc),
        );
        let logged = log(&[0xa, 0xb]);
        let bloom: Bloom = [&logged].into_iter().collect();
        for (topics, matches) in [
            (serde_json::json!([]), true),
            (serde_json::json!([a]), true),
            (serde_json::json!([b]), false),
            (serde_json::json!([null, b]), true),
            (serde_json::json!([[c, a], [b]]), true),
            (serde_json::json!([[null, c]]), true),
            (serde_json::json!([a, b, null]), false),
        ] {
            let filter =
                filter(serde_json::json!({ "address": Address::repeat_byte(1), "topics": topics }));
            assert_eq!(
                filter.matches(&logged.address, logged.topics()),
                matches,
                "{topics}"
            );
            assert!(!matches || filter.may_match(&bloom), "{topics}");
        }
        let other = filter(serde_json::json!({ "address": [Address::repeat_byte(2)] }));
        assert!(!other.matches(&logged.address, logged.topics()) && !other.may_match(&bloom));
    }

    #[test]
    fn members_are_known_in_any_case() {
        let at = Address::repeat_byte(1);
        let query = |json: Value| LogQuery::from_json(&json.to_string()).unwrap();
        let expected = query(serde_json::json!({
            "fromBlock": "0x1", "toBlock": "0x2", "address": at, "topics": [B256::ZERO],
        }));
        let variant = serde_json::json!({
            "fromblock": "0x1", "TOBLOCK": "0x2", "Address": at, "Topics": [B256::ZERO],
        });
        assert_eq!(query(variant.clone()), expected);
        let filter = LogFilter::from_json(&variant.to_string()).unwrap();
        assert_eq!(filter, expected.filter);
        let twice = format!(
            r#"{{"address":"{at}","ADDRESS":null,"BlockHash":"{}"}}"#,
            B256::ZERO
        );
        let last = LogQuery::from_json(&twice).unwrap();
        assert_eq!(last.blocks, LogRange::Hash(B256::ZERO));
        assert!(last.filter.addresses.is_empty());
    }

    #[test]
    fn filters_that_make_no_sense_are_refused() {
        let refused = |json: Value| LogQuery::from_json(&json.to_string()).unwrap_err();
        assert_eq!(
            refused(serde_json::json!({ "blockHash": B256::ZERO, "fromBlock": "0x1" })),
            "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other"
        );
        assert_eq!(
            refused(serde_json::json!({ "topics": [null, null, null, null, null] })),
            "exceed max topics"
        );
        for many in [
            serde_json::json!({ "topics": [null, vec![B256::ZERO; 1001]] }),
            serde_json::json!({ "address": vec![Address::ZERO; 1001] }),
        ] {
            let filter = filter(many);
            assert!(filter.check_size(1000).is_err() && filter.check_size(1001).is_ok());
        }
        let short = "hex has invalid length 1 after decoding; expected";
        assert_eq!(
            refused(serde_json::json!({ "address": "0x12" })),
            format!("invalid address: {short} 20 for address")
        );
        let second = serde_json::json!({ "address": [Address::ZERO, "0x12"] });
        assert_eq!(
            refused(second),
            format!("invalid address at index 1: {short} 20 for address")
        );
        assert_eq!(
            refused(serde_json::json!({ "address": [7] })),
            "non-string address at index 0"
        );
        assert_eq!(
            refused(serde_json::json!({ "address": 7 })),
            "invalid addresses in query"
        );
        assert_eq!(
            refused(serde_json::json!({ "topics": ["0x12"] })),
            format!("{short} 32 for topic")
        );
        assert_eq!(
            refused(serde_json::json!({ "topics": [7] })),
            "invalid topic(s)"
        );
        assert_eq!(
            refused(serde_json::json!({ "fromBlock": "0x01" })),
            "hex number with leading zero digits"
        );
    }
}
