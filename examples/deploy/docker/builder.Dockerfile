# syntax=docker/dockerfile:1
# The image that programs are built in: compiler, libraries with their headers, and megacpp, with what all
# programs have in common compiled once. In a checkout of megacpp:
#
#   docker build -f examples/deploy/docker/builder.Dockerfile -t megacpp-builder .
#
# Arguments (--build-arg NAME=VALUE):
#   BASE       the system; for GPUs one with CUDA's toolkit and cuDNN, as nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04
#   DEVICES    what is compiled once: cpu, cuda, or cpu;cuda
#   MARCH      the processors that programs are for: x86-64-v3 have AVX2, x86-64-v4 AVX-512
#   PACKAGES   more packages of Debian: libopenmpi-dev, for ranks that MPI connects
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG DEVICES=cpu
ARG MARCH=x86-64-v3
ARG PACKAGES=""

RUN case "${MARCH}" in native | "") \
      echo "MARCH is '${MARCH}', and must name processors, such as x86-64-v3: native is the machine that builds" >&2; exit 2 ;; esac

COPY cmake/apt_install.sh /megacpp/cmake/apt_install.sh
RUN bash -euc '. /megacpp/cmake/apt_install.sh; apt_install "$build_tools" "${build_packages[@]}" ca-certificates $1' \
      packages "${PACKAGES}" \
 && rm -rf /var/lib/apt/lists/*

COPY CMakeLists.txt LICENSE CHANGELOG.md /megacpp/
COPY cmake /megacpp/cmake
COPY include /megacpp/include
COPY src /megacpp/src
COPY examples /megacpp/examples
RUN cmake -S /megacpp -B /megacpp/build -G Ninja -DMEGACPP_BUILD_TESTS=OFF -DMEGACPP_BUILD_EXAMPLES=OFF \
      -DMEGACPP_MARCH="${MARCH}" -DMEGACPP_INSTALL_PRECOMPILED="${DEVICES}" \
 && cmake --build /megacpp/build \
 && cmake --install /megacpp/build --prefix /usr/local \
 && rm -r /megacpp/build
