# dsv for CPUs. From the top of the repository:
#
#     docker build -f docker/cpu.Dockerfile -t dsv .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" dsv \
#         train data.path=clips output_dir=runs/mine
#
# The container works in /data, as the user that --user names (otherwise as dsv, number 1000), and runs `dsv`
# with the arguments. Configurations such as configs/demo.yaml are found in the image.

FROM debian:12 AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /dsv
COPY tools/deps.sh tools/deps.txt tools/
RUN tools/deps.sh
COPY . .
RUN cmake --preset cpu -DDSV_TESTS=OFF \
    && cmake --build --preset cpu \
    && cmake --install build/cpu --prefix /opt/dsv

FROM debian:12-slim
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends \
        libavcodec59 libavformat59 libavutil57 libcjson1 libdnnl2 libgomp1 liblapacke libsodium23 \
        libswscale6 libutf8proc2 libxxhash0 libyaml-0-2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home dsv \
    && mkdir /data && chown dsv /data
COPY --from=build /opt/dsv /usr/local
USER 1000
WORKDIR /data
ENTRYPOINT ["dsv"]
CMD ["help"]
