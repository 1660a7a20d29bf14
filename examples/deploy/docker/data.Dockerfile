# syntax=docker/dockerfile:1
# The image of megacpp-data, which makes data sets of texts: the tool, which the builder has, and the shared libraries
# that it loads, laid out as those of a program. No folder is read:
#
#   docker build -f examples/deploy/docker/data.Dockerfile -t megacpp-data .
#
# Arguments (--build-arg NAME=VALUE):
#   BUILDER   the image of builder.Dockerfile
#   BASE      the system to run on, of the builder's release
ARG BUILDER=megacpp-builder
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS base

FROM ${BUILDER} AS build
# What the base has already is left out.
RUN --mount=type=bind,from=base,target=/base \
    /megacpp/examples/deploy/docker/image_files.sh /usr/local/bin/megacpp-data /image /base

FROM base
COPY --from=build /image/ /
USER 10001:10001
ENTRYPOINT ["/opt/megacpp/program"]
CMD ["--help"]
