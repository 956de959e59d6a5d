#!/bin/sh
# try_image.sh cpu|cuda [FOLDER]: builds docker/cpu.Dockerfile or docker/cuda.Dockerfile with buildah, without
# a Docker daemon, and runs `dsv` in the image on the CPU. In the CUDA image each NVIDIA library must find all
# libraries that it needs; no GPU is used. The base images debian:12 and debian:12-slim are a bare Debian 12
# that debootstrap makes. Images and a copy of the committed sources stay in FOLDER; without FOLDER they are
# removed at the end. CUDAARCHS names the GPUs that the CUDA image is compiled for. PIP_CERT, pip's variable
# for a file of certificates, serves pip in the build too. Needs root, buildah, debootstrap, ffmpeg, git, a
# network, and 5 GB of disk for cpu, 25 GB for cuda. Prints the size of the image.
set -eu
usage="usage: try_image.sh cpu|cuda [FOLDER]"
kind=${1:?$usage}
folder=${2:-}
cd "$(dirname "$0")/../.."
[ -f "docker/$kind.Dockerfile" ] || { echo "$usage"; exit 1; }
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder/sources"
folder=$(cd "$folder" && pwd)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot TMPDIR="$folder"

images()
{
    buildah --root "$folder/images" --runroot "$folder/state" "$@"
}

if ! images inspect --type image docker.io/library/debian:12-slim >/dev/null 2>&1; then
    debootstrap --variant=minbase bookworm "$folder/debian" >"$folder/debootstrap.log" 2>&1 ||
        { tail -5 "$folder/debootstrap.log"; exit 1; }
    rm -rf "$folder"/debian/var/cache/apt/archives/*.deb "$folder"/debian/var/lib/apt/lists/*
    container=$(images from scratch)
    images copy -q "$container" "$folder/debian" / >/dev/null
    images commit -q "$container" docker.io/library/debian:12 >/dev/null
    images tag docker.io/library/debian:12 docker.io/library/debian:12-slim
    images rm "$container" >/dev/null
    rm -rf "$folder/debian"
fi
git archive HEAD | tar x -C "$folder/sources"
certificates=$(readlink -f "${PIP_CERT:-/dev/null}")
printf '[global]\ncert = /etc/pip-certificates\n' >"$folder/pip.conf"
images bud --pull-never ${CUDAARCHS:+--build-arg "CUDAARCHS=$CUDAARCHS"} \
    ${PIP_CERT:+-v "$certificates:/etc/pip-certificates:ro" -v "$folder/pip.conf:/etc/pip.conf:ro"} \
    -f "docker/$kind.Dockerfile" -t "dsv-$kind" \
    "$folder/sources" >"$folder/build.log" 2>&1 ||
    { tail -20 "$folder/build.log"; exit 1; }
container=$(images from --pull-never "dsv-$kind")

# inside COMMAND...: runs a command in the image, quietly unless it fails.
inside()
{
    images run "$container" "$@" >"$folder/run.log" 2>&1 ||
        { cat "$folder/run.log"; echo "try_image.sh: failed in the image: $*"; exit 1; }
}

images run "$container" dsv version
inside dsv help
inside sh -c '[ "$(id -u)" = 1000 ] && [ -w /data ]'
inside dsv bench attention --tokens 256 --repeats 1
ffmpeg -y -v error -f lavfi -i testsrc=size=64x64:rate=16:duration=1 -pix_fmt yuv420p "$folder/clip.mp4"
images copy -q "$container" "$folder/clip.mp4" /data/clip.mp4 >/dev/null
inside dsv train configs/demo.yaml data.path=clip.mp4 --dry-run
inside dsv train configs/demo.yaml data.path=clip.mp4 output_dir=run max_train_steps=2 model.num_layers=1 \
    threads=1 num_frames=5 height=32 width=32 num_inference_steps=2
inside [ -s run/samples/step-000002.mp4 ]
if [ "$kind" = cuda ]; then
    inside sh -c 'ldd /usr/local/lib/libdsv_cuda.so /usr/local/lib/lib[cn][uvc]*.so.*'
    ! grep 'not found' "$folder/run.log" ||
        { echo "try_image.sh: libraries are missing in the image"; exit 1; }
    images run "$container" dsv bench attention --device cuda --tokens 256 >"$folder/run.log" 2>&1 || true
    grep 'driver' "$folder/run.log" ||
        { cat "$folder/run.log"; echo "try_image.sh: device=cuda does not ask for a driver"; exit 1; }
fi
images rm "$container" >/dev/null
images images "dsv-$kind"
