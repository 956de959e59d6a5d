#!/bin/sh
# try_cuda128.sh [FOLDER]: compiles the CUDA backend and two of its GPU tests with CUDA 12.8 into FOLDER/build
# (FOLDER: build/cuda128 if not given), and checks that they ask for libraries of CUDA 12. FOLDER/run_tests.sh
# then runs the tests on a machine with a GPU and a driver for CUDA 12.8.
#
# PyPI has the headers, the assembler and the libraries of CUDA 12.8, but not its nvcc: driver, C++ front end
# and code generator are those of the nvcc in PATH or in /usr/local/cuda, of a later CUDA (tried: 13.0). That
# code generator writes a version of PTX that the assembler of 12.8 does not read, so the assembler gets PTX
# whose version line was replaced. Downloads 1.4 GB. CUDAARCHS names GPUs (90a-real if unset).
set -eu
folder=$(mkdir -p "${1:-build/cuda128}" && cd "${1:-build/cuda128}" && pwd)
cd "$(dirname "$0")/../.."
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
later=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
toolkit=$folder/toolkit
packages=$folder/packages
nvidia=$packages/nvidia

[ -d "$nvidia/cudnn" ] || pip -q install --no-deps --no-compile --target "$packages" \
    nvidia-cuda-nvcc-cu12==12.8.93 nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-cccl-cu12==12.8.90 \
    nvidia-cublas-cu12==12.8.4.1 nvidia-cudnn-cu12==9.10.2.21

# The tree in which nvcc and CMake look for a toolkit.
rm -rf "$toolkit"
mkdir -p "$toolkit/bin" "$toolkit/nvvm/bin" "$toolkit/include" "$toolkit/lib" "$toolkit/targets/x86_64-linux"
for program in nvcc nvcc.profile cudafe++ fatbinary nvlink bin2c __nvcc_device_query crt; do
    cp -r "$later/bin/$program" "$toolkit/bin/"
done
ln -s "$later/nvvm/bin/cicc" "$toolkit/nvvm/bin/"
ln -s "$nvidia/cuda_nvcc/nvvm/libdevice" "$toolkit/nvvm/"
for part in cuda_nvcc cuda_runtime cuda_cccl cublas cudnn; do
    cp -rsf "$nvidia/$part/include/." "$toolkit/include/"
done
for library in "$nvidia"/cuda_runtime/lib/*.so.* "$nvidia"/cublas/lib/*.so.* "$nvidia"/cudnn/lib/*.so.*; do
    name=$(basename "$library")
    ln -s "$library" "$toolkit/lib/$name"
    ln -s "$name" "$toolkit/lib/${name%.so.*}.so"
done
ln -s lib "$toolkit/lib64"
ln -s ../../lib ../../include "$toolkit/targets/x86_64-linux/"
cat >"$toolkit/bin/ptxas" <<ASSEMBLER
#!/bin/sh
for argument; do
    case \$argument in *.ptx) sed -i 's/^\.version [0-9.]*/.version 8.7/' "\$argument" ;; esac
done
exec "$nvidia/cuda_nvcc/bin/ptxas" "\$@"
ASSEMBLER
# The later front end writes one more argument into its calls of this macro, for a feature that 12.8 lacks.
host=$toolkit/include/crt/host_runtime.h
sed 's/^#define __cudaLaunch(fun)/#define __cudaLaunch(fun, ...)/' "$host" >"$host.new"
mv "$host.new" "$host"
chmod +x "$toolkit/bin/ptxas" "$nvidia/cuda_nvcc/bin/ptxas"

# The packages have the runtime library as a shared library only.
export CUDACXX="$toolkit/bin/nvcc" CUDAARCHS="${CUDAARCHS:-90a-real}"
cmake --log-level=NOTICE -G Ninja -S . -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DDSV_CUDA=ON \
    -DCUDAToolkit_ROOT="$toolkit" -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared \
    -DCUDA_cudart_static_LIBRARY="$toolkit/lib/libcudart.so"
cmake --build "$folder/build" --target dsv_cuda_plugin dsv_program test_cuda_sparse test_cuda_dense
for file in libdsv_cuda.so tests/cuda/test_cuda_sparse tests/cuda/test_cuda_dense; do
    asked=$(readelf -d "$folder/build/$file" | sed -n 's/.*NEEDED.*\[\(libcu.*\)\]/\1/p' | sort)
    asked=$(echo $asked)
    echo "$file: $asked"
    [ "$asked" = "libcublasLt.so.12 libcudart.so.12 libcudnn.so.9" ] ||
        { echo "try_cuda128.sh: $file asks for other libraries than those of CUDA 12"; exit 1; }
done
cat >"$folder/run_tests.sh" <<'RUN'
#!/bin/sh
# Runs the tests with the libraries of CUDA 12.8 beside this script.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
libraries=$(echo "$folder"/packages/nvidia/*/lib | tr ' ' ':')
export LD_LIBRARY_PATH="$folder/build:$libraries"
for test in cuda_sparse cuda_dense; do
    "$folder/build/tests/cuda/test_$test"
done
RUN
chmod +x "$folder/run_tests.sh"
