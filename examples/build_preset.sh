#!/usr/bin/env bash
# Compiles the model of a Hugging Face config.json (GPT-2, Llama, Qwen2.5, Qwen3, Qwen3-MoE) into a program.
#
#   examples/build_preset.sh CONFIG.json OUT [KEY=VALUE...] [--no-install] [--build DIR]
#
#   OUT            the program; an earlier one is replaced when the new one is complete
#   tp=N pp=N cp=N ep=N etp=N   ranks of each kind, by default 1 (data parallelism is what is left
#                  of the ranks at start); a program of several ranks says so when started on one
#   sp=1           the residual stream is sharded along the sequence (needs tp > 1); 0 is the default
#   virtual-stages=N   runs of layers that each pipeline stage has, which take turns, by default 1
#   first-stage-layers=N last-stage-layers=N   layers of these stages, by default as many as of others
#   count-embedding=1 count-loss=1   they count as a layer of their stage; 0 is the default
#   stage-layers=N,N,...   layers of each (virtual) stage
#   schedule=S     1f1b (the default) or gpipe, which keeps every micro-batch of a step
#   micro-batches=N   the most of a step on each replica, by default any number
#   zero=1         replicas share the optimizer's state (ZeRO 1); 0 is the default
#   micro-batch=N  sequences at once, by default 4
#   sequence=N     tokens in a sequence, by default 1024
#   precision=P    fp32, bf16_mixed, bf16_moments or fp64, by default bf16_mixed
#   recompute=R    none, selective or full, by default none
#   numerics=N     fast (the default), or batch_invariant: weights have the same bits for any
#                  micro-batch
#   packed=1       attention stays within documents: for conversations, and data sets with
#                  --reset-attention-mask; 0 is the default
#   device=D       cpu (the default), or cuda: an H100 or H200; needs CUDA's toolkit
#   --precompiled DIR   what programs have in common, as MEGACPP_INSTALL_PRECOMPILED builds it: only the
#                  run is compiled, and device=cuda needs no nvcc
#   --no-install   install nothing; whatever is missing is named
#   --build DIR    build folder, by default one for each OUT under build/
#
# docs/hugging-face.md says what is read from CONFIG.json and what is refused.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() {
  echo "build_preset: $1" >&2
  exit "${2:-1}"
}

config='' out='' build='' precompiled='' install=yes arguments=() seen=' '
# preset CMAKE-KEY PATTERN WHAT: checks $value and hands it on.
preset() {
  [[ $value =~ ^($2)$ ]] || fail "$key must be $3, not '$value'" 2
  arguments+=("$1" "$value")
}
number='[1-9][0-9]{0,8}' positive='a positive integer below 1000000000'
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
  -h | --help) usage && exit 0 ;;
  -*) fail "unknown flag $1; --help shows what there is" 2 ;;
  *=*)
    key=${1%%=*} value=${1#*=}
    [[ $seen != *" $key "* ]] || fail "$key is given twice" 2
    seen+="$key "
    case $key in
    tp | pp | cp | ep | etp) preset "${key^^}" "$number" "$positive" ;;
    virtual-stages | first-stage-layers | last-stage-layers | micro-batches)
      key_of_cmake=${key^^}
      preset "${key_of_cmake//-/_}" "$number" "$positive"
      ;;
    count-embedding | count-loss | packed)
      [[ $value =~ ^[01]$ ]] || fail "$key must be 0 or 1, not '$value'" 2
      key_of_cmake=${key^^}
      [ "$value" = 0 ] || arguments+=("${key_of_cmake//-/_}")
      ;;
    stage-layers)
      [[ $value =~ ^[0-9]{1,3}(,[0-9]{1,3})*$ ]] ||
        fail "stage-layers must be numbers of layers, as 3,4,4,1, not '$value'" 2
      arguments+=(STAGE_LAYERS ${value//,/ })
      ;;
    schedule) preset SCHEDULE '1f1b|gpipe' '1f1b or gpipe' ;;
    micro-batch) preset MICRO_BATCH "$number" "$positive" ;;
    sequence) preset SEQUENCE "$number" "$positive" ;;
    precision) preset PRECISION 'fp32|bf16_mixed|bf16_moments|fp64' \
      'fp32, bf16_mixed, bf16_moments or fp64' ;;
    recompute) preset RECOMPUTE 'none|selective|full' 'none, selective or full' ;;
    numerics) preset NUMERICS 'fast|batch_invariant' 'fast or batch_invariant' ;;
    zero) preset ZERO '0|1' '0 or 1' ;;
    device) preset DEVICE 'cpu|cuda' 'cpu or cuda' ;;
    sp)
      [[ $value =~ ^[01]$ ]] || fail "sp must be 0 or 1, not '$value'" 2
      [ "$value" = 0 ] || arguments+=(SEQUENCE_PARALLEL)
      ;;
    dp) fail 'dp is not compiled in: it is the number of ranks at start over tp x pp x cp' 2 ;;
    *) fail "unknown key $key; --help shows what there is" 2 ;;
    esac
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

. "$root/cmake/apt_install.sh"
apt_install "$build_tools" "${build_packages[@]}" || exit $?

# The run is named after the program; the suffix keeps it apart from words of C++ and of CMake.
name=$(basename -- "$out" | tr -c 'A-Za-z0-9\n' _)_run
[[ $name != [0-9]* ]] || name=run_$name
build=${build:-$root/build/presets/$name-$(cksum <<<"$out" | cut -d ' ' -f 1)}
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
add_subdirectory([==[$root]==] megacpp)
megacpp_add_preset($name HF_CONFIG [==[$config]==] ${arguments[*]-})
END
generator=()
if command -v ninja >/dev/null && [ ! -f "$build/tree/CMakeCache.txt" ]; then generator=(-G Ninja); fi
cmake -S "$build" -B "$build/tree" "${generator[@]}" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2 && fail 'CMake could not configure; its message is above' 8; }
# The run is checked before anything of it is built: what is wrong is said within seconds. The
# sentence about a configuration that cannot be honoured goes without the build's log around it.
if ! { cmake --build "$build/tree" --target "${name}_check" &&
  cmake --build "$build/tree" --target "$name" -j 2; } >"$build/build.log" 2>&1; then
  if grep '^megacpp_hf_preset: ' "$build/build.log" >&2; then exit 5; fi
  # What the compiler proves wrong of the layout: one sentence, with what it is about.
  if fault=$(grep -m 1 -oE 'error:.*MEGA-[A-Z][0-9]{3} [^"]*' "$build/build.log"); then
    # as a text, or as characters from compilers that print no texts
    where=$(sed -nE 's/.*\bin<[a-z:]*words<[0-9]+>\{"(([^"\\]|\\.)*)".*/\1/p' "$build/build.log" |
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
