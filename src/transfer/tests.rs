//! Tests of files of every kind: complete, cut off and damaged.

use super::{block_file::*, import::ImportCounts, *};
use crate::chain::{
    Chain,
    store::IndexWindow,
    tests::{
        datadir,
        durable::Disk,
        grow::{grow, grown},
        open,
    },
};
use crate::cli::config::HistoryConfig;
use crate::db::verify::tests::check;
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_proto::payload::{BlockId, Payload};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn options_of(dir: &TempDir) -> Options {
    Options {
        datadir: dir.path().to_owned(),
        cache: 4 << 20,
        commit_interval: Duration::from_millis(50),
    }
}

async fn import_to(dir: &TempDir, files: &[PathBuf]) -> Result<ImportCounts, ImportError> {
    let history = HistoryConfig {
        states: None,
        proofs: 0,
        names: false,
        logs: IndexWindow::All,
        addresses: false,
    };
    import(options_of(dir), history, files, CancellationToken::new()).await
}

async fn export_from(
    dir: &TempDir,
    file: &Path,
    range: Option<(u64, u64)>,
) -> Result<u64, ExportError> {
    export(options_of(dir), file, range, CancellationToken::new()).await
}

async fn with<T>(dir: &TempDir, read: impl FnOnce(&Chain) -> T) -> T {
    with_chain(dir.path(), async |chain| read(chain)).await
}

/// Opens the chain of a directory, runs `work` with it, and stops it.
async fn with_chain<T>(datadir: &Path, work: impl AsyncFnOnce(&Chain) -> T) -> T {
    let (chain, threads) = open(datadir);
    let value = work(&chain).await;
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    value
}

async fn head(dir: &TempDir) -> BlockId {
    with(dir, |chain| chain.view().head()).await
}

/// The blocks of a file with their offsets.
fn blocks(file: &Path) -> Vec<(u64, Payload)> {
    BlockReader::open(file)
        .unwrap()
        .map(|block| block.map(|block| (block.offset, block.payload)).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_can_be_imported() {
    let (source, files) = (grown(11, 90).await, tempfile::tempdir().unwrap());
    let want = head(&source).await;
    for name in ["blocks.rlp", "blocks.rlp.gz", "blocks.rlp.zst"] {
        let file = files.path().join(name);
        assert_eq!(export_from(&source, &file, None).await.unwrap(), 91);
        let target = datadir();
        let counts = import_to(&target, std::slice::from_ref(&file))
            .await
            .unwrap();
        assert_eq!(
            (counts, head(&target).await),
            (
                ImportCounts {
                    executed: 90,
                    known: 1
                },
                want
            ),
            "{name}"
        );
        assert!(check(target.path()).is_sound());
        // The second import finds all blocks known.
        assert_eq!(
            import_to(&target, &[file]).await.unwrap(),
            ImportCounts {
                executed: 0,
                known: 91
            }
        );
    }
    let sizes = ["blocks.rlp", "blocks.rlp.gz", "blocks.rlp.zst"]
        .map(|name| files.path().join(name).metadata().unwrap().len());
    assert!(sizes[1] < sizes[0] && sizes[2] < sizes[0], "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_appended_and_files_follow_each_other() {
    let (source, files) = (grown(12, 40).await, tempfile::tempdir().unwrap());
    let want = head(&source).await;
    let whole = files.path().join("whole");
    export_from(&source, &whole, None).await.unwrap();
    for ending in ["", ".gz", ".zst"] {
        let parts = files.path().join(format!("parts{ending}"));
        export_from(&source, &parts, Some((0, 9))).await.unwrap();
        export_from(&source, &parts, Some((10, 40))).await.unwrap();
        assert_eq!(blocks(&parts), blocks(&whole));
    }
    let [first, second] = ["first", "second.gz"].map(|name| files.path().join(name));
    export_from(&source, &first, Some((1, 20))).await.unwrap();
    export_from(&source, &second, Some((15, 40))).await.unwrap();
    let target = datadir();
    let counts = import_to(&target, &[first, second]).await.unwrap();
    assert_eq!(
        (counts, head(&target).await),
        (
            ImportCounts {
                executed: 40,
                known: 6
            },
            want
        )
    );

    let error = export_from(&source, &whole, Some((3, 41)))
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "Export error: block number 41 larger than head block 40"
    );
    assert!(matches!(
        export_from(&source, &whole, Some((3, 2))).await,
        Err(ExportError::Order { .. })
    ));
    assert_eq!(
        blocks(&whole).len(),
        41,
        "what cannot be exported changes nothing"
    );
}

/// After a kill at any byte, or an interruption, the same command continues the export. The file is
/// the same in the end.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_goes_on_where_it_ended() {
    let (source, files) = (grown(23, 40).await, tempfile::tempdir().unwrap());
    let mut rng = StdRng::seed_from_u64(23);
    let whole_path = files.path().join("whole");
    export_from(&source, &whole_path, None).await.unwrap();
    let all = blocks(&whole_path);
    for name in ["blocks", "blocks.gz", "blocks.zst"] {
        let file = files.path().join(name);
        let cancelled = CancellationToken::new();
        cancelled.cancel();
        let error = export(options_of(&source), &file, None, cancelled)
            .await
            .unwrap_err();
        assert!(matches!(error, ExportError::Interrupted(0)), "{error}");
        assert_eq!(export_from(&source, &file, None).await.unwrap(), 41);
        assert_eq!(blocks(&file), all);
        assert_eq!(
            export_from(&source, &file, None).await.unwrap(),
            0,
            "all is there"
        );

        let whole = std::fs::read(&file).unwrap();
        for _ in 0..3 {
            let cut = rng.random_range(1..whole.len());
            std::fs::write(&file, &whole[..cut]).unwrap();
            let held = BlockReader::open(&file)
                .unwrap()
                .take_while(Result::is_ok)
                .count() as u64;
            let range = export_from(&source, &file, Some((0, 40))).await;
            match range {
                Ok(written) => assert_eq!((name, written), ("blocks", 41 - held)),
                // An incomplete block cannot be cut off a compressed file.
                Err(ExportError::Torn { last, .. }) => {
                    assert!(
                        last.map_or(0, |last| last + 1) == held && (held == 0 || name != "blocks"),
                        "{name} {last:?}"
                    );
                }
                Err(error) => panic!("{error}"),
            }
            export_from(&source, &file, None).await.unwrap();
            assert_eq!(blocks(&file), all, "{name} cut at {cut}");
        }
    }
}

/// An export of a range keeps the file's blocks and appends to them. If the file already ends with
/// the first blocks of the range, only the other blocks of the range are written.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_range_is_added_to_the_files_blocks() {
    let (source, files) = (grown(23, 40).await, tempfile::tempdir().unwrap());
    let whole = files.path().join("whole");
    export_from(&source, &whole, None).await.unwrap();
    let parts = files.path().join("parts");
    export_from(&source, &parts, Some((3, 9))).await.unwrap();
    for (range, written) in [((5, 12), 3), ((20, 21), 2), ((0, 1), 2)] {
        assert_eq!(
            export_from(&source, &parts, Some(range)).await.unwrap(),
            written
        );
    }
    let numbers: Vec<_> = blocks(&parts)
        .iter()
        .map(|(_, block)| block.number())
        .collect();
    assert_eq!(
        numbers,
        [(3..=12).collect::<Vec<_>>(), vec![20, 21, 0, 1]].concat()
    );
    assert_eq!(
        export_from(&source, &parts, None).await.unwrap(),
        41,
        "all blocks stand in place of what was there"
    );
    assert_eq!(blocks(&parts), blocks(&whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_says_so_and_goes_on() {
    let (source, files) = (grown(24, 30).await, tempfile::tempdir().unwrap());
    let file = files.path().join("blocks");
    export_from(&source, &file, None).await.unwrap();
    let (target, cancelled) = (datadir(), CancellationToken::new());
    cancelled.cancel();
    let history = HistoryConfig {
        states: None,
        proofs: 0,
        names: false,
        logs: IndexWindow::All,
        addresses: false,
    };
    let error = import(
        options_of(&target),
        history,
        std::slice::from_ref(&file),
        cancelled,
    )
    .await
    .unwrap_err();
    let reached = head(&target).await;
    assert!(
        matches!(error, ImportError::Interrupted(at) if at == reached),
        "{error}"
    );
    assert!(reached.number < 30, "{reached}");
    let counts = import_to(&target, &[file]).await.unwrap();
    assert_eq!(
        counts,
        ImportCounts {
            executed: 30 - reached.number,
            known: 1 + reached.number
        }
    );
}

/// One signal interrupts an import, even while the import waits for space.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_on_a_full_disk_can_be_interrupted() {
    let Some((disk, target)) = Disk::mount() else {
        return;
    };
    let (source, files) = (grown(25, 8).await, tempfile::tempdir().unwrap());
    let file = files.path().join("blocks");
    export_from(&source, &file, None).await.unwrap();
    let ours = with_chain(&target, async |chain| {
        grow(chain, 26, 20).await;
        chain.view().head()
    })
    .await;

    // For another branch, the store must unwind first, and there is no space for that.
    let filler = disk.fill_below_the_floor(&target);
    let options = Options {
        datadir: target.clone(),
        cache: 4 << 20,
        commit_interval: Duration::from_millis(50),
    };
    let (token, history) = (
        CancellationToken::new(),
        HistoryConfig {
            states: None,
            proofs: 0,
            names: false,
            logs: IndexWindow::All,
            addresses: false,
        },
    );
    let only = [file.clone()];
    let mut importing = Box::pin(import(options.clone(), history, &only, token.clone()));
    assert!(
        tokio::time::timeout(Duration::from_secs(1), &mut importing)
            .await
            .is_err(),
        "it waits for room"
    );
    token.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(300), importing)
        .await
        .expect("it ends");
    assert!(
        matches!(ended, Err(ImportError::Interrupted(at)) if at.number == 0 || at == ours),
        "no block of the file is stored: {ended:?}"
    );
    std::fs::remove_file(filler).unwrap();
    assert!(check(&target).is_sound());
    let head = async |chain: &Chain| chain.view().head();
    assert_eq!(with_chain(&target, head).await, ours);
    import(options, history, &only, CancellationToken::new())
        .await
        .unwrap();
    let last = blocks(&file).last().unwrap().1.id();
    assert_eq!(with_chain(&target, head).await, last);
}

/// A file cut off at any byte is imported up to its last complete block. The error names the offset
/// of the next block.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_file_is_imported_to_its_last_whole_block() {
    let (source, files) = (grown(13, 30).await, tempfile::tempdir().unwrap());
    let mut rng = StdRng::seed_from_u64(13);
    for name in ["blocks", "blocks.gz", "blocks.zst"] {
        let file = files.path().join(name);
        export_from(&source, &file, None).await.unwrap();
        let (whole, all) = (std::fs::read(&file).unwrap(), blocks(&file));
        for _ in 0..2 {
            let cut = rng.random_range(1..whole.len());
            std::fs::write(&file, &whole[..cut]).unwrap();
            let target = datadir();
            let result = import_to(&target, std::slice::from_ref(&file)).await;
            let reached = head(&target).await;
            assert_eq!(reached, all[reached.number as usize].1.id());
            let next = reached.number as usize + 1;
            match result {
                // A plain file that ends between two blocks is complete.
                Ok(_) => assert_eq!((name, cut as u64), ("blocks", all[next].0)),
                Err(error) => {
                    let text = error.to_string();
                    // A compressed file may end before the genesis block, which is skipped anyway,
                    // can be unpacked.
                    let places = [Some(all[next].0), (next == 1).then_some(0)];
                    let begins = all.iter().map(|(offset, _)| *offset).find(|offset| {
                        [":", " of"]
                            .iter()
                            .any(|after| text.contains(&format!("byte {offset}{after}")))
                    });
                    assert!(begins.is_some() && places.contains(&begins), "{text}");
                    assert!(
                        text.contains(name) && text.contains(&format!("after block {reached}")),
                        "{text}"
                    );
                    assert!(matches!(error, ImportError::File { .. }), "{text}");
                }
            }
            // With the complete file, the same command continues.
            std::fs::write(&file, &whole).unwrap();
            let counts = import_to(&target, std::slice::from_ref(&file))
                .await
                .unwrap();
            assert_eq!(
                (counts.known, counts.executed),
                (reached.number + 1, 30 - reached.number)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_block_stops_an_import_and_is_named() {
    let (source, files) = (grown(14, 20).await, tempfile::tempdir().unwrap());
    let file = files.path().join("blocks");
    export_from(&source, &file, None).await.unwrap();
    let all: Vec<Payload> = blocks(&file)
        .into_iter()
        .map(|(_, payload)| payload)
        .collect();
    type Spoil = fn(&mut Payload);
    let spoiled: [(&str, Spoil); 6] = [
        ("state root", |block| {
            block.header.state_root = B256::repeat_byte(1)
        }),
        ("gas used", |block| block.header.gas_used += 1),
        ("parent", |block| {
            block.header.parent_hash = B256::repeat_byte(1)
        }),
        ("transactions root", |block| drop(block.transactions.pop())),
        ("timestamp", |block| block.header.timestamp = 1),
        ("transaction", |block| {
            block.transactions[0] = vec![0x7e, 1, 2].into()
        }),
    ];
    for (reason, spoil) in spoiled {
        let mut writer = BlockWriter::create(&file, false).unwrap();
        let mut bad = Payload::clone(&all[12]);
        spoil(&mut bad);
        if reason == "transaction" {
            bad.header.transactions_root =
                alloy_trie::root::ordered_trie_root_encoded(&bad.transactions);
        }
        let offset: usize = all[..12].iter().map(|block| encode(block).len()).sum();
        for block in all[..12].iter().chain([&bad]).chain(&all[13..]) {
            writer.write(block).unwrap();
        }
        writer.finish().unwrap();
        let target = datadir();
        let error = import_to(&target, std::slice::from_ref(&file))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert_eq!(head(&target).await, all[11].id(), "{text}");
        for part in [
            file.to_str().unwrap(),
            &format!("byte {offset}"),
            "block 12",
            reason,
        ] {
            assert!(text.contains(part), "no {part} in: {text}");
        }
        assert!(check(target.path()).is_sound());
    }
}

/// Blocks in flight behind an invalid block are not imported, wherever the invalid block is.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_after_a_bad_block_is_imported() {
    let (source, other, files) = (
        grown(21, 63).await,
        grown(22, 5).await,
        tempfile::tempdir().unwrap(),
    );
    let [file, side] = ["blocks", "side"].map(|name| files.path().join(name));
    export_from(&source, &file, None).await.unwrap();
    export_from(&other, &side, Some((1, 5))).await.unwrap();
    let mut all: Vec<Payload> = blocks(&file)
        .into_iter()
        .map(|(_, payload)| payload)
        .collect();
    let last_valid = all[9].id();
    all[10].header.state_root = B256::repeat_byte(1);
    // The blocks of the file make one group. The blocks of the other branch make the next group,
    // and would become the head.
    all.extend(blocks(&side).into_iter().map(|(_, payload)| payload));
    let mut writer = BlockWriter::create(&file, false).unwrap();
    all.iter().for_each(|block| writer.write(block).unwrap());
    writer.finish().unwrap();
    let target = datadir();
    let error = import_to(&target, &[file]).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("after block {last_valid}")) && error.contains("state root"),
        "{error}"
    );
    assert_eq!(head(&target).await, last_valid);
}

/// Flipped bytes never cause a panic, and never make an invalid block part of the chain.
#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_never_panic() {
    let (source, files) = (grown(15, 12).await, tempfile::tempdir().unwrap());
    let mut rng = StdRng::seed_from_u64(15);
    for name in ["blocks", "blocks.gz", "blocks.zst"] {
        let file = files.path().join(name);
        export_from(&source, &file, None).await.unwrap();
        let whole = std::fs::read(&file).unwrap();
        for _ in 0..3 {
            let mut bytes = whole.clone();
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
            std::fs::write(&file, &bytes).unwrap();
            let target = datadir();
            let _ = import_to(&target, std::slice::from_ref(&file)).await;
            assert!(check(target.path()).is_sound(), "byte {at} of {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_chains_file_is_refused() {
    let (source, files) = (grown(16, 3).await, tempfile::tempdir().unwrap());
    let file = files.path().join("blocks");
    export_from(&source, &file, None).await.unwrap();
    let mut all = blocks(&file);
    all[0].1.header.extra_data = vec![0; 17].into();
    let mut writer = BlockWriter::create(&file, false).unwrap();
    all.iter()
        .for_each(|(_, block)| writer.write(block).unwrap());
    writer.finish().unwrap();
    let target = datadir();
    let error = import_to(&target, std::slice::from_ref(&file))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("genesis block of another chain"), "{error}");
    let (genesis, own) = (blocks(&file)[0].1.id(), head(&target).await);
    assert!(
        error.contains(&format!("begins with block {genesis}"))
            && error.contains(&format!("has genesis {}", own.hash)),
        "{error}"
    );
    assert!(error.ends_with("the file is of another chain"), "{error}");
    // A file without its genesis block is of another chain if it begins with block 1 on another
    // parent. A file that begins later may only lack blocks.
    for (first, end) in [
        (1, "the file is of another chain"),
        (2, "or blocks before it are missing"),
    ] {
        let mut writer = BlockWriter::create(&file, false).unwrap();
        for (_, block) in &mut all[first..] {
            block.header.parent_hash = B256::repeat_byte(first as u8);
            writer.write(block).unwrap();
        }
        writer.finish().unwrap();
        let error = import_to(&target, std::slice::from_ref(&file))
            .await
            .unwrap_err()
            .to_string();
        let block = blocks(&file)[0].1.id();
        assert!(
            error.contains(&format!("begins with block {block}: its parent 0x"))
                && error.ends_with(end),
            "{error}"
        );
    }
    let missing = import_to(&target, &[files.path().join("none")])
        .await
        .unwrap_err();
    assert!(matches!(missing, ImportError::Open { .. }), "{missing}");
}

/// A file takes precedence over our chain: its branch replaces ours, unless ours has a safe or
/// finalized block that the branch lacks.
#[tokio::test(flavor = "multi_thread")]
async fn another_branch_becomes_the_chain() {
    let (source, target, files) = (grown(17, 8).await, datadir(), tempfile::tempdir().unwrap());
    let file = files.path().join("blocks");
    export_from(&source, &file, None).await.unwrap();
    let want = head(&source).await;
    let (chain, threads) = open(target.path());
    grow(&chain, 18, 20).await;
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    import_to(&target, std::slice::from_ref(&file))
        .await
        .unwrap();
    assert_eq!(head(&target).await, want);
    assert!(check(target.path()).is_sound());

    let finalized = datadir();
    let (chain, threads) = open(finalized.path());
    grow(&chain, 18, 20).await;
    let three = chain.view().hash_of(3).unwrap();
    chain
        .forkchoice(chain.view().head().hash, three, three)
        .await
        .unwrap();
    let ours = chain.view().head();
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    let error = import_to(&finalized, &[file])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("contradicts the safe block 3"), "{error}");
    assert_eq!(head(&finalized).await, ours);
}
