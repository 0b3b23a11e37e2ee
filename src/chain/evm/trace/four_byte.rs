//! `4byteTracer`: counts the selectors in the calls of a transaction, together with the length of
//! their arguments.

use super::{Entered, arena::FrameKind, writer::TraceWriter};
use alloy_primitives::hex;
use std::collections::BTreeMap;

/// Length of a selector in bytes.
const SELECTOR: usize = 4;

/// Counts of the calls so far, by selector and length of the arguments.
#[derive(Default)]
pub(super) struct FourByteTracer(BTreeMap<String, u64>);

impl FourByteTracer {
    pub(super) fn enter(&mut self, entered: &Entered) {
        let call = matches!(
            entered.kind,
            FrameKind::Call | FrameKind::CallCode | FrameKind::DelegateCall | FrameKind::StaticCall
        );
        if !call || entered.precompile || entered.input.len() < SELECTOR {
            return;
        }
        let (selector, arguments) = entered.input.split_at(SELECTOR);
        let key = format!("{}-{}", hex::encode_prefixed(selector), arguments.len());
        *self.0.entry(key).or_default() += 1;
    }

    pub(super) fn finish(self, out: &mut TraceWriter) {
        out.raw("{");
        for (index, (key, count)) in self.0.iter().enumerate() {
            out.raw(if index == 0 { "" } else { "," });
            out.quoted(key);
            out.raw(":");
            out.display(count);
        }
        out.raw("}");
    }
}
