#!/bin/sh
# try_wheel.sh PYTHON WHEEL [PACKAGES]: installs the wheel in a clean virtual environment without the
# system's packages, and uses the library, the program and a run folder. With PACKAGES, the path of a folder
# of installed packages that has PyTorch and diffusers, the tests of the package run with the wheel too.
set -eu
python=$1
wheel=$(readlink -f "$2")
packages=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset DSV_LIBRARY DSV_PROGRAM LD_LIBRARY_PATH PYTHONPATH
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install --no-index "$wheel"
cd "$folder"
"$folder/venv/bin/python" -c '
import dsv
from dsv import _library
path = _library._library._name
assert path.startswith(__import__("sys").prefix), path
print("dsv", dsv.__version__, "from the wheel")'
"$folder/venv/bin/dsv" version
program=$(echo "$folder"/venv/lib/python3*/site-packages/dsv/bin/dsv) # the script venv/bin/dsv is Python
loaded=$(LD_DEBUG=libs "$program" version 2>&1 | sed -n 's/.*calling init: //p' |
    grep -v "^$folder" | sort -u)
for library in $loaded; do
    case $library in
    */libc.so*|*/libm.so*|*/libdl.so*|*/libpthread.so*|*/librt.so*|*/ld-linux*|*/libgcc_s.so*) ;;
    */libstdc++.so* | */libz.so*) ;; # the policy manylinux allows both
    *) echo "try_wheel.sh: the program loads $library from the system"; exit 1 ;;
    esac
done
ffmpeg -v error -f lavfi -i testsrc=size=64x64:rate=16:duration=1 -c:v libx264 -pix_fmt yuv420p clip.mp4
"$folder/venv/bin/dsv" train data.path=clip.mp4 output_dir=run max_train_steps=2 model.num_layers=1 \
    threads=1 num_frames=5 height=32 width=32 num_inference_steps=2 >said 2>&1 || { cat said; exit 1; }
[ -s run/samples/step-000002.mp4 ] || { echo "no sampled clip:"; cat said; exit 1; }
mkdir pictures
ffmpeg -v error -i clip.mp4 -frames:v 1 pictures/one.png -frames:v 1 pictures/two.jpg
"$folder/venv/bin/dsv" train data.path=pictures output_dir=pictures-run max_train_steps=2 model.num_layers=1 \
    threads=1 num_frames=1 height=32 width=32 >said 2>&1 || { cat said; exit 1; }
"$folder/venv/bin/python" -c '
import dsv
assert [line["step"] for line in dsv.Run("run").metrics] == [1, 2]'
if [ -n "$packages" ]; then
    for name in sparse_attention sparse_attention_random wan_transformer; do
        PYTHONPATH=$packages "$folder/venv/bin/python" -B "$here/test_$name.py" || exit 1
    done
fi
echo "the wheel serves: $(du -h "$wheel" | cut -f1)"
