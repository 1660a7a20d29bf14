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
  # Presets can be declared from either, and the compiler checks one; building them is the business of others.
  cmake --build "$work/$way" --parallel 1 --target tiny-run_check
  grep -q 'mc::source_of<tiny_run,' "$work/$way/tiny-run.run/run.cpp"
  grep -q 'layout{.tp = 2, .sequence_parallel = true}' "$work/$way/tiny-run.run/run.hpp"
done

# A word that no preset takes fails the build with one sentence.
cmake -S "$source/tests/package" -B "$work/package" -DWRONG='TP;two' >/dev/null
said=$(cmake --build "$work/package" --target wrong_check 2>&1) && { echo "a wrong key is built" >&2 && exit 1; }
[ "$(grep -c "^megacpp_write_run: exit code 2: TP must be a positive integer below 1000000000, not 'two'$" <<<"$said")" = 1 ] ||
  { echo "$said" >&2 && exit 1; }
cmake -S "$source/tests/package" -B "$work/package" -UWRONG >/dev/null

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

# What programs have in common, compiled once and installed with megacpp: a stranger's program that links it
# has the bits of the one above, tells the stranger's commit, and compiles its own units alone.
cmake -S "$source" -B "$work/library" -DMEGACPP_BUILD_TESTS=OFF -DMEGACPP_BUILD_EXAMPLES=OFF \
  -DMEGACPP_WERROR=ON -DMEGACPP_INSTALL_PRECOMPILED=cpu "$@" >/dev/null
cmake --build "$work/library" --parallel 1
cmake --install "$work/library" --prefix "$work/prefix" >/dev/null
for file in bin/megacpp-data bin/megacpp-build-preset share/doc/megacpp/LICENSE share/doc/megacpp/CHANGELOG.md; do
  [ -f "$work/prefix/$file" ] || { echo "$file is not installed" >&2 && exit 1; }
done
"$work/prefix/bin/megacpp-data" --version
ln -s prefix/bin/megacpp-build-preset "$work/through-a-link"
"$work/through-a-link" --help | grep '^ *tp=' >/dev/null || { echo "the installed script does not find its keys" >&2 && exit 1; }
cp -r "$source/tests/package" "$work/project"
git -C "$work/project" init -q
git -C "$work/project" add .
git -C "$work/project" -c user.name=a -c user.email=a@example.org commit -qm 'Begin'
given=("$@")
# configure FOLDER CMAKE-ARGUMENT...: what CMake says, as one line
configure() {
  local folder=$1
  shift
  cmake -S "$work/project" -B "$work/$folder" -DWAY=package -DCMAKE_PREFIX_PATH="$work/prefix" "${given[@]}" "$@" 2>&1 |
    tr -s ' \n' ' '
}
fail() {
  echo "$1" >&2
  exit 1
}
said=$(configure precompiled -DCMAKE_CXX_FLAGS=-Wall) # warnings change nothing
[[ $said == *' commands: precompiled, '*' on_cpu: precompiled, '* ]] || fail "CMake takes nothing precompiled: $said"
built=$(cmake --build "$work/precompiled" --parallel 1 --target from-config --verbose)
[[ $built == *run.cpp* ]] || fail "the run was not compiled: $built"
for unit in commands command_line kernels devices write_run; do
  [[ $built != *"/$unit.cpp"* ]] || fail "$unit.cpp is precompiled, and was compiled"
done
program=$work/precompiled/from-config
"$program" --version | grep -q "$(git -C "$work/project" rev-parse --short=12 HEAD)" || fail "$("$program" --version)"
"$program" train --mock-data --train-iters 3 --threads 1 --save "$work/model-precompiled" >/dev/null
"$program" export --load "$work/model-precompiled" --save "$work/exported-precompiled" --max-shard-size 20KB >/dev/null
diff -r "$work/exported" "$work/exported-precompiled"

# A library that does not fit is not taken, and a sentence says why; where it is named, that is an error.
refused() { # WORDS CMAKE-ARGUMENT...
  local words=$1
  shift
  rm -rf -- "$work/refused"
  said=$(configure refused "$@") || fail "$said"
  [[ $said == *' commands: compiled in this build, since '*"$words"*' on_cpu: compiled in this build, since '*"$words"* ]] ||
    fail "$*: CMake says: $said"
}
installed=$work/prefix/lib/cmake/megacpp/precompiled
refused ' in place of options ' -DCMAKE_BUILD_TYPE=Release
refused ' in place of options -std=c++23' -DCMAKE_CXX_STANDARD=23
refused '__, ..., which this build has not'  -DMEGACPP_MARCH=x86-64
refused ', which this build has' -DMEGACPP_WITH_ONEDNN=OFF -DMEGACPP_WITH_MPI=OFF
if command -v clang++ >/dev/null; then refused ' in place of Clang ' -DCMAKE_CXX_COMPILER=clang++; fi
rm -rf -- "$work/refused"
said=$(configure refused -DMEGACPP_PRECOMPILED=OFF)

[[ $said != *precompiled,* && $said != *', since '* ]] || fail "what is off is looked at: $said"
rm -rf -- "$work/refused"
said=$(configure refused -DMEGACPP_MARCH=x86-64 -DMEGACPP_PRECOMPILED="$installed") && fail 'a library that does not fit is taken'
[[ $said == *"megacpp: the precompiled library $installed/commands was built with "*': build it again, '* ]] || fail "$said"
echo '// edited' >>"$work/prefix/include/megacpp/io/error.hpp"
refused "was built from other headers than those in $work/prefix/include"

# Installed headers must be all that the package needs: nothing in it may point back to the sources.
if grep -rnI -- "$source" "$work/prefix/lib/cmake"; then
  echo "the installed package names the source folder" >&2
  exit 1
fi
