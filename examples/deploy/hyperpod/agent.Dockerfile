# The image of a HyperPodPyTorchJob: hyperpodrun, which needs Python and torch, beside the program of another image.
#
#   docker build --build-arg PROGRAM_IMAGE=$REPO_URI -t $AGENT_URI -f agent.Dockerfile .
#
# No image has been built by this file yet.
ARG PROGRAM_IMAGE
FROM ${PROGRAM_IMAGE}
USER root
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \
  && python3 -m venv /opt/hyperpod \
  && /opt/hyperpod/bin/pip install --no-cache-dir hyperpod-elastic-agent==1.1.3 \
  && rm -rf /var/lib/apt/lists/*
USER 1000
ENV PATH=/opt/hyperpod/bin:$PATH
ENTRYPOINT []
