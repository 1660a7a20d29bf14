#!/usr/bin/env bash
# Presets for CUDA, built by nvcc and g++ for an A100 and an H100, on a machine that may have no GPU:
# they describe themselves, and say in one sentence that there is none.
#
#   cuda_presets.sh ROOT BUILD [CMAKE-ARGUMENT...]
set -euo pipefail
export LC_ALL=C
export CUDA_VISIBLE_DEVICES=

root=$1 build=$2
shift 2
fail() {
  echo "cuda_presets: $1" >&2
  exit 1
}

mkdir -p "$build/source"
cat >"$build/source/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.24)
project(cuda_presets LANGUAGES CXX)
set(CMAKE_CXX_EXTENSIONS OFF)
set(MEGACPP_CUDA_ARCHITECTURES 80 90a)
add_subdirectory([==[$root]==] megacpp EXCLUDE_FROM_ALL)
megacpp_add_preset(dense MODEL gpt2_124m SEQUENCE 256 PRECISION fp32 DEVICE cuda)
megacpp_add_preset(experts MODEL qwen3_moe_165m MICRO_BATCH 1 SEQUENCE 256 DEVICE cuda)
END
cmake -S "$build/source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DMEGACPP_BUILD_TESTS=OFF \
  -DMEGACPP_BUILD_EXAMPLES=OFF "$@"
cmake --build "$build" --target dense experts -j 1

# No class is a template argument of a body, whose name would have its members in braces.
for object in "$build"/megacpp_cuda_*/*.o; do
  bodies=$(nm -C "$object" | grep ' mc::\| int mc::' || true)
  [[ $bodies != *'{'* ]] || fail "$object: a body has a class as template argument"
  longest=$(nm "$object" | awk '$NF !~ /3cub|thrust/ { n = length($NF); if (n > most) most = n } END { print most + 0 }')
  [ "$longest" -le 300 ] || fail "$object: a symbol is $longest characters long"
done

for preset in dense experts; do
  program=$build/$preset
  linked=$(ldd "$program")
  [[ $linked != *libdnnl* ]] || fail "$preset is linked with oneDNN"
  for library in cudart cublasLt; do
    [[ $linked == *"lib$library"* ]] || fail "$preset is not linked with $library"
  done
  "$program" describe >"$build/described"
  grep -q 'cuBLASLt .* or later' "$build/described" || fail "$preset does not describe its products"
  said=$("$program" train --mock-data --train-iters 1 2>&1) && fail "$preset trained without a GPU" || status=$?
  [ "$status" -eq 8 ] || fail "$preset ended with $status, not 8, without a GPU: $said"
  [ "$(wc -l <<<"$said")" -eq 1 ] || fail "$preset says more than a sentence: $said"
  [[ $said == *'or build the program with device=cpu' ]] || fail "$preset says: $said"
done
echo 'cuda_presets: both presets are built and say that there is no GPU'
