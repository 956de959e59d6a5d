#!/bin/bash
# test_runs.sh DSV: what the program does and says around small runs: its standard streams, its summary, text,
# models it cannot use.
set -uo pipefail
dsv=$1
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

complain()
{
    echo "FAILED: $1"
    sed 's/^/    /' said
    failures=$((failures + 1))
}

# wants STATUS COMMAND...: runs it, keeps what it says in `said`.
wants()
{
    local wanted=$1 status=0
    shift
    "$@" >said 2>&1 || status=$?
    [ "$status" = "$wanted" ] || complain "$*: exit status $status, wanted $wanted"
}

# says WORDS / silent WORDS: of the last command, on one line.
says()
{
    grep -qF -- "$1" said || complain "wanted: $1"
}
silent()
{
    ! grep -qF -- "$1" said || complain "not wanted: $1"
}

mkdir clips
ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=3" clips/a.mp4
cat >run.yaml <<'END'
num_frames: 5
height: 16
width: 16
fps: 8
max_train_steps: 3
threads: 1
validation_at_end: false
num_inference_steps: 2
data.path: clips
model: {num_layers: 1, num_attention_heads: 1, attention_head_dim: 32, ffn_dim: 32}
sparse: {enabled: false, measure_cost: false}
END
train=("$dsv" train run.yaml)

# Closed standard streams: nothing that is printed gets into a file of the run, which then resumes.
wants 0 bash -c '"$@" output_dir=closed >&- 2>&-' sh "${train[@]}"
wants 0 "${train[@]}" output_dir=closed resume_from_checkpoint=latest max_train_steps=4
wants 0 bash -c '"$@" output_dir=all_closed <&- >&- 2>&-' sh "${train[@]}"
wants 0 "$dsv" report all_closed
[ "$(wc -l <all_closed/metrics.jsonl)" = 3 ] || complain "metrics of a run with closed streams"
grep -q 'parameters' all_closed/*.jsonl all_closed/lock && complain "log lines in the run's files"

# A reader that goes does not make a whole run a failure.
wants 0 bash -c '"$@" output_dir=head | true; exit ${PIPESTATUS[0]}' sh "${train[@]}"
[ "$(cat head/latest)" = checkpoint-3 ] || complain "a run whose reader has gone"
[ ! -w /dev/full ] || wants 1 bash -c '"$@" output_dir=full >/dev/full' sh "${train[@]}"

# A limit on file sizes is named instead of a death by SIGXFSZ.
wants 1 bash -c 'ulimit -f 60; "$@" output_dir=limited' sh "${train[@]}"
says 'File too large'

# The summary of a short run has one mean loss.
wants 0 "${train[@]}" output_dir=short
says 'over all 3 steps'
silent 'over the first'
wants 0 "${train[@]}" output_dir=shorter max_train_steps=1
says 'shorter: step 1 in '
says 'clips: 1 clip'
silent '1 clips'

# Names of files cannot reach the terminal's controls.
name=$(printf 'clips/b\033[2J\nforged.mp4')
echo "no video" >"$name"
wants 0 "${train[@]}" output_dir=names
says 'b\x1b[2J\x0aforged.mp4'
wants 1 "$dsv" inspect "$name"
says 'b\x1b[2J\x0aforged.mp4'
rm "$name"

[ "$failures" = 0 ] || { echo "$failures failures"; exit 1; }
echo "runs and models are told as they should be"
