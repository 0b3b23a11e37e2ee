//! Commitments, proofs and the choice of blobs, with external test vectors.

use super::*;
use alloy_primitives::B256;
use proptest::prelude::*;
use std::{fs::File, path::Path};

/// The text of a zstd-compressed test vector.
fn unpacked(path: &Path) -> String {
    String::from_utf8(zstd::decode_all(File::open(path).unwrap()).unwrap()).unwrap()
}

/// The value of a string field in a c-kzg vector, which is YAML: `  name: '0x…'`.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let value = text.split_once(&format!("{name}: '"))?.1;
    Some(value.split('\'').next()?.parse().unwrap())
}

fn vectors(folder: &str) -> Option<Vec<(String, String)>> {
    let folder = starling_testkit::fixture(&format!("blobs/kzg/{folder}"))?;
    let paths = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    Some(
        paths
            .map(|path| (path.display().to_string(), unpacked(&path)))
            .collect(),
    )
}

fn id(index: u64, versioned_hash: B256) -> BlobRef {
    BlobRef {
        index,
        versioned_hash,
    }
}

#[test]
fn blobs_are_matched_by_their_commitments() {
    let Some(vectors) = vectors("blob_to_kzg_commitment") else {
        return;
    };
    let (mut blobs, mut wanted, mut invalid) = (vec![], vec![], 0);
    for (name, text) in vectors {
        let blob = field(&text, "blob").unwrap();
        match field(&text, "output") {
            Some(commitment) => {
                wanted.push(id(0, kzg_to_versioned_hash(&commitment)));
                blobs.push(blob);
            }
            None => {
                let error = match_blobs(vec![blob], &[id(0, B256::ZERO)]).unwrap_err();
                let is_named = matches!(error, BeaconCause::Malformed(_) | BeaconCause::Untrue(_));
                assert!(is_named, "{name}: {error}");
                invalid += 1;
            }
        }
    }
    assert!(
        blobs.len() >= 3 && invalid >= 2,
        "{} and {invalid}",
        blobs.len()
    );
    let expected: Vec<_> = blobs.iter().map(|bytes| blob(bytes).unwrap()).collect();
    // Endpoints return blobs in block order, and may add others.
    let mut answer = blobs.clone();
    answer.reverse();
    assert_eq!(match_blobs(answer, &wanted).unwrap(), expected);
    assert_eq!(
        match_blobs(blobs.clone(), &wanted[1..2]).unwrap(),
        expected[1..2]
    );
    let twice = [wanted[0], wanted[0]];
    assert_eq!(match_blobs(blobs[..1].to_vec(), &twice).unwrap().len(), 2);
    let missing = match_blobs(blobs[1..].to_vec(), &wanted).unwrap_err();
    assert!(
        matches!(&missing, BeaconCause::Untrue(text) if text.contains("is not among the")),
        "{missing}"
    );
    let mut forged = blobs[0].to_vec();
    forged[40] ^= 1;
    assert!(matches!(
        match_blobs(vec![forged.into()], &wanted[..1]),
        Err(BeaconCause::Untrue(_))
    ));
    let short = Bytes::from(vec![0; 131_071]);
    assert!(matches!(
        match_blobs(vec![short], &wanted[..1]),
        Err(BeaconCause::Malformed(_))
    ));
    assert!(match_blobs(vec![Bytes::new(); MAX_BLOBS + 1], &wanted[..1]).is_err());
}

#[test]
fn proofs_of_sidecars_are_checked() {
    let Some(vectors) = vectors("verify_blob_kzg_proof") else {
        return;
    };
    let mut seen = (0, 0);
    for (name, text) in vectors {
        let kzg_commitment = field(&text, "commitment").unwrap();
        // A commitment that is not 48 bytes long has no versioned hash.
        let hash = match kzg_commitment.len() {
            48 => kzg_to_versioned_hash(&kzg_commitment),
            _ => B256::ZERO,
        };
        let wanted = [id(3, hash)];
        let sidecar = Sidecar {
            index: crate::rollup::beacon::Quoted(3),
            blob: field(&text, "blob").unwrap(),
            kzg_proof: field(&text, "proof").unwrap(),
            kzg_commitment,
        };
        let valid = text.contains("output: true");
        assert_eq!(
            match_sidecars(vec![sidecar], &wanted).is_ok(),
            valid,
            "{name}"
        );
        if valid { seen.0 += 1 } else { seen.1 += 1 }
    }
    assert!(seen.0 >= 1 && seen.1 >= 5, "{seen:?}");
}

/// Sidecars of a real slot, with changed indexes and commitments.
#[test]
fn sidecars_are_found_by_index_and_hash() {
    let name = "blobs/beacon-api/eth_v1_beacon_blob_sidecars_7422094_goerli.json.zst";
    let Some(path) = starling_testkit::fixture(name) else {
        return;
    };
    #[derive(Deserialize)]
    struct Answer {
        data: Vec<Sidecar>,
    }
    let text = unpacked(&path);
    let read = || serde_json::from_str::<Answer>(&text).unwrap().data;
    let wanted: Vec<_> = read()
        .iter()
        .map(|sidecar| {
            id(
                sidecar.index.0,
                kzg_to_versioned_hash(&sidecar.kzg_commitment),
            )
        })
        .collect();
    assert!(!wanted.is_empty());
    let mut reversed = read();
    reversed.reverse();
    let found = match_sidecars(reversed, &wanted).unwrap();
    for (blob, sidecar) in found.iter().zip(read()) {
        assert_eq!(blob.0[..], sidecar.blob[..]);
    }
    let elsewhere = id(wanted[0].index + 50, wanted[0].versioned_hash);
    assert!(matches!(
        match_sidecars(read(), &[elsewhere]),
        Err(BeaconCause::Untrue(_))
    ));
    let other = id(wanted[0].index, B256::ZERO);
    assert!(
        matches!(match_sidecars(read(), &[other]), Err(BeaconCause::Untrue(text)) if text.contains("has the versioned hash"))
    );
}

#[test]
fn requests_name_hashes_or_indexes() {
    let wanted = [id(2, B256::repeat_byte(1)), id(7, B256::repeat_byte(2))];
    let [one, two] = wanted.map(|blob| blob.versioned_hash);
    assert_eq!(
        blobs_path(9, &wanted),
        format!("/eth/v1/beacon/blobs/9?versioned_hashes={one}&versioned_hashes={two}")
    );
    assert_eq!(
        sidecars_path(9, &wanted),
        "/eth/v1/beacon/blob_sidecars/9?indices=2&indices=7"
    );
}

proptest! {
    #[test]
    fn answers_of_any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(match_blobs(vec![bytes.into()], &[id(0, B256::ZERO)]).is_err());
    }
}

#[test]
fn more_blobs_than_a_block_can_have_are_refused() {
    let many = vec![Bytes::new(); MAX_BLOBS + 1];
    let error = match_blobs(many, &[]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("129 blobs of one block"), "{text}");
}
