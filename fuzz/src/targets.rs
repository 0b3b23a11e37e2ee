//! The fuzz targets, one file each.

pub mod batch;
pub mod beacon_answers;
pub mod blob;
pub mod blocks;
pub mod channel;
pub mod flags;
pub mod flashblock;
pub mod frame;
pub mod gossip;
pub mod json_rpc;
pub mod l1;
pub mod l1_answers;
pub mod pipeline;
pub mod range;
pub mod records;
pub mod reqresp;
pub mod span;
pub mod stored;
pub mod trace_options;
pub mod transactions;

use crate::FuzzTarget;

macro_rules! targets {
    ($($name:ident)*) => {
        &[$(FuzzTarget { name: stringify!($name), run: $name::target, seeds: $name::seeds }),*]
    };
}

pub const ALL: &[FuzzTarget] = targets!(
    gossip reqresp range records flags blocks transactions l1 json_rpc stored
    frame channel span batch blob pipeline l1_answers beacon_answers trace_options flashblock
);
