//! Receipts as the chain stores them: the fields that consensus hashes, without those that can be
//! recomputed. Also their EIP-2718 encoding and the receipts root.
//!
//! Execution creates receipts, the store keeps them, JSON-RPC completes and serves them.

use alloy_primitives::{Address, B256, Bloom, Bytes, Log};
use alloy_rlp::{BufMut, Decodable, Encodable, Header};
use alloy_trie::root::ordered_trie_root_with_encoder;
use starling_proto::{deposit::DEPOSIT_TX_TYPE, fork::Fork};

/// Highest transaction type: a larger first byte begins an RLP list, not a typed receipt (EIP-2718).
const MAX_TYPE: u8 = 0x7f;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// EIP-2718 type of the transaction, 0x7e for deposits.
    pub tx_type: u8,
    pub success: bool,
    pub cumulative_gas_used: u64,
    pub logs: Vec<Log>,
    /// The sender's nonce before execution, for deposits from Regolith on.
    pub deposit_nonce: Option<u64>,
    /// Version of the deposit receipt: 1 from Canyon on.
    pub deposit_version: Option<u64>,
    /// The state root after the transaction. Receipts of Ethereum before Byzantium have it instead
    /// of the success status.
    pub post_state: Option<Box<B256>>,
}

/// Maximum number of topics of a log: the EVM has `LOG0` to `LOG4`.
pub const MAX_TOPICS: usize = 4;

/// A receipt with the gas used and the number of logs in its block before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinedReceipt {
    pub receipt: Receipt,
    /// Gas used in the block before the receipt's transaction.
    pub gas_before: u64,
    /// Number of logs in the block before the receipt's transaction.
    pub logs_before: usize,
}

/// A log with the indexes of its transaction and of itself in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinedLog {
    /// Index of the log's transaction in the block.
    pub index: usize,
    /// Index of the log among all logs of the block.
    pub log_index: usize,
    pub log: Log,
}

/// The receipt of the transaction at `index`, if the block has one.
pub fn mined_receipt(receipts: &[Receipt], index: usize) -> Option<MinedReceipt> {
    let (before, receipt) = (receipts.get(..index)?, receipts.get(index)?.clone());
    let gas_before = before
        .last()
        .map_or(0, |receipt| receipt.cumulative_gas_used);
    Some(MinedReceipt {
        receipt,
        gas_before,
        logs_before: before.iter().map(|receipt| receipt.logs.len()).sum(),
    })
}

/// The logs of a block that match: `wanted` returns true for their address and topics.
pub fn mined_logs(
    receipts: &[Receipt],
    wanted: &dyn Fn(&Address, &[B256]) -> bool,
) -> Vec<MinedLog> {
    let logs = receipts
        .iter()
        .enumerate()
        .flat_map(|(index, receipt)| receipt.logs.iter().map(move |log| (index, log)));
    let wanted = logs
        .enumerate()
        .filter(|(_, (_, log))| wanted(&log.address, log.topics()));
    wanted
        .map(|(log_index, (index, log))| MinedLog {
            index,
            log_index,
            log: log.clone(),
        })
        .collect()
}

impl Receipt {
    /// Approximate bytes held in memory.
    pub fn weight(&self) -> usize {
        150 + self
            .logs
            .iter()
            .map(|log| 100 + 32 * log.topics().len() + log.data.data.len())
            .sum::<usize>()
    }

    /// The bloom filter of the receipt's logs.
    pub fn bloom(&self) -> Bloom {
        self.logs.iter().collect()
    }

    /// Writes the EIP-2718 encoding: the type unless legacy, then the list `status, cumulative gas,
    /// bloom, logs`, followed on deposits by the nonce and the version if present (specs: deposits,
    /// receipt).
    pub fn encode_2718(&self, out: &mut dyn BufMut) {
        self.encode(self.deposit_nonce, out);
    }

    fn encode(&self, deposit_nonce: Option<u64>, out: &mut dyn BufMut) {
        if self.tx_type != 0 {
            out.put_u8(self.tx_type);
        }
        let bloom = self.bloom();
        let outcome: &dyn Encodable = match &self.post_state {
            Some(root) => root.as_ref(),
            None => &self.success,
        };
        let mut fields = vec![outcome, &self.cumulative_gas_used, &bloom, &self.logs];
        fields.extend(deposit_nonce.as_ref().map(|n| n as &dyn Encodable));
        fields.extend(self.deposit_version.as_ref().map(|n| n as &dyn Encodable));
        let payload_length = fields.iter().map(|field| field.length()).sum();
        Header {
            list: true,
            payload_length,
        }
        .encode(out);
        fields.into_iter().for_each(|field| field.encode(out));
    }

    /// Decodes the output of [`encode_2718`](Self::encode_2718), without trailing bytes. A receipt
    /// with a state root has no success status, and is decoded as successful.
    pub fn decode_2718(bytes: &[u8]) -> Result<Self, alloy_rlp::Error> {
        let mut rest = bytes;
        let tx_type = match bytes.first() {
            Some(first) if (1..=MAX_TYPE).contains(first) => {
                rest = &bytes[1..];
                *first
            }
            Some(_) => 0,
            None => return Err(alloy_rlp::Error::InputTooShort),
        };
        let mut list = Header::decode_bytes(&mut rest, true)?;
        if !rest.is_empty() {
            return Err(alloy_rlp::Error::UnexpectedLength);
        }
        let post_state = match list.first() {
            Some(first) if *first == alloy_rlp::EMPTY_STRING_CODE + 32 => {
                Some(Box::new(B256::decode(&mut list)?))
            }
            _ => None,
        };
        let success = post_state.is_some() || bool::decode(&mut list)?;
        let cumulative_gas_used = u64::decode(&mut list)?;
        let bloom = Bloom::decode(&mut list)?;
        let logs = Vec::<Log>::decode(&mut list)?;
        let mut optional = || {
            if list.is_empty() {
                Ok(None)
            } else {
                u64::decode(&mut list).map(Some)
            }
        };
        let (deposit_nonce, deposit_version) = (optional()?, optional()?);
        if !list.is_empty() || (tx_type != DEPOSIT_TX_TYPE && deposit_nonce.is_some()) {
            return Err(alloy_rlp::Error::UnexpectedLength);
        }
        let receipt = Self {
            tx_type,
            success,
            cumulative_gas_used,
            logs,
            deposit_nonce,
            deposit_version,
            post_state,
        };
        if receipt.bloom() != bloom {
            return Err(alloy_rlp::Error::Custom(
                "the bloom is not that of the logs",
            ));
        }
        Ok(receipt)
    }

    /// The EIP-2718 encoding as bytes.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode_2718(&mut out);
        out.into()
    }
}

/// The receipts root of a block. Between Regolith and Canyon the nonce of a deposit is stored and
/// served but is not part of the root. From Canyon on it is, as the receipt version shows (specs:
/// canyon, deposit receipt). `fork` is `None` on Ethereum.
pub fn receipts_root(receipts: &[Receipt], fork: Option<Fork>) -> B256 {
    let canyon = fork >= Some(Fork::Canyon);
    ordered_trie_root_with_encoder(receipts, |receipt, out| {
        receipt.encode(receipt.deposit_nonce.filter(|_| canyon), out)
    })
}

/// The bloom filter of all logs of a block.
pub fn block_bloom(receipts: &[Receipt]) -> Bloom {
    receipts.iter().flat_map(|receipt| &receipt.logs).collect()
}

#[cfg(test)]
mod tests;
