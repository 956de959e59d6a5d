#!/bin/sh
# sanitize.sh BUILD [SECONDS [JOBS]]: the GPU tests of dsv's own kernels under compute-sanitizer: memory
# accesses, races in shared memory, reads of memory nobody wrote. Products by cuBLASLt are left out: their
# kernels are not ours to check, and instrumenting them takes very long. Each test runs for SECONDS at most
# (0: no limit), JOBS at a time.
set -u

# One test under one tool: sanitize.sh --one BUILD SECONDS FOLDER PROGRAM TOOL TEST
if [ "$1" = --one ]; then
    timeout -k 5 "$3" compute-sanitizer --tool "$6" --error-exitcode 9 --print-limit 3 \
        "$2/tests/cuda/test_cuda_$5" "$7" >"$4/$7.$6" 2>&1
    echo $? >"$4/$7.$6.status"
    exit 0
fi

build=$1
limit=${2:-0}
jobs=${3:-4}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
sparse="attention select_features select_lists select_threshold profile predictor_loss"
dense="test_col_sum test_layer_norm test_rms_norm_rope test_activation test_gate_residual test_add
    test_add_rows test_patch test_flow test_optim"

for tool in memcheck racecheck initcheck; do
    for test in $sparse; do echo "sparse $tool $test"; done
    for test in $dense; do echo "dense $tool $test"; done
done | xargs -P "$jobs" -L 1 sh "$0" --one "$build" "$limit" "$folder"

for log in "$folder"/*.status; do
    name=$(basename "$log" .status)
    status=$(cat "$log")
    passed=$(grep -c ' OK ]' "$folder/$name")
    if [ "$status" = 0 ] && [ "$passed" -gt 0 ]; then
        echo "$name: nothing found"
    elif [ "$status" = 124 ] && ! grep -q '^=* \(Error\|Invalid\|Uninit\|Race\)' "$folder/$name"; then
        echo "$name: nothing found in the $limit seconds it had; not finished"
    else
        failures=$((failures + 1))
        echo "$name: exit status $status, $passed passed"
        grep -v '^\[\|^$' "$folder/$name" | head -20
    fi
done
exit $failures
