//! The swarm's messages: envelopes, ids, signatures, requests and responses.

use crate::{address, array, b256, bytes, list, secret, version};
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpExecutionPayloadV4};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    gossip::{self, CheckContext, PayloadFlag, Seen, Signers, Verdict},
    l1info::{L1BlockInfo, L1InfoFormat},
    payload::{PayloadError, PayloadVersion, WirePayload},
    reqresp::{self, NumberRefusal, ResponseError},
    sign,
};

#[test]
fn gossip_envelopes_decompress_hash_recover_and_decode() {
    let fixture = fixture!("p2p-wire/gossip-envelopes.json");
    for vector in list(&fixture["vectors"]) {
        let version = version(&vector["version"]);
        let message = gossip::decompress(&bytes(&vector["compressed"]));
        assert_eq!(
            (message.flag, &message.bytes),
            (PayloadFlag::Decompressed, &bytes(&vector["decompressed"]))
        );

        let (signature, signed) = (array(&vector["signature"]), bytes(&vector["signed_bytes"]));
        assert_eq!(message.bytes, [&signature[..], &signed].concat());
        assert_eq!(
            sign::payload_hash(&signed),
            b256(&vector["derived"]["payload_hash"])
        );
        for (topic, id) in vector["derived"]["message_id_with_topic"]
            .as_object()
            .unwrap()
        {
            assert_eq!(
                gossip::message_id(topic, message.flag, &message.bytes),
                array(id)
            );
            assert_eq!(*topic, gossip::topic(10, version));
        }
        for (chain, expected) in vector["derived"]["signing"].as_object().unwrap() {
            let chain = chain.parse().unwrap();
            assert_eq!(
                sign::signing_hash(chain, sign::payload_hash(&signed)),
                b256(&expected["signing_hash"])
            );
            assert_eq!(
                sign::recover(&signature, chain, &signed),
                Ok(address(&expected["recovered_address"]))
            );
        }
        let again = gossip::encode_message(&signature, &signed).unwrap();
        assert_eq!(gossip::decompress(&again), message);

        let (wire, decoded) = (
            WirePayload::decode(version, &signed).unwrap(),
            &vector["decoded"],
        );
        assert_eq!(wire.claimed_hash(), b256(&decoded["blockHash"]));
        assert_eq!(
            (wire.number(), wire.timestamp()),
            (0, decoded["timestamp"].as_u64().unwrap())
        );
        match version {
            // The hash in this block was never filled in.
            PayloadVersion::V4 => assert!(matches!(
                wire.into_payload(),
                Err(PayloadError::HashMismatch { .. })
            )),
            _ => assert_eq!(wire.into_payload().unwrap().to_wire(version), signed),
        }
    }
}

#[test]
fn gossip_envelopes_of_the_other_collection_decode() {
    let fixture = fixture!("p2p/gossip/network-payload-envelopes.json");
    for vector in list(&fixture["vectors"]) {
        let version = PayloadVersion::ALL[vector["version"].as_u64().unwrap() as usize - 1];
        assert!(gossip::topic(10, version).ends_with(vector["topic_suffix"].as_str().unwrap()));
        let message = gossip::decompress(&bytes(&vector["snappy_block_compressed"])).bytes;
        let (signature, signed) = message.split_first_chunk::<65>().unwrap();
        for (chain, signer) in vector["recovered_signer_by_assumed_chain_id"]
            .as_object()
            .unwrap()
        {
            assert_eq!(
                sign::recover(signature, chain.parse().unwrap(), signed),
                Ok(address(signer))
            );
        }
        let payload = WirePayload::decode(version, signed)
            .unwrap()
            .into_payload()
            .unwrap();
        let decoded = &vector["decoded"];
        assert_eq!(payload.hash, b256(&decoded["block_hash"]));
        let root = decoded["parent_beacon_block_root"]
            .as_str()
            .map(|_| b256(&decoded["parent_beacon_block_root"]));
        assert_eq!(payload.header.parent_beacon_block_root, root);
    }
}

#[test]
fn a_real_isthmus_block_passes_from_its_json_to_its_payload() {
    let fixture = fixture!("p2p-wire/gossip-v4-real-block.json");
    let signed = bytes(&fixture["signed_bytes"]);
    let root = b256(&fixture["parentBeaconBlockRoot"]);
    let json: OpExecutionPayloadV4 =
        serde_json::from_value(fixture["executionPayload"].clone()).unwrap();
    let wire =
        WirePayload::from_execution_payload(OpExecutionPayload::V4(json.clone()), Some(root))
            .unwrap();
    assert_eq!(
        WirePayload::decode(PayloadVersion::V4, &signed).unwrap(),
        wire
    );

    let payload = wire.into_payload().unwrap();
    assert_eq!(
        payload.hash,
        b256(&fixture["executionPayload"]["blockHash"])
    );
    assert_eq!(payload.version(), PayloadVersion::V4);
    assert_eq!(payload.to_wire(PayloadVersion::V4), signed);
    assert_eq!(
        payload.to_execution_payload(PayloadVersion::V4),
        OpExecutionPayload::V4(json)
    );
    assert_eq!(payload.decode_transactions().unwrap().len(), 6);
    assert_eq!(
        L1BlockInfo::of(&payload).unwrap().format,
        L1InfoFormat::Isthmus
    );
}

#[test]
fn a_real_isthmus_block_is_signed_accepted_and_served() {
    let fixture = fixture!("p2p-wire/gossip-v4-real-block.json");
    let chain = fixture["chain_id"].as_u64().unwrap();
    let signed = bytes(&fixture["signed_bytes"]);
    let payload = WirePayload::decode(PayloadVersion::V4, &signed)
        .unwrap()
        .into_payload()
        .unwrap();
    let secret = secret(&fixture["private_key"]);
    let signer = address(&fixture["signer_address"]);
    assert_eq!(sign::address(&secret), signer);
    let signature = sign::sign(&secret, chain, &signed);
    assert_eq!(signature, array(&fixture["signature_r_s_v"]));
    assert_eq!(
        sign::signing_hash(chain, sign::payload_hash(&signed)),
        b256(&fixture["signing_hash"])
    );

    let message = gossip::decompress(&bytes(&fixture["message_data"]));
    let topic = gossip::topic(chain, PayloadVersion::V4);
    assert_eq!(topic, fixture["topic"].as_str().unwrap());
    assert_eq!(
        gossip::message_id(&topic, message.flag, &message.bytes),
        array(&fixture["message_id"])
    );

    let (signers, forks) = (
        Signers::new(signer),
        ForkSchedule::from_genesis(Fork::Isthmus),
    );
    let context = CheckContext {
        chain_id: chain,
        signers: &signers,
        threshold_secs: 60,
        forks: &forks,
    };
    let verdict = gossip::check(
        PayloadVersion::V4,
        message.flag,
        &message.bytes,
        payload.timestamp(),
        &context,
        &mut Seen::default(),
    );
    assert_eq!(verdict, Verdict::Accept(payload.clone(), signer));

    let response = reqresp::encode_response(&payload, &forks).unwrap();
    assert_eq!(response[..5], bytes(&fixture["reqresp_response_header"]));
    assert_eq!(
        reqresp::decode_response(&response).unwrap().into_payload(),
        Ok(payload)
    );
}

#[test]
fn ssz_envelopes_decode_to_the_fields_they_were_made_of() {
    let v4 = fixture!("p2p-wire/ssz-envelope-v4.json");
    let wire = WirePayload::decode(PayloadVersion::V4, &bytes(&v4["ssz_envelope"])).unwrap();
    assert_eq!((wire.number(), wire.timestamp()), (222, 555));
    assert_eq!(wire.claimed_hash(), b256(&v4["decoded"]["blockHash"]));
    assert!(matches!(
        wire.into_payload(),
        Err(PayloadError::HashMismatch { .. })
    ));

    let v3 = fixture!("p2p/ssz/execution-payload-envelope-v3.json");
    for vector in list(&v3["vectors"]) {
        // The vector's name says V3, but its offsets and fields are those of V4.
        let wire = WirePayload::decode(PayloadVersion::V4, &bytes(&vector["hex"])).unwrap();
        assert_eq!((wire.number(), wire.timestamp()), (222, 555));
    }
}

#[test]
fn malicious_ssz_is_an_error() {
    let fixture = fixture!("p2p-wire/ssz-malicious.json");
    let real = fixture!("p2p-wire/gossip-v4-real-block.json");
    for vector in list(&fixture["vectors"]) {
        let (versions, bytes) = match vector["decode_as"].as_str().unwrap() {
            "envelope of any version" => (PayloadVersion::ALL.to_vec(), bytes(&vector["bytes"])),
            "V3 envelope" => (vec![PayloadVersion::V3], bytes(&real["signed_bytes"])),
            _ => (vec![version(&vector["decode_as"])], bytes(&vector["bytes"])),
        };
        for version in versions {
            assert!(
                WirePayload::decode(version, &bytes).is_err(),
                "{}",
                vector["expect"]
            );
        }
    }
}

#[test]
fn message_ids_hash_flag_topic_and_payload() {
    let fixture = fixture!("p2p-wire/message-id.json");
    for vector in list(&fixture["vectors"]) {
        let message = gossip::decompress(&bytes(&vector["data"]));
        assert_eq!(
            message.flag == PayloadFlag::Decompressed,
            vector["snappy_valid"].as_bool().unwrap()
        );
        let id = gossip::message_id(
            vector["topic"].as_str().unwrap(),
            message.flag,
            &message.bytes,
        );
        assert_eq!(id, array(&vector["message_id"]), "{vector}");
    }
}

#[test]
fn signing_hashes_and_signatures_are_those_of_others() {
    for vector in list(&fixture!("p2p-wire/signing-hash.json")["vectors"]) {
        let hash = sign::payload_hash(&bytes(&vector["payload_bytes"]));
        let signing_hash = sign::signing_hash(vector["chain_id"].as_u64().unwrap(), hash);
        // Our code signs only in the zero domain, so vectors of other domains must give other
        // hashes.
        let blocks = b256(&vector["domain"]).is_zero();
        assert_eq!(
            signing_hash == b256(&vector["signing_hash"]),
            blocks,
            "{vector}"
        );
    }
    for vector in list(&fixture!("p2p-wire/signatures-derived.json")["vectors"]) {
        let (secret, chain) = (
            secret(&vector["private_key"]),
            vector["chain_id"].as_u64().unwrap(),
        );
        let signed = bytes(&vector["payload_bytes"]);
        let signature = sign::sign(&secret, chain, &signed);
        assert_eq!(signature, array(&vector["signature_r_s_v"]));
        assert_eq!(
            sign::recover(&signature, chain, &signed),
            Ok(address(&vector["address"]))
        );
    }
    for vector in list(&fixture!("p2p-wire/keys.json")["vectors"]) {
        assert_eq!(
            sign::address(&secret(&vector["private_key"])),
            address(&vector["eth_address"])
        );
    }
}

#[test]
fn requests_and_responses_are_those_of_others() {
    let fixture = fixture!("p2p-wire/reqresp-derived.json");
    for vector in list(&fixture["requests"]) {
        let number = vector["block_number"].as_u64().unwrap();
        assert_eq!(reqresp::encode_request(number), array(&vector["bytes"]));
        assert_eq!(
            reqresp::decode_request(&bytes(&vector["bytes"])),
            Some(number)
        );
    }
    for (name, response) in fixture["error_responses"].as_object().unwrap() {
        let expected = match name.as_str() {
            "not_found" | "kona_shim_reply" => NumberRefusal::NotFound,
            "invalid_request" => NumberRefusal::InvalidRequest,
            _ => NumberRefusal::Other(3),
        };
        let decoded = reqresp::decode_response(&bytes(response));
        assert!(
            matches!(decoded, Err(ResponseError::Refused(refusal)) if refusal == expected),
            "{name}"
        );
        assert_eq!(expected.code(), bytes(response)[0]);
    }
    for vector in list(&fixture["success"]) {
        let wire = reqresp::decode_response(&bytes(&vector["response"])).unwrap();
        let expected =
            WirePayload::decode(version(&vector["payload"]), &bytes(&vector["unframed_ssz"]))
                .unwrap();
        assert_eq!(wire, expected);
    }
}
