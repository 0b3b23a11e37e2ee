//! The compressed bytes of a channel.

use alloy_primitives::Bytes;
use std::collections::VecDeque;

/// The data of a channel's frames, in order. The memory of a piece is released once the piece is
/// read. A clone shares the memory.
#[derive(Clone, Debug, Default)]
pub struct ChannelData {
    pieces: VecDeque<Bytes>,
}

impl ChannelData {
    /// Appends the data of the next frame.
    pub fn push(&mut self, piece: Bytes) {
        self.pieces.push_back(piece);
    }

    /// Bytes that are not read yet.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| piece.is_empty())
    }

    /// Returns the next byte without consuming it.
    pub(super) fn first(&self) -> Option<u8> {
        self.pieces.iter().find_map(|piece| piece.first().copied())
    }

    /// Moves the next `len` bytes to `out`, replacing its content. Moves fewer only at the end.
    pub(super) fn read(&mut self, len: usize, out: &mut Vec<u8>) {
        out.clear();
        while out.len() < len
            && let Some(piece) = self.pieces.pop_front()
        {
            let taken = piece.len().min(len - out.len());
            out.extend_from_slice(&piece[..taken]);
            if taken < piece.len() {
                self.pieces.push_front(piece.slice(taken..));
            }
        }
    }
}

impl FromIterator<Bytes> for ChannelData {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self {
            pieces: pieces.into_iter().collect(),
        }
    }
}

impl IntoIterator for ChannelData {
    type Item = Bytes;
    type IntoIter = std::collections::vec_deque::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter()
    }
}

impl From<Bytes> for ChannelData {
    fn from(data: Bytes) -> Self {
        Self::from_iter([data])
    }
}

impl From<Vec<u8>> for ChannelData {
    fn from(data: Vec<u8>) -> Self {
        Bytes::from(data).into()
    }
}
