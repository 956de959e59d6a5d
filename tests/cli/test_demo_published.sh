#!/bin/bash
# test_demo_published.sh DSV MODEL ROOT: tools/demo_published.sh, which `make demo MODEL=FOLDER` runs, samples
# a published model, trains a LoRA of it on captioned clips, and samples the model with the LoRA. ROOT is the
# folder of the sources.
set -uo pipefail
dsv=$1
model=$2
root=$3
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir tools
cp "$root/tools/demo_published.sh" tools
cp -r "$root/configs" .
ln -s "$dsv" dsv # without libdsv_cuda.so beside it: the demo runs on the CPU

STEPS=5 sh tools/demo_published.sh "$work/dsv" "$model" "" >said 2>&1 || { cat said; exit 1; }
for file in runs/published-model.mp4 runs/published/sample.mp4 \
    runs/published/checkpoint-5/lora.safetensors; do
    [ -s "$file" ] || { echo "no $file"; cat said; exit 1; }
done
grep -q '2 caption files: 2 used' said || { echo 'captions are not used'; cat said; exit 1; }

# What a user tries next with the run: its description, a sample that begins with its sparse state, and the
# same for a run that trains all weights, which needs a prompt as the model does.
expect()
{
    words=$1
    shift
    "$work/dsv" "$@" >said 2>&1 || { cat said; echo "failed: dsv $*"; exit 1; }
    grep -q "$words" said || { cat said; echo "dsv $*: expected '$words'"; exit 1; }
}
expect 'checkpoint-5/lora.safetensors: LoRA, [0-9]* tensors' inspect runs/published
expect 'health: all numbers are finite' inspect runs/published/checkpoint-5
short="num_inference_steps=2 threads=1"
expect 'blocks were sparse' sample runs/published clip.mp4 --prompt rain --sparse runs/published $short
size="num_frames=9 height=64 width=64"
expect 'saved' train configs/wan_full.yaml model.path="$model" data.path=runs/published-clips device=cpu \
    output_dir=runs/full max_train_steps=2 checkpointing_steps=2 threads=1 $size
expect 'frames' sample runs/full clip.mp4 --prompt rain $short
expect 'blocks were sparse' sample runs/full clip.mp4 --prompt rain sparse.enabled=true $short
"$work/dsv" sample runs/full clip.mp4 $short >said 2>&1 && { echo "sampled without a prompt"; exit 1; }
grep -q '^dsv: runs/full: a published model needs a prompt' said || { cat said; exit 1; }
