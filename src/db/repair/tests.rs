//! A payload log whose tables are damaged: found, named in words, and put aside. What a repair does
//! to the store is tested with `verify`.

use super::*;
use crate::{
    chain::tests::{build, datadir, killed, open},
    db::{
        stats,
        verify::{Remedy, verify_payload_log},
    },
};

/// The tables of a database's keyspaces.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_log_with_a_damaged_table_is_put_aside() {
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
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    PayloadLog::open(&chain::payload_log_dir(dir.path()))
        .unwrap()
        .flush()
        .unwrap();

    let all = tables(&chain::payload_log_dir(dir.path()));
    assert!(
        all.len() >= 3,
        "one of payloads, one of the index, one of guard rows: {all:?}"
    );
    for table in all {
        let copy = killed(dir.path());
        let folder = chain::payload_log_dir(copy.path());
        let table = copy.path().join(table.strip_prefix(dir.path()).unwrap());
        let mut bytes = std::fs::read(&table).unwrap();
        let at = bytes.len() / 8;
        bytes[at] ^= 0x20;
        std::fs::write(&table, &bytes).unwrap();

        let mut report = DamageReport::default();
        verify_payload_log(&folder, &mut report);
        assert_eq!(report.count, 1, "{table:?}");
        let damage = &report.damages[0];
        assert_eq!(damage.remedy, Remedy::Repair);
        assert!(
            damage.what.contains(folder.to_str().unwrap()) && !damage.what.contains("Error"),
            "{}",
            damage.what
        );
        {
            let store = Store::open(copy.path(), 4 << 20, None).unwrap();
            let error = stats::stats(&store, copy.path(), &mut |_, _, _| {})
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(folder.to_str().unwrap()) && !error.contains("Error"),
                "{error}"
            );
            let PutAside { to, .. } = replace_payload_log(copy.path()).unwrap().unwrap();
            assert_eq!(
                std::fs::read(to.join(table.strip_prefix(&folder).unwrap())).unwrap(),
                bytes,
                "nothing is thrown away"
            );
            assert!(replace_payload_log(copy.path()).unwrap().is_none(), "once");
            let mut report = DamageReport::default();
            verify_payload_log(&folder, &mut report);
            assert!(report.is_sound(), "{report:?}");
        }
        // The node follows, and signs nothing until its operator says so.
        let (chain, threads) = open(copy.path());
        assert_eq!(chain.view().head(), head);
        let next = build(&chain, head.hash, 7, []).await.payload.clone();
        let error = chain
            .log_before_sign(next.clone(), B256::repeat_byte(1))
            .await
            .unwrap_err()
            .to_string();
        let mark = crate::chain::payload_log::cut_mark(&folder);
        assert!(error.contains(mark.to_str().unwrap()), "{error}");
        std::fs::remove_file(mark).unwrap();
        chain
            .log_before_sign(next, B256::repeat_byte(1))
            .await
            .unwrap();
        drop(chain);
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
    }
}
