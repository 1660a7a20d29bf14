#!/usr/bin/env bash
# Configures, builds and runs tests in a folder of their own, one at a time:
#   suite.sh SOURCE BUILD CMAKE-ARGUMENT...
set -euo pipefail

source=$1 build=$2
shift 2
cmake -S "$source" -B "$build" -DMEGACPP_BUILD_TESTS=ON -DMEGACPP_SLOW_TESTS=OFF "$@"
SECONDS=0
cmake --build "$build" --parallel 1
echo "built in $SECONDS s"
ctest --test-dir "$build" --output-on-failure --no-tests=error -LE compile_fail -E '^structure_'
