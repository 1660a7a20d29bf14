#!/usr/bin/env bash
# megacpp_gpu compiles and links with nvcc, and says in one sentence that it finds no device.
#
#   gpu_program.sh SOURCE BUILD CMAKE-ARGUMENTS...
set -euo pipefail

source=$1 build=$2
shift 2
# The CPU's half does not run here.
cmake -S "$source/bench/gpu" -B "$build" -DCMAKE_CXX_FLAGS_RELEASE=-O0 "$@" >/dev/null
cmake --build "$build" -j 1

fail() {
  echo "gpu_program.sh: $1" >&2
  exit 1
}
# Of a machine that has a GPU, this hides it.
export CUDA_VISIBLE_DEVICES=
refused() { # CODE WORDS ARGUMENTS...: this code, nothing but one sentence with these words
  local code=$1 words=$2 said=0
  shift 2
  "$build/megacpp_gpu" "$@" >"$build/out" 2>"$build/err" || said=$?
  [ "$said" = "$code" ] || fail "exit code $said of megacpp_gpu $*, not $code"
  [ ! -s "$build/out" ] || fail "megacpp_gpu $* prints something before it refuses"
  [ "$(wc -l <"$build/err")" = 1 ] || fail "megacpp_gpu $* says more or less than one line"
  grep -q "$words" "$build/err" || fail "megacpp_gpu $* says: $(cat "$build/err")"
}
refused 8 "megacpp_gpu: .* this program needs a GPU and a driver for CUDA 13 or later"
refused 8 "needs a GPU" --json "$build/result.json"
refused 2 "usage: megacpp_gpu" --jsn "$build/result.json"
refused 2 "usage: megacpp_gpu" --json
refused 8 "needs a GPU" --tune "$build/table.json"
refused 2 "usage: megacpp_gpu --tune TABLE" --tune
[ ! -e "$build/result.json" ] && [ ! -e "$build/table.json" ] || fail "a file is left by a program that has not run"
