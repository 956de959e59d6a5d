#!/bin/sh
# sanitize.sh BUILD [SECONDS]: the GPU tests of dsv's own kernels under compute-sanitizer: memory accesses,
# races in shared memory, reads of memory nobody wrote. Products by cuBLASLt are left out: their kernels are
# not ours to check, and instrumenting them takes very long. Each tool runs for SECONDS at most; 0: no limit.
set -u
build=$1
limit=${2:-0}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

check()
{
    timeout "$limit" compute-sanitizer --tool "$2" --error-exitcode 9 --print-limit 3 \
        "$build/tests/cuda/test_cuda_$1" test_gemm >"$folder/$1-$2" 2>&1
    echo $? >"$folder/$1-$2.status"
}

for tool in memcheck racecheck initcheck; do
    for test in dense sparse; do
        check $test $tool &
    done
done
wait

for log in "$folder"/*.status; do
    name=$(basename "$log" .status)
    status=$(cat "$log")
    passed=$(grep -c 'OK ]' "$folder/$name")
    case $status in
    0) echo "$name: nothing found, $passed tests" ;;
    124) echo "$name: nothing found in the $passed tests that $limit seconds allow" ;;
    *)
        failures=$((failures + 1))
        echo "$name: exit status $status"
        grep -v '^\[\|^$' "$folder/$name" | head -20
        ;;
    esac
done
exit $failures
