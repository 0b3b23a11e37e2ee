//! The small state of each node, and the table of receipts.

use super::config::ModelConfig;

/// Number of a node's newest blocks that can be announced: blocks of 300 ms for three heartbeats,
/// with some that came late.
const RECENT: usize = 8;

#[derive(Clone)]
pub(super) struct ModelNode {
    /// Number of peers in the mesh, and those among them that this node dialled.
    pub mesh: u32,
    pub outbound: u32,
    pub joined: bool,
    /// The node passes nothing on.
    pub silent: bool,
    /// Number of the newest received block, plus one.
    pub head: u32,
    pub sent: u64,
    pub received: u64,
    /// Copies of blocks that were received, and those among them that were in vain.
    pub copies: u32,
    pub duplicates: u32,
    recent: [(u32, u64); RECENT],
    newest: usize,
}

impl ModelNode {
    pub fn new(joined: bool, silent: bool) -> Self {
        Self {
            mesh: 0,
            outbound: 0,
            joined,
            silent,
            head: 0,
            sent: 0,
            received: 0,
            copies: 0,
            duplicates: 0,
            recent: [(0, u64::MAX); RECENT],
            newest: 0,
        }
    }

    /// Adds a block that was checked at `now`.
    pub fn remember(&mut self, block: u32, now: u64) {
        self.newest = (self.newest + 1) % RECENT;
        self.recent[self.newest] = (block, now);
        self.head = self.head.max(block + 1);
    }

    /// Blocks that were checked after `time`, the newest first.
    pub fn since(&self, time: u64) -> impl Iterator<Item = u32> + Clone + use<> {
        let (recent, newest) = (self.recent, self.newest);
        (0..RECENT)
            .map(move |back| recent[(newest + RECENT - back) % RECENT])
            .take_while(move |(_, at)| *at != u64::MAX && *at > time)
            .map(|(block, _)| block)
    }
}

/// Time and distance of the first copy of each block at each node.
pub(super) struct ModelReceipts {
    nodes: usize,
    /// Microseconds since the publication, or [`Self::NEVER`]; block by block.
    pub after: Vec<u32>,
    /// Hops from the publisher.
    pub hop: Vec<u8>,
    /// Microseconds from the publication until the block is the head, like `after`. Empty unless the
    /// nodes share processors.
    heads: Vec<u32>,
}

impl ModelReceipts {
    pub const NEVER: u32 = u32::MAX;

    pub fn new(config: &ModelConfig) -> Self {
        let receipts = config.nodes as usize * config.blocks as usize;
        let heads = config.processors.map_or(0, |_| receipts);
        Self {
            nodes: config.nodes as usize,
            after: vec![Self::NEVER; receipts],
            hop: vec![0; receipts],
            heads: vec![Self::NEVER; heads],
        }
    }

    fn index(&self, block: u32, node: u32) -> usize {
        block as usize * self.nodes + node as usize
    }

    /// Microseconds from the publication to the receipt.
    pub fn after(&self, block: u32, node: u32) -> Option<u32> {
        let after = self.after[self.index(block, node)];
        (after != Self::NEVER).then_some(after)
    }

    pub fn has(&self, block: u32, node: u32) -> bool {
        self.after(block, node).is_some()
    }

    /// Hops from the publisher to a node that has the block.
    pub fn hop(&self, block: u32, node: u32) -> u8 {
        self.hop[self.index(block, node)]
    }

    /// Adds the first copy, `ns` after the publication.
    pub fn add(&mut self, block: u32, node: u32, ns: u64, hop: u8) {
        let index = self.index(block, node);
        self.after[index] = micros(ns);
        self.hop[index] = hop;
    }

    /// Adds the time at which a received block is the head, `ns` after the publication.
    pub fn add_head(&mut self, block: u32, node: u32, ns: u64) {
        let index = self.index(block, node);
        self.heads[index] = micros(ns);
    }

    /// Receipts of one block by the first `nodes` nodes: microseconds and hops.
    pub fn block(&self, block: u32, nodes: u32) -> (&[u32], &[u8]) {
        let range = self.range(block, nodes);
        (&self.after[range.clone()], &self.hop[range])
    }

    /// The propagation of one block to the first `nodes` nodes, as a lab measures it: to the new
    /// heads where the model has their times, and otherwise to the receipts.
    pub fn arrivals(&self, block: u32, nodes: u32) -> (&[u32], &[u8]) {
        let (after, hop) = self.block(block, nodes);
        if self.heads.is_empty() {
            return (after, hop);
        }
        (&self.heads[self.range(block, nodes)], hop)
    }

    fn range(&self, block: u32, nodes: u32) -> std::ops::Range<usize> {
        let from = self.index(block, 0);
        from..from + nodes as usize
    }
}

/// Whole microseconds, less than [`ModelReceipts::NEVER`].
fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1_000).unwrap_or(ModelReceipts::NEVER - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_names_its_newest_blocks() {
        let mut node = ModelNode::new(true, false);
        assert_eq!(node.since(0).count(), 0);
        (0..20).for_each(|block| node.remember(block, u64::from(block) * 10));
        assert_eq!(node.since(165).collect::<Vec<_>>(), [19, 18, 17]);
        assert_eq!(node.since(0).count(), RECENT);
        assert_eq!(node.head, 20);
    }
}
