#!/bin/sh
# demo_published.sh DSV MODEL: samples the published Wan model MODEL with the prompt of the environment
# variable PROMPT, in a new file runs/published.mp4, runs/published-2.mp4, ... A GPU samples if there is one
# and DSV was built for it.
set -eu
cd "$(dirname "$0")/.."
dsv=$1
model=$2

device=cpu
if [ -e /dev/nvidia0 ] && [ -e "$(dirname "$dsv")/libdsv_cuda.so" ]; then
    device=cuda
fi
mkdir -p runs
clip=runs/published.mp4
number=2
while [ -e "$clip" ]; do
    clip=runs/published-$number.mp4
    number=$((number + 1))
done

"$dsv" inspect "$model"
"$dsv" sample "$model" "$clip" --prompt "$PROMPT" device="$device"
