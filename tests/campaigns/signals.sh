#!/bin/bash
# signals.sh DSV [TRIES]: a training run that is asked to stop always leaves a checkpoint of its last step,
# however many signals arrive within milliseconds. 200 tries unless said; ctest runs a few.
set -euo pipefail
dsv=$1
tries=${2:-200}
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
set -m # every run leads a process group of its own

ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=3" "$work/clip.mp4"
printf 'checkpointing_steps: 0\n' >"$work/run.yaml"
small=(model.num_layers=1 model.num_attention_heads=1 model.attention_head_dim=32 model.ffn_dim=32
    num_frames=5 height=16 width=16 fps=8 max_train_steps=1000000 threads=2 data.workers=3
    validation_at_end=false sparse.measure_cost=false "data.path=$work/clip.mp4")

# What sends two signals: `timeout` and launchers (process, then group), impatient scripts, both kinds mixed.
ways=("kill -TERM \$run; kill -TERM -- -\$run"
    "kill -TERM \$run; sleep 0.001; kill -TERM \$run"
    "kill -TERM \$run; kill -TERM \$run; kill -TERM \$run; sleep 0.02; kill -TERM \$run"
    "kill -INT \$run; kill -INT -- -\$run"
    "kill -HUP \$run; kill -TERM -- -\$run"
    "kill -TERM \$run; kill -INT -- -\$run")

# one TRY: starts a run, signals it after a few steps, returns whether it saved the last step.
one()
{
    local folder=$work/run way=${ways[$(($1 % ${#ways[@]}))]} run status=0 steps saved waited
    rm -rf "$folder"
    "$dsv" train "$work/run.yaml" "${small[@]}" "output_dir=$folder" >"$work/said" 2>&1 &
    run=$!
    for ((waited = 0; waited < 6000; waited++)); do
        [ ! -s "$folder/metrics.jsonl" ] || break
        sleep 0.01
    done
    eval "$way" 2>/dev/null || true # the run may end between two signals
    wait "$run" 2>/dev/null || status=$?
    steps=$(wc -l <"$folder/metrics.jsonl")
    saved=$(cat "$folder/latest" 2>/dev/null || echo none)
    [ "$saved" = "checkpoint-$steps" ] && [ "$status" -gt 128 ] && return
    echo "try $1 ($way): exit status $status, $steps steps, latest: $saved; it said"
    tail -3 "$work/said"
    return 1
}

unsaved=0
for ((try = 0; try < tries; try++)); do
    one "$try" || unsaved=$((unsaved + 1))
done
echo "$unsaved of $tries runs ended unsaved"
[ "$unsaved" = 0 ]
