//! Files of RLP blocks, plain and compressed, as `starling import` reads them.

use crate::InputKind;
use starling::transfer::block_file::{self, BlockReader, BlockWriter};
use std::path::PathBuf;

/// Largest number of blocks read from one file: a compressed one may have millions.
const BLOCKS: usize = 64;

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a temporary folder");
}

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let path = path(match data {
        [0x1f, 0x8b, ..] => "blocks.rlp.gz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "blocks.rlp.zst",
        _ => "blocks.rlp",
    });
    std::fs::write(&path, data).expect("a file");
    let mut end = 0;
    for block in BlockReader::open(&path).expect("a file").take(BLOCKS) {
        let block = match block {
            Ok(block) => block,
            Err(error) => {
                outcome.add(&error.cause);
                break;
            }
        };
        assert!(
            block.offset == end,
            "a block begins where the one before it ends"
        );
        let encoded = block_file::encode(&block.payload);
        end += encoded.len() as u64;
        outcome.scale(block.payload.transactions.len());
        let plain = self::path("again.rlp");
        std::fs::write(&plain, encoded).expect("a file");
        let again = BlockReader::open(&plain).expect("a file").next();
        assert_eq!(
            again.expect("a block").expect("our own encoding").payload,
            block.payload
        );
    }
    outcome
}

fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.path().join(name))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let blocks = super::gossip::blocks();
    let mut seeds: Vec<Vec<u8>> = blocks.iter().map(block_file::encode).collect();
    for name in ["seed.rlp", "seed.rlp.gz", "seed.rlp.zst"] {
        let path = path(name);
        let mut writer = BlockWriter::create(&path, false).expect("a file");
        blocks
            .iter()
            .for_each(|block| writer.write(block).expect("a file"));
        writer.finish().expect("a file");
        seeds.push(std::fs::read(path).expect("a file"));
    }
    // A megabyte of zeros, and a block whose header claims all of them.
    let bomb = [&[0xfa, 0x0f, 0xff, 0xff][..], &vec![0; 1 << 20]].concat();
    seeds.extend(zstd::encode_all(&bomb[..], 1).ok());
    seeds
}
