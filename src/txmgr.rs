//! Transaction manager of batcher and proposer: sends transactions of one account to L1, and
//! reports when each is confirmed.
//!
//! Batcher and proposer call [`shell::TxManagerHandle::send`]. [`shell`] bounds the load: 16
//! commands, 4 sidecars being built, 1,024 transactions. A poll reads at most 256 receipts.
//!
//! Pure modules: [`fees`] prices transactions and their replacements, [`machine`] decides what to
//! sign, publish, replace and give up, [`publish_result`] classifies the responses of L1 nodes to a
//! transaction. The other modules: [`options`] has the settings, [`api`] the RPC that changes some
//! of them, [`sign`] the signers, [`blobs`] the sidecars, [`l1`] the calls to L1. [`shell`] is the
//! task that connects them all.

pub mod api;
pub mod blobs;
pub mod fees;
pub mod l1;
pub mod machine;
pub mod options;
pub mod publish_result;
pub mod shell;
pub mod sign;
