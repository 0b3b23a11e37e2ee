//! The call object of `eth_call` and similar methods. It is read member by member, so that errors
//! have geth's texts.

use crate::{
    chain::evm::CallInput,
    rpc::{
        error::RpcError,
        json,
        params::{Arg, Big, Json, Quantity, field, kind, object, unfit},
    },
};
use alloy_eips::{
    eip2930::AccessList,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, U8, U64, U256};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The members of a call object that are used here; of those about blobs only the hashes are.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Members<'a> {
    #[serde(borrow)]
    from: Option<&'a RawValue>,
    #[serde(borrow)]
    to: Option<&'a RawValue>,
    #[serde(borrow)]
    gas: Option<&'a RawValue>,
    #[serde(borrow)]
    gas_price: Option<&'a RawValue>,
    #[serde(borrow)]
    max_fee_per_gas: Option<&'a RawValue>,
    #[serde(borrow)]
    max_priority_fee_per_gas: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    nonce: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    access_list: Option<&'a RawValue>,
    #[serde(borrow)]
    authorization_list: Option<&'a RawValue>,
    #[serde(borrow)]
    blob_versioned_hashes: Option<&'a RawValue>,
    #[serde(borrow)]
    chain_id: Option<&'a RawValue>,
}

/// An authorization of EIP-7702.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuthorizationMembers {
    chain_id: U256,
    address: Address,
    nonce: U64,
    #[serde(alias = "v")]
    y_parity: U8,
    r: U256,
    s: U256,
}

impl From<AuthorizationMembers> for SignedAuthorization {
    fn from(members: AuthorizationMembers) -> Self {
        let authorization = Authorization {
            chain_id: members.chain_id,
            address: members.address,
            nonce: members.nonce.to(),
        };
        Self::new_unchecked(authorization, members.y_parity.to(), members.r, members.s)
    }
}

/// A call object as the client sent it.
#[derive(Debug)]
pub struct CallObject {
    call: CallInput,
    data: Option<Bytes>,
    input: Option<Bytes>,
    chain_id: Option<Big>,
}

fn member<T: Arg>(name: &str, value: Option<&RawValue>) -> Result<Option<T>, String> {
    field("TransactionArgs", name, value)
}

impl Arg for CallObject {
    fn from_json(json: &str) -> Result<Self, String> {
        let json = object(json);
        if kind(json) != "object" {
            return Err(unfit(kind(json), "ethapi.TransactionArgs"));
        }
        let members: Members<'_> = json::read(json).map_err(|error| error.to_string())?;
        // No account has more wei than fit into 128 bits. A larger value is cut to 128 bits, and
        // the balance check refuses the call.
        let wei = |name, value| {
            Ok::<_, String>(member::<Big>(name, value)?.map(|Big(wei)| wei.saturating_to::<u128>()))
        };
        let call = CallInput {
            from: member::<Address>("from", members.from)?.unwrap_or_default(),
            to: member("to", members.to)?,
            gas: member::<Quantity>("gas", members.gas)?.map(|Quantity(gas)| gas),
            gas_price: wei("gasPrice", members.gas_price)?,
            max_fee_per_gas: wei("maxFeePerGas", members.max_fee_per_gas)?,
            max_priority_fee_per_gas: wei(
                "maxPriorityFeePerGas",
                members.max_priority_fee_per_gas,
            )?,
            value: member::<Big>("value", members.value)?
                .map_or_else(Default::default, |Big(value)| value),
            nonce: member::<Quantity>("nonce", members.nonce)?.map(|Quantity(nonce)| nonce),
            data: Bytes::new(),
            access_list: member::<Json<AccessList>>("accessList", members.access_list)?
                .map_or_else(Default::default, |it| it.0),
            authorization_list: member::<Json<Vec<AuthorizationMembers>>>(
                "authorizationList",
                members.authorization_list,
            )?
            .map(|Json(list)| list.into_iter().map(Into::into).collect()),
            blob_hashes: member::<Json<Vec<B256>>>(
                "blobVersionedHashes",
                members.blob_versioned_hashes,
            )?
            .map(|it| it.0),
        };
        let (data, input) = (
            member("data", members.data)?,
            member("input", members.input)?,
        );
        Ok(Self {
            call,
            data,
            input,
            chain_id: member("chainId", members.chain_id)?,
        })
    }
}

impl CallObject {
    /// The call as a transaction that is to be sent: unlike a call it must not have two different
    /// data.
    pub fn into_transaction(self, chain_id: u64) -> Result<CallInput, RpcError> {
        if self.input.is_some() && self.data.is_some() && self.input != self.data {
            return Err(RpcError::server(
                r#"both "data" and "input" are set and not equal. Please use "input" to pass transaction call data"#,
            ));
        }
        self.into_input(chain_id)
    }

    /// The call. Its data are `input`, otherwise `data`.
    pub fn into_input(self, chain_id: u64) -> Result<CallInput, RpcError> {
        if let Some(Big(id)) = self
            .chain_id
            .filter(|Big(id)| id.saturating_to::<u64>() != chain_id)
        {
            return Err(RpcError::server(format!(
                "chainId does not match node's (have={id}, want={chain_id})"
            )));
        }
        Ok(CallInput {
            data: self.input.or(self.data).unwrap_or_default(),
            ..self.call
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::U256;

    #[test]
    fn members_are_read_and_others_are_not_looked_at() {
        let object = r#"{"from":"0x00000000000000000000000000000000000000aa","to":null,"gas":"0x5208","value":"0x1","data":"0x1234",
            "input":"0x1234","nonce":"0x2","chainId":"0x385","blobs":7,"type":"0x2"}"#;
        let call = CallObject::from_json(object)
            .unwrap()
            .into_input(901)
            .unwrap();
        assert_eq!((call.from, call.to), (Address::with_last_byte(0xaa), None));
        assert_eq!(
            (call.gas, call.nonce, call.value),
            (Some(21_000), Some(2), U256::from(1))
        );
        assert_eq!(call.data, Bytes::from_static(&[0x12, 0x34]));
        assert_eq!(
            CallObject::from_json("{}")
                .unwrap()
                .into_input(901)
                .unwrap()
                .gas,
            None
        );
    }

    #[test]
    fn what_is_wrong_is_told_in_geths_words() {
        let refused = |json: &str| CallObject::from_json(json).unwrap_err();
        let field = |problem: &str, name: &str, kind: &str| {
            format!(
                "json: cannot unmarshal {problem} into Go struct field TransactionArgs.{name} of type {kind}"
            )
        };
        assert_eq!(
            refused(r#"{"to":"0x12"}"#),
            "hex string has length 2, want 40 for common.Address"
        );
        assert_eq!(
            refused(r#"{"data":"0x1"}"#),
            field("hex string of odd length", "data", "hexutil.Bytes")
        );
        assert_eq!(
            refused(r#"{"gas":"0x10000000000000000"}"#),
            field("hex number > 64 bits", "gas", "hexutil.Uint64")
        );
        // Decimal numbers are not quantities, with or without quotes.
        assert_eq!(
            refused(r#"{"value":"10"}"#),
            field("hex string without 0x prefix", "value", "*hexutil.Big")
        );
        assert_eq!(
            refused(r#"{"gasPrice":10}"#),
            field("non-string", "gasPrice", "*hexutil.Big")
        );
        assert_eq!(
            refused(r#""0x12""#),
            "json: cannot unmarshal string into Go value of type ethapi.TransactionArgs"
        );
        assert_eq!(
            refused("[]"),
            "json: cannot unmarshal array into Go value of type ethapi.TransactionArgs"
        );
    }
}
