//! The chain of a node, of either kind: hashes and rules only ([`TreeChain`]), or the production
//! execution core on a temporary store ([`RealChain`]). The machines of a node share it.

use super::{
    real::{CrashKind, RealChain},
    rollup::SimRollup,
    tree::TreeChain,
};
use alloy_primitives::B256;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use parking_lot::Mutex;
use starling_p2p::{Blocks, ChainHeads, Provenance, Settled};
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

/// The kind of the chains of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ChainKind {
    /// A tree of hashes stands for the execution core.
    #[default]
    Tree,
    /// The production executor, persister and payload log on a temporary store.
    Real,
}

/// The chain of one node.
pub enum NodeChain {
    Tree(Box<TreeChain>),
    Real(Box<RealChain>),
}

impl NodeChain {
    pub fn heads(&self) -> ChainHeads {
        match self {
            Self::Tree(tree) => tree.heads(),
            Self::Real(real) => real.heads(),
        }
    }

    /// The time of the head, Unix seconds.
    pub fn head_time(&self) -> u64 {
        match self {
            Self::Tree(tree) => tree.head_block().timestamp(),
            Self::Real(real) => real.head_time(),
        }
    }

    /// A known block of any branch.
    pub fn get(&self, hash: &B256) -> Option<Arc<Payload>> {
        match self {
            Self::Tree(tree) => tree.get(hash).cloned(),
            Self::Real(real) => real.get(hash),
        }
    }

    pub fn knows(&self, hash: &B256) -> bool {
        match self {
            Self::Tree(tree) => tree.get(hash).is_some(),
            Self::Real(real) => real.handle().knows(*hash),
        }
    }

    /// The canonical block of this number.
    pub fn at(&self, number: u64) -> Option<Arc<Payload>> {
        match self {
            Self::Tree(tree) => tree.at(number).cloned(),
            Self::Real(real) => real.at(number),
        }
    }

    fn hash_at(&self, number: u64) -> Option<B256> {
        match self {
            Self::Tree(tree) => tree.at(number).map(|block| block.hash),
            Self::Real(real) => real.hash_at(number),
        }
    }

    pub fn is_canonical(&self, id: BlockId) -> bool {
        self.hash_at(id.number) == Some(id.hash)
    }

    /// Accepts a block of the swarm. `wins`: whether a block of height `.0` becomes the head of a
    /// tree in place of one of height `.1`.
    pub fn follow(
        &mut self,
        block: &Arc<Payload>,
        provenance: Provenance,
        wins: impl Fn(u64, u64) -> bool,
    ) -> Settled {
        match self {
            Self::Tree(tree) => tree.import(block, wins),
            Self::Real(real) => real.follow(block, provenance),
        }
    }

    /// Adds a block on a known parent without moving a head.
    pub fn insert(&mut self, block: &Arc<Payload>) {
        match self {
            Self::Tree(tree) => tree.insert(block),
            Self::Real(real) => {
                real.insert(block);
            }
        }
    }

    /// Makes a known block the head, whatever its height.
    pub fn set_head(&mut self, head: BlockId) {
        match self {
            Self::Tree(tree) => tree.set_head(head),
            Self::Real(real) => real.set_head(head.hash),
        }
    }

    /// Makes a canonical block safe. Blocks that are not canonical are left alone.
    pub fn set_safe(&mut self, safe: BlockId) {
        match self {
            Self::Tree(tree) => tree.set_safe(safe),
            Self::Real(real) => {
                let is_higher = safe.number > real.heads().safe.number;
                if is_higher && real.hash_at(safe.number) == Some(safe.hash) {
                    real.set_safe(safe.hash);
                }
            }
        }
    }

    /// Moves the safe head to a known block, also downwards, and the head with it if the block is
    /// on another branch.
    pub fn reset_safe(&mut self, safe: BlockId) {
        match self {
            Self::Tree(tree) => tree.reset_safe(safe),
            Self::Real(real) => real.reset_safe(safe),
        }
    }

    /// Builds the derived block on `parent` and makes it the head. `None` if the core refuses.
    pub fn derive(
        &mut self,
        parent: &Payload,
        attributes: &OpPayloadAttributes,
        rollup: &SimRollup,
    ) -> Option<Arc<Payload>> {
        match self {
            Self::Tree(tree) => {
                let block = Arc::new(rollup.seal(parent, attributes));
                tree.insert(&block);
                if !tree.is_canonical(block.id()) {
                    tree.set_head(block.id());
                }
                Some(block)
            }
            Self::Real(real) => real.derive(parent.hash, attributes.clone()),
        }
    }

    /// Makes a canonical block safe that derivation has confirmed, and keeps the head on its
    /// branch.
    pub fn confirm_derived(&mut self, block: BlockId) {
        if let Self::Real(real) = self {
            real.protect(Some(block.hash));
        }
        self.set_safe(block);
    }

    /// Makes everything durable that the node has stored.
    pub fn sync(&mut self) {
        match self {
            Self::Tree(tree) => tree.sync(),
            Self::Real(real) => real.sync(),
        }
    }

    /// Ends the process. A tree only loses what was not synced.
    pub fn crash(&mut self, kind: CrashKind) {
        match self {
            Self::Tree(_) if kind == CrashKind::Kill => {}
            Self::Tree(tree) => tree.lose_unsynced(),
            Self::Real(real) => real.crash(kind),
        }
    }

    /// The execution core, in real worlds.
    pub fn real(&mut self) -> Option<&mut RealChain> {
        match self {
            Self::Tree(_) => None,
            Self::Real(real) => Some(real),
        }
    }
}

/// The chain of a node, shared by its machines.
#[derive(Clone)]
pub struct SharedChain(Arc<Mutex<NodeChain>>);

impl SharedChain {
    pub fn new(chain: NodeChain) -> Self {
        Self(Arc::new(Mutex::new(chain)))
    }

    pub fn lock(&self) -> parking_lot::MutexGuard<'_, NodeChain> {
        self.0.lock()
    }

    /// A copy of a tree as it is now; `None` for a real chain.
    pub fn frozen(&self) -> Option<Self> {
        match &*self.lock() {
            NodeChain::Tree(tree) => Some(Self::new(NodeChain::Tree(tree.clone()))),
            NodeChain::Real(_) => None,
        }
    }

    /// The blocks that the process serves to its peers until it ends.
    pub fn served(&self) -> Arc<dyn Blocks> {
        match &*self.lock() {
            NodeChain::Tree(_) => Arc::new(self.clone()),
            NodeChain::Real(real) => Arc::new(real.handle().clone()),
        }
    }
}

impl Blocks for SharedChain {
    fn knows(&self, hash: B256) -> bool {
        self.lock().knows(&hash)
    }

    fn block(&self, number: u64) -> Option<Payload> {
        self.lock().at(number).map(Arc::unwrap_or_clone)
    }

    fn hash(&self, number: u64) -> Option<B256> {
        self.lock().hash_at(number)
    }
}
