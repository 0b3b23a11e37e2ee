//! The checks of a world. Safety holds at every step: the first violation ends the world. Liveness
//! holds at the end of the quiet phase: one chain everywhere.

use super::{
    l1::SimL1,
    queue::{SECOND, SimTime},
};
use alloy_primitives::{Address, B256, map::HashMap};
use starling_proto::{
    l1info::L1BlockInfo,
    payload::{BlockId, Payload},
};
use std::{collections::BTreeSet, fmt};

/// Number of steps of one node at one instant above which its timers do not advance.
const STEPS: u32 = 5_000;
/// Name of the check that time advances.
const HOT_LOOP: &str = "hot_loop";

/// A violation of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: SimTime,
    pub node: usize,
    /// The name of the check.
    pub check: &'static str,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            node,
            check,
            detail,
        } = self;
        let seconds = *at as f64 / SECOND as f64;
        write!(f, "{check}: node {node} at {seconds:.3} s: {detail}")
    }
}

/// A block that a sequencer has signed, and its L1 origin.
struct SignedBlock {
    hash: B256,
    origin: B256,
}

/// The facts that checks compare with.
pub struct Checks {
    /// The first violation of each check.
    violations: Vec<Violation>,
    /// Blocks by signer, height and parent.
    signed: HashMap<(Address, u64, B256), Vec<SignedBlock>>,
    /// The signers of all blocks that sequencers have signed.
    signers: HashMap<B256, Address>,
    /// Every signer that L1 has named.
    named: BTreeSet<Address>,
    /// Whether the scenario itself makes reorgs: L1 reorgs and changes of the sequencer.
    pub may_reorg: bool,
    /// The safe head after each L1 block, as the first node derived it.
    derived: HashMap<B256, BlockId>,
    /// The last node that did a step, the time, and the number of its steps at that time.
    steps: (usize, SimTime, u32),
}

impl Checks {
    pub fn new(signer: Address) -> Self {
        Self {
            violations: Vec::new(),
            signed: HashMap::default(),
            signers: HashMap::default(),
            named: BTreeSet::from([signer]),
            may_reorg: false,
            derived: HashMap::default(),
            steps: (0, 0, 0),
        }
    }

    pub fn violation(&self) -> Option<&Violation> {
        self.violations.first()
    }

    pub fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    /// Whether a node steps again and again at one instant, so that time would not advance.
    pub fn is_hot(&self) -> bool {
        self.violations.iter().any(|it| it.check == HOT_LOOP)
    }

    /// Records a violation, if it is the first of its check.
    pub fn fail(&mut self, at: SimTime, node: usize, check: &'static str, detail: String) {
        if self.violations.iter().all(|it| it.check != check) {
            self.violations.push(Violation {
                at,
                node,
                check,
                detail,
            });
        }
    }

    pub fn on_signer_named(&mut self, signer: Address) {
        self.named.insert(signer);
    }

    /// Whether a sequencer has signed the block.
    pub fn is_signed(&self, hash: &B256) -> bool {
        self.signers.contains_key(hash)
    }

    /// One signed hash for one height and parent, while the origin of the first is canonical.
    pub fn on_signed(
        &mut self,
        (at, node): (SimTime, usize),
        signer: Address,
        block: &Payload,
        l1: &SimL1,
    ) {
        let (number, parent, origin) = (block.number(), block.parent_hash(), origin_of(block));
        self.signers.insert(block.hash, signer);
        let same = self.signed.entry((signer, number, parent)).or_default();
        let other = same
            .iter()
            .find(|other| other.hash != block.hash && l1.is_canonical(&other.origin, at));
        let other = other.map(|other| other.hash);
        same.push(SignedBlock {
            hash: block.hash,
            origin,
        });
        if let Some(other) = other {
            let detail = format!("signed {} and {other} at height {number}", block.hash);
            self.fail(at, node, "double_sign", detail);
        }
    }

    /// A sequencer signs a block before it publishes it.
    pub fn on_published(&mut self, at: SimTime, node: usize, block: &Payload) {
        if !self.is_signed(&block.hash) {
            let detail = format!("published {}, which is not signed", block.id());
            self.fail(at, node, "published_unsigned", detail);
        }
    }

    /// Gossip accepts only blocks that a signer named by L1 has signed.
    pub fn on_accepted(&mut self, at: SimTime, node: usize, block: &Payload, signer: Address) {
        let real = self.signers.get(&block.hash);
        if real != Some(&signer) || !self.named.contains(&signer) {
            let detail = format!("accepted {} by {signer}, signed by {real:?}", block.id());
            self.fail(at, node, "wrong_signer", detail);
        }
    }

    /// A block is executed only after its parent, and only if it belongs to a signed chain.
    pub fn on_executed(&mut self, at: SimTime, node: usize, block: &Payload, parent_known: bool) {
        if !parent_known {
            let detail = format!("{} was handed over before its parent", block.id());
            self.fail(at, node, "unknown_parent", detail);
        }
        if !self.is_signed(&block.hash) {
            let detail = format!("{} belongs to no signed chain", block.id());
            self.fail(at, node, "foreign_block", detail);
        }
    }

    /// Every derived block is one that a sequencer has signed.
    pub fn on_derived(&mut self, at: SimTime, node: usize, block: &Payload) {
        if !self.is_signed(&block.hash) {
            let detail = format!("derived {}, which no sequencer has made", block.id());
            self.fail(at, node, "derived_foreign", detail);
        }
    }

    /// All nodes derive the same safe head from the same L1 blocks.
    pub fn on_l1_read(&mut self, at: SimTime, node: usize, l1: BlockId, safe: BlockId) {
        let first = *self.derived.entry(l1.hash).or_insert(safe);
        if first != safe {
            let detail = format!("derived {safe} up to L1 block {l1}, another node {first}");
            self.fail(at, node, "safe_disagrees", detail);
        }
    }

    /// A head moves to a descendant, unless the scenario makes reorgs.
    pub fn on_head(
        &mut self,
        at: SimTime,
        node: usize,
        (old, new): (BlockId, BlockId),
        kept: bool,
    ) {
        if !kept && !self.may_reorg {
            let detail = format!("the head moved from {old} to {new}");
            self.fail(at, node, "unsafe_reorg", detail);
        }
    }

    /// A node's timers advance: it does not step again and again at one instant.
    pub fn on_step(&mut self, at: SimTime, node: usize) {
        let (last, when, count) = &mut self.steps;
        if (*last, *when) == (node, at) {
            *count += 1;
            if *count > STEPS {
                self.fail(at, node, HOT_LOOP, format!("{STEPS} steps at one instant"));
            }
        } else {
            self.steps = (node, at, 0);
        }
    }
}

/// The L1 origin of a block: that of its L1 attributes, or, in a world without derivation, its
/// extra data.
pub fn origin_of(block: &Payload) -> B256 {
    if block.transactions.is_empty() {
        return B256::try_from(&block.header.extra_data[..]).unwrap_or_default();
    }
    L1BlockInfo::of(block).map_or(B256::ZERO, |info| info.origin().hash)
}
