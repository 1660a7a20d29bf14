#!/usr/bin/env bash
# Compiles the model of a Hugging Face config.json into a program.
#
#   examples/build_preset.sh CONFIG.json OUT [KEY=VALUE...] [--no-install] [--build DIR]
#
# Where megacpp is installed, the script is bin/megacpp-build-preset and takes the libraries that are installed with it.
#
#   OUT            the program; an earlier one is replaced when the new one is complete
#   KEY=VALUE      says what is compiled; all keys stand below
#   --precompiled DIR   what programs have in common, as MEGACPP_INSTALL_PRECOMPILED builds it: only the
#                  run is compiled, and device=cuda needs no nvcc
#   --march NAME   the processor to build for, such as x86-64-v3; by default the one that compiles, or what the
#                  installed package was built for
#   --cuda-architectures LIST   the GPUs to build for with device=cuda, such as 80,90a; by default 90a, H100 and H200
#   --no-install   install nothing; whatever is missing is named
#   --build DIR    build folder, by default one for each OUT under build/, or in ~/.cache/megacpp where megacpp
#                  is installed
#
# docs/hugging-face.md says what is read from CONFIG.json and what is refused.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/.." && pwd)
# In a checkout, or installed.
scripts=$root/cmake builds=$root/build/presets megacpp="add_subdirectory([==[$root]==] megacpp)"
if [ ! -f "$scripts/megacpp_build_keys.cmake" ]; then
  scripts=$root/lib/cmake/megacpp builds=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/megacpp/presets
  megacpp="find_package(megacpp REQUIRED PATHS [==[$root]==] NO_DEFAULT_PATH)"
fi
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  printf '\nKeys:\n\n'
  sed -n '/^#   [a-z-]*=/,/^#$/s/^# \{0,1\}//p' "$scripts/megacpp_build_keys.cmake"
}
fail() {
  echo "build_preset: $1" >&2
  exit "${2:-1}"
}

config='' out='' build='' precompiled='' march='' gpus='' install=yes words=()
while [ $# -gt 0 ]; do
  case $1 in
  --no-install) install=no ;;
  --build)
    [ $# -ge 2 ] && [[ $2 != -* ]] || fail "--build needs a folder" 2
    build=$2
    shift
    ;;
  --precompiled)
    [ $# -ge 2 ] && [[ $2 != -* ]] || fail "--precompiled needs a folder" 2
    precompiled=$(realpath -e -- "$2" 2>/dev/null) && [ -d "$precompiled" ] || fail "there is no folder $2" 5
    shift
    ;;
  --march)
    [[ ${2-} =~ ^[a-z0-9][a-z0-9._+-]*$ ]] || fail "--march needs the name of a processor, such as x86-64-v3" 2
    march=$2
    shift
    ;;
  --cuda-architectures)
    [[ ${2-} =~ ^[1-9][0-9]*[af]?(,[1-9][0-9]*[af]?)*$ ]] ||
      fail "--cuda-architectures needs architectures of GPUs as nvcc numbers them, such as 80,90a" 2
    gpus=${2//,/;}
    shift
    ;;
  -h | --help) usage && exit 0 ;;
  -*) fail "unknown flag $1; --help shows what there is" 2 ;;
  *=*)
    [[ $1 != *']==]'* ]] || fail "$1 is no key with a value; --help shows what there is" 2
    words+=("[==[$1]==]") # megacpp_write_run judges it
    ;;
  *)
    if [ -z "$config" ]; then config=$1
    elif [ -z "$out" ]; then out=$1
    else fail "unknown argument $1; --help shows what there is" 2; fi
    ;;
  esac
  shift
done
[ -n "$out" ] || fail "give CONFIG.json and OUT; --help shows more" 2
[ -f "$config" ] && [ -r "$config" ] || fail "$config is not a readable file" 5
[ ! -d "$out" ] || fail "$out is a folder; give the name of the program" 6
config=$(realpath -- "$config")
folder=$(cd -- "$(dirname -- "$out")" 2>/dev/null && pwd) ||
  fail "there is no folder $(dirname -- "$out") to put the program into" 6
[ -w "$folder" ] || fail "the folder $folder cannot be written" 6
out=$folder/$(basename -- "$out")

. "$scripts/apt_install.sh"
apt_install "$build_tools" "${build_packages[@]}" || exit $?

if [ -n "$march" ] && ! "${CXX:-c++}" -march="$march" -E -x c++ /dev/null >/dev/null 2>&1; then
  fail "the compiler ${CXX:-c++} builds for no processor '$march'; give --march x86-64-v3 or another that it knows" 2
fi

# The run is named after the program; the suffix keeps it apart from words of C++ and of CMake.
name=$(basename -- "$out" | tr -c 'A-Za-z0-9\n' _)_run
[[ $name != [0-9]* ]] || name=run_$name
build=${build:-$builds/$name-$(cksum <<<"$out" | cut -d ' ' -f 1)}
mkdir -p -- "$build"
build=$(cd -- "$build" && pwd)
cat >"$build/CMakeLists.txt" <<END
# Written by examples/build_preset.sh.
cmake_minimum_required(VERSION 3.24)
project(preset LANGUAGES CXX)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(MEGACPP_PRECOMPILED [==[$precompiled]==])
${march:+set(MEGACPP_MARCH $march)}
${gpus:+set(MEGACPP_CUDA_ARCHITECTURES "$gpus")}
$megacpp
megacpp_add_preset($name HF_CONFIG [==[$config]==] ${words[*]-})
END
generator=()
if command -v ninja >/dev/null && [ ! -f "$build/tree/CMakeCache.txt" ]; then generator=(-G Ninja); fi
cmake -S "$build" -B "$build/tree" "${generator[@]}" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2 && fail 'CMake could not configure; its message is above' 8; }
# The run is written and checked before anything of it is built: what is wrong is said within seconds. The
# sentence about a key or a configuration goes without the build's log around it.
if ! { cmake --build "$build/tree" --target "${name}_check" &&
  cmake --build "$build/tree" --target "$name" -j 2; } >"$build/build.log" 2>&1; then
  refusal='^megacpp_write_run: exit code ([0-9]+): (.*)$'
  while IFS= read -r line; do
    [[ ! $line =~ $refusal ]] || fail "${BASH_REMATCH[2]}" "${BASH_REMATCH[1]}"
  done <"$build/build.log"
  # What the compiler proves wrong of the layout: one sentence, with what it is about.
  if fault=$(grep -m 1 -oE 'error:.*MEGA-[A-Z][0-9]{3} [^"]*' "$build/build.log"); then
    # as a text, or as characters from compilers that print no texts
    where=$(sed -nE 's/.*\bin<[a-z:]*fixed_string<[0-9]+>\{"(([^"\\]|\\.)*)".*/\1/p' "$build/build.log" |
      head -n 1 | sed -E 's/\\(.)/\1/g')
    letter="'(\\\\.|[^'])'"
    [ -n "$where" ] || where=$(grep -m 1 -oE "in<($letter(, )?)+>" "$build/build.log" |
      grep -oE "$letter" | sed -E "s/^'\\\\?(.)'\$/\1/" | tr -d '\n' || true)
    fail "MEGA-${fault#*MEGA-}${where:+: $where}" 3
  fi
  cat "$build/build.log" >&2
  fail 'the program did not compile; the message is above'
fi
grep "^note: .*: field " "$build/build.log" >&2 || true # what the configuration's reader tells
trap 'rm -f -- "$out.new-$$"' EXIT
cp -- "$build/tree/$name" "$out.new-$$" && mv -f -- "$out.new-$$" "$out" ||
  fail "cannot write $out" 6
echo "$out: $(($(stat -c %s -- "$out") / 1024)) KiB"
