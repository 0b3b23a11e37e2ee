#!/usr/bin/env bash
# *Adding a node* of the operator's guide, with every component in a process of its own, as a user types it; then the shutdown order,
# and the start order with each process started before the one that it needs.
#
# Usage: adding_a_node.sh STARLING NETWORK DIRECTORY TRANSACTION PORT...
#   STARLING     the program
#   NETWORK      files of a chain: l1-genesis.json, l2-genesis.json, rollup.json, l1-chain-config.json, keys, devnet.json
#   DIRECTORY    an empty folder for both nodes
#   TRANSACTION  a signed L2 transaction, which is submitted to the new node
#   PORT         twelve free ports
set -euo pipefail

starling=$1 network=$2 dir=$3 transaction=$4
shift 4
ports=("$@")
l1=http://127.0.0.1:${ports[0]} beacon=http://127.0.0.1:${ports[1]}
# The first node: HTTP, Engine API, rollup RPC, swarm; the RPCs of batcher and proposer.
first=http://127.0.0.1:${ports[2]} first_rollup=http://127.0.0.1:${ports[4]}
batcher=http://127.0.0.1:${ports[6]}
# The new node.
second=http://127.0.0.1:${ports[8]} second_rollup=http://127.0.0.1:${ports[10]}
declare -A pids

say() { echo "== $*"; }

fail() {
    echo "FAILED: $*"
    for log in "$dir"/*.log; do
        echo "--- $log"
        tail -n 25 "$log"
    done
    exit 1
}

# run NAME COMMAND...: starts a process with a log of its own.
run() {
    local name=$1
    shift
    "$starling" "$@" >>"$dir/$name.log" 2>&1 &
    pids[$name]=$!
}

end_all() {
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
    done
}
trap end_all EXIT

# stop NAME SIGNAL SENTENCE: ends a process, which says in its last lines what it leaves.
stop() {
    kill "-$2" "${pids[$1]}"
    for _ in $(seq 900); do
        kill -0 "${pids[$1]}" 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 "${pids[$1]}" 2>/dev/null; then fail "$1 does not stop"; fi
    wait "${pids[$1]}" || fail "$1 ended with an error"
    unset "pids[$1]"
    tail -n 15 "$dir/$1.log" | grep -q "$3" || fail "$1 does not say: $3"
    say "$1 has stopped"
}

# says NAME SENTENCE: waits until the log of a process has a sentence.
says() {
    for _ in $(seq 1200); do
        if grep -q "$2" "$dir/$1.log" 2>/dev/null; then return; fi
        kill -0 "${pids[$1]}" 2>/dev/null || fail "$1 has ended"
        sleep 0.1
    done
    fail "$1 does not say: $2"
}

# rpc URL METHOD PARAMS
rpc() {
    curl -s --max-time 20 -H 'Content-Type: application/json' \
        -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$2\",\"params\":$3}" "$1" || true
}

# head URL NAME: number of a head of a rollup node, as unsafe_l2.
head_of() {
    local number
    number=$(rpc "$1" optimism_syncStatus '[]' | grep -o "\"$2\":{[^}]*}" | grep -o '"number":[0-9]*' | head -n 1)
    echo "${number#*:}"
}

# rises URL NAME ABOVE: waits until a head is above a number.
rises() {
    local now=
    for _ in $(seq 1800); do
        now=$(head_of "$1" "$2" || true)
        if [ "${now:-0}" -gt "$3" ]; then
            say "$2 at $1 is $now"
            return
        fi
        sleep 0.1
    done
    fail "$2 at $1 stays at ${now:-nothing}, and should be above $3"
}

# hash URL NUMBER: hash of a block.
hash() {
    rpc "$1" eth_getBlockByNumber "[\"$(printf '0x%x' "$2")\",false]" | grep -o '"hash":"0x[0-9a-f]*"' | head -n 1
}

start_execution() { # FOLDER PORT ENGINE_PORT OPTION...
    local folder=$1 port=$2 engine=$3
    shift 3
    run "$folder-execution" execution --datadir="$dir/$folder/execution" \
        --http --http.addr=127.0.0.1 --http.port="$port" --http.api=eth,net,web3,miner \
        --authrpc.addr=127.0.0.1 --authrpc.port="$engine" --authrpc.jwtsecret="$dir/$folder/jwt.txt" "$@"
}

start_rollup() { # FOLDER ENGINE_PORT RPC_PORT SWARM_PORT OPTION...
    local folder=$1 engine=$2 rpc=$3 swarm=$4
    shift 4
    run "$folder-rollup" rollup --datadir="$dir/$folder/rollup" \
        --l1="$l1" --l1.beacon="$beacon" --l1.http-poll-interval=500ms --l1.epoch-poll-interval=1s \
        --l2="http://127.0.0.1:$engine" --l2.jwt-secret="$dir/$folder/jwt.txt" \
        --rollup.config="$dir/$folder/rollup.json" --rollup.l1-chain-config="$dir/$folder/l1-chain-config.json" \
        --rpc.addr=127.0.0.1 --rpc.port="$rpc" \
        --p2p.listen.ip=127.0.0.1 --p2p.listen.tcp="$swarm" --p2p.no-discovery \
        --p2p.priv.path="$dir/$folder/opnode_p2p_priv.txt" "$@"
}

start_first_execution() { start_execution first "${ports[2]}" "${ports[3]}"; }

start_first_rollup() {
    start_rollup first "${ports[3]}" "${ports[4]}" "${ports[5]}" --rpc.enable-admin \
        --sequencer.enabled --sequencer.l1-confs=0 --p2p.sequencer.key.path="$network/sequencer.key"
}

start_batcher() {
    run batcher batcher --l1-eth-rpc="$l1" --l2-eth-rpc="$first" --rollup-rpc="$first_rollup" \
        --private-key.path="$network/batcher.key" --data-availability-type=blobs --max-channel-duration=1 \
        --poll-interval=500ms --num-confirmations=1 --txmgr.receipt-query-interval=500ms \
        --rpc.addr=127.0.0.1 --rpc.port="${ports[6]}" --rpc.enable-admin
}

start_proposer() {
    local oracle
    oracle=$(grep -o '"output_oracle": *"0x[0-9a-fA-F]*"' "$network/devnet.json" | grep -o '0x[0-9a-fA-F]*')
    run proposer proposer --l1-eth-rpc="$l1" --rollup-rpc="$first_rollup" --l2oo-address="$oracle" \
        --private-key.path="$network/proposer.key" --poll-interval=1s --num-confirmations=1 \
        --txmgr.receipt-query-interval=500ms --rpc.addr=127.0.0.1 --rpc.port="${ports[7]}"
}

start_second_execution() { start_execution second "${ports[8]}" "${ports[9]}" --rollup.sequencerhttp="$first"; }

start_second_rollup() {
    start_rollup second "${ports[9]}" "${ports[10]}" "${ports[11]}" --p2p.static="$first_peer"
}

# A secret of 32 random bytes in hex.
new_secret() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

say "the L1"
"$starling" init --datadir="$dir/l1" "$network/l1-genesis.json" >>"$dir/init.log" 2>&1
run l1 execution --datadir="$dir/l1" --dev.period=2 --dev.beacon.port="${ports[1]}" \
    --http --http.addr=127.0.0.1 --http.port="${ports[0]}"
says l1 "JSON-RPC is served"

say "the first node: execution client, rollup node, batcher, proposer"
mkdir -p "$dir/first"
cp "$network/l2-genesis.json" "$dir/first/genesis.json"
cp "$network/rollup.json" "$network/l1-chain-config.json" "$dir/first/"
new_secret >"$dir/first/jwt.txt"
"$starling" init --datadir="$dir/first/execution" "$dir/first/genesis.json" >>"$dir/init.log" 2>&1
start_first_execution
start_first_rollup
start_batcher
start_proposer
rises "$first_rollup" unsafe_l2 3

say "a new node: 1. to 4. genesis, rollup config, secret, initialisation"
mkdir -p "$dir/second"
cp "$dir/first/genesis.json" "$dir/first/rollup.json" "$dir/first/l1-chain-config.json" "$dir/second/"
new_secret >"$dir/second/jwt.txt"
"$starling" init --datadir="$dir/second/execution" "$dir/second/genesis.json" >>"$dir/init.log" 2>&1
say "5. the first node is its static peer"
peer=$(rpc "$first_rollup" opp2p_self '[]' | grep -o '"peerID":"[^"]*"' | cut -d '"' -f 4)
first_peer=/ip4/127.0.0.1/tcp/${ports[5]}/p2p/$peer
say "6. the execution client, then the rollup node"
start_second_execution
says second-execution "JSON-RPC is served"
start_second_rollup
rises "$second_rollup" unsafe_l2 5
sent=$(rpc "$second" eth_sendRawTransaction "[\"$transaction\"]" | grep -o '"result":"0x[0-9a-f]*"' | cut -d '"' -f 4)
[ -n "$sent" ] || fail "the new node takes no transaction"
for _ in $(seq 600); do
    receipt=$(rpc "$second" eth_getTransactionReceipt "[\"$sent\"]")
    if grep -q '"status":"0x1"' <<<"$receipt"; then break; fi
    sleep 0.1
done
grep -q '"status":"0x1"' <<<"$receipt" || fail "no receipt on the new node: $receipt"
for name in safe_l2 finalized_l2; do
    rises "$first_rollup" "$name" 2
    rises "$second_rollup" "$name" 2
done
safe=$(head_of "$second_rollup" safe_l2)
[ "$(hash "$first" "$safe")" = "$(hash "$second" "$safe")" ] || fail "the nodes have different blocks $safe"
says proposer "proposed\|Proposer tx"

say "shutdown order: batcher, proposer, rollup node, execution client"
answer=$(rpc "$batcher" admin_stopBatcher '[]')
grep -q '"result":null' <<<"$answer" || fail "admin_stopBatcher: $answer"
grep -q "Batch Submitter stopped" "$dir/batcher.log" || fail "the batcher does not say that it stopped"
stop batcher INT "Batch Submitter stopped"
stop proposer TERM "Proposer stopped"
unsafe=$(head_of "$first_rollup" unsafe_l2)
for node in second first; do
    stop "$node-rollup" TERM "the safe head is recorded"
    stop "$node-execution" INT "the chain is stored and closed"
done

say "start order, each before the one that it needs"
for log in "$dir"/*.log; do cp "$log" "$log.1" && : >"$log"; done
start_proposer
start_batcher
start_first_rollup
start_second_rollup
says proposer "waiting for the rollup node at $first_rollup"
says batcher "waiting for the rollup node at $first_rollup"
says first-rollup "waiting for the execution client"
says second-rollup "waiting for the execution client"
start_first_execution
start_second_execution
for name in unsafe_l2 safe_l2 finalized_l2; do
    rises "$first_rollup" "$name" "$unsafe"
    rises "$second_rollup" "$name" "$unsafe"
done
safe=$(head_of "$second_rollup" safe_l2)
[ "$(hash "$first" "$safe")" = "$(hash "$second" "$safe")" ] || fail "the nodes have different blocks $safe"
say "all heads move again"
