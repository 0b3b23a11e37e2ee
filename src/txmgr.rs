//! The transaction manager of batcher and proposer: brings transactions of one account onto L1, and
//! reports each when it is confirmed.
//!
//! [`fees`] prices transactions and their replacements, [`machine`] decides what is signed,
//! published, replaced and given up, [`answer`] reads what L1's nodes say to a transaction: these
//! are pure.

pub mod answer;
pub mod fees;
pub mod machine;
