//! Keyspaces that disagree on the head: what is left when a journal had to be cut below what one of them had written to tables already.
//!
//! For `starling db repair`. What is further than the least far is taken back: the state by its unwind records, if those are as far as
//! the state, the rest by the numbers in its rows. All of it is one batch, with a mark that nobody but a repair opens the store until the
//! state is proven.

use super::{
    Batch, FINALIZED_ROW, HEAD, Identity, Inner, Open, SAFE_ROW, Space, Store, StoreError, codec,
    get, history::PROOFS, keys, unwind,
};
use crate::chain::view::ReadError;
use alloy_primitives::{B256, Bytes};
use fjall::{Database, Keyspace, Readable};
use starling_proto::payload::BlockId;
use std::{collections::BTreeMap, path::Path};

/// In meta, while the state of a store that was torn is not proven.
pub(super) const UNPROVEN: &[u8] = b"_unproven";

/// The head that each keyspace has.
pub(super) type Heads = [Option<BlockId>; 6];

/// The head of every keyspace: its head row, which must be the same in every keyspace that has one, or its newest block.
pub(super) fn read_heads(db: &Database, spaces: &[Keyspace; 6]) -> Result<Heads, StoreError> {
    let snapshot = db.snapshot();
    let mut heads = Heads::default();
    for space in Space::ALL.into_iter().filter(|space| space.has_head()) {
        heads[space as usize] =
            get(&snapshot, &spaces[space as usize], HEAD)?.and_then(|row| codec::decode_id(&row));
    }
    if let Some(row) = snapshot.last_key_value(&spaces[Space::Blocks as usize])
        && let Some((number, _)) = keys::block_row_parts(&row.key()?)
    {
        // Its hash is in the index. If that is behind, this is not the lowest of the heads, and its hash is of no use.
        let index = heads[Space::Index as usize]
            .filter(|head| head.number == number)
            .map(|head| head.hash);
        let hash = match index {
            Some(hash) => Some(hash),
            None => get(
                &snapshot,
                &spaces[Space::Index as usize],
                &keys::hash_of(number),
            )?
            .and_then(|row| B256::try_from(&row[..]).ok()),
        };
        heads[Space::Blocks as usize] = Some(BlockId {
            number,
            hash: hash.unwrap_or_default(),
        });
    }
    Ok(heads)
}

/// The lowest of them.
pub(super) fn lowest(heads: &Heads) -> Option<BlockId> {
    heads
        .iter()
        .copied()
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .min_by_key(|head| head.number)
}

/// Heads in words.
pub(super) fn words(heads: &Heads) -> String {
    let show = |head: &Option<BlockId>| {
        head.map_or("none".into(), |head| {
            format!("{} {}", head.number, head.hash)
        })
    };
    let each: Vec<_> = Space::ALL
        .iter()
        .zip(heads)
        .map(|(space, head)| format!("{}: {}", space.name(), show(head)))
        .collect();
    each.join(", ")
}

impl Store {
    /// Opens a store that is to be repaired. One that is torn is taken back to where its keyspaces agree, and the head that is left is
    /// returned; it opens for nobody else until [`Store::proven`].
    pub(in crate::chain) fn open_to_repair(
        dir: &Path,
        cache: u64,
    ) -> Result<(Self, Option<BlockId>), StoreError> {
        let (store, heads) = Self::open_as(dir, cache, None::<Identity>, Open::Repair)?;
        let head = store.head();
        if heads.iter().all(|other| *other == Some(head)) {
            return Ok((store, None));
        }
        match store.0.join(head, &heads) {
            Ok(batch) => batch.commit(head)?,
            Err(cause) => {
                let what = format!(
                    "its keyspaces disagree on the head ({}), and it cannot be taken back: {cause}",
                    words(&heads)
                );
                return Err(StoreError::Damaged {
                    dir: dir.into(),
                    what,
                });
            }
        }
        store.sync()?;
        Ok((store, Some(head)))
    }

    /// Whether it was torn, and nobody has looked yet at what was made of it.
    pub(in crate::chain) fn is_unproven(&self) -> Result<bool, StoreError> {
        Ok(get(
            &self.0.db.snapshot(),
            &self.0.spaces[Space::Meta as usize],
            UNPROVEN,
        )?
        .is_some())
    }

    /// All of it is sound: it may be opened again.
    pub(in crate::chain) fn proven(&self) -> Result<(), StoreError> {
        let head = self.0.writer.lock();
        let mut batch = Batch::new(&self.0);
        batch.set(Space::Meta, UNPROVEN, None);
        batch.commit(*head)?;
        self.0.sync()
    }
}

impl Inner {
    /// What takes all keyspaces back to this head, the lowest. The error says why there is no such thing.
    fn join(&self, head: BlockId, heads: &Heads) -> Result<Batch<'_>, String> {
        let snapshot = self.db.snapshot();
        let mut batch = Batch::new(self);
        let text = |error: ReadError| error.cause();
        for (key, before) in self.way_back(&snapshot, head, heads)? {
            batch.state(&key, before.as_ref());
        }
        for space in [Space::History, Space::Blocks, Space::Index] {
            for row in snapshot.iter(&self.spaces[space as usize]) {
                let (key, value) = row.into_inner().map_err(|error| super::words(&error))?;
                if number_of(space, &key, &value).is_some_and(|number| number > head.number) {
                    batch.set(space, &key, None);
                }
            }
        }
        let row = |space: Space, key: &[u8]| {
            get(&snapshot, &self.spaces[space as usize], key).map_err(text)
        };
        for key in [SAFE_ROW, FINALIZED_ROW] {
            if row(Space::Meta, key)?
                .and_then(|row| codec::decode_id(&row))
                .is_some_and(|id| id.number > head.number)
            {
                batch.put(Space::Meta, key, codec::encode_id(head));
            }
        }
        if let Some((proofs, passer)) =
            row(Space::History, PROOFS)?.and_then(|row| codec::decode_two(&row))
        {
            batch.put(
                Space::History,
                PROOFS,
                codec::encode_two(proofs.min(head.number), passer.min(head.number)),
            );
        }
        batch.put(Space::Meta, UNPROVEN, [1]);
        Ok(batch)
    }

    /// The rows of `state` at this head, as far as blocks above it changed them.
    fn way_back(
        &self,
        snapshot: &fjall::Snapshot,
        head: BlockId,
        heads: &Heads,
    ) -> Result<BTreeMap<Bytes, Option<Bytes>>, String> {
        let [state, history] = [Space::State, Space::History]
            .map(|space| heads[space as usize].unwrap_or(head).number);
        if history < state {
            return Err(format!(
                "its state is further than its unwind records, which end with block {history}"
            ));
        }
        let mut rows = BTreeMap::new();
        for number in (head.number + 1..=state).rev() {
            let record = get(
                snapshot,
                &self.spaces[Space::History as usize],
                &keys::unwind(number),
            )
            .map_err(|error| error.cause())?;
            let record = record.and_then(|row| unwind::decode(&row));
            // The oldest record that knows a row tells what it was at the head.
            for (key, before) in record.ok_or_else(|| {
                format!("the unwind record of block {number} is missing or damaged")
            })? {
                let stored = || {
                    get(snapshot, &self.spaces[Space::State as usize], &key)
                        .map_err(|error| error.cause())
                };
                let after = rows.get(&key).cloned().map_or_else(stored, Ok)?;
                let before = before
                    .row(after.as_ref())
                    .ok_or_else(|| unwind::misfit(number, &key).cause())?;
                rows.insert(key, before);
            }
        }
        Ok(rows)
    }
}

/// The block that a row is about; `None` for rows about no block.
fn number_of(space: Space, key: &[u8], value: &[u8]) -> Option<u64> {
    let last = |bytes: &[u8]| bytes.last_chunk().copied().map(u64::from_be_bytes);
    match (space, key.first()?) {
        (Space::History, b'H' | b'T' | b'B' | b'U') | (Space::Index, b'n') => last(key),
        (Space::Blocks, _) => keys::block_row_parts(key).map(|(number, _)| number),
        (Space::Index, b'N' | b'x') => value.first_chunk().copied().map(u64::from_be_bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{
        repair::{cut_journals, repair},
        store::{DATABASE, tests::CACHE},
        tests::{datadir, killed, open},
        verify::tests::{check, grow},
    };
    use Space::{Blocks, Code, History, Index, Meta, State};

    /// A store whose journal was cut in the middle, when these keyspaces had written all to tables. And the head that it had.
    async fn torn(ahead: &[Space]) -> (tempfile::TempDir, BlockId) {
        torn_after(ahead, false).await
    }

    /// With a change of branch behind where it was cut.
    async fn torn_after(ahead: &[Space], reorg: bool) -> (tempfile::TempDir, BlockId) {
        let dir = datadir();
        let (chain, _threads) = open(dir.path());
        grow(&chain, 5, 24).await;
        if reorg {
            let fork = chain.view().hash_of(8).unwrap().unwrap();
            chain.forkchoice(fork, None, None).await.unwrap();
            grow(&chain, 6, 20).await;
        }
        let head = chain.view().head();
        crate::chain::tests::until("it is stored", || chain.view().stored() == head).await;
        let copy = killed(dir.path());
        let store = Store::open(copy.path(), CACHE, None).unwrap();
        for space in ahead {
            store.0.spaces[*space as usize]
                .rotate_memtable_and_wait()
                .unwrap();
        }
        drop(store);
        let journal = copy.path().join(DATABASE).join("0.jnl");
        let mut bytes = std::fs::read(&journal).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[used / 2] ^= 0x10;
        std::fs::write(&journal, bytes).unwrap();
        assert_eq!(cut_journals(copy.path()).unwrap().len(), 1);
        (copy, head)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_torn_store_is_taken_back_to_where_its_keyspaces_agree() {
        for ahead in [
            &[History][..],
            &[Blocks],
            &[Index],
            &[Code],
            &[Meta],
            &[State, History],
            &[State, History, Index, Meta],
        ] {
            let (dir, head) = torn(ahead).await;
            let error = Store::open(dir.path(), CACHE, None).map(drop).unwrap_err();
            assert!(
                matches!(error, StoreError::Torn { .. })
                    && error.to_string().contains("starling db repair"),
                "{error}"
            );
            let (store, left) = Store::open_to_repair(dir.path(), CACHE).unwrap();
            let left = left.expect("it was torn");
            assert!(left.number > 0 && left.number < head.number, "{left}");
            drop(store);
            // Interrupted here: for nobody but a repair.
            let error = Store::open(dir.path(), CACHE, None).map(drop).unwrap_err();
            assert!(
                matches!(error, StoreError::Unproven(_))
                    && error.to_string().contains("starling db repair"),
                "{error}"
            );
            let (store, again) = Store::open_to_repair(dir.path(), CACHE).unwrap();
            assert_eq!(again, None);
            repair(&store, &mut |_, _, _| {}).unwrap();
            drop(store);
            let report = check(dir.path());
            assert!(report.is_sound(), "{ahead:?}: {report:#?}");
            // The payload log leads back to the head.
            let (chain, _threads) = open(dir.path());
            assert_eq!(chain.view().head(), head, "{ahead:?}");
        }
    }

    /// The records of the other branch are not taken for those of this one.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_taken_back_across_a_change_of_branch_is_not_believed_unseen() {
        let mut refused = 0;
        for ahead in [
            &[History][..],
            &[Blocks],
            &[Index],
            &[State, History],
            &[State, History, Blocks, Index],
        ] {
            let (dir, _) = torn_after(ahead, true).await;
            let repaired = match Store::open_to_repair(dir.path(), CACHE) {
                Ok((store, _)) => repair(&store, &mut |_, _, _| {}).is_ok(),
                Err(error) => panic!("{error}"),
            };
            match Store::open(dir.path(), CACHE, None).map(drop) {
                Ok(()) => assert!(repaired && check(dir.path()).is_sound(), "{ahead:?}"),
                Err(error) => {
                    assert!(
                        !repaired && matches!(error, StoreError::Unproven(_)),
                        "{ahead:?}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_no_record_leads_back_from_stays_refused() {
        let (dir, _) = torn(&[State]).await;
        let error = Store::open_to_repair(dir.path(), CACHE)
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(error, StoreError::Damaged { .. })
                && error.to_string().contains("its unwind records"),
            "{error}"
        );
        assert!(
            matches!(
                Store::open(dir.path(), CACHE, None).map(drop),
                Err(StoreError::Torn { .. })
            ),
            "nothing was written"
        );

        // A record that leads elsewhere: what is made of it is not believed.
        let (dir, _) = torn(&[State, History]).await;
        let (store, _) = Store::open_as(dir.path(), CACHE, None, Open::Repair).unwrap();
        let number = store.head().number + 1;
        let history = &store.0.spaces[History as usize];
        let record = get(&store.0.db.snapshot(), history, &keys::unwind(number))
            .unwrap()
            .unwrap();
        let mut rows = unwind::decode(&record).unwrap();
        let flat = rows
            .iter_mut()
            .find(|(key, before)| keys::is_flat(key) && *before != unwind::Before::Whole(None))
            .unwrap();
        flat.1 = unwind::Before::Whole(None);
        let mut record = Vec::new();
        rows.iter()
            .for_each(|(key, before)| unwind::encode_row(key, before, &mut record));
        history
            .insert(keys::unwind(number).as_ref(), record)
            .unwrap();
        drop(store);
        let (store, left) = Store::open_to_repair(dir.path(), CACHE).unwrap();
        assert!(left.is_some() && repair(&store, &mut |_, _, _| {}).is_err());
        drop(store);
        assert!(matches!(
            Store::open(dir.path(), CACHE, None).map(drop),
            Err(StoreError::Unproven(_))
        ));
    }
}
