#!/bin/sh
# given_frame.sh OUT SECONDS SEEDS [PART]: do lists cost more held-out loss if the first latent frame is
# given? All tokens may look at the given frame, and no list is made to hold its keys. How much attention do
# lists hold with a given frame, and for each expert? Packs the losses into OUT/given-PART-SEEDS.tar.gz, from
# which given_frame_table.py makes tables.
#
# OUT is a folder for clips and runs, SECONDS a limit of time, SEEDS numbers as in 0,1. PART is 7m (7 million
# parameters, the default), or cpu: a tiny model on the CPU, which shows that everything works.
# Dense runs and runs over lists of two kinds train with a given first frame (model.first_frame=given) and
# with noise in all frames, from the same weights and on the same samples, all at a time; two more dense runs
# train at the noise levels of one expert each. Dense runs measure what lists of single keys would hold. The
# same command continues a stopped part as long as OUT is there.
# Needs dsv (DSV, default build/cuda/dsv), python3 (PYTHON) with numpy, and a GPU (GPUS=0).
set -eu
[ $# -ge 3 ] || { echo "usage: given_frame.sh OUT SECONDS SEEDS [PART]" >&2; exit 2; }
out=$1 seconds=$2 seeds=$3 part=${4:-7m}
. "$(dirname "$0")/part.sh"

case $part in
7m) clips=160 held=32 steps=800 size="--height 64 --width 64 --frames 93" settings="validation.every=0" ;;
cpu) use_cpu; steps=60 settings="validation.every=0" ;;
*) echo "given_frame.sh: PART is $part, expected 7m or cpu" >&2; exit 2 ;;
esac
clip_folder=$out/clips-given-$part name=given-$part status=0
number=$(echo "$seeds" | tr , ' ' | wc -w)

make_clips
keys='"sparse.target_density=0.1", "sparse.order=tube"'
spans='"sparse.target_density=0.1", "sparse.order=cube", "sparse.grain=8"'
dense="$keys, \"sparse.warmup_steps=$((steps + 1))\""
cat >"$out/$name-plan.json" <<END
{"variants": {
 "given-dense": ["model.first_frame=given", $dense],
 "given-dense-again": ["model.first_frame=given", $dense],
 "given-keys": ["model.first_frame=given", $keys],
 "given-spans": ["model.first_frame=given", $spans],
 "noise-dense": ["model.first_frame=noise", $dense],
 "noise-keys": ["model.first_frame=noise", $keys],
 "noise-spans": ["model.first_frame=noise", $spans],
 "high-dense": ["model.first_frame=noise", "sigma_min=0.875", $dense],
 "low-dense": ["model.first_frame=noise", "sigma_max=0.875", $dense]
}}
END
learn "$out/$name" --plan "$out/$name-plan.json" --steps $steps --jobs $((9 * number)) --seeds "$seeds" \
    sparse.target_mass=0 sparse.min_mass=0 sparse.min_head_mass=0 sparse.max_density=1 || status=$?
pack "$out/$name" "$name"
exit $status
