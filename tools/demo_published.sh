#!/bin/sh
# demo_published.sh DSV MODEL CLIPS: samples the published Wan model MODEL with the prompt of the environment
# variable PROMPT, trains a small LoRA of MODEL for STEPS steps (50) on the folder CLIPS (on clips that
# ffmpeg draws if CLIPS is empty), and samples the model with the LoRA, too. The run gets a new folder
# runs/published, runs/published-2, ... A GPU computes if there is one and DSV was built for it; without one
# the clips have 9 frames of 64 x 64.
set -eu
cd "$(dirname "$0")/.."
dsv=$1
model=$2
clips=$3
prompt=${PROMPT:-a red ball on the grass}
steps=${STEPS:-50}

size="num_frames=9 height=64 width=64 num_inference_steps=10 guidance_scale=3"
device=cpu
if [ -e /dev/nvidia0 ] && [ -e "$(dirname "$dsv")/libdsv_cuda.so" ]; then
    device=cuda
    size=
fi
mkdir -p runs
run=runs/published
number=2
while [ -e "$run" ]; do
    run=runs/published-$number
    number=$((number + 1))
done
if [ -z "$clips" ]; then
    command -v ffmpeg >/dev/null || {
        echo "demo_published.sh: ffmpeg, which draws clips, is not installed: name a folder CLIPS=DIR" >&2
        exit 1
    }
    clips=$run-clips
    mkdir -p "$clips"
    for source in testsrc2 mandelbrot; do
        ffmpeg -v error -y -f lavfi -i "$source=size=128x128:rate=16" -t 5.2 "$clips/$source.mp4"
        echo "moving $source" >"$clips/$source.txt"
    done
fi

"$dsv" inspect "$model"
# shellcheck disable=SC2086 # size is a list of options
"$dsv" sample "$model" "$run-model.mp4" --prompt "$prompt" device="$device" $size
# shellcheck disable=SC2086
"$dsv" train configs/wan_lora.yaml model.path="$model" data.path="$clips" output_dir="$run" \
    max_train_steps="$steps" checkpointing_steps="$steps" device="$device" $size
"$dsv" sample "$run" "$run/sample.mp4" --prompt "$prompt" device="$device"
echo "the model's clip: $run-model.mp4; the clip with the LoRA of $steps steps: $run/sample.mp4"
