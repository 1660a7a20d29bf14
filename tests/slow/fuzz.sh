#!/usr/bin/env bash
# Builds and runs every fuzzer for a bounded number of inputs. usage: fuzz.sh SOURCE BUILD CLANG
set -euo pipefail
source=$1 build=$2 clang=$3
runs=${MEGACPP_FUZZ_RUNS:-200000}
mkdir -p "$build"
for unit in "$source"/tests/fuzz/*.cpp; do
  name=$(basename "$unit" .cpp)
  "$clang" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -I"$source/include" "$unit" -o "$build/$name" -lfmt
  mkdir -p "$build/corpus-$name"
  "$build/$name" -runs="$runs" -max_len=4096 -timeout=1 -seed=1 "$build/corpus-$name"
done
