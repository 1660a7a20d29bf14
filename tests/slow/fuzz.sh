#!/usr/bin/env bash
# Builds a fuzzer and runs it for a bounded number of inputs. usage: fuzz.sh SOURCE UNIT BUILD CLANG
set -euo pipefail
source=$1 unit=$2 build=$3 clang=$4
name=$(basename "$unit" .cpp)
mkdir -p "$build/corpus-$name"
"$clang" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -I"$source/include" "$unit" -o "$build/$name" -lfmt
"$build/$name" -runs="${MEGACPP_FUZZ_RUNS:-200000}" -max_len=4096 -timeout=1 -seed=1 \
  "$build/corpus-$name"
