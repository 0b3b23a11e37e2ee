#!/bin/sh
# The crash campaigns at full size: kill -9 under block import with reorgs, and damaged files. Prints the counts; fails if anything is
# inconsistent. STARLING_SEED chooses the same kills and damages again. Sizes: STARLING_KILLS, STARLING_TORN. At full size this takes about
# twenty minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
STARLING_KILLS="${STARLING_KILLS:-500}" STARLING_TORN="${STARLING_TORN:-2000}"
export STARLING_KILLS STARLING_TORN
exec cargo test --release --package starling --test it -- --nocapture --test-threads 1 \
    campaign::killed_under_import campaign::damaged_files
