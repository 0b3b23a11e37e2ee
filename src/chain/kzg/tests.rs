//! KZG proofs, tested with the vectors of the consensus tests.

use super::*;
use alloy_primitives::Bytes;
use std::fs::File;

/// The value of a field in a vector, which is YAML: `  name: '0x…'`.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let value = text.split_once(&format!("{name}: '"))?.1;
    Some(value.split('\'').next()?.parse().unwrap())
}

/// The vectors of a folder in which all values have the right length for their types.
fn vectors(folder: &str) -> Option<Vec<(String, Blob, Bytes48, String)>> {
    let folder = starling_testkit::fixture(&format!("blobs/kzg/{folder}"))?;
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = zstd::decode_all(File::open(&path).unwrap()).unwrap();
        let text = String::from_utf8(text).unwrap();
        let blob = field(&text, "blob").unwrap();
        let commitment = field(&text, "commitment").unwrap();
        let (Ok(blob), Ok(commitment)) = (
            Blob::try_from(&blob[..]),
            Bytes48::try_from(&commitment[..]),
        ) else {
            continue;
        };
        vectors.push((path.display().to_string(), blob, commitment, text));
    }
    Some(vectors)
}

#[test]
fn blob_proofs_are_judged_as_the_consensus_tests_judge_them() {
    let Some(vectors) = vectors("verify_blob_kzg_proof") else {
        return;
    };
    let mut outcomes = std::collections::BTreeSet::new();
    for (name, blob, commitment, text) in vectors {
        let proof = field(&text, "proof").unwrap();
        let sidecar = TxSidecar::Eip4844(BlobTransactionSidecar {
            blobs: vec![blob],
            commitments: vec![commitment],
            proofs: vec![Bytes48::from_slice(&proof)],
        });
        let judged = match verify(&sidecar) {
            Ok(valid) => valid.to_string(),
            Err(_) => "null".to_owned(),
        };
        assert!(
            text.contains(&format!("output: {judged}\n")),
            "{name}: {judged}"
        );
        outcomes.insert(judged);
    }
    assert_eq!(outcomes.len(), 3, "true, false and null");
}

#[test]
fn sidecars_made_here_have_the_vectors_commitments_and_proofs() {
    let Some(vectors) = vectors("compute_blob_kzg_proof") else {
        return;
    };
    let mut valid = 0;
    for (name, blob, commitment, text) in vectors {
        let Some(proof) = field(&text, "output") else {
            continue;
        };
        assert_eq!(
            blob_proof(&blob, &commitment).unwrap()[..],
            proof[..],
            "{name}"
        );
        let whole = sidecar(vec![blob]).unwrap();
        assert_eq!(whole.commitments(), [commitment], "{name}");
        let cells = cell_sidecar(vec![blob]).unwrap();
        assert_eq!(cells.commitments(), [commitment], "{name}");
        assert!(verify(&whole).unwrap() && verify(&cells).unwrap());
        valid += 1;
    }
    assert!(valid >= 3, "{valid}");
    let not_a_blob = Blob::repeat_byte(0xff);
    assert!(sidecar(vec![not_a_blob]).is_err());
    assert!(cell_sidecar(vec![not_a_blob]).is_err());
}
