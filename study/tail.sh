#!/bin/sh
# tail.sh OUT SECONDS SEEDS [PART]: trains models with lists whose left-out keys are stood in for
# (sparse.tail) beside dense attention, lists without a tail and blocks, and packs the losses into
# OUT/PART-SEEDS.tar.gz.
#
# OUT is a folder for clips and runs, SECONDS a limit of time, SEEDS numbers as in 0,1. PART names a study:
#     pilot    the model of 7m, few variants and steps, to measure speed
#     7m       7 million parameters, 4,096 tokens: all variants
#     7m-rules the same model: rules that differ in one part each
#     7m-cube  the same model: rules that combine the parts that help
#     100m     more than 100 million parameters, 4,096 tokens
#     100m-16k a model of as many parameters with heads of 128, 16,384 tokens: the rule that learns best
#     7m-keys, 100m-keys   4,096 tokens, longer lists: 12.5 and 25 % of the keys; with -768 in place of -keys
#              lists of 768 keys
#     7m-finish, 100m-finish   4,096 tokens, lists of 1,024 keys: dense finishes of 15, 10 and 5 % of the
#              steps, and lists from the first tenth of the steps on beside dense runs that part there too
#     100m-8k, 100m-16k-keys, 7m-16k   8,192 and 16,384 tokens: lists of 1,024 keys, the same dense finishes
#     7m-16k-keys   16,384 tokens, longer lists: 12.5 and 25 % of the keys; and one proxy for every 4 queries
#     7m-16k-rules, 100m-16k-rules   16,384 tokens, lists of 1,024 keys: orders inside a cube, one proxy for
#              every 16, 8 and 4 queries, and key tails
#     7m-keychunk, 100m-keychunk   4,096 tokens, key tails, one proxy for every 4 queries: lists of 1,024 keys
#              with one score for every 2 keys; 7m-keychunk also has lists of 5 %, with a score for every key,
#              for every 2 and for every 4
#     7m-run128, 100m-run128   4,096 tokens: key tails with means of 128 keys, lists of 512 and of 256 keys
#     7m-early 4,096 tokens: lists of 512 keys and such a tail from the first tenth of the steps on, beside
#              dense runs that part there too
#     7m-16k-run128, 100m-16k-run128   16,384 tokens: the same tails, lists of 5 and of 6.25 % of the keys
#     100m-16k-finer   16,384 tokens: lists of 5 % with runs of 4 keys, or with one proxy for every 2 queries
#     7m-32k   32,768 tokens, lists of 5 and 10 %
#     7m-wsd, 100m-wsd, 100m-16k-wsd   lists of 2.5 to 25 %, with a learning rate that is constant until the
#              dense finish begins and then falls to 0 (lr_scheduler=wsd)
#     cpu      a tiny model on the CPU: shows that everything works
# The clips are made by moving_shapes.py, so many that few windows are met twice. The same command continues a
# stopped part as long as OUT is there. tail_table.py makes tables from the archives of several calls.
# Needs dsv (DSV, default build/cuda/dsv), python3 (PYTHON) with numpy, and one or several GPUs (GPUS=0,1).
set -eu
[ $# -ge 3 ] || { echo "usage: tail.sh OUT SECONDS SEEDS [PART]" >&2; exit 2; }
out=$1 seconds=$2 seeds=$3 part=${4:-7m}
. "$(dirname "$0")/part.sh"

jobs=17 alone= dense=dense,dense-again finishes=-finish
size="--height 64 --width 512 --frames 93 --shapes 20" held=64
settings="data.workers=4 data.cache_mb=2600 validation.clips=64"
pairs="lists5 lists10 lists20 lists5-query64 lists5-query16 lists2-query16 lists5-key64 lists5-key16
    lists5-group128-query32 blocks10 blocks10-coarse"
longer="lists12.5-query64-cube-grain8 lists25-query64-cube-grain8" all_finishes="-finish -finish10 -finish5"
early="lists5 lists5-query64 lists5-query16 lists20"
run128="lists12.5-key128-zcube-grain8-chunk4 lists6.25-key128-zcube-grain8-chunk4"
case $part in
pilot) clips=100 steps=600 trunk=300 pairs="lists5 lists5-query64" early=lists5-query64 ;;
7m) clips=256 steps=3000 trunk=1800 ;;
7m-rules) clips=256 steps=3000 trunk=1800 pairs= early=
    alone="lists10 blocks10 lists10-cube lists10-pooled lists10-grain16 lists10-query64 lists20-query64
        blocks5-query64 blocks10-query64 blocks20 lists5-query64 lists5-query64-cube lists5-query64-pooled
        lists5-query64-pooled-cube lists5-query64-rank64 lists5-query64-rank64-chunk4 lists5-query64-topk
        lists5-query64-grain8 lists5-query64-grain16-cube lists5-query64-explore lists5-query64-near" ;;
7m-cube) clips=256 steps=3000 trunk=1800 early=lists5-query64-cube-grain8
    pairs="lists5-query64-cube lists5-query64-cube-grain8 lists5-query64-cube-grain8-chunk4
        lists10-query64-cube-grain8"
    alone="lists20 lists5-query64 lists5-query64-cube-grain4 lists5-query64-cube-chunk4
        lists2-query64-cube-grain8 lists20-cube-grain8 lists5-cube-grain8" ;;
100m) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 early=
    alone=lists20 pairs="lists5-query64 lists5-query64-cube-grain8" ;;
7m-finish) clips=256 steps=3000 trunk=1800 dense=dense,dense-again-from10 finishes=$all_finishes
    pairs=lists25-query64-cube-grain8 early=$pairs ;;
100m-finish) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 dense=dense,dense-again-from10
    pairs=lists25-query64-cube-grain8 early=$pairs finishes=$all_finishes ;;
100m-8k) config=learn_large.yaml clips=160 steps=2000 trunk=1200 jobs=3 held=16 dense=dense early=
    size="--height 64 --width 512 --frames 93 --shapes 20" finishes=$all_finishes
    settings="height=64 width=128 train_batch_size=1 data.workers=4 data.cache_mb=2600 validation.clips=16"
    pairs=lists12.5-query64-cube-grain8 ;;
7m-keychunk) clips=256 steps=3000 trunk=1800 dense=dense early=
    pairs=lists25-key64-zcube-grain8-chunk4-keychunk2
    alone="lists5-key64-zcube-grain8-chunk4 lists5-key64-zcube-grain8-chunk4-keychunk2
        lists5-key64-zcube-grain8-chunk4-keychunk4" ;;
100m-keychunk) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 dense=dense early=
    pairs=lists25-key64-zcube-grain8-chunk4-keychunk2 ;;
7m-early) clips=256 steps=3000 trunk=1800 dense=dense,dense-again-from10 pairs= finishes=
    early=lists12.5-key128-zcube-grain8-chunk4 ;;
7m-run128) clips=256 steps=3000 trunk=1800 dense=dense early= pairs=$run128 ;;
100m-run128) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 dense=dense early=
    pairs=$run128 ;;
100m-16k-keys | 100m-16k-rules | 100m-16k-run128 | 100m-16k-finer)
    config=learn_large.yaml clips=160 steps=1600 trunk=960 jobs=3 held=16 early=
    size="--height 128 --width 512 --frames 93 --shapes 20" settings="$large_16k validation.clips=8"
    dense=dense finishes=$all_finishes
    alone=lists12.5-query64-cube-grain8 pairs=lists6.25-query64-cube-grain8 ;;
7m-32k) clips=160 steps=2000 trunk=1200 jobs=3 held=16 dense=dense early=
    size="--height 128 --width 512 --frames 93 --shapes 20"
    settings="height=128 width=256 train_batch_size=1 data.workers=4 data.cache_mb=3200 validation.clips=8"
    alone=lists10-query64-cube-grain8 pairs=lists5-query64-cube-grain8 ;;
7m-16k | 7m-16k-keys | 7m-16k-rules | 7m-16k-run128)
    clips=160 steps=3000 trunk=1800 jobs=4 held=16 dense=dense early=
    size="--height 128 --width 512 --frames 93 --shapes 20" finishes=$all_finishes
    settings="height=128 width=128 train_batch_size=1 data.workers=4 data.cache_mb=3200 validation.clips=8"
    pairs=lists6.25-query64-cube-grain8
    [ $part != 7m-16k-keys ] || { alone="$longer lists6.25-query64-cube-grain8-chunk4" pairs=; } ;;
100m-16k | 100m-16k-wsd) config=learn_large.yaml clips=160 steps=700 trunk=420 jobs=3 held=16
    size="--height 128 --width 512 --frames 93 --shapes 20" settings="$large_16k validation.clips=8"
    dense=dense pairs=lists5-query64-cube-grain8 early=
    [ $part = 100m-16k ] || pairs="$pairs lists2.5-query64-cube-grain8" ;;
7m-keys | 7m-768) clips=256 steps=3000 trunk=1800 dense=dense early= pairs=$longer ;;
7m-wsd) clips=256 steps=3000 trunk=1800 dense=dense early= pairs="lists5-query64-cube-grain8 $longer" ;;
100m-keys | 100m-768) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 dense=dense early=
    pairs=$longer ;;
100m-wsd) config=learn_large.yaml clips=256 steps=2000 trunk=1200 jobs=3 dense=dense early=
    alone=lists25-query64-cube-grain8 pairs="lists5-query64-cube-grain8 lists12.5-query64-cube-grain8" ;;
cpu) use_cpu; steps=60 trunk=30 jobs=2 early=lists5-query64 finishes=$all_finishes
    dense=dense,dense-again-from10 pairs=lists5-query64 ;;
*) echo "tail.sh: PART is $part, it must be one of those that tail.sh lists" >&2; exit 2 ;;
esac
case $part in *-16k-rules)
    finishes=-finish pairs="lists6.25-query64-zcube-grain8-chunk8 lists6.25-key64-zcube-grain8-chunk8
        lists6.25-key64-zcube-grain8-chunk4"
    alone="lists6.25-query64-cube-grain8 lists6.25-query64-zcube-grain8 lists6.25-key64-zcube-grain8
        lists6.25-query64-zcube-grain8-chunk4" ;;
esac
case $part in *-16k-run128)
    finishes=-finish pairs=lists5-key128-zcube-grain8-chunk4 alone=lists6.25-key128-zcube-grain8-chunk4 ;;
esac
case $part in *-16k-finer)
    dense=lists5-key128-zcube-grain8-chunk4 pairs=
    alone="lists5-key128-zcube-grain4-chunk4 lists5-key128-zcube-grain8-chunk2" ;;
esac
case $part in *-768) pairs=lists18.75-query64-cube-grain8 ;; esac
case $part in *-wsd) settings="$settings lr_scheduler=wsd lr_decay_steps=$((steps * 15 / 100))" ;; esac
jobs=$((jobs * $(echo "${gpus:-0}" | tr , ' ' | wc -w)))
names=$dense
for name in $alone; do names=$names,$name; done
for name in $early; do pairs="$pairs $name-from10"; done
for name in $pairs; do
    names=$names,$name
    for ending in $finishes; do names=$names,$name$ending; done
done

clip_folder=$out/clips-$part status=0
make_clips
learn "$out/$part" --steps $steps --trunk $trunk --jobs $jobs --seeds "$seeds" --variants $names \
    validation.every=$((steps / 2)) || status=$?
pack "$out/$part" "$part"
exit $status
