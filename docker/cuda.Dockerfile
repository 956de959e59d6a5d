# dsv for NVIDIA GPUs and CPUs. From the top of the repository:
#
#     docker build -f docker/cuda.Dockerfile -t dsv-cuda .
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/data" dsv-cuda \
#         train configs/gpu.yaml data.path=clips output_dir=runs/mine
#
# Running needs NVIDIA's container toolkit and a driver for CUDA 13.0 (580 or later); building needs no GPU.
# The container works in /data, as the user that --user names (otherwise as dsv, number 1000), and runs `dsv`
# with the arguments. Debian 12 is the base, on which dsv is tested; compiler and libraries of CUDA come from
# NVIDIA's packages on PyPI. The build argument CUDAARCHS names the GPUs to compile for: 90a-real is the H100
# and H200.

FROM debian:12 AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /dsv
COPY tools/deps.sh tools/deps.txt tools/
RUN tools/deps.sh
# The toolkit in one tree, as nvcc and CMake look for it. The packages have no names for the linker.
RUN pip install --no-cache-dir --no-compile --no-deps --target /packages \
        nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 \
        nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9 \
    && mv /packages/nvidia/cu13 /usr/local/cuda \
    && mv /packages/nvidia/cudnn/include/* /usr/local/cuda/include \
    && mv /packages/nvidia/cudnn/lib/* /packages/nvidia/nccl/lib/* /usr/local/cuda/lib \
    && ln -s lib /usr/local/cuda/lib64 \
    && ln -s libcudart.so.13 /usr/local/cuda/lib/libcudart.so \
    && ln -s libcublasLt.so.13 /usr/local/cuda/lib/libcublasLt.so \
    && ln -s libcudnn.so.9 /usr/local/cuda/lib/libcudnn.so \
    && rm -r /packages
COPY . .
ARG CUDAARCHS="80-real;90a-real;90-virtual"
RUN CUDACXX=/usr/local/cuda/bin/nvcc cmake --preset cuda -DDSV_TESTS=OFF \
    && cmake --build --preset cuda \
    && cmake --install build/cuda --prefix /opt/dsv

FROM debian:12-slim
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
        libavcodec59 libavformat59 libavutil57 libcjson1 libdnnl2 libgomp1 liblapacke libsodium23 libstdc++6 \
        libswscale6 libutf8proc2 libxxhash0 libyaml-0-2 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home dsv \
    && mkdir /data && chown dsv /data
# The libraries that dsv loads with device=cuda; cuDNN compiles kernels with NVRTC.
COPY --from=build /usr/local/cuda/lib/libcublasLt.so.13 /usr/local/cuda/lib/libcudnn*.so.9 \
    /usr/local/cuda/lib/libnccl.so.2 /usr/local/cuda/lib/libnvrtc.so.13 \
    /usr/local/cuda/lib/libnvrtc-builtins.so.13.0 /usr/local/lib/
COPY --from=build /opt/dsv /usr/local
RUN ldconfig
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /data
ENTRYPOINT ["dsv"]
CMD ["help"]
