#!/bin/sh
# The crash campaigns at full size: kill -9 under block import with reorgs, damaged files, and power cuts (these need strace). Prints the
# counts; fails if anything is inconsistent. STARLING_SEED chooses the same kills, damages and cuts again. Sizes: STARLING_KILLS,
# STARLING_TORN, STARLING_POWER_CUTS. At full size this takes about twenty-five minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
STARLING_KILLS="${STARLING_KILLS:-500}" STARLING_TORN="${STARLING_TORN:-2000}" STARLING_POWER_CUTS="${STARLING_POWER_CUTS:-200}"
export STARLING_KILLS STARLING_TORN STARLING_POWER_CUTS
exec cargo test --release --package starling --test it -- --nocapture --test-threads 1 \
    campaign::killed_under_import campaign::damaged_files power_cut::a_power_cut
