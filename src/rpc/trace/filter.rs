//! `trace_filter`: the call frames in a range of blocks that come from or go to some addresses.
//!
//! There is no index, so the transactions of the range are executed again. The range is bounded,
//! and the search ends with the frame that completes `count`.

use super::blocks::{new_session, replay_unless_empty};
use crate::{
    chain::evm::{Deadline, FrameView, TraceWriter, TracerConfig},
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::block_arg::{BlockArg, BlockTag},
        json,
        params::{Arg, Args, Count, kind, unfit},
        trace_session::{Traced, known_number},
    },
};
use alloy_primitives::Address;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// The members of a filter, not yet parsed.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct FilterMembers<'a> {
    #[serde(borrow)]
    from_block: Option<&'a RawValue>,
    #[serde(borrow)]
    to_block: Option<&'a RawValue>,
    from_address: Option<BTreeSet<Address>>,
    to_address: Option<BTreeSet<Address>>,
    mode: FilterMode,
    #[serde(borrow)]
    after: Option<&'a RawValue>,
    #[serde(borrow)]
    count: Option<&'a RawValue>,
}

/// The combination of the two lists of addresses, `from` and `to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FilterMode {
    /// Frames from an address in `from`, or to an address in `to`.
    Union,
    /// Frames from an address in `from` that go to an address in `to`.
    #[default]
    Intersection,
}

/// A search for call frames.
#[derive(Debug)]
struct FrameFilter {
    from_block: BlockTag,
    to_block: BlockTag,
    /// Addresses that a frame comes from (`from`) and goes to (`to`). An empty list accepts every
    /// address.
    from: BTreeSet<Address>,
    to: BTreeSet<Address>,
    mode: FilterMode,
    /// Number of matching frames that are skipped first.
    after: u64,
    /// Number of matching frames that are still to be returned.
    count: u64,
}

impl Arg for FrameFilter {
    fn from_json(json: &str) -> Result<Self, String> {
        if kind(json) != "object" {
            return Err(unfit(kind(json), "TraceFilter"));
        }
        let members: FilterMembers<'_> = json::read(json).map_err(|error| error.to_string())?;
        let tag = |json: Option<&RawValue>, default| match json.map(RawValue::get) {
            None | Some("null") => Ok(default),
            Some(json) if kind(json) == "number" => Ok(BlockTag::Number(Count::from_json(json)?.0)),
            Some(json) => BlockTag::from_json(json),
        };
        let number = |json: Option<&RawValue>, default| match json.map(RawValue::get) {
            None | Some("null") => Ok::<_, String>(default),
            Some(json) => Ok(Count::from_json(json)?.0),
        };
        Ok(Self {
            from_block: tag(members.from_block, BlockTag::Earliest)?,
            to_block: tag(members.to_block, BlockTag::Latest)?,
            from: members.from_address.unwrap_or_default(),
            to: members.to_address.unwrap_or_default(),
            mode: members.mode,
            after: number(members.after, 0)?,
            count: number(members.count, u64::MAX)?,
        })
    }
}

impl FrameFilter {
    fn accepts(&self, frame: &FrameView<'_>) -> bool {
        let accepts = |list: &BTreeSet<Address>, address: Option<Address>| {
            list.is_empty() || address.is_some_and(|address| list.contains(&address))
        };
        let from = accepts(&self.from, Some(frame.from()));
        let to = accepts(&self.to, frame.to());
        match self.mode {
            FilterMode::Intersection => from && to,
            // If one list is empty, only the other list selects frames.
            FilterMode::Union if self.from.is_empty() => to,
            FilterMode::Union if self.to.is_empty() => from,
            FilterMode::Union => from || to,
        }
    }

    /// Counts a matching frame. Returns whether the frame is in the requested part.
    fn takes(&mut self) -> bool {
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        let wanted = self.count > 0;
        self.count -= u64::from(wanted);
        wanted
    }
}

/// `trace_filter(filter)`: the call frames that match a filter.
pub fn filter(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let mut filter: FrameFilter = args.at_most(1)?.required()?;
    let view = context.view();
    let number = |tag| known_number(context, &view, BlockArg::Tag(tag));
    let (first, last) = (number(filter.from_block)?, number(filter.to_block)?);
    if first > last {
        return Err(RpcError::invalid_params(
            "invalid parameters: fromBlock cannot be greater than toBlock",
        ));
    }
    let most = context.bounds.trace_blocks;
    if last - first > most {
        return Err(RpcError::invalid_params(format!(
            "Block range too large; currently limited to {most} blocks (--rpc.max-trace-filter-blocks)"
        )));
    }
    let mut session = new_session(context, deadline, TracerConfig::Frames, out);
    session.raw("[");
    let mut separator = "";
    for number in first..=last {
        let Some(mut replay) = replay_unless_empty(&session, &view, number)? else {
            continue;
        };
        while replay.done() < replay.count() && filter.count > 0 {
            let place = replay.place();
            let frames = session.frames(&mut replay)?;
            let Some(tracer) = &mut session.tracer else {
                break;
            };
            frames.visit(|frame| {
                if filter.accepts(frame) && filter.takes() {
                    tracer.out().raw(std::mem::replace(&mut separator, ","));
                    frame.write(Some(&place), tracer.out());
                }
            });
        }
        if filter.count == 0 {
            break;
        }
    }
    session.raw("]");
    session.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_op_reth_reads_them() {
        let filter = FrameFilter::from_json(
            r#"{"fromBlock":"0x3","toBlock":5,"fromAddress":["0x00000000000000000000000000000000000000aa"],"after":2,"count":"0x7","mode":"union"}"#,
        )
        .unwrap();
        assert_eq!(filter.from_block, BlockTag::Number(3));
        assert_eq!(filter.to_block, BlockTag::Number(5));
        assert_eq!((filter.after, filter.count), (2, 7));
        assert_eq!((filter.from.len(), filter.mode), (1, FilterMode::Union));
        let all = FrameFilter::from_json("{}").unwrap();
        assert_eq!(all.from_block, BlockTag::Earliest);
        assert_eq!(all.to_block, BlockTag::Latest);
        assert_eq!((all.mode, all.count), (FilterMode::Intersection, u64::MAX));
        for refused in [
            "[]",
            r#"{"unknown":1}"#,
            r#"{"mode":"both"}"#,
            r#"{"after":-1}"#,
            r#"{"fromAddress":"0x12"}"#,
        ] {
            assert!(FrameFilter::from_json(refused).is_err(), "{refused}");
        }
    }
}
