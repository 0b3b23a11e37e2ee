//! The row cache: rows that were read or written recently, as of the stored head. There is one for
//! rows of `state`, and a smaller one for rows of blocks and their index.
//!
//! A [`Snapshot`](super::Snapshot) reads single rows through the cache, unless it was taken during
//! a batch. Every batch after genesis that changes rows of a cache updates it: rows of `state` are
//! replaced, because later blocks will read them, and other rows are removed. The generation counts
//! these batches. The cache holds the newest value of a row, with the generation since which
//! it is current. A snapshot knows its own generation and accepts only values that were already
//! current then, so an old snapshot never sees a newer row. A row read from disk is cached only if
//! no batch has begun since. Bounded in bytes; the least recently used rows are evicted first.

use alloy_primitives::{Bytes, map::DefaultHashBuilder};
use lru::LruCache;
use parking_lot::Mutex;
use std::{
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

/// Number of shards, each with its own lock, so that readers on several threads rarely contend.
const SHARDS: usize = 64;
/// Estimated bytes that a row uses in memory beside its key and its value.
const ROW_OVERHEAD: usize = 160;

/// Largest row in bytes that is cached after a read from disk. The bodies and receipts of large
/// blocks would evict many small rows.
const LARGEST_ROW: usize = 64 << 10;
/// A row read from disk is cached only if it is at most 1/`LARGEST_SHARE` of its shard's budget.
const LARGEST_SHARE: usize = 2;

/// Rows changed by a batch, with their new values.
pub(super) type WrittenRows = Vec<(Bytes, Option<Bytes>)>;

pub(super) struct RowCache {
    shards: Vec<Mutex<Shard>>,
    hasher: DefaultHashBuilder,
    /// Count of batches, doubled; odd while a batch is being written to disk.
    generation: AtomicU64,
}

struct Shard {
    rows: LruCache<Box<[u8]>, CachedRow, DefaultHashBuilder>,
    weight: usize,
    budget: usize,
}

struct CachedRow {
    value: Option<Bytes>,
    /// The generation from which on the value is current.
    since: u64,
}

impl RowCache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: u64) -> Self {
        let budget = usize::try_from(budget).unwrap_or(usize::MAX) / SHARDS;
        let shard = || {
            Mutex::new(Shard {
                rows: LruCache::unbounded_with_hasher(Default::default()),
                weight: 0,
                budget,
            })
        };
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self {
            shards,
            hasher: DefaultHashBuilder::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// Takes a snapshot with `take` and returns it with its generation, or with `None` if a batch
    /// was in progress.
    pub fn at_generation<T>(&self, take: impl FnOnce() -> T) -> (T, Option<u64>) {
        let before = self.generation.load(Ordering::SeqCst);
        let taken = take();
        let same = before.is_multiple_of(2) && before == self.generation.load(Ordering::SeqCst);
        (taken, same.then_some(before))
    }

    /// The value of a row at this generation, from the cache or otherwise from `read`.
    pub fn get<E>(
        &self,
        key: &[u8],
        generation: u64,
        read: impl FnOnce() -> Result<Option<Bytes>, E>,
    ) -> Result<Option<Bytes>, E> {
        let shard = self.shard(key);
        if let Some(row) = shard.lock().rows.get(key)
            && row.since <= generation
        {
            return Ok(row.value.clone());
        }
        let value = read()?;
        let mut shard = shard.lock();
        let largest = LARGEST_ROW.min(shard.budget / LARGEST_SHARE);
        if value.as_ref().is_some_and(|row| row.len() > largest) {
            return Ok(value);
        }
        // A batch that begins after this check waits for our lock and then overwrites our value.
        if self.generation.load(Ordering::SeqCst) == generation {
            shard.put(
                key,
                CachedRow {
                    value: value.clone(),
                    since: generation,
                },
            );
        }
        Ok(value)
    }

    /// Writes a batch with `commit`, then caches its rows.
    pub fn write<E>(
        &self,
        rows: WrittenRows,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.change(commit, |since| {
            for (key, value) in rows {
                self.shard(&key)
                    .lock()
                    .put(&key, CachedRow { value, since });
            }
        })
    }

    /// Writes a batch with `commit`, then removes the rows with these keys from the cache.
    pub fn invalidate<E>(
        &self,
        keys: &[Box<[u8]>],
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.change(commit, |_| {
            for key in keys {
                self.shard(key).lock().remove(key);
            }
        })
    }

    /// Writes a batch with `commit`, then calls `update` with the next generation. If the commit
    /// fails, the values of its rows are unknown: the cache is cleared and stays empty until a
    /// later batch succeeds.
    fn change<E>(
        &self,
        commit: impl FnOnce() -> Result<(), E>,
        update: impl FnOnce(u64),
    ) -> Result<(), E> {
        let writing = self.generation.fetch_or(1, Ordering::SeqCst) | 1;
        if let Err(error) = commit() {
            self.shards.iter().for_each(|shard| shard.lock().clear());
            return Err(error);
        }
        let since = writing + 1;
        update(since);
        self.generation.store(since, Ordering::SeqCst);
        Ok(())
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        // The high bits of the hash choose the shard, since the shard's own table uses the low
        // ones.
        let hash = self.hasher.hash_one(key);
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

/// Estimated bytes that a cached row uses.
fn weight(key: &[u8], row: &CachedRow) -> usize {
    ROW_OVERHEAD + key.len() + row.value.as_ref().map_or(0, |value| value.len())
}

impl Shard {
    fn put(&mut self, key: &[u8], row: CachedRow) {
        self.weight += weight(key, &row);
        if let Some((key, old)) = self.rows.push(key.into(), row) {
            self.weight -= weight(&key, &old);
        }
        while self.weight > self.budget
            && let Some((key, old)) = self.rows.pop_lru()
        {
            self.weight -= weight(&key, &old);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, old)) = self.rows.pop_entry(key) {
            self.weight -= weight(&key, &old);
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.weight = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cache: &RowCache, key: &[u8], generation: u64) -> Result<Option<Bytes>, &'static str> {
        cache.get(key, generation, || Err("not cached"))
    }

    fn write(cache: &RowCache, key: &'static [u8], value: &'static [u8]) {
        cache
            .write(
                vec![(Bytes::from_static(key), Some(Bytes::from_static(value)))],
                || Ok::<_, ()>(()),
            )
            .unwrap();
    }

    #[test]
    fn an_old_snapshot_never_gets_a_newer_row() {
        let cache = RowCache::new(1 << 20);
        let (_, old) = cache.at_generation(|| ());
        write(&cache, b"k", b"new");
        let (_, new) = cache.at_generation(|| ());
        assert_eq!(
            read(&cache, b"k", new.unwrap()).unwrap(),
            Some(Bytes::from_static(b"new"))
        );
        assert!(read(&cache, b"k", old.unwrap()).is_err());
        // The old snapshot reads the row from disk, and the cache does not keep that value.
        let from_disk = cache
            .get(b"k", old.unwrap(), || {
                Ok::<_, ()>(Some(Bytes::from_static(b"old")))
            })
            .unwrap();
        assert_eq!(from_disk, Some(Bytes::from_static(b"old")));
        assert_eq!(
            read(&cache, b"k", new.unwrap()).unwrap(),
            Some(Bytes::from_static(b"new"))
        );
    }

    #[test]
    fn a_row_that_did_not_change_serves_old_and_new_snapshots() {
        let cache = RowCache::new(1 << 20);
        let (_, old) = cache.at_generation(|| ());
        cache.get(b"k", old.unwrap(), || Ok::<_, ()>(None)).unwrap();
        write(&cache, b"other", b"v");
        let (_, new) = cache.at_generation(|| ());
        for generation in [old, new] {
            assert_eq!(read(&cache, b"k", generation.unwrap()), Ok(None));
        }
    }

    #[test]
    fn what_is_read_while_a_batch_is_written_is_not_kept() {
        let cache = RowCache::new(1 << 20);
        let (_, old) = cache.at_generation(|| ());
        let rows = vec![(Bytes::from_static(b"k"), None)];
        cache
            .write(rows, || {
                assert_eq!(cache.at_generation(|| ()).1, None);
                cache
                    .get(b"k", old.unwrap(), || {
                        Ok::<_, ()>(Some(Bytes::from_static(b"old")))
                    })
                    .map(|_| ())
            })
            .unwrap();
        let (_, new) = cache.at_generation(|| ());
        assert_eq!(
            read(&cache, b"k", new.unwrap()),
            Ok(None),
            "the row was removed"
        );
        // A value is not kept either if its read begins before the batch and ends after it.
        let late = cache.get(b"z", new.unwrap(), || {
            write(&cache, b"z", b"new");
            Ok::<_, ()>(None)
        });
        assert_eq!(late, Ok(None));
        let (_, newest) = cache.at_generation(|| ());
        assert_eq!(
            read(&cache, b"z", newest.unwrap()).unwrap(),
            Some(Bytes::from_static(b"new"))
        );
    }

    #[test]
    fn a_failed_batch_empties_the_cache_until_one_succeeds() {
        let cache = RowCache::new(1 << 20);
        write(&cache, b"k", b"v");
        assert_eq!(cache.write(vec![], || Err("full")), Err("full"));
        assert_eq!(cache.at_generation(|| ()).1, None);
        write(&cache, b"other", b"v");
        let (_, generation) = cache.at_generation(|| ());
        assert!(read(&cache, b"k", generation.unwrap()).is_err());
        assert!(read(&cache, b"other", generation.unwrap()).is_ok());
    }

    #[test]
    fn the_weight_is_bounded() {
        let cache = RowCache::new(SHARDS as u64 * 4 * (ROW_OVERHEAD as u64 + 8 + 32));
        for index in 0..10_000u64 {
            cache
                .get(&index.to_be_bytes(), 0, || {
                    Ok::<_, ()>(Some(vec![1; 32].into()))
                })
                .unwrap();
            cache
                .get(&[0; 8], 0, || Ok::<_, ()>(Some(vec![1; 32].into())))
                .unwrap();
        }
        let rows: usize = cache
            .shards
            .iter()
            .map(|shard| shard.lock().rows.len())
            .sum();
        assert_eq!(rows, 4 * SHARDS);
        assert!(
            read(&cache, &[0; 8], 0).is_ok(),
            "what is read all the time stays"
        );
    }

    #[test]
    fn invalidated_rows_are_read_again() {
        let cache = RowCache::new(1 << 20);
        let row = Some(Bytes::from_static(b"row"));
        for key in [b"a", b"b"] {
            let stored = row.clone();
            cache.get(key, 0, || Ok::<_, ()>(stored)).unwrap();
        }
        let keys: [Box<[u8]>; 1] = [Box::from(&b"a"[..])];
        cache.invalidate(&keys, || Ok::<_, ()>(())).unwrap();
        let (_, new) = cache.at_generation(|| ());
        assert!(read(&cache, b"a", new.unwrap()).is_err());
        assert_eq!(read(&cache, b"b", new.unwrap()).unwrap(), row);
        cache.invalidate(&keys, || Err(())).unwrap_err();
        let (_, generation) = cache.at_generation(|| ());
        assert_eq!(generation, None, "the values of the rows are unknown");
    }

    #[test]
    fn large_rows_are_not_cached() {
        let cache = RowCache::new(1 << 30);
        for (size, cached) in [(LARGEST_ROW, true), (LARGEST_ROW + 1, false)] {
            let key = size.to_be_bytes();
            let large = Some(Bytes::from(vec![7; size]));
            cache.get(&key, 0, || Ok::<_, ()>(large)).unwrap();
            assert_eq!(read(&cache, &key, 0).is_ok(), cached, "{size}");
        }
    }
}
