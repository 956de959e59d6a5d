#!/bin/sh
# try_image.sh [FOLDER]: builds docker/cpu.Dockerfile with buildah, without a Docker daemon, and runs `dsv` in
# the image. The base images debian:12 and debian:12-slim are a bare Debian 12 that debootstrap makes. Images
# and a copy of the committed sources stay in FOLDER; without FOLDER they are removed at the end. Needs root,
# buildah, debootstrap, git and a network. Prints the size of the image.
set -eu
folder=${1:-}
cd "$(dirname "$0")/../.."
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder/sources"
folder=$(cd "$folder" && pwd)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

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
images bud --pull-never -f docker/cpu.Dockerfile -t dsv "$folder/sources" >"$folder/build.log" 2>&1 ||
    { tail -20 "$folder/build.log"; exit 1; }
container=$(images from --pull-never dsv)
images run "$container" dsv version
images run "$container" sh -c '[ "$(id -u)" = 1000 ] && [ -w /data ]' ||
    { echo "try_image.sh: the container does not work in /data as user 1000"; exit 1; }
images run "$container" dsv bench attention --tokens 256 --repeats 1 >"$folder/bench.log" 2>&1 ||
    { cat "$folder/bench.log"; exit 1; }
images rm "$container" >/dev/null
images images dsv
