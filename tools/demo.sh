#!/bin/sh
# demo.sh DSV [CLIPS]: trains configs/demo.yaml on the folder CLIPS, or on clips that demo_clips.sh fetches,
# in a new run folder, and writes a report of the run.
set -eu
cd "$(dirname "$0")/.."
dsv=$1
clips=${2:-}

if [ -z "$clips" ]; then
    clips=demo-clips
    tools/demo_clips.sh "$clips"
fi

run=runs/demo
number=2
while [ -e "$run" ]; do
    run=runs/demo-$number
    number=$((number + 1))
done

"$dsv" train configs/demo.yaml data.path="$clips" output_dir="$run"
"$dsv" report "$run"
