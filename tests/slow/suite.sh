#!/usr/bin/env bash
# Configures, builds and runs the whole test suite in a folder of its own:
#   suite.sh SOURCE BUILD CMAKE-ARGUMENT...
set -euo pipefail

source=$1 build=$2
shift 2
cmake -S "$source" -B "$build" -DMEGACPP_BUILD_TESTS=ON -DMEGACPP_SLOW_TESTS=OFF "$@"
cmake --build "$build" --parallel 2
export LSAN_OPTIONS=suppressions=$source/tests/slow/lsan.supp
ctest --test-dir "$build" --output-on-failure --no-tests=error -j 2 \
  -LE compile_fail -E '^structure_'
