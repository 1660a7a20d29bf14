#!/usr/bin/env bash
# A stranger's project finds megacpp: installed as a package, and as a subdirectory.
#   check.sh SOURCE BUILD WORK CMAKE-ARGUMENT...
set -euo pipefail

source=$1 build=$2 work=$3
shift 3
rm -rf -- "$work"
cmake --install "$build" --prefix "$work/prefix" >/dev/null

for way in package subdirectory; do
  cmake -S "$source/tests/package" -B "$work/$way" -DWAY="$way" -DMEGACPP_SOURCE="$source" \
    -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
  cmake --build "$work/$way" --parallel 2
  "$work/$way/consumer"
  # Presets can be declared from either; building them is the business of other tests.
  grep -q 'mc::source_of<tiny_run>' "$work/$way/tiny-run.run/run.cpp"
  grep -q 'layout{.tp = 2, .sequence_parallel = true}' "$work/$way/tiny-run.run/run.hpp"
done

# Installed headers must be all that the package needs: nothing in it may point back to the sources.
if grep -rn -- "$source" "$work/prefix/lib/cmake"; then
  echo "the installed package names the source folder" >&2
  exit 1
fi
