//! The transaction manager of batcher and proposer: brings transactions of one account onto L1, and
//! reports each when it is confirmed.
//!
//! Batcher and proposer call [`shell::TxManagerHandle::send`]. Load is bounded in [`shell`]: 16 commands,
//! 4 sidecars, 1,024 transactions; a poll reads at most 256 hashes.
//!
//! [`fees`] prices transactions and their replacements, [`machine`] decides what is signed,
//! published, replaced and given up, [`publish_result`] reads what L1's nodes say to a transaction: these
//! are pure. [`options`] has the settings, [`api`] those that the RPC changes, [`sign`] the keys,
//! [`blobs`] the sidecars, [`l1`] the calls; [`shell`] is the task that brings them together.

pub mod api;
pub mod blobs;
pub mod fees;
pub mod l1;
pub mod machine;
pub mod options;
pub mod publish_result;
pub mod shell;
pub mod sign;
