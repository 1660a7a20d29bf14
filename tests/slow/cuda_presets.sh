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

cmake -S "$root/tests/slow/cuda_presets" -B "$build" -DMEGACPP_SOURCE="$root" -DCMAKE_BUILD_TYPE=Release \
  -DMEGACPP_BUILD_TESTS=OFF -DMEGACPP_BUILD_EXAMPLES=OFF "$@"
cmake --build "$build" --target dense experts own-run-on-gpu -j 1

# A body that the library lacks is compiled from the header that the run names; without one, it is named.
grep -q 'own::squared_relu_block<float>' "$build/own-run-on-gpu.run/own_bodies.cu" ||
  fail 'the body of the run of its own is not in the unit for nvcc'
linked=$(nm -C "$build/own-run-on-gpu")
[[ $linked == *'launch_on_cuda<own::squared_relu_block<float> >'* ]] ||
  fail 'the body of the run of its own is not linked'
[ "$(tr -d ' \n' <"$build/dense.run/own_bodies.rsp")" = '' ] || fail 'a preset has bodies of its own'
said=$(cmake --build "$build" --target own-run-on-gpu -j 1) && [[ $said != *'nvcc compiles own::'* ]] ||
  fail "nothing has changed, and nvcc is asked again: $said"
said=$(cmake --build "$build" --target bodies-not-named -j 1 2>&1) && fail 'bodies that nobody named are linked'
said=$(tr -s ' \n' ' ' <<<"$said")
[[ $said == *'bodies-not-named starts bodies on a GPU that the library does not have, own::squared_relu_block<float>: name the headers that define them'* ]] ||
  fail "bodies that nobody named: $said"

# No class is a template argument of a body, whose name would have its members in braces.
for object in "$build"/megacpp_cuda_*/*.o; do
  bodies=$(nm -C "$object" | grep ' mc::\| int mc::' || true)
  [[ $bodies != *'{'* ]] || fail "$object: a body has a class as template argument"
  longest=$(nm "$object" | awk '$NF !~ /3cub|thrust/ { n = length($NF); if (n > most) most = n } END { print most + 0 }')
  [ "$longest" -le 300 ] || fail "$object: a symbol is $longest characters long"
done

for preset in dense experts own-run-on-gpu; do
  program=$build/$preset
  linked=$(ldd "$program")
  [[ $linked != *libdnnl* ]] || fail "$preset is linked with oneDNN"
  for library in cudart cublasLt cudnn; do
    [[ $linked == *"lib$library"* ]] || fail "$preset is not linked with $library"
  done
  "$program" describe >"$build/described"
  grep -q 'cuBLASLt .* or later' "$build/described" || fail "$preset does not describe its products"
  [ "$preset" != experts ] || # the others are of fp32, which cuDNN does not take
    grep -q '  attention  *by cuDNN .* or later, deterministic$' "$build/described" ||
    fail "$preset does not describe its attention"
  said=$("$program" train --mock-data --train-iters 1 2>&1) && fail "$preset trained without a GPU" || status=$?
  [ "$status" -eq 8 ] || fail "$preset ended with $status, not 8, without a GPU: $said"
  [ "$(wc -l <<<"$said")" -eq 1 ] || fail "$preset says more than a sentence: $said"
  [[ $said == *'or build the program with device=cpu' ]] || fail "$preset says: $said"
done
echo 'cuda_presets: presets and a run of its own are built and say that there is no GPU'
