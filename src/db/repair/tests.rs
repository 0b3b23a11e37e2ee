//! Tests of a payload log with a damaged table: the damage is found, the error names it, and the
//! log is put aside. Repairs of the store are tested with `verify`.

use super::*;
use crate::{
    chain::{
        Chain, Threads,
        tests::{build, datadir, killed, open},
    },
    db::{
        stats,
        verify::{Remedy, verify_payload_log},
    },
};

/// The table files of all keyspaces in a database folder.
fn tables(folder: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| -> Vec<PathBuf> {
        path.read_dir()
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    };
    let keyspaces = entries(&folder.join("keyspaces"));
    keyspaces
        .iter()
        .flat_map(|keyspace| entries(&keyspace.join("tables")))
        .collect()
}

/// A data directory whose payload log has table files, and the head of its chain.
struct LoggedChain {
    dir: tempfile::TempDir,
    head: BlockId,
}

async fn stop(chain: Chain, threads: Threads) {
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
}

impl LoggedChain {
    async fn new() -> Self {
        let dir = datadir();
        let (chain, threads) = open(dir.path());
        let mut head = chain.view().head();
        for salt in 0..6 {
            let block = build(&chain, head.hash, salt, []).await.payload.clone();
            chain
                .log_before_sign(block.clone(), B256::repeat_byte(1))
                .await
                .unwrap();
            head = block.id();
            chain.forkchoice(head.hash, None, None).await.unwrap();
        }
        stop(chain, threads).await;
        PayloadLog::open(&chain::payload_log_dir(dir.path()))
            .unwrap()
            .flush()
            .unwrap();
        Self { dir, head }
    }

    /// A copy of the directory, with one bit of the file `table` flipped.
    fn damaged(&self, table: &Path) -> DamagedLog {
        let copy = killed(self.dir.path());
        let table = copy
            .path()
            .join(table.strip_prefix(self.dir.path()).unwrap());
        let mut bytes = std::fs::read(&table).unwrap();
        let at = bytes.len() / 8;
        bytes[at] ^= 0x20;
        std::fs::write(&table, &bytes).unwrap();
        DamagedLog {
            folder: chain::payload_log_dir(copy.path()),
            dir: copy,
            table,
            bytes,
        }
    }
}

/// A data directory whose payload log has a damaged table.
struct DamagedLog {
    dir: tempfile::TempDir,
    /// Folder of the payload log.
    folder: PathBuf,
    table: PathBuf,
    /// Contents of the damaged table file.
    bytes: Vec<u8>,
}

impl DamagedLog {
    /// Asserts that the text describes damage of the payload log.
    fn assert_named(&self, text: &str) {
        assert!(
            text.contains(self.folder.to_str().unwrap()) && !text.contains("Error"),
            "{text}"
        );
    }

    fn check_reports(&self) {
        let mut report = DamageReport::default();
        verify_payload_log(&self.folder, &mut report);
        assert_eq!(report.count, 1, "{:?}", self.table);
        let damage = &report.damages[0];
        assert_eq!(damage.remedy, Remedy::Repair);
        self.assert_named(&damage.what);
        let store = Store::open(self.dir.path(), 4 << 20, None).unwrap();
        let error = stats::stats(&store, self.dir.path(), &mut |_, _, _| {}).unwrap_err();
        self.assert_named(&error.to_string());
    }

    /// Puts the log aside. Asserts that this happens once, that all files are moved, and that the
    /// new log is sound.
    fn check_replacement(&self) {
        let PutAside { to, .. } = replace_payload_log(self.dir.path()).unwrap().unwrap();
        let table = to.join(self.table.strip_prefix(&self.folder).unwrap());
        assert_eq!(
            std::fs::read(table).unwrap(),
            self.bytes,
            "nothing is thrown away"
        );
        assert!(
            replace_payload_log(self.dir.path()).unwrap().is_none(),
            "once"
        );
        let mut report = DamageReport::default();
        verify_payload_log(&self.folder, &mut report);
        assert!(report.is_sound(), "{report:?}");
    }

    /// Asserts that the node follows from `head`, and signs nothing until the operator allows it.
    async fn check_signing(&self, head: BlockId) {
        let (chain, threads) = open(self.dir.path());
        assert_eq!(chain.view().head(), head);
        let next = build(&chain, head.hash, 7, []).await.payload.clone();
        let error = chain
            .log_before_sign(next.clone(), B256::repeat_byte(1))
            .await
            .unwrap_err()
            .to_string();
        let mark = crate::chain::payload_log::cut_mark(&self.folder);
        assert!(error.contains(mark.to_str().unwrap()), "{error}");
        std::fs::remove_file(mark).unwrap();
        chain
            .log_before_sign(next, B256::repeat_byte(1))
            .await
            .unwrap();
        stop(chain, threads).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_log_with_a_damaged_table_is_put_aside() {
    let logged = LoggedChain::new().await;
    let all = tables(&chain::payload_log_dir(logged.dir.path()));
    assert!(
        all.len() >= 3,
        "one of payloads, one of the index, one of guard rows: {all:?}"
    );
    for table in all {
        let damaged = logged.damaged(&table);
        damaged.check_reports();
        damaged.check_replacement();
        damaged.check_signing(logged.head).await;
    }
}
