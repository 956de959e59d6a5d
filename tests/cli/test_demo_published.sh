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
