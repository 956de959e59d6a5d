#!/bin/sh
# heads.sh OUT CLIPS [PART]: trains a model on the clips of a folder with dense attention, first on 4,096 and
# then on 16,384 tokens, and saves queries, keys and values of some of its blocks on a held-out clip to
# OUT/heads/block-B.safetensors (dsv_heads), for `dsv bench attention` and bench/attention_error.py.
#
# Every third clip, by name, is held out. PART is 100m (more than 100 million parameters, the default) or cpu:
# a tiny model on the CPU, which shows that everything works. Needs dsv and dsv_heads (DSV, HEADS, default in
# build/cuda) and a GPU.
set -eu
[ $# -ge 2 ] || { echo "usage: heads.sh OUT CLIPS [PART]" >&2; exit 2; }
out=$1 clips=$(cd "$2" && pwd) part=${3:-100m}
here=$(cd "$(dirname "$0")" && pwd)
build=$here/../build/cuda

case $part in
100m) config=learn_large.yaml blocks=2,6,10 short=900 long=500
    settings="model.num_attention_heads=6 model.attention_head_dim=128 data.workers=8 data.cache_mb=4096"
    small="height=64 width=64" large="height=128 width=128 train_batch_size=1 lr=2.0e-4 warmup_steps=50" ;;
cpu) config=learn_tiny.yaml blocks=0,1 short=20 long=10 build=$here/../build/cpu
    settings="num_frames=16 codec.temporal_levels=0" small="height=32 width=32"
    large="height=64 width=64 train_batch_size=1" ;;
*) echo "heads.sh: PART is $part, expected 100m or cpu" >&2; exit 2 ;;
esac
dsv=${DSV:-$build/dsv} heads=${HEADS:-$build/dsv_heads}

mkdir -p "$out"
for list in train held-out; do
    echo path >"$out/$list.csv"
done
number=0
for clip in "$clips"/*; do
    case $clip in *.mp4 | *.avi | *.mkv | *.webm | *.mov) ;; *) continue ;; esac
    [ $((number % 3)) -eq 1 ] && list=held-out || list=train
    echo "$clip" >>"$out/$list.csv"
    number=$((number + 1))
done

# train NAME STEPS key=value...: a model in OUT/NAME, with a checkpoint at its last step.
train() {
    name=$1 steps=$2
    shift 2
    "$dsv" train "$here/$config" data.path="$out/train.csv" output_dir="$out/$name" max_train_steps="$steps" \
        checkpointing_steps="$steps" sparse.enabled=false validation.every=0 $settings "$@"
}

train short $short $small
train long $long $large model.path="$out/short/checkpoint-$short"
"$heads" "$out/long/checkpoint-$long" "$out/held-out.csv" "$out/heads" --blocks $blocks
