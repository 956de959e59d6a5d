# Functions of tail.sh, wall.sh, experts.sh and given_frame.sh, which read this file when they begin. The
# scripts set
#     out seconds seeds part   their arguments
#     clips held size          clips to train on, held-out clips, and options of moving_shapes.py
#     config gpus settings     file of the model, GPUs as in 0,1 or empty, and options of all runs
#     clip_folder              folder of the clips
begin=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} dsv=${DSV:-$here/../build/cuda/dsv}
gpus=${GPUS:-0} config=learn_gpu.yaml settings=
# Options of learn_large.yaml for 16,384 tokens and heads as wide as those of published models.
large_16k="height=128 width=128 train_batch_size=1 model.num_attention_heads=6 model.attention_head_dim=128
    data.workers=4 data.cache_mb=3200"

# The tiny model of the part cpu, which shows in a minute that a script works.
use_cpu() {
    config=learn_tiny.yaml clips=40 held=8 size="--height 32 --width 64 --frames 31" gpus= settings=
    dsv=${DSV:-$here/../build/cpu/dsv}
}

# Clips 0 to held-1 are held out.
make_clips() {
    "$python" "$here/moving_shapes.py" "$clip_folder" --clips $((clips + held)) $size
    echo "clips made in $(($(date +%s) - begin)) s"
}

# Seconds until time is up.
left() {
    echo $((seconds - ($(date +%s) - begin) - 5))
}

# learn OUT ARG...: trains the runs that the arguments of learn.py name.
learn() {
    runs=$1
    shift
    "$python" "$here/learn.py" --dsv "$dsv" --clips "$clip_folder" --out "$runs" --threads 1 \
        --held-out "$(seq -f 'shape-%06.0f.avi' -s , 0 $((held - 1)))" ${gpus:+--gpus $gpus} \
        --config "$here/$config" --time-limit "$(left)" $settings "$@"
}

# pack RUNS NAME: packs the losses of RUNS into OUT/NAME-SEEDS.tar.gz.
pack() {
    "$python" "$here/learn_pack.py" "$1" "$out/$2-$(echo "$seeds" | tr , -).tar.gz"
}
