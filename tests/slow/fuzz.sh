#!/usr/bin/env bash
# Builds a fuzzer and runs it for a bounded number of inputs. 
#   fuzz.sh SOURCE UNIT BUILD CLANG INPUTS
set -euo pipefail
source=$1 unit=$2 build=$3 clang=$4 inputs=$5
name=$(basename "$unit" .cpp)
mkdir -p "$build/corpus-$name"
"$clang" -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -I"$source/include" "$unit" -o "$build/$name" -lfmt -lpcre2-8 -lutf8proc -lxxhash -lcrypto
"$build/$name" -runs="$inputs" -max_len=4096 -timeout=1 -seed=1 \
  "$build/corpus-$name"
