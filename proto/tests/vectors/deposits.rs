//! Deposits, L1 attributes and configuration updates.

use crate::{b256, bytes, list};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Log, LogData, U256, keccak256};
use op_alloy_consensus::OpTxEnvelope;
use starling_proto::{
    config_update::CONFIG_UPDATE_EVENT, deposit, l1info::L1BlockInfo, payload::decode_transaction,
    system_config::SystemConfig,
};

#[test]
fn deposit_transactions_survive_decoding() {
    for vector in list(&fixture!("deposits-fees/deposit-tx-rlp.json")["literals"]) {
        let raw = bytes(&vector["hex"]);
        let transaction = decode_transaction(&raw).unwrap();
        assert_eq!(transaction.encoded_2718(), raw);
        let OpTxEnvelope::Deposit(deposit) = transaction else {
            panic!("{vector} is no deposit")
        };
        let info = L1BlockInfo::decode(&deposit.input).unwrap();
        assert_eq!(
            deposit.source_hash,
            deposit::l1_info_source_hash(info.hash, info.sequence_number)
        );
    }
}

#[test]
fn l1_attributes_survive_decoding() {
    let kona = fixture!("deposits-fees/l1-attributes-calldata.json");
    let magi = fixture!("deposits-fees/l1-attributes-calldata-magi.json");
    for vector in list(&kona["literals"])
        .iter()
        .chain(list(&magi["literals"]))
    {
        let calldata = bytes(&vector["hex"]);
        let info = L1BlockInfo::decode(&calldata).unwrap();
        assert_eq!(info.encode(), calldata);
        let name = vector["name"].as_str().unwrap().to_lowercase();
        let test = vector["test"].as_str().unwrap_or_default();
        let format = format!("{:?}", info.format).to_lowercase();
        assert!(
            name.contains(&format) || test.contains(&format),
            "{name} {test} is not {format}"
        );
    }
}

#[test]
fn l1_attributes_of_real_blocks_have_these_fees() {
    for vector in list(&fixture!("deposits-fees/l1-info-decode.json")["vectors"]) {
        let calldata = if vector["calldata"].is_string() {
            Bytes::from(bytes(&vector["calldata"]))
        } else {
            match decode_transaction(&bytes(&vector["deposit_tx"])).unwrap() {
                OpTxEnvelope::Deposit(deposit) => deposit.input.clone(),
                other => panic!("{other:?} is no deposit"),
            }
        };
        let info = L1BlockInfo::decode(&calldata).unwrap();
        let field = |key: &str| vector[key].as_u64().unwrap_or_default();
        assert_eq!(info.base_fee, U256::from(field("l1_base_fee")));
        assert_eq!(
            U256::from_be_bytes(info.overhead.0),
            U256::from(field("overhead"))
        );
        assert_eq!(
            U256::from_be_bytes(info.scalar.0),
            U256::from(field("scalar"))
        );
        assert_eq!(u64::from(info.base_fee_scalar), field("base_fee_scalar"));
        assert_eq!(info.blob_base_fee, U256::from(field("blob_base_fee")));
        assert_eq!(
            u64::from(info.blob_base_fee_scalar),
            field("blob_base_fee_scalar")
        );
        assert_eq!(
            u64::from(info.operator_fee_scalar),
            field("operator_fee_scalar")
        );
        assert_eq!(info.operator_fee_constant, field("operator_fee_constant"));
    }
}

#[test]
fn source_hashes_are_those_of_the_reference() {
    for vector in list(&fixture!("deposits-fees/source-hash.json")["vectors"]) {
        let computed = match vector["kind"].as_str().unwrap() {
            "upgrade" => deposit::upgrade_source_hash(vector["intent"].as_str().unwrap()),
            "l1_info" => deposit::l1_info_source_hash(
                b256(&vector["l1_block_hash"]),
                vector["seq"].as_u64().unwrap(),
            ),
            // Domain 3 was retired before it was ever used.
            "domain3" => continue,
            kind => panic!("unknown kind {kind}"),
        };
        assert_eq!(computed, b256(&vector["source_hash"]));
    }
    // The vectors lack domain 0, so compute its hash here from the definition.
    let (hash, word) = (B256::repeat_byte(7), |n: u64| B256::from(U256::from(n)));
    let inner = keccak256([hash, word(5)].concat());
    assert_eq!(
        deposit::user_source_hash(hash, 5),
        keccak256([word(0), inner].concat())
    );
}

#[test]
fn gas_config_updates_are_read_and_refused_like_elsewhere() {
    for vector in list(&fixture!("deposits-fees/system-config-update-logs.json")["literals"]) {
        let topics = vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(1)];
        let data = bytes(&vector["hex"]);
        let mut config = SystemConfig::default();
        let log = Log {
            address: Address::ZERO,
            data: LogData::new_unchecked(topics, data.clone().into()),
        };
        let result = config.apply_log(&log, false);
        let test = vector["test"].as_str().unwrap();
        let good = test.ends_with("try_from") || test.contains("succeeds");
        assert_eq!(result.is_ok(), good, "{test}: {result:?}");
        if good {
            assert_eq!(
                (config.overhead.as_slice(), config.scalar.as_slice()),
                (&data[64..96], &data[96..])
            );
        } else {
            assert_eq!(config, SystemConfig::default());
        }
    }
}
