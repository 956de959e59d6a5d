# dsv for NVIDIA GPUs and CPUs. From the top of the repository:
#
#     docker build -f docker/cuda.Dockerfile -t dsv-cuda .
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/data" dsv-cuda \
#         train configs/gpu.yaml data.path=clips output_dir=runs/mine
#
# Needs NVIDIA's container toolkit and a driver for CUDA 12.9. The container works in /data, as the user that
# --user names (otherwise as dsv, number 1000), and runs `dsv` with the arguments. The toolkit, cuDNN and NCCL
# come from NVIDIA's image, everything else from Debian 12, where dsv is tested. The build arguments CUDA and
# CUDA_PATCH take another version: CUDA 12.8 or later, with cuDNN 9.10.2 or later in the image.

ARG CUDA=12.9
ARG CUDA_PATCH=1

FROM nvidia/cuda:${CUDA}.${CUDA_PATCH}-cudnn-devel-ubuntu22.04 AS cuda
# cuDNN as CMake looks for it, and the libraries that the installed dsv loads.
WORKDIR /cudnn/targets/x86_64-linux
RUN mkdir include lib /libraries \
    && find /usr/include -name 'cudnn*.h' -exec cp -L {} include/ \; \
    && find /usr/lib/x86_64-linux-gnu -name 'libcudnn*.so.9' -exec cp -L {} /libraries/ \; \
    && cp -L /usr/lib/x86_64-linux-gnu/libnccl.so.2 /libraries/ \
    && cp -L /usr/local/cuda/lib64/libcublasLt.so.?? /usr/local/cuda/lib64/libnvrtc.so.?? \
        /usr/local/cuda/lib64/libnvrtc-builtins.so.??.? /libraries/ \
    && cp /libraries/libcudnn.so.9 lib/libcudnn.so

FROM debian:12 AS build
ARG CUDA
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /dsv
COPY tools/deps.sh tools/deps.txt tools/
RUN tools/deps.sh
COPY --from=cuda /usr/local/cuda-${CUDA} /usr/local/cuda
COPY --from=cuda /cudnn /usr/local/cuda
COPY . .
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
COPY --from=cuda /libraries /usr/local/lib
COPY --from=build /opt/dsv /usr/local
RUN ldconfig
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /data
ENTRYPOINT ["dsv"]
CMD ["help"]
