//! Proptest strategies for transactions, batches, blocks and frames.

use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::{eip2930::AccessListItem, eip7702::Authorization};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use proptest::{collection::vec, prelude::*};
use starling_proto::{batch::SingularBatch, channel::BatchContext, frame::Frame};

pub fn bytes(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(Bytes::from)
}

fn word() -> impl Strategy<Value = U256> {
    (any::<[u8; 32]>(), 0..=256usize).prop_map(|(bytes, shift)| {
        U256::from_be_bytes(bytes)
            .checked_shr(shift)
            .unwrap_or_default()
    })
}

fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

prop_compose! {
    fn signature()(r in word(), s in word(), parity in any::<bool>()) -> Signature {
        Signature::new(r, s, parity)
    }
}

prop_compose! {
    fn access_list()(items in vec((any::<[u8; 20]>(), vec(any::<[u8; 32]>(), 0..3)), 0..3))
        -> Vec<AccessListItem>
    {
        items.into_iter().map(|(address, keys)| AccessListItem {
            address: address.into(),
            storage_keys: keys.into_iter().map(B256::from).collect(),
        }).collect()
    }
}

pub fn encoded<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(
    transaction: T,
    signature: &Signature,
) -> Bytes {
    let mut out = Vec::new();
    transaction.eip2718_encode(signature, &mut out);
    out.into()
}

prop_compose! {
    /// A transaction of any type that span batches allow; a legacy one may be protected or not.
    fn transaction(chain_id: u64)(
        kind in 0..5u8,
        nonce in number(),
        gas_limit in number(),
        fees in (any::<u128>(), any::<u128>()),
        to in any::<Option<[u8; 20]>>(),
        value in word(),
        input in bytes(0..80),
        list in access_list(),
        authorizations in vec((word(), any::<[u8; 20]>(), number(), signature()), 0..3),
        signature in signature(),
    ) -> Bytes {
        let target = to.unwrap_or_default().into();
        let to = to.map_or(TxKind::Create, |to| TxKind::Call(to.into()));
        let gas_price = fees.0;
        let access_list = list.into();
        let (max_fee_per_gas, max_priority_fee_per_gas) = fees;
        let authorization_list = authorizations
            .into_iter()
            .map(|(chain_id, address, nonce, signature)| {
                let address = Address::from(address);
                Authorization { chain_id, address, nonce }.into_signed(signature)
            })
            .collect();
        match kind {
            0 | 1 => {
                let chain_id = (kind == 1).then_some(chain_id);
                let tx = TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input };
                encoded(tx, &signature)
            }
            2 => {
                let tx = TxEip2930 {
                    chain_id, nonce, gas_price, gas_limit, to, value, access_list, input,
                };
                encoded(tx, &signature)
            }
            3 => {
                let tx = TxEip1559 {
                    chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas, to,
                    value, access_list, input,
                };
                encoded(tx, &signature)
            }
            _ => {
                let tx = TxEip7702 {
                    chain_id, nonce, gas_limit, max_fee_per_gas, max_priority_fee_per_gas,
                    to: target, value, access_list, authorization_list, input,
                };
                encoded(tx, &signature)
            }
        }
    }
}

prop_compose! {
    pub fn frames()(
        list in vec((any::<[u8; 16]>(), any::<u16>(), bytes(0..300), any::<bool>()), 1..6)
    ) -> Vec<Frame> {
        list.into_iter()
            .map(|(id, number, data, is_last)| Frame { id: id.into(), number, data, is_last })
            .collect()
    }
}

prop_compose! {
    pub fn singular()(
        parent_hash in any::<[u8; 32]>(),
        epoch_number in number(),
        epoch_hash in any::<[u8; 32]>(),
        timestamp in number(),
        transactions in vec(bytes(0..150), 0..6),
    ) -> SingularBatch {
        SingularBatch {
            parent_hash: parent_hash.into(),
            epoch_number,
            epoch_hash: epoch_hash.into(),
            timestamp,
            transactions: transactions.into(),
        }
    }
}

/// The batches of consecutive blocks.
pub fn blocks(context: BatchContext) -> impl Strategy<Value = Vec<SingularBatch>> {
    let block = (any::<bool>(), vec(transaction(context.chain_id), 0..6));
    (vec(block, 1..12), 0..1_000u64, 100..u64::MAX / 2).prop_map(move |(list, time, epoch)| {
        let mut epoch_number = epoch;
        let mut out = Vec::new();
        for (index, (advance, transactions)) in list.into_iter().enumerate() {
            epoch_number += u64::from(advance);
            out.push(SingularBatch {
                parent_hash: B256::repeat_byte(index as u8 + 1),
                epoch_number,
                epoch_hash: B256::repeat_byte(index as u8 + 101),
                timestamp: context.genesis_time + time + context.block_time * index as u64,
                transactions: transactions.into(),
            });
        }
        out
    })
}
