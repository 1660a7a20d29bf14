#!/usr/bin/env bash
# Runs megacpp_gpu on a machine that may have no more of CUDA than what pip installs with PyTorch.
#
#   bench/gpu/run.sh [PROGRAM] [--json FILE]
#
# PROGRAM: one that was built elsewhere. Without it the program of build/gpu is brought up to date
# where there are nvcc and cmake, and taken as it is where there are not.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/gpu/megacpp_gpu
given=false
if [ $# -gt 0 ] && [[ $1 != --* ]]; then
  program=$1 given=true
  shift
fi
PATH=$PATH:/usr/local/cuda/bin
if ! $given && command -v nvcc >/dev/null && command -v cmake >/dev/null; then
  cmake -S "$root/bench/gpu" -B "$root/build/gpu" >&2
  cmake --build "$root/build/gpu" -j "$(nproc)" >&2
fi
if [ ! -x "$program" ]; then
  echo "run.sh: there is no program $program, and it cannot be built without nvcc and cmake;" \
       "build it on a machine that has them, and name it as the first argument" >&2
  exit 2
fi

# Folders of Python packages that hold cuBLASLt and cuDNN: nvidia/cu13/lib, nvidia/cudnn/lib, ...
folders=
if python=$(command -v python3); then
  while IFS= read -r packages; do
    for folder in "$packages"/nvidia/*/lib; do
      if [ -d "$folder" ]; then folders=$folders${folders:+:}$folder; fi
    done
  done < <("$python" -c 'import sys; print(*[p for p in sys.path if p.endswith("-packages")], sep="\n")')
fi
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$folders${folders:+:}/usr/local/cuda/lib64
exec "$program" "$@"
