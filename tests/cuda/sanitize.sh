#!/bin/sh
# sanitize.sh BUILD [SECONDS [JOBS]]: the GPU tests of dsv's own kernels under compute-sanitizer: memory
# accesses, races in shared memory, reads of memory nobody wrote. Products by cuBLASLt are left out: their
# kernels are not ours to check, and instrumenting them takes very long. Each test runs for SECONDS at most
# (0: no limit), JOBS at a time; a line for each as it ends.
set -u

# One test under one tool: sanitize.sh --one BUILD SECONDS FOLDER PROGRAM TOOL TEST. A file TEST.TOOL.failed
# is left in FOLDER where something was found.
if [ "$1" = --one ]; then
    log=$4/$7.$6
    name="$5 $7, $6"
    timeout -k 5 "$3" compute-sanitizer --tool "$6" --error-exitcode 9 --print-limit 3 \
        "$2/tests/cuda/test_cuda_$5" "$7" >"$log" 2>&1
    status=$?
    passed=$(grep -c ' OK ]' "$log")
    if [ "$status" = 0 ] && [ "$passed" -gt 0 ]; then
        echo "$name: nothing found"
    elif [ "$status" = 124 ] && ! grep -q '^=* \(Error\|Invalid\|Uninit\|Race\)' "$log"; then
        echo "$name: nothing found in the $3 seconds it had; not finished"
    else
        echo "$name: exit status $status, $passed passed"
        grep -v '^\[\|^$' "$log" | head -20
        touch "$log.failed"
    fi
    exit 0
fi

build=$1
limit=${2:-0}
jobs=${3:-4}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sparse="attention select_features select_lists select_threshold profile predictor_loss"
dense="test_col_sum test_layer_norm test_rms_norm_rope test_activation test_gate_residual test_add
    test_add_rows test_patch test_flow test_optim test_heads_move test_attention_merge"

for tool in memcheck racecheck initcheck; do
    for test in $sparse; do echo "sparse $tool $test"; done
    for test in $dense; do echo "dense $tool $test"; done
done | xargs -P "$jobs" -L 1 sh "$0" --one "$build" "$limit" "$folder"
exit "$(find "$folder" -name '*.failed' | wc -l)"
