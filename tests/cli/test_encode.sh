#!/bin/bash
# test_encode.sh DSV MODEL: `dsv encode` that ends in the middle, by kill -9 or because nothing more can be
# written, goes on where it was. No window and no text is encoded twice, and the cache has the bytes of a
# cache that was made in a single call.
set -uo pipefail
dsv=$1
model=$2
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

complain()
{
    echo "FAILED: $1"
    sed 's/^/    /' said
    failures=$((failures + 1))
}

# encode_to CACHE: becomes dsv, which fills the cache; what dsv prints is kept in `said`.
encode_to()
{
    exec "$dsv" encode clips "$1" --model "$model" height=32 width=32 num_frames=5 fps=8 mixed_precision=no \
        threads=1 >said 2>&1
}

# windows CACHE [ARGUMENTS]: the number of windows in the folder for which find's arguments hold.
windows()
{
    find "$1" -maxdepth 1 -name '*.safetensors' "${@:2}" 2>/dev/null | wc -l
}

# says WORDS: expects that a line of the last output contains the words.
says()
{
    grep -qF -- "$1" said || complain "expected: $1"
}

# goes_on CACHE: fills the rest of a cache. Expects that only the rest is written, and the files of `whole`.
goes_on()
{
    local kept
    kept=$(windows "$1")
    [ "$kept" -lt "$total" ] || complain "$1: nothing was left to do"
    sleep 0.02 # times of files have the resolution of the kernel's clock tick
    touch before
    (encode_to "$1") || complain "$1: exit status $?"
    says "$total windows: $((total - kept)) encoded, $kept kept"
    [ "$(windows "$1" -newer before)" = $((total - kept)) ] || complain "$1: a window was written twice"
    diff -r whole "$1" >differences || complain "$1: $(cat differences)"
}

mkdir clips
for i in 0 1 2 3; do
    ffmpeg -v error -f lavfi -i "testsrc2=size=48x32:rate=8:duration=5,hue=h=$((i * 50))" clips/c$i.mp4
    echo "clip $i" >clips/c$i.txt
done
ffmpeg -v error -f lavfi -i "mandelbrot=size=48x32:rate=8" -t 5 c4.mp4
(encode_to whole) || complain "a call without an interruption"
total=$(windows whole)
[ "$total" = 32 ] || complain "$total windows, expected 32"

# Killed three times, each time after more windows.
for least in 1 6 12; do
    encode_to killed &
    while [ "$(windows killed)" -lt "$least" ] && kill -0 $! 2>/dev/null; do :; done
    kill -KILL $!
    wait $! 2>/dev/null
    [ "$(windows killed)" -ge "$least" ] || complain "ended before window $least"
done
goes_on killed

# No file may have more than 1 KiB, which the texts have and the windows do not.
(ulimit -f 1; encode_to limited) && complain "windows were written in spite of the limit"
[ "$(grep -c '^dsv: ' said)" = 1 ] || complain "expected one sentence"
says 'File too large'
goes_on limited

# Another clip under the same name: its windows are encoded again, and no others.
cp c4.mp4 clips/c0.mp4
sleep 0.02
touch before
(encode_to killed) || complain "a changed clip"
says 'c0.mp4 has changed since it was encoded: its 8 old windows are dropped'
says "$total windows: 8 encoded, $((total - 8)) kept"
[ "$(windows killed -newer before)" = 8 ] || complain "windows of clips that have not changed"
[ "$(windows killed)" = "$total" ] || complain "$(windows killed) windows in the folder, expected $total"

# Repeats of a list change the cache without encoding, and are counted.
printf 'path,repeats\nclips/c1.mp4,3\nclips/c2.mp4,\n' >list.csv
options=(height=32 width=32 num_frames=5 fps=8 mixed_precision=no threads=1)
"$dsv" encode list.csv repeated --model "$model" "${options[@]}" >said 2>&1 || complain "a list with repeats"
says '32 samples an epoch with repeats'
grep -q 'c1.mp4",5x32x32,8,40,40,.*,3$' repeated/clips.csv || complain "$(cat repeated/clips.csv)"
sed -i 's/,3$/,5/' list.csv
"$dsv" encode list.csv repeated --model "$model" "${options[@]}" >said 2>&1 || complain "other repeats"
says '16 windows: 0 encoded, 16 kept'
says '48 samples an epoch with repeats'

[ "$failures" = 0 ]
