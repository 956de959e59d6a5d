#!/bin/sh
# experts.sh OUT SECONDS SEEDS [PART]: one model against two experts, one for noise levels above a boundary
# and one for those below, at equal FLOPs of training. Packs the losses into OUT/experts-PART-SEEDS.tar.gz,
# from which experts_table.py makes tables.
#
# OUT is a folder for clips and runs, SECONDS a limit of time, SEEDS numbers as in 0,1. PART is 7m (7 million
# parameters, 4,096 tokens, the default), or cpu: a tiny model on the CPU, which shows that everything works.
# The same command continues a stopped part as long as OUT is there.
# Needs dsv (DSV, default build/cuda/dsv), python3 (PYTHON) with numpy, and one or several GPUs (GPUS=0,1).
set -eu
[ $# -ge 3 ] || { echo "usage: experts.sh OUT SECONDS SEEDS [PART]" >&2; exit 2; }
out=$1 seconds=$2 seeds=$3 part=${4:-7m}
. "$(dirname "$0")/part.sh"

case $part in
7m) clips=256 held=64 steps=2700 trunk=900 jobs=17 size="--height 64 --width 512 --frames 93 --shapes 20"
    settings="data.workers=4 data.cache_mb=2600 validation.clips=64" ;;
cpu) use_cpu; steps=60 trunk=20 jobs=2 ;;
*) echo "experts.sh: PART is $part, expected 7m or cpu" >&2; exit 2 ;;
esac
jobs=$((jobs * $(echo "${gpus:-0}" | tr , ' ' | wc -w)))
clip_folder=$out/clips-experts-$part name=experts-$part status=0

make_clips
"$python" "$here/experts_plan.py" $steps $trunk "$out/$name-plan.json"
learn "$out/$name" --plan "$out/$name-plan.json" --steps $steps --trunk $trunk --jobs $jobs --seeds "$seeds" \
    validation.every=0 || status=$?
pack "$out/$name" "$name"
exit $status
