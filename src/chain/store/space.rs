//! The keyspaces of the store, and how the engine keeps each: what is compressed, filtered, kept apart, and when it is merged.

use fjall::{
    CompressionType, KeyspaceCreateOptions, KvSeparationOptions,
    compaction::Leveled,
    config::{CompressionPolicy, FilterPolicy},
};
use std::sync::Arc;

/// Rows of so many bytes are kept apart from their keys: unwind records, and none else of history.
const LONG_HISTORY: u32 = 1024;
/// Likewise of blocks: the bodies of blocks with many transactions.
const LONG_BLOCKS: u32 = 4096;
/// Tables that gather before they are merged into the next level. The rows of state, history and index are spread evenly over their
/// keys, so that each merge rewrites all of it: with the engine's four a node that syncs writes a third more.
pub(super) const GATHERED_TABLES: u8 = 8;
/// Bytes of a merged table of state and history. The first level may hold as many of them as gather, all of which each merge of what has
/// gathered rewrites; a step from there on takes one table and what it overlaps with, about ten: either is some 350 MB, and with the
/// engine's 64 MB twice that. With 16 MB it is half of that, but a state above 1.4 GB, which then has a level more, needs more steps than
/// the engine takes, which is one for each memtable that is written out. The engine keeps the size that a keyspace was made with.
const TABLE: u64 = 32 << 20;
/// Likewise of the index, whose rows are so short that a memtable becomes a table of one MB only: to index ten million transactions and
/// go on, a store writes 10.8 GB in all with tables of 64 MB, and 5.9 GB with these.
const INDEX_TABLE: u64 = 8 << 20;

/// The keyspaces, each of rows that live and die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::chain) enum Space {
    State,
    History,
    Blocks,
    Index,
    Code,
    Meta,
}

impl Space {
    pub(super) const ALL: [Space; 6] = [
        Self::State,
        Self::History,
        Self::Blocks,
        Self::Index,
        Self::Code,
        Self::Meta,
    ];

    pub(in crate::chain) fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::History => "history",
            Self::Blocks => "blocks",
            Self::Index => "index",
            Self::Code => "code",
            Self::Meta => "meta",
        }
    }

    /// Whether every batch writes the head row here. The newest block says the same of `blocks`.
    pub(super) fn has_head(self) -> bool {
        self != Self::Blocks
    }

    pub(super) fn options(self) -> KeyspaceCreateOptions {
        // See `buffers`: the writer turns memtables over.
        let options = KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        // Compaction moves the places of long rows, not them.
        let separated = |long| KvSeparationOptions::default().separation_threshold(long);
        let unfiltered = FilterPolicy::disabled();
        let gathering = |table| {
            Arc::new(
                Leveled::default()
                    .with_l0_threshold(GATHERED_TABLES)
                    .with_table_target_size(table),
            )
        };
        match self {
            // Who asks for a row mostly knows that it is there.
            Self::State => options
                .expect_point_read_hits(true)
                .compaction_strategy(gathering(TABLE)),
            // Rows are looked for by their neighbours: a filter would not be asked.
            Self::History => {
                // Hashes do not get shorter.
                let records = separated(LONG_HISTORY).compression(CompressionType::None);
                options
                    .filter_policy(unfiltered)
                    .with_kv_separation(Some(records))
                    .compaction_strategy(gathering(TABLE))
            }
            // Written in the order of keys, and without a row that every batch changes: what is written out overlaps with nothing and
            // becomes part of the lowest level as it is.
            Self::Blocks => options
                .filter_policy(unfiltered)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .with_kv_separation(Some(separated(LONG_BLOCKS))),
            Self::Index => options.compaction_strategy(gathering(INDEX_TABLE)),
            Self::Code | Self::Meta => options,
        }
    }
}
