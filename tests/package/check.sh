#!/usr/bin/env bash
# A stranger's project finds megacpp: installed as a package, as a subdirectory, and fetched.
#   check.sh SOURCE BUILD WORK CMAKE-ARGUMENT...
set -euo pipefail

source=$1 build=$2 work=$3
shift 3
rm -rf -- "$work"
cmake --install "$build" --prefix "$work/prefix" >/dev/null

for way in package subdirectory fetch; do
  cmake -S "$source/tests/package" -B "$work/$way" -DWAY="$way" -DMEGACPP_SOURCE="$source" \
    -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
  [ "$way" != fetch ] || break # its targets are those of a subdirectory
  cmake --build "$work/$way" --parallel 1
  "$work/$way/consumer"
  # Presets can be declared from either; building them is the business of other tests.
  grep -q 'mc::source_of<tiny_run,' "$work/$way/tiny-run.run/run.cpp"
  grep -q 'layout{.tp = 2, .sequence_parallel = true}' "$work/$way/tiny-run.run/run.hpp"
done

# A Hugging Face configuration, by the installed package: a mixed model with its parameters.
cmake --build "$work/package" --parallel 1 --target from-config
attention=$((2 * 24 + 2 * 24 * 32 + 2 * 24 * 16 + 2 * 8))
parameters=$((2 * 256 * 24 + 2 * attention + 3 * 24 * 40 + 4 * 24 + 4 * 3 * 24 * 12 + 24))
"$work/package/from-config" describe >"$work/described"
grep -Eq "^ *parameters +$parameters\$" "$work/described" ||
  { grep parameters "$work/described" >&2 && echo "from-config has not $parameters parameters" >&2 && exit 1; }
"$work/package/from-config" train --mock-data --train-iters 3 --threads 1 --save "$work/model" >/dev/null
"$work/package/from-config" export --load "$work/model" --save "$work/exported" --max-shard-size 20KB |
  grep -q 'files, written to'

# Installed headers must be all that the package needs: nothing in it may point back to the sources.
if grep -rn -- "$source" "$work/prefix/lib/cmake"; then
  echo "the installed package names the source folder" >&2
  exit 1
fi
