//! The keyspaces of the store, and the fjall options of each: compression, filters, key-value
//! separation and compaction.

use fjall::{
    CompressionType, KeyspaceCreateOptions, KvSeparationOptions,
    compaction::Leveled,
    config::{CompressionPolicy, FilterPolicy},
};
use std::sync::Arc;

/// Size in bytes from which a value of `history` is stored apart from its key. Only unwind records
/// are that long.
const LONG_HISTORY: u32 = 1024;
/// Size in bytes from which a value of `blocks` is stored apart from its key: the bodies and
/// receipts of blocks with many transactions.
const LONG_BLOCKS: u32 = 4096;
/// Number of L0 tables that are collected before they are compacted into L1. The keys of state,
/// history and index are spread evenly, so each compaction of L0 rewrites all of L1. With fjall's
/// default of four tables a syncing node writes a third more bytes.
pub(super) const L0_TABLES: u8 = 8;
/// Target size of a table of state and history, in bytes. It decides how much one compaction
/// rewrites: all of L1, which may have as many tables as L0 collects, or one table of a deeper
/// level and the ten it overlaps. That is some 350 MB in either case, and would be twice as much
/// with fjall's default of 64 MB. Tables of 16 MB would halve it, but a state above 1.4 GB would
/// then have one more level and need more compactions than the one that fjall performs per flush.
/// fjall keeps the size with which a keyspace was created.
const TABLE: u64 = 32 << 20;
/// Target size of a table of the index, in bytes. Index rows are so short that a memtable becomes a
/// table of only 1 MB. A node that imported more blocks after indexing ten million transactions
/// wrote 10.8 GB in all with tables of 64 MB, and 5.9 GB with tables of this size.
const INDEX_TABLE: u64 = 8 << 20;

/// The keyspaces, each for rows of one lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
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

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::History => "history",
            Self::Blocks => "blocks",
            Self::Index => "index",
            Self::Code => "code",
            Self::Meta => "meta",
        }
    }

    /// Whether every batch writes the head row into this keyspace. `blocks` needs none: its head is
    /// its newest block.
    pub(super) fn has_head(self) -> bool {
        self != Self::Blocks
    }

    pub(super) fn options(self) -> KeyspaceCreateOptions {
        // The writer rotates memtables itself: see `memtables.rs`.
        let options = KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        // A compaction then moves only pointers to the separated values, not the values.
        let separated = |long| KvSeparationOptions::default().separation_threshold(long);
        let unfiltered = FilterPolicy::disabled();
        let leveled = |table| {
            Arc::new(
                Leveled::default()
                    .with_l0_threshold(L0_TABLES)
                    .with_table_target_size(table),
            )
        };
        match self {
            // Most reads are of rows that exist.
            Self::State => options
                .expect_point_read_hits(true)
                .compaction_strategy(leveled(TABLE)),
            // Most reads seek to the nearest key. A filter would serve only the few point reads.
            Self::History => {
                // Hashes do not compress.
                let records = separated(LONG_HISTORY).compression(CompressionType::None);
                options
                    .filter_policy(unfiltered)
                    .with_kv_separation(Some(records))
                    .compaction_strategy(leveled(TABLE))
            }
            // Keys ascend, and rows are rarely rewritten: most flushed tables overlap with nothing
            // and move to the last level unchanged.
            Self::Blocks => options
                .filter_policy(unfiltered)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .with_kv_separation(Some(separated(LONG_BLOCKS))),
            Self::Index => options.compaction_strategy(leveled(INDEX_TABLE)),
            Self::Code | Self::Meta => options,
        }
    }
}
