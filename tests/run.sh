#!/usr/bin/env bash
# Builds the tests and runs them; ends with ctest's closing line and exit code.
#
#   tests/run.sh [--no-install] [--slow] [--build DIR] [-- CTEST-ARGUMENT...]
#
#   --no-install   install nothing; whatever is missing is named
#   --slow         also the suites that build again (sanitizers, clang, nvcc, package, ...), and
#                  warnings are errors
#   --build DIR    build folder, by default build/tests
#
# MEGACPP_SHARED_DIR, by default ../shared beside the checkout, holds the fixtures of the parity
# tests; without it those tests are left out and named.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() {
  echo "tests/run.sh: $1" >&2
  exit 2
}

install=yes slow=no build=$root/build/tests
while [ $# -gt 0 ]; do
  case $1 in
  --no-install) install=no ;;
  --slow) slow=yes ;;
  --build)
    [ $# -ge 2 ] && [[ $2 != -* ]] || fail "--build needs a folder"
    build=$2
    shift
    ;;
  -h | --help) usage && exit 0 ;;
  --) shift && break ;;
  *) fail "unknown argument $1; --help shows what there is" ;;
  esac
  shift
done

. "$root/cmake/apt_install.sh"
packages=("${build_packages[@]}" libboost-test-dev python3)
[ $slow = no ] ||
  packages+=(clang clang-tidy libclang-rt-dev libomp-dev xz-utils bible-kjv strace python3-venv)
apt_install "${packages[@]}" || exit 2
command -v cmake >/dev/null || fail "cmake is missing; run without --no-install, or install it"

generator=()
if command -v ninja >/dev/null && [ ! -f "$build/CMakeCache.txt" ]; then generator=(-G Ninja); fi
strict=OFF
[ $slow = no ] || strict=ON
cmake -S "$root" -B "$build" "${generator[@]}" -DMEGACPP_BUILD_TESTS=ON -DMEGACPP_SLOW_TESTS=ON \
  -DMEGACPP_WERROR=$strict ${MEGACPP_SHARED_DIR:+"-DMEGACPP_SHARED_DIR:PATH=$MEGACPP_SHARED_DIR"}
cmake --build "$build" -j 2

which=(-LE slow)
[ $slow = no ] || which=()
# ctest's closing line is held back to the end, behind the list of what failed.
set +e
ctest --test-dir "$build" --output-on-failure --no-label-summary -j 2 "${which[@]}" "$@" 2>&1 |
  sed -u -e '/^[0-9]*% tests passed, .* failed out of/{h;d}' -e '${G}'
exit "${PIPESTATUS[0]}"
