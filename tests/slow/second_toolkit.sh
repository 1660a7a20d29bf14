#!/usr/bin/env bash
# Presets for CUDA (cuda_presets.sh) by another toolkit than the one that the other tests compile with.
# Installs the toolkit by pip in WORK/toolkit, or finds it there. Exits with 77 where it cannot be
# installed (no network, no space).
#
#   second_toolkit.sh ROOT WORK [CMAKE-ARGUMENT...]
set -euo pipefail

root=$1 work=$2
shift 2
wanted=$root/tests/slow/second_toolkit.txt toolkit=$work/toolkit
mkdir -p "$work"
if ! cmp -s "$wanted" "$toolkit/installed.txt"; then
  rm -rf -- "$toolkit"
  if ! python3 -m pip install --disable-pip-version-check --no-cache-dir --no-compile --no-deps -q \
    --target "$toolkit" -r "$wanted"; then
    echo "there is no second toolkit: pip's words are above"
    exit 77
  fi
  # Packages of Python have libraries by the names that a loader asks for; a linker asks for others.
  ln -s lib "$toolkit/nvidia/cu13/lib64"
  for library in "$toolkit"/nvidia/{cu13,cudnn}/lib/*.so.*; do
    ln -s "${library##*/}" "${library%%.so.*}.so"
  done
  cp "$wanted" "$toolkit/installed.txt"
fi
cuda=$toolkit/nvidia/cu13 cudnn=$toolkit/nvidia/cudnn
export LD_LIBRARY_PATH=$cuda/lib:$cudnn/lib
"$root/tests/slow/cuda_presets.sh" "$root" "$work/presets" -DCUDAToolkit_ROOT="$cuda" \
  -DCMAKE_PREFIX_PATH="$cudnn" "$@"

# What was built was built by that toolkit and no other.
linked=$(ldd "$work/presets/project/experts")
for library in "$cuda/lib/libcudart" "$cuda/lib/libcublasLt" "$cudnn/lib/libcudnn"; do
  if [[ $linked != *"$library"* ]]; then
    echo "second_toolkit: experts is linked with another library than $library" >&2
    exit 1
  fi
done
"$cuda/bin/nvcc" --version | tail -n 1
