#!/bin/sh
# try_deb.sh PACKAGE [ROOT]: installs dist/dsv_*.deb in a bare Debian 12 and trains two steps there. ROOT is
# the folder of a bare system that debootstrap made; without ROOT, debootstrap makes a system in a temporary
# folder, which is removed at the end. Needs root, debootstrap, ffmpeg and a network.
set -eu
package=$(readlink -f "$1")
root=${2:-}
if [ -z "$root" ]; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 ||
        { tail -5 "$root.log"; exit 1; }
    rm -f "$root.log"
fi
mkdir -p "$root/try"
cp "$package" "$root/try/dsv.deb"
ffmpeg -y -v error -f lavfi -i testsrc=size=64x64:rate=16:duration=1 -pix_fmt yuv420p "$root/try/clip.mp4"
cat >"$root/try/inside.sh" <<'INSIDE'
set -eu
cd /try
rm -rf run
[ ! -e /usr/bin/dsv ] || { echo "try_deb.sh: this system has dsv already"; exit 1; }
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ./dsv.deb >log 2>&1 ||
    { tail log; exit 1; }
dsv version
dsv train /usr/share/dsv/configs/demo.yaml data.path=clip.mp4 output_dir=run max_train_steps=2 \
    model.num_layers=1 threads=1 num_frames=5 height=32 width=32 num_inference_steps=2 >log 2>&1 ||
    { cat log; exit 1; }
[ -s run/samples/step-000002.mp4 ] || { echo "try_deb.sh: the run has no sampled clip"; cat log; exit 1; }
apt-get -qq purge -y dsv >log 2>&1
[ ! -e /usr/bin/dsv ] || { echo "try_deb.sh: dsv is still there after its removal"; exit 1; }
echo "the package serves a bare Debian $(cat /etc/debian_version)"
INSIDE
chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh /try/inside.sh
