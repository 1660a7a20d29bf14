#!/usr/bin/env bash
# Builds the tests and runs them; ends with ctest's closing line and exit code.
#
#   tests/run.sh [--no-install] [--slow | --exhaustive] [--partial] [--build DIR]
#                [-- CTEST-ARGUMENT...]
#
#   --no-install   install nothing; whatever is missing is named
#   --slow         also the suites that build again (sanitizers, clang, nvcc, package, ...);
#                  warnings are errors, and so is anything missing that a test needs
#   --exhaustive   --slow, and what costs more than it finds (CONTRIBUTING.md)
#   --shard N      of what runs share, shard N of thirty-two, 0 to 31; by default the hash of the commit's tree
#                  chooses it. All runs share a few tests, those with --slow the slower suites, others
#                  the laws and the cases that must not compile, and have no runs of processes. What is
#                  left to other runs is named at the end.
#   --partial      with --slow: tests whose tools, files or network are missing are left out and
#                  named
#   --build DIR    build folder, by default build/tests
#
# MEGACPP_SHARED_DIR, by default ../shared beside the checkout, holds the fixtures of the parity
# tests; without it those tests are left out and named.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() {
  echo "tests/run.sh: $1" >&2
  exit "${2:-2}"
}

shards=$(sed -n 's/^set(shards \([0-9]*\))$/\1/p' "$root/tests/CMakeLists.txt")
install=yes slow=no exhaustive=OFF partial=no shard='' build=$root/build/tests
while [ $# -gt 0 ]; do
  case $1 in
  --no-install) install=no ;;
  --slow) slow=yes ;;
  --exhaustive) slow=yes exhaustive=ON ;;
  --partial) partial=yes ;;
  --build)
    [ $# -ge 2 ] && [[ $2 != -* ]] || fail "--build needs a folder"
    build=$2
    shift
    ;;
  --shard)
    [ $# -ge 2 ] && [[ $2 =~ ^(0|[1-9][0-9]?)$ ]] && [ "$2" -lt $shards ] ||
      fail "--shard needs a number from 0 to $((shards - 1))"
    shard=$2
    shift
    ;;
  -h | --help) usage && exit 0 ;;
  --) shift && break ;;
  *) fail "unknown argument $1; --help shows what there is" ;;
  esac
  shift
done

# A shard for each commit; all of them are in --exhaustive.
chosen="as --shard says"
if [ $exhaustive = ON ]; then
  shard='' chosen=''
elif [ -z "$shard" ]; then
  tree=$(git -C "$root" rev-parse 'HEAD^{tree}' 2>/dev/null) || tree=0
  shard=$((16#${tree:0:8} % shards)) chosen="by the commit's tree, ${tree:0:8}"
fi

. "$root/cmake/apt_install.sh"
packages=("${build_packages[@]}" libboost-test-dev libopenmpi-dev openmpi-bin python3)
[ $slow = no ] ||
  packages+=(clang clang-format clang-tidy libclang-rt-dev xz-utils bible-kjv strace
    python3-venv qemu-user ccache debootstrap gettext-base)
apt_install "$build_tools python3" "${packages[@]}" || exit $?

generator=()
if command -v ninja >/dev/null && [ ! -f "$build/CMakeCache.txt" ]; then generator=(-G Ninja); fi
export MEGACPP_WERROR=OFF
targets=(all) short=ON
if [ $slow = yes ]; then
  MEGACPP_WERROR=ON targets+=(slow_tests) short=OFF
  [ $partial = yes ] || export MEGACPP_TESTS_COMPLETE=1
fi
# What several suites compile is compiled once, where there is a cache and no other was chosen. What
# -march=native means is part of the key: caches may be shared by machines. The locale, which some
# scripts set, is not.
if ccache -s >/dev/null 2>&1 && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER+set}" ]; then
  mkdir -p "$build"
  grep -m 1 '^flags' /proc/cpuinfo >"$build/processor"
  # Paths below the checkout are relative in what is hashed, so that another checkout finds it, too.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_EXTRAFILES=$build/processor
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}locale,pch_defines,time_macros
fi
cmake -S "$root" -B "$build" "${generator[@]}" -DMEGACPP_BUILD_TESTS=ON -DMEGACPP_SLOW_TESTS=ON \
  -DMEGACPP_EXHAUSTIVE_TESTS=$exhaustive -DMEGACPP_UNITE_TESTS=ON -DMEGACPP_WERROR=$MEGACPP_WERROR \
  -DMEGACPP_SHARD="$shard" -DMEGACPP_SHORT_TESTS=$short \
  ${MEGACPP_SHARED_DIR:+"-DMEGACPP_SHARED_DIR:PATH=$MEGACPP_SHARED_DIR"} ||
  fail 'CMake could not configure; its message is above' 8
SECONDS=0
cmake --build "$build" -j 2 --target "${targets[@]}" || fail 'the tests do not compile' 1
built=$SECONDS

which=(-LE slow)
[ $slow = no ] || which=()
# ctest's closing line is held back to the end, behind the list of what failed and what took how long.
closing='^[0-9]*% tests passed, .* failed out of'
set +e
ctest --test-dir "$build" --output-on-failure -j 2 "${which[@]}" "$@" 2>&1 |
  tee "$build/ctest.log" | sed -u "/$closing/d"
status=${PIPESTATUS[0]}
processor=$(awk -F '[[:space:]]*: ' '{ f[$1] = $2 } /^$/ { exit } END { printf "%s (family %s, model %s, stepping %s)",
  f["model name"], f["cpu family"], f["model"], f["stepping"] }' /proc/cpuinfo)
printf '\nBuilt in %d s, tested in %d s, on %s processors of %s. The slowest tests:\n' \
  "$built" $((SECONDS - built)) "$(nproc)" "$processor"
sed -nE 's/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 s  \1/p' "$build/ctest.log" |
  sort -rn | head -n 10
others=$(cat "$build/other_shards")
[ $slow = yes ] || others=$(tr ' ' '\n' <<<"$others" | grep -E 'compile_fail|^laws_|^mpi_|^structure_|^emulated_' | xargs) # the rest is of --slow
[ -z "$shard" ] || printf '\nShard %s of 0 to %s, %s; left to other runs: %s\n' "$shard" $((shards - 1)) "$chosen" "$others"
echo
grep "$closing" "$build/ctest.log" | tail -n 1 # not that of a suite
exit "$status"
