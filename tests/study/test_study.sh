#!/bin/bash
# test_study.sh BUILD: dsv_study measures every part of its table on a model of two steps.
set -euo pipefail
build=$1
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

fail()
{
    echo "FAILED: $1"
    sed 's/^/    /' "$work/said"
    exit 1
}

ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=3" "$work/clip.mp4"
printf 'path\n%s\n' "$work/clip.mp4" >"$work/clips.csv"
printf 'seed: 5\n' >"$work/run.yaml"
"$build/dsv" train "$work/run.yaml" "data.path=$work/clips.csv" "output_dir=$work/run" max_train_steps=2 \
    model.num_layers=1 model.num_attention_heads=2 model.attention_head_dim=64 model.ffn_dim=64 \
    num_frames=9 height=64 width=64 fps=8 threads=2 sparse.profile_every=1 sparse.measure_cost=false \
    validation_at_end=false >"$work/said" 2>&1 || fail "the model was not trained"

parts="order selector chunk rule grain"
"$build/dsv_study" "$work/run/checkpoint-2" "$work/clips.csv" "$work/out" --parts "${parts// /,}" \
    --clips 1 --samples 4 threads=2 >"$work/said" 2>&1 || fail "nothing was measured"
echo "a program that draws says which package is missing"
mkdir "$work/modules"
echo 'raise ImportError("none", name="matplotlib")' >"$work/modules/matplotlib.py"
study=$(cd "$(dirname "$0")/../../study" && pwd)
for program in choices learn_plots learn_table mature_report; do
    ! PYTHONPATH="$work/modules" python3 "$study/$program.py" --help >"$work/said" 2>&1 || fail "$program ran"
    [ "$(wc -l <"$work/said")" = 1 ] && grep -q '^matplotlib is not installed' "$work/said" || fail "$program"
done

for part in $parts; do
    grep -q "^$part,.*,128," "$work/out.csv" || fail "no case of $part in groups of 128"
done
