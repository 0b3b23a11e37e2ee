//! Data that the batcher posted in the node's integration tests: `tests/it/posting/modes.rs` writes
//! a file per mode to the folder that `STARLING_POSTING_FRAMES` names.

use super::{Content, kona};
use alloy_primitives::{Bytes, hex};
use starling_proto::{channel::BatchContext, span::SpanBlock};
use std::path::Path;

/// The file for one mode of posting.
struct PostedFile {
    context: BatchContext,
    items: Vec<Vec<u8>>,
    blocks: Vec<SpanBlock>,
}

impl PostedFile {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a file");
        let mut file = Self {
            context: super::CONTEXT,
            items: vec![],
            blocks: vec![],
        };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            match words[0] {
                "chain" => {
                    file.context = BatchContext {
                        genesis_time: number(1),
                        block_time: number(2),
                        chain_id: number(3),
                    }
                }
                "item" => file.items.push(hex::decode(words[1]).expect("hex")),
                _ => {
                    let raw = words[3..].iter();
                    let raw = raw.map(|raw| raw.parse::<Bytes>().expect("hex"));
                    file.blocks.push(SpanBlock {
                        epoch_number: number(1),
                        timestamp: number(2),
                        transactions: raw.collect(),
                    });
                }
            }
        }
        file
    }
}

/// The blocks in a batch.
fn blocks(content: Content) -> Vec<SpanBlock> {
    match content {
        Content::Singular(batch) => vec![SpanBlock {
            epoch_number: batch.epoch_number,
            timestamp: batch.timestamp,
            transactions: batch.transactions,
        }],
        Content::Span { blocks, .. } => blocks,
    }
}

#[test]
fn kona_reads_what_our_batcher_has_posted() {
    let Some(folder) = std::env::var_os("STARLING_POSTING_FRAMES") else {
        println!("skipped: STARLING_POSTING_FRAMES names no folder");
        return;
    };
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut count = 0;
    for path in paths.filter(|path| path.extension().is_some_and(|end| end == "txt")) {
        let file = PostedFile::read(&path);
        let read = kona::read_posted(file.items.into_iter(), file.context);
        let read: Vec<_> = read.into_iter().flat_map(blocks).collect();
        assert!(
            !read.is_empty() && read == file.blocks,
            "{}",
            path.display()
        );
        println!("{}: {} blocks", path.display(), read.len());
        count += 1;
    }
    assert!(count > 0, "files of modes");
}
