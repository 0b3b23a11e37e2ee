//! Nodes that join late: they connect, join meshes, and fill the gap below their first gossiped
//! block by range sync, headers first and then windows of blocks from several peers at once.
//!
//! Responses enter the server's access line piece by piece, between copies of blocks.

use super::{
    config::ModelConfig,
    queue::ModelEvent,
    topology::OPEN,
    world::{FRAMING, ModelWorld, WARM_UP},
};

/// Round trips until a connection carries requests: TCP, noise, yamux with identify, and gossip's
/// subscriptions.
const HANDSHAKE: u64 = 4;
/// Approximate size of one window, in bytes, and its largest number of blocks.
const WINDOW_BYTES: u32 = 1 << 20;
const WINDOW_BLOCKS: u32 = 1_024;
/// Number of windows that are requested from one peer at once.
const WINDOWS_PER_PEER: usize = 2;
/// Largest number of headers in one response, and their size in bytes.
const HEADERS: u32 = 4_096;
const HEADER_BYTES: u32 = 600;
/// Largest piece of a response, in bytes.
const PIECE: u32 = 64 << 10;
/// Responses with headers have this bit, and the number of headers.
const HEADER_BIT: u32 = 1 << 31;

/// A node that starts while blocks are published.
pub(super) struct JoiningNode {
    pub node: u32,
    /// Times in ns since the start of the run.
    pub started: u64,
    pub first_block: Option<u64>,
    pub synced: Option<u64>,
    /// Blocks below the first gossiped one, which the node does not have.
    pub gap: u32,
    /// Headers that are not requested yet.
    headers: u32,
    /// Windows that have arrived, from the lowest.
    arrived: Vec<bool>,
    requested: usize,
    lowest: usize,
    /// Time until which the import of arrived blocks takes.
    imports_until: u64,
    /// Gossiped blocks since the first one, and those that were imported.
    gossiped: u32,
    imported: u32,
}

impl JoiningNode {
    /// The nodes that join, evenly in the first half of the published blocks.
    pub fn all(config: &ModelConfig) -> Vec<Self> {
        let half = config.block_time.as_nanos() as u64 * u64::from(config.blocks) / 2;
        let joins = u64::from(config.joins);
        (0..joins)
            .map(|number| {
                Self::new(
                    config.established() + number as u32,
                    WARM_UP + half * number / joins,
                )
            })
            .collect()
    }

    fn new(node: u32, started: u64) -> Self {
        Self {
            node,
            started,
            first_block: None,
            synced: None,
            gap: 0,
            headers: 0,
            arrived: Vec::new(),
            requested: 0,
            lowest: 0,
            imports_until: 0,
            gossiped: 0,
            imported: 0,
        }
    }
}

impl ModelWorld<'_> {
    fn joining(&mut self, node: u32) -> Option<&mut JoiningNode> {
        let index = node.checked_sub(self.config.established())?;
        self.joining.get_mut(index as usize)
    }

    pub(super) fn on_start(&mut self, node: u32) {
        self.nodes[node as usize].joined = true;
        for entry in self.table.row(node) {
            let round_trip = 2 * self.lines.delay(node, self.table.peer[entry]);
            let opened = ModelEvent::Opened {
                entry: entry as u32,
            };
            self.queue
                .push(self.now + HANDSHAKE * round_trip, node, opened);
        }
    }

    /// Both ends see the other's subscription, and graft it if their mesh lacks peers.
    pub(super) fn on_opened(&mut self, node: u32, entry: usize) {
        let (peer, twin) = (self.table.peer[entry], self.table.twin[entry] as usize);
        for (owner, entry) in [(node, entry), (peer, twin)] {
            self.table.flags[entry] |= OPEN;
            if self.nodes[owner as usize].mesh < self.config.mesh.lo {
                self.graft(owner, entry);
            }
        }
    }

    /// A gossiped block passed its check. The first one tells a joining node how long its gap is.
    pub(super) fn on_gossiped(&mut self, node: u32, block: u32) {
        let (now, behind) = (self.now, self.config.behind);
        let Some(joining) = self.joining(node) else {
            return;
        };
        joining.gossiped += 1;
        if joining.first_block.is_some() {
            return;
        }
        joining.first_block = Some(now);
        joining.gap = behind + block;
        joining.headers = joining.gap;
        joining.imports_until = now;
        let gap = joining.gap;
        let windows = gap.div_ceil(self.window_blocks());
        if let Some(joining) = self.joining(node) {
            joining.arrived = vec![false; windows as usize];
        }
        if windows == 0 {
            self.queue.push(now, node, ModelEvent::Imported);
            return;
        }
        let servers = self.servers(node);
        if let Some(entry) = servers.first() {
            self.request_headers(node, *entry);
        }
    }

    /// Entries of peers that serve blocks.
    fn servers(&self, node: u32) -> Vec<usize> {
        let open = self.table.with(node, OPEN, OPEN);
        open.filter(|entry| !self.nodes[self.table.peer[*entry] as usize].silent)
            .collect()
    }

    fn window_blocks(&self) -> u32 {
        (WINDOW_BYTES / self.config.block_bytes).clamp(1, WINDOW_BLOCKS)
    }

    fn request_headers(&mut self, node: u32, entry: usize) {
        if let Some(joining) = self.joining(node) {
            let count = joining.headers.min(HEADERS);
            joining.headers -= count;
            self.request_window(node, entry, HEADER_BIT | count);
        }
    }

    fn request_window(&mut self, node: u32, entry: usize, window: u32) {
        let serve = ModelEvent::Serve {
            entry: self.table.twin[entry],
            window,
        };
        self.send_control(node, entry, 1, serve);
    }

    /// Requests the lowest window that was requested from no peer.
    fn request_next(&mut self, node: u32, entry: usize) {
        let Some(joining) = self.joining(node) else {
            return;
        };
        if joining.requested < joining.arrived.len() {
            let window = joining.requested as u32;
            joining.requested += 1;
            self.request_window(node, entry, window);
        }
    }

    pub(super) fn on_serve(&mut self, node: u32, entry: u32, window: u32) {
        let bytes = self.response_bytes(self.table.peer[entry as usize], window);
        self.send_piece(node, entry, window, bytes);
    }

    /// Size of the response to a joining node's request.
    fn response_bytes(&mut self, node: u32, window: u32) -> u32 {
        let body = if window & HEADER_BIT == 0 {
            self.blocks_of(node, window) * self.config.block_bytes
        } else {
            (window & !HEADER_BIT) * HEADER_BYTES
        };
        body + FRAMING as u32
    }

    /// Number of blocks in a window of a joining node; the highest one may be smaller.
    fn blocks_of(&mut self, node: u32, window: u32) -> u32 {
        let full = self.window_blocks();
        let gap = self.joining(node).map_or(0, |it| it.gap);
        full.min(gap - full * window)
    }

    pub(super) fn send_piece(&mut self, node: u32, entry: u32, window: u32, left: u32) {
        let size = left.min(PIECE);
        let (left, bytes) = (left - size, u64::from(size));
        let way = self.way(node, entry as usize);
        let span = self.lines.occupy(self.now, way, 1, bytes);
        self.nodes[node as usize].sent += bytes;
        let arrive = ModelEvent::Arrive {
            entry: self.table.twin[entry as usize],
            window,
            left,
        };
        let at = self.lines.reaches(way, span, bytes);
        self.queue.push(at, way.to, arrive);
        if left > 0 {
            let piece = ModelEvent::Piece {
                entry,
                window,
                left,
            };
            self.queue.push(span.1, node, piece);
        }
    }

    pub(super) fn on_piece(&mut self, node: u32, entry: u32, window: u32, left: u32) {
        // Pieces before the last one are full.
        let last = (self.response_bytes(node, window) - 1) % PIECE + 1;
        let bytes = u64::from(if left == 0 { last } else { PIECE });
        let received = self.lines.receive(self.now, node, bytes);
        self.nodes[node as usize].received += bytes;
        if left == 0 {
            let complete = ModelEvent::Complete { entry, window };
            self.queue.push(received, node, complete);
        }
    }

    pub(super) fn on_response(&mut self, node: u32, entry: u32, window: u32) {
        let entry = entry as usize;
        if window & HEADER_BIT != 0 {
            if self.joining(node).is_some_and(|it| it.headers > 0) {
                self.request_headers(node, entry);
                return;
            }
            let servers = self.servers(node);
            for entry in servers.repeat(WINDOWS_PER_PEER) {
                self.request_next(node, entry);
            }
            return;
        }
        self.import(node, window);
        self.request_next(node, entry);
    }

    /// Imports what is complete from the lowest window on.
    fn import(&mut self, node: u32, window: u32) {
        let (now, each) = (self.now, self.config.import.as_nanos() as u64);
        if let Some(joining) = self.joining(node) {
            joining.arrived[window as usize] = true;
        }
        while let Some(joining) = self.joining(node) {
            let lowest = joining.lowest;
            if !joining.arrived.get(lowest).is_some_and(|it| *it) {
                break;
            }
            joining.lowest += 1;
            let last = joining.lowest == joining.arrived.len();
            let blocks = u64::from(self.blocks_of(node, lowest as u32));
            if let Some(joining) = self.joining(node) {
                joining.imports_until = joining.imports_until.max(now) + blocks * each;
                let until = joining.imports_until;
                if last {
                    self.queue.push(until, node, ModelEvent::Imported);
                }
            }
        }
    }

    /// The gap is closed. Blocks that were gossiped meanwhile are next, until none is left.
    pub(super) fn on_imported(&mut self, node: u32) {
        let (now, each) = (self.now, self.config.import.as_nanos() as u64);
        let Some(joining) = self.joining(node) else {
            return;
        };
        let more = u64::from(joining.gossiped - joining.imported);
        joining.imported = joining.gossiped;
        if more == 0 {
            joining.synced = Some(now);
        } else {
            self.queue
                .push(now + more * each, node, ModelEvent::Imported);
        }
    }
}
