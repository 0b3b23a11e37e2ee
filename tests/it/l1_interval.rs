//! An L1 of our own that makes a block at every interval (`--dev.period`).

use crate::{
    l1_blobs::L1,
    net::{call, wait},
};
use serde_json::{Value, json};
use starling::devnet::genesis::l1_genesis_of;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn blocks_go_on_from_an_earlier_head_that_debug_set_head_made() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    L1::init(dir.path(), &l1_genesis_of(900, Default::default()));
    let options = ["--dev.period=1", "--http.api=eth,debug"];
    let l1 = L1::of_datadir(dir.path(), &options);
    let block = |number: u64| {
        let params = json!([format!("{number:#x}"), false]);
        let block = call(&l1.url, "eth_getBlockByNumber", params).ok();
        block.filter(Value::is_object)
    };
    let sealed = wait("block 4", PATIENCE, || block(4));
    call(&l1.url, "debug_setHead", json!(["0x2"])).expect("an earlier head");
    let other = wait("another block 4", PATIENCE, || {
        block(4).filter(|block| block["hash"] != sealed["hash"])
    });
    let before = block(3).expect("block 3");
    assert_eq!(other["parentHash"], before["hash"]);
    wait("a block above", PATIENCE, || block(6));
}
