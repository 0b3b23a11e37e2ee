#!/bin/sh
# Batcher and proposer end to end at full size: one chain of 2,000 blocks through every mode on our L1 and on anvil, 100 kills, 64 L1
# reorgs in calldata and in blobs, throttling under 30 MB. Prints the figures; fails if a block is lost, posted twice or not derived.
# STARLING_SEED chooses the same kills again. The channels are then read by another implementation. Takes about two hours on two cores.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${STARLING_POSTING_FRAMES:-}" ]; then
    STARLING_POSTING_FRAMES="$(mktemp -d)"
    trap 'rm -rf "$STARLING_POSTING_FRAMES"' EXIT
fi
STARLING_POSTING_BLOCKS="${STARLING_POSTING_BLOCKS:-2000}" STARLING_POSTING_MODES="${STARLING_POSTING_MODES:-all}"
STARLING_POSTING_KILLS="${STARLING_POSTING_KILLS:-100}" STARLING_POSTING_REORGS="${STARLING_POSTING_REORGS:-64}"
STARLING_POSTING_BACKLOG="${STARLING_POSTING_BACKLOG:-30}"
export STARLING_POSTING_FRAMES STARLING_POSTING_BLOCKS STARLING_POSTING_MODES STARLING_POSTING_KILLS STARLING_POSTING_REORGS
export STARLING_POSTING_BACKLOG
cargo test --release --package starling --test it -- --nocapture --test-threads 1 posting::
cd crosscheck
cargo test posted:: -- --nocapture
