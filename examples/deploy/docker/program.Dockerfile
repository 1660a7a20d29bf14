# syntax=docker/dockerfile:1
# The image of one program: a model and its keys, compiled, with the shared libraries that it loads and
# nothing else. It runs as an ordinary user, and its root may be read-only. Beside a config.json:
#
#   docker build -f program.Dockerfile -t my-qwen --build-arg CONFIG=config.json --build-arg KEYS='sequence=4096' .
#
# Arguments (--build-arg NAME=VALUE):
#   BUILDER   the image of builder.Dockerfile
#   BASE      the system to run on, of the builder's release; for GPUs as nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04
#   CONFIG    the config.json of a model, in the folder that docker is given
#   KEYS      what is compiled, as megacpp-build-preset has it: precision=bf16_mixed tp=2 device=cuda
#   MARCH     the processors to build for; empty: those of the builder, which has the rest compiled for them
ARG BUILDER=megacpp-builder
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS base

FROM ${BUILDER} AS build
ARG CONFIG=config.json
ARG KEYS=""
ARG MARCH=""
COPY ${CONFIG} /model/config.json
RUN case "${MARCH}" in native) \
      echo "MARCH is '${MARCH}', and must name processors, such as x86-64-v3: native is the machine that builds" >&2; exit 2 ;; esac
RUN megacpp-build-preset /model/config.json /model/program --no-install ${MARCH:+--march ${MARCH}} ${KEYS}
# What the base has already is left out.
RUN --mount=type=bind,from=base,target=/base \
    /megacpp/examples/deploy/docker/image_files.sh /model/program /image /base

FROM base
COPY --from=build /image/ /
USER 10001:10001
ENTRYPOINT ["/opt/megacpp/program"]
CMD ["--help"]
