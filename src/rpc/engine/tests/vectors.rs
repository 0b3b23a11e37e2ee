//! Payloads, attributes and payload ids of other implementations and of real chains.

use super::*;

#[test]
fn payload_ids_are_op_geths() {
    let Some(file) = fixture("engine/payload-id.json") else {
        return;
    };
    for vector in file["vectors"].as_array().unwrap() {
        let attributes = read::<AttributesJson>(&vector["attributes"])
            .into_attributes()
            .unwrap();
        let id = payload_id(
            read(&vector["parent_hash"]),
            &attributes,
            read(&vector["version"]),
        );
        assert_eq!(json!(id), vector["expected_payload_id"]);
        // Without withdrawals, the id is the same as for an empty list.
        let mut absent = attributes.clone();
        absent.payload_attributes.withdrawals = None;
        assert_eq!(payload_id(read(&vector["parent_hash"]), &absent, 3), id);
        assert_eq!(payload_id(read(&vector["parent_hash"]), &absent, 1).0[0], 1);
    }
}

#[test]
fn attributes_of_a_real_chain_are_read() {
    let Some(file) = fixture("engine/payload-attributes-real.json") else {
        return;
    };
    let attributes = read::<AttributesJson>(&file["attributes"])
        .into_attributes()
        .unwrap();
    assert_eq!(
        serde_json::to_value(&attributes).unwrap(),
        file["attributes"]
    );
    let mut json = file["attributes"].clone();
    for (fee, want) in [(json!(257), 257), (json!("0x101"), 257), (json!(0), 0)] {
        json["minBaseFee"] = fee;
        assert_eq!(
            read::<AttributesJson>(&json)
                .into_attributes()
                .unwrap()
                .min_base_fee,
            Some(want)
        );
    }
    json["eip1559Params"] = json!("0x");
    assert_eq!(
        read::<AttributesJson>(&json)
            .into_attributes()
            .unwrap()
            .eip_1559_params,
        None
    );
    json["eip1559Params"] = json!("0x0102");
    assert!(read::<AttributesJson>(&json).into_attributes().is_err());
}

#[test]
fn extra_data_is_that_of_the_vectors() {
    use crate::chain::rules::{Eip1559Constants, ExtraData, Rules};
    use starling_proto::system_config::Eip1559Params;
    let Some(file) = fixture("engine/extra-data.json") else {
        return;
    };
    for vector in file["vectors"].as_array().unwrap() {
        // Vectors without `extraData` test the attributes, which the builder's tests check.
        let Some(want) = vector["extraData"].as_str() else {
            continue;
        };
        let fork = if vector["fork"] == "jovian" {
            Fork::Jovian
        } else {
            Fork::Holocene
        };
        let [denominator, elasticity]: [u64; 2] = read(&vector["default"]);
        let spec = ChainSpec {
            chain_id: 1,
            genesis_hash: B256::ZERO,
            genesis_time: 0,
            rules: Rules::Optimism {
                forks: ForkSchedule::from_genesis(fork),
                eip1559: Eip1559Constants {
                    elasticity,
                    denominator,
                    denominator_canyon: denominator,
                },
            },
        };
        let params = Eip1559Params::decode(read(&vector["eip1559Params"]));
        let minimum = vector["minBaseFee"].as_u64().unwrap_or(0);
        assert_eq!(
            ExtraData::encode(&spec, 5, params, minimum)
                .unwrap()
                .to_string(),
            want
        );
    }
}

/// Payloads as other implementations write them. Each is read in the version that it belongs to,
/// and a faulty payload is refused.
#[test]
fn payloads_are_read_by_version() {
    let Some(file) = fixture("engine/payload-json/payload_mod.rs.json") else {
        return;
    };
    let jovian = ChainSpec {
        ..crate::chain::evm::tests::op(Fork::Jovian)
    };
    let specs = [Fork::Regolith, Fork::Canyon, Fork::Holocene, Fork::Jovian]
        .map(crate::chain::evm::tests::op);
    for literal in file["literals"].as_array().unwrap() {
        let name = literal["test"].as_str().unwrap();
        let payload: PayloadJson = read(&literal["json"]);
        let accepted: Vec<u8> = (2..=4)
            .filter(|version| {
                let spec = &specs[usize::from(*version) - 1];
                check_payload(spec, &payload, *version).is_ok()
                    && payload.check_fork(spec, *version).is_ok()
            })
            .collect();
        let want: &[u8] = match name {
            "serde_payload_input_enum_v4" => &[3, 4],
            "serde_payload_input_enum_v3" => &[3],
            "serde_payload_input_enum_v2" => &[2],
            _ => &[],
        };
        assert_eq!(accepted, want, "{name}");
        assert!(check_payload(&jovian, &payload, 2).is_err());
    }
    let Some(file) = fixture("engine/payload-json/payload_v3.rs.json") else {
        return;
    };
    let envelope = &file["literals"][0]["json"];
    let payload: PayloadJson = read(&envelope["executionPayload"]);
    assert!(check_payload(&specs[2], &payload, 3).is_ok());
}

/// Blocks of real chains, converted to payloads: each payload has the hash of its block.
#[test]
fn real_blocks_keep_their_hash() {
    let names = ["bedrock_raw_block", "op_block_json", "temp_block_json"];
    for name in names {
        let Some(file) = fixture(&format!("engine/l2-blocks/{name}.txt")) else {
            return;
        };
        let block = file
            .get("result")
            .or(file.get("test_block_data"))
            .unwrap_or(&file);
        let mut payload = block.clone();
        for (to, from) in [
            ("feeRecipient", "miner"),
            ("prevRandao", "mixHash"),
            ("blockNumber", "number"),
            ("blockHash", "hash"),
        ] {
            payload[to] = block[from].clone();
        }
        let raw = |tx: &Value| json!(Bytes::from(read::<OpTxEnvelope>(tx).encoded_2718()));
        payload["transactions"] = block["transactions"]
            .as_array()
            .unwrap()
            .iter()
            .map(raw)
            .collect();
        let beacon_root: Option<B256> = block.get("parentBeaconBlockRoot").map(read);
        let version = if beacon_root.is_some() { 3 } else { 1 };
        let hash: B256 = read(&block["hash"]);
        assert_eq!(
            read::<PayloadJson>(&payload)
                .into_payload(version, beacon_root)
                .unwrap()
                .hash,
            hash,
            "{name}"
        );
        payload["gasUsed"] = json!("0x1");
        assert!(
            read::<PayloadJson>(&payload)
                .into_payload(version, beacon_root)
                .unwrap_err()
                .contains("block hash")
        );
    }
}

#[test]
fn each_get_payload_serves_its_forks() {
    let served = |fork| {
        (1..=5)
            .filter(|version| serves(*version, &crate::chain::evm::tests::op(fork).at(5)))
            .collect::<Vec<u8>>()
    };
    assert_eq!(served(Fork::Regolith), [1, 2]);
    assert_eq!(served(Fork::Canyon), [2]);
    assert_eq!(served(Fork::Ecotone), [3]);
    assert_eq!(served(Fork::Holocene), [3]);
    assert_eq!(served(Fork::Isthmus), [4]);
    assert_eq!(served(Fork::Jovian), [4]);
    assert_eq!(served(Fork::Karst), [4, 5]);
}
