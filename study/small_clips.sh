#!/bin/sh
# small_clips.sh CLIPS OUT [SIDE [FPS]]: scales every clip of CLIPS to SIDE pixels (128) at the shorter side
# and FPS frames per second (12), and writes the clips to OUT. Clips of 1280 x 720 would take minutes to
# decode with many runs at a time; small ones take a second. Needs ffmpeg.
set -eu
clips=$1 out=$2 side=${3:-128} fps=${4:-12}
mkdir -p "$out"
for clip in "$clips"/*.mp4 "$clips"/*.mkv "$clips"/*.webm "$clips"/*.mov; do
    [ -e "$clip" ] || continue
    name=$(basename "$clip")
    ffmpeg -v error -y -i "$clip" -an -c:v libx264 -crf 14 -preset slow -g 24 -pix_fmt yuv420p \
        -vf "fps=$fps,scale=w='if(gt(iw,ih),-2,$side)':h='if(gt(iw,ih),$side,-2)':flags=bicubic" \
        "$out/${name%.*}.mp4" </dev/null
done
