//! `erc7562Tracer`: the frames of a transaction, with the data that bundlers of account abstraction
//! check: accessed slots, opcodes, codes whose size was read, and the inputs of KECCAK256.

use super::{
    Entered, Left, TraceEnd, TracedStep,
    arena::CallArena,
    calls::{close, write_nested},
    options::null_is_default,
    point::PointState,
    struct_log::address_of,
    writer::TraceWriter,
};
use alloy_primitives::{Address, B256, Log, U256};
use revm::bytecode::opcode;
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};

/// Estimated bytes that an entry of a map uses.
const ENTRY: usize = 128;
/// Default of `stack_top_items_size`, as in geth.
const TOP_WORDS: usize = 3;

/// Options of `erc7562Tracer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Erc7562Config {
    /// Number of words from the top of the stack that geth records with an instruction; zero means
    /// three. The result depends only on the top word.
    #[serde(deserialize_with = "null_is_default")]
    pub stack_top_items_size: usize,
    /// Opcodes that are not counted. `None` means those that bundlers do not check.
    #[serde(deserialize_with = "opcodes")]
    pub ignored_opcodes: Option<BTreeSet<u8>>,
    #[serde(deserialize_with = "null_is_default")]
    pub with_log: bool,
}

/// Deserializes a list of opcodes that are written as quantities.
fn opcodes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeSet<u8>>, D::Error> {
    let list: Option<Vec<alloy_primitives::U64>> = Option::deserialize(from)?;
    Ok(list.map(|list| list.iter().map(|op| op.to::<u64>() as u8).collect()))
}

/// The accesses of one frame.
#[derive(Clone, Debug, Default)]
struct FrameAccess {
    reads: BTreeMap<B256, Vec<B256>>,
    writes: BTreeMap<B256, u64>,
    transient_reads: BTreeMap<B256, u64>,
    transient_writes: BTreeMap<B256, u64>,
    ext_codes: Vec<Address>,
    opcodes: BTreeMap<u8, u64>,
    sizes: BTreeMap<Address, CodeSize>,
    out_of_gas: bool,
}

/// The size of a contract's code, and the first opcode that read it.
#[derive(Clone, Copy, Debug)]
struct CodeSize {
    bytes: usize,
    op: u8,
}

/// The previous instruction.
struct LastStep {
    op: u8,
    top: Option<U256>,
}

/// The tracer's state: the frames of the transaction so far.
pub(super) struct Erc7562Tracer {
    config: Erc7562Config,
    arena: CallArena<FrameAccess>,
    last: Option<LastStep>,
    preimages: BTreeSet<Vec<u8>>,
}

impl Erc7562Tracer {
    pub(super) fn new(config: Erc7562Config) -> Self {
        Self {
            config,
            arena: CallArena::default(),
            last: None,
            preimages: BTreeSet::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    pub(super) fn enter(&mut self, entered: Entered) {
        self.arena.enter(entered, FrameAccess::default());
    }

    pub(super) fn leave(&mut self, left: Left<'_>) {
        let out_of_gas = left
            .failure
            .as_ref()
            .is_some_and(|failure| failure.out_of_gas);
        if self.arena.depth() > 1
            && let Some(node) = self.arena.current()
        {
            node.more.out_of_gas = out_of_gas;
        }
        self.arena.leave(left);
    }

    pub(super) fn log(&mut self, log: &Log) {
        if self.config.with_log {
            self.arena.log(log);
        }
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        let op = step.op;
        if matches!(op, opcode::REVERT | opcode::RETURN) {
            self.last = None;
        }
        self.note_ext_code(op);
        self.note_size(step, state);
        if let Some(last) = &self.last
            && last.op == opcode::GAS
            && !is_call(op)
        {
            self.count(opcode::GAS);
        }
        if op != opcode::GAS && !self.ignores(op) {
            self.count(op);
        }
        self.note_slot(step, state);
        if op == opcode::KECCAK256
            && let [.., length, offset] = step.stack
            && let Some(preimage) = step.memory_padded(*offset, *length)
        {
            self.arena.count(ENTRY + preimage.len());
            self.preimages.insert(preimage);
        }
        let kept = match self.config.stack_top_items_size {
            0 => TOP_WORDS,
            size => size,
        };
        self.last = Some(LastStep {
            op,
            top: step.stack.last().copied().filter(|_| kept > 0),
        });
    }

    fn access(&mut self) -> Option<&mut FrameAccess> {
        Some(&mut self.arena.current()?.more)
    }

    fn count(&mut self, op: u8) {
        if let Some(access) = self.access() {
            *access.opcodes.entry(op).or_default() += 1;
        }
    }

    fn ignores(&self, op: u8) -> bool {
        match &self.config.ignored_opcodes {
            Some(ignored) => ignored.contains(&op),
            None => is_plain(op),
        }
    }

    /// Records the code that the previous instruction read, unless the current one (`op`) shows
    /// that only its existence was checked.
    fn note_ext_code(&mut self, op: u8) {
        let Some(LastStep { op: last, top }) = self.last else {
            return;
        };
        let only_whether = last == opcode::EXTCODESIZE && op == opcode::ISZERO;
        if is_ext_code(last)
            && !only_whether
            && let Some(word) = top
        {
            self.arena.count(ENTRY);
            if let Some(access) = self.access() {
                access.ext_codes.push(address_of(word));
            }
        }
    }

    fn note_size(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        let word = match step.stack {
            [.., word] if is_ext_code(step.op) => *word,
            [.., word, _] if is_call(step.op) => *word,
            _ => return,
        };
        let address = address_of(word);
        let op = step.op;
        let known = |access: &mut FrameAccess| access.sizes.contains_key(&address);
        if self.access().is_none_or(known) {
            return;
        }
        let bytes = state.code(address).len();
        self.arena.count(ENTRY);
        if let Some(access) = self.access() {
            access.sizes.insert(address, CodeSize { bytes, op });
        }
    }

    fn note_slot(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        let Some(word) = step.stack.last().copied() else {
            return;
        };
        let slot = B256::from(word);
        let access_op = matches!(
            step.op,
            opcode::SLOAD | opcode::SSTORE | opcode::TLOAD | opcode::TSTORE
        );
        if !access_op {
            return;
        }
        self.arena.count(ENTRY);
        let Some(access) = self.access() else { return };
        match step.op {
            opcode::SLOAD => {
                if !access.reads.contains_key(&slot) && !access.writes.contains_key(&slot) {
                    let value = B256::from(state.slot(step.address, word));
                    access.reads.insert(slot, vec![value]);
                }
            }
            opcode::SSTORE => *access.writes.entry(slot).or_default() += 1,
            opcode::TLOAD => *access.transient_reads.entry(slot).or_default() += 1,
            _ => *access.transient_writes.entry(slot).or_default() += 1,
        }
    }

    pub(super) fn finish(mut self, end: &TraceEnd<'_>, out: &mut TraceWriter) {
        close(&mut self.arena, end, FrameAccess::default());
        self.arena.drop_reverted_logs();
        let preimages = self.preimages;
        write_nested(&self.arena, out, |out, index, access| {
            write_access(access, out);
            if index == 0 && !preimages.is_empty() {
                out.raw(",\"keccak\":[");
                for (index, preimage) in preimages.iter().enumerate() {
                    out.raw(if index == 0 { "" } else { "," });
                    out.data(preimage);
                }
                out.raw("]");
            }
        });
    }
}

fn write_access(access: &FrameAccess, out: &mut TraceWriter) {
    out.raw(",\"accessedSlots\":{\"reads\":");
    write_object(
        out,
        &access.reads,
        |slot| slot.to_string(),
        |out, values| {
            out.raw("[");
            for (index, value) in values.iter().enumerate() {
                out.raw(if index == 0 { "" } else { "," });
                out.quoted(value);
            }
            out.raw("]");
        },
    );
    for (name, counts) in [
        (",\"writes\":", &access.writes),
        (",\"transientReads\":", &access.transient_reads),
        (",\"transientWrites\":", &access.transient_writes),
    ] {
        out.raw(name);
        write_object(
            out,
            counts,
            |slot| slot.to_string(),
            |out, count| out.display(count),
        );
    }
    out.raw("},\"extCodeAccessInfo\":[");
    for (index, address) in access.ext_codes.iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(format_args!("{address:#x}"));
    }
    out.raw("],\"usedOpcodes\":");
    write_object(
        out,
        &access.opcodes,
        |op| format!("{op:#x}"),
        |out, count| out.display(count),
    );
    out.raw(",\"contractSize\":");
    write_object(
        out,
        &access.sizes,
        |address| format!("{address:#x}"),
        |out, size| {
            out.display(format_args!(
                "{{\"contractSize\":{},\"opcode\":{}}}",
                size.bytes, size.op
            ));
        },
    );
    out.raw(",\"outOfGas\":");
    out.display(access.out_of_gas);
}

/// Writes an object with one member for each entry of a map.
fn write_object<K, V>(
    out: &mut TraceWriter,
    entries: &BTreeMap<K, V>,
    key: impl Fn(&K) -> String,
    value: impl Fn(&mut TraceWriter, &V),
) {
    out.raw("{");
    for (index, (name, entry)) in entries.iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(key(name));
        out.raw(":");
        value(out, entry);
    }
    out.raw("}");
}

fn is_ext_code(op: u8) -> bool {
    matches!(
        op,
        opcode::EXTCODEHASH | opcode::EXTCODESIZE | opcode::EXTCODECOPY
    )
}

fn is_call(op: u8) -> bool {
    matches!(
        op,
        opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL
    )
}

/// Whether this is an opcode of arithmetic or of the stack, to which no rule of ERC-7562 applies.
fn is_plain(op: u8) -> bool {
    (opcode::PUSH0..=opcode::SWAP16).contains(&op)
        || matches!(
            op,
            opcode::POP
                | opcode::ADD
                | opcode::SUB
                | opcode::MUL
                | opcode::DIV
                | opcode::EQ
                | opcode::LT
                | opcode::GT
                | opcode::SLT
                | opcode::SGT
                | opcode::SHL
                | opcode::SHR
                | opcode::AND
                | opcode::OR
                | opcode::NOT
                | opcode::ISZERO
        )
}
