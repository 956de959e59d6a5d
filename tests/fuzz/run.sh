#!/bin/bash
# run.sh FOLDER SECONDS [CORES] [READER...]: fuzzes the readers (all of FOLDER/readers.txt unless named) with
# the programs FOLDER/fuzz_<reader> for SECONDS of wall clock on CORES (all unless said), and prints how many
# inputs each has run. It starts from the folder `seeds` next to this file. Inputs that were found, logs and
# reproducers go to FUZZ_WORK, a new temporary folder unless set; a later run with the same FUZZ_WORK goes on
# from its inputs. Fails when a reader crashed, hung or took too much memory, with the path of each input
# that did it.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
programs="$(cd "$1" && pwd)"
seconds="$2"
cores="${3:-$(nproc)}"
readers=("${@:4}")
[ ${#readers[@]} -gt 0 ] || mapfile -t readers <"$programs/readers.txt"
work="${FUZZ_WORK:-$(mktemp -d /tmp/dsv-fuzz-XXXXXX)}"
mkdir -p "$work"

# Short stacks of allocations and a small quarantine make the sanitizer twice as fast; a reproducer shows the
# rest.
export ASAN_OPTIONS="malloc_context_size=2:quarantine_size_mb=4:check_printf=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export LD_LIBRARY_PATH="$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# As many processes for each reader as keep all cores busy, each for an equal share of the time.
copies=$(((cores + ${#readers[@]} - 1) / ${#readers[@]}))
share=$((seconds * cores / (${#readers[@]} * copies)))
[ "$share" -gt 0 ] || share=1

fuzz_one()
{
    local reader="$1" copy="$2" work="$3"
    local corpus="$work/corpus/$reader"
    mkdir -p "$corpus" "$work/found" "$work/logs"
    "$4/fuzz_$reader" -seed="$copy" -max_total_time="$5" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$work/found/$reader-" "$corpus" "$6/seeds/$reader" \
        >"$work/logs/$reader.$copy" 2>&1 || echo "$reader" >>"$work/failed"
}
export -f fuzz_one

rm -f "$work/failed"
for copy in $(seq "$copies"); do
    for reader in "${readers[@]}"; do
        printf '%s\0%s\0' "$reader" "$copy"
    done
done | xargs -0 -n 2 -P "$cores" bash -c 'fuzz_one "$4" "$5" "$0" "$1" "$2" "$3"' \
    "$work" "$programs" "$share" "$here"

# The number after a word of a log's statistics, added up over the logs of a reader.
statistic()
{
    LC_ALL=C sed -n "s/^stat::$2: *//p" "$work/logs/$1".* | awk '{ sum += $1 } END { printf "%d", sum }'
}

total=0
printf '%-16s %14s %12s %8s\n' reader executions "a second" inputs
for reader in "${readers[@]}"; do
    count=$(statistic "$reader" number_of_executed_units)
    total=$((total + count))
    printf '%-16s %14d %12d %8d\n' "$reader" "$count" $((count / (share * copies))) \
        "$(find "$work/corpus/$reader" -type f | wc -l)"
done
printf '%-16s %14d\n' all "$total"

if [ -e "$work/failed" ]; then
    for reader in $(sort -u "$work/failed"); do
        echo "FAILED: $reader" >&2
        grep -ahE 'not so:|runtime error:|^SUMMARY:|ERROR:' "$work/logs/$reader".* | head -5 >&2 || true
        find "$work/found" -name "$reader-*" -exec printf '  %s\n' {} \; >&2
    done
    exit 1
fi
