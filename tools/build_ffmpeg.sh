#!/bin/sh
# build_ffmpeg.sh FOLDER: builds the FFmpeg that wheels contain, from Debian's source package, and installs
# it in FOLDER. All parts are under the LGPL 2.1 or freer licenses: Debian's own build contains x264, which is
# under the GPL. Clips are then written as MPEG-4 instead of H.264. Needs nasm, libdav1d-dev and zlib1g-dev.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[ ! -e "$folder/lib/pkgconfig/libavformat.pc" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# apt lists of a private folder, because the machine's sources may lack source packages: the same
# repositories, as sources of source packages.
mkdir -p "$work/lists/partial" "$work/parts"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$list" ] ||
        sed 's/^deb /deb-src /; s/^Types: *deb$/Types: deb-src/' "$list" >"$work/parts/${list##*/}"
done
[ ! -e "$work/parts/sources.list" ] || mv "$work/parts/sources.list" "$work/parts/main.list"
options="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$work/parts"
options="$options -o Dir::State::lists=$work/lists"
# The options are words to be split.
apt-get -qq $options update
cd "$work"
apt-get -qq $options source --download-only ffmpeg
tar -xf ffmpeg_*.orig.tar.xz
cd ffmpeg-*/

# hypot as glibc 2.2.5 has it: of all functions in a wheel only this one would need a glibc later than 2.34.
echo '__asm__(".symver hypot,hypot@GLIBC_2.2.5");' >"$work/hypot.h"

decoders=h264,hevc,mpeg1video,mpeg2video,mpeg4,msmpeg4v2,msmpeg4v3,h263,flv,vp8,vp9,libdav1d,mjpeg,png
./configure --prefix="$folder" --enable-shared --disable-static --disable-programs --disable-doc \
    --disable-autodetect --disable-network --disable-avdevice --disable-avfilter --disable-swresample \
    --disable-postproc --disable-everything --enable-zlib --enable-libdav1d \
    --enable-decoder=$decoders,apng,gif,prores,ffv1,rawvideo,wmv1,wmv2,wmv3,vc1,theora,dvvideo,dnxhd \
    --enable-encoder=mpeg4,mpeg2video,png,apng --enable-muxer=mp4,mov,image2,apng,avi,matroska \
    --enable-demuxer=mov,matroska,avi,mpegts,mpegps,flv,asf,ogg,gif,apng,mjpeg,h264,hevc,ivf \
    --enable-demuxer=image2,image_png_pipe,image_jpeg_pipe \
    --enable-parser=h264,hevc,mpeg4video,mpegvideo,vp8,vp9,av1,mjpeg,png,vc1,gif \
    --enable-bsf=extract_extradata,h264_mp4toannexb,hevc_mp4toannexb,vp9_superframe \
    --enable-protocol=file,pipe --extra-cflags="-include $work/hypot.h" \
    >"$work/configure.log" || { tail -20 "$work/configure.log"; exit 1; }
grep -q '^License: LGPL version 2.1 or later' "$work/configure.log" || {
    echo "build_ffmpeg.sh: FFmpeg is not under the LGPL 2.1:"
    grep '^License' "$work/configure.log"
    exit 1
}
make -s -j"$(nproc)" >"$work/make.log" 2>&1 || { tail -20 "$work/make.log"; exit 1; }
make -s install >/dev/null
mkdir -p "$folder/licenses"
cp COPYING.LGPLv2.1 LICENSE.md "$folder/licenses/"
