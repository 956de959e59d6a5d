#!/bin/sh
# wall.sh OUT SECONDS SEEDS [PART]: dense training against training over lists with a tail at equal wall time,
# at 16,384 tokens. Packs the losses into OUT/wall-PART-SEEDS.tar.gz, from which wall_table.py makes tables.
#
# OUT is a folder for clips and runs, SECONDS a limit of time, SEEDS numbers as in 0,1. PART names a model:
#     7m       7 million parameters, the default
#     100m     more than 100 million parameters with heads of 128, without a dense finish
#     100m-once the same with lists from the first step on
#     100m-keys the same with lists of 1,024 keys, and a run that ends with a dense finish
#     cpu      a tiny model on the CPU: shows that everything works
# First a step of each kind is measured, one run at a time. Then runs of equal wall time (wall_plan.py) train,
# all at a time. The same command continues a stopped part as long as OUT is there; it does not measure again.
# Needs dsv (DSV, default build/cuda/dsv), python3 (PYTHON) with numpy, and one or several GPUs (GPUS=0,1).
set -eu
[ $# -ge 3 ] || { echo "usage: wall.sh OUT SECONDS SEEDS [PART]" >&2; exit 2; }
out=$1 seconds=$2 seeds=$3 part=${4:-7m}
. "$(dirname "$0")/part.sh"

time_seeds=0,1 density=0.05 variants=dense,lists,lists-dense-end
case $part in
7m) clips=160 held=32 steps=120 most=100000 size="--height 128 --width 512 --frames 93 --shapes 20"
    settings="height=128 width=128 train_batch_size=1 validation.clips=32"
    settings="$settings data.workers=4 data.cache_mb=3200" ;;
100m | 100m-once | 100m-keys) config=learn_large.yaml clips=160 held=16 steps=60 most=100000 time_seeds=0
    variants=dense,lists
    [ $part = 100m ] || variants=dense,lists-at-once
    [ $part != 100m-keys ] || { most=700 density=0.0625 variants=$variants,lists-at-once-dense-end; }
    size="--height 128 --width 512 --frames 93 --shapes 20" settings="$large_16k validation.clips=8" ;;
cpu) use_cpu; steps=40 most=60 ;;
*) echo "wall.sh: PART is $part, expected 7m, 100m, 100m-once, 100m-keys or cpu" >&2; exit 2 ;;
esac
settings="$settings validation.every=0"
clip_folder=$out/clips-wall-$part name=wall-$part status=0
gpu_count=$(echo "${gpus:-0}" | tr , ' ' | wc -w)
runs_at_a_time=$(($(echo "$seeds" | tr , ' ' | wc -w) * $(echo "$variants" | tr , ' ' | wc -w)))

make_clips
plan=$out/$name-plan.json times=$out/$name-times
if [ ! -f "$plan" ]; then
    "$python" "$here/wall_plan.py" times $steps "$times.json" --density $density
    learn "$times" --plan "$times.json" --steps $steps --jobs 1 --seeds $time_seeds \
        validation.clips=1
    "$python" "$here/wall_plan.py" train "$times" "$plan" --seconds "$(left)" --density $density \
        --runs $(((runs_at_a_time + gpu_count - 1) / gpu_count)) --variants $variants --most $most
fi
learn "$out/$name" --plan "$plan" --steps $most --jobs $runs_at_a_time --seeds "$seeds" || status=$?
pack "$out/$name" "$name"
exit $status
