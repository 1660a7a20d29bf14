#!/usr/bin/env bash
# Builds what ten_minutes.py runs, on a machine that needs CUDA's toolkit and cuDNN but no GPU, into a
# folder that is carried to the machine with the GPU, beside a checkout of the same commit.
#
#   bench/gpu/prepare.sh FOLDER [CMAKE-ARGUMENT...]
#
# FOLDER/bin has the programs, stripped; FOLDER/lib their libraries, but those of CUDA and of the C
# library. FOLDER.tar.xz is the same, packed; more than 60 MiB is an error, so that it stays quick to copy.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ $# -lt 1 ] || [[ $1 == -* ]]; then
  echo "usage: prepare.sh FOLDER [CMAKE-ARGUMENT...]" >&2
  exit 2
fi
folder=$1
shift
mkdir -p "$folder/bin" "$folder/lib"
folder=$(cd "$folder" && pwd)
build=${MEGACPP_GPU_BUILD:-$root/build/gpu}
libraries=(-DMEGACPP_WITH_CUDNN=ON -DMEGACPP_WITH_CUTLASS=ON) # what is left out is not measured
cmake -S "$root/bench/gpu" -B "$build" "${libraries[@]}" "$@"
cmake --build "$build" -j "$(nproc)"
cmake -S "$root/bench/gpu/programs" -B "$build/programs" "${libraries[@]}" "$@"
cmake --build "$build/programs" --target gpu_programs -j "$(nproc)"

for program in "$build/megacpp_gpu" "$build"/programs/*-cpu "$build"/programs/*-cuda; do
  if [ ! -f "$program" ]; then
    echo "prepare.sh: there is no $program, which this should have built" >&2
    exit 1
  fi
  strip -o "$folder/bin/$(basename "$program")" "$program"
  ldd "$program" | while read -r name _ path _; do
    case $name in
    libcud* | libcublas* | libnv* | linux-vdso* | libc.so* | libm.so* | ld-linux* | /*) ;;
    libpthread.so* | libdl.so* | librt.so*) ;;
    *) [ -f "$path" ] && cp -uL "$path" "$folder/lib/" ;;
    esac
  done
done
git -C "$root" rev-parse --short=12 HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
tar -C "$folder" -cJf "$folder.tar.xz" .
packed=$(stat -c %s "$folder.tar.xz") most=$((60 << 20))
if [ "$packed" -gt "$most" ]; then
  echo "prepare.sh: $folder.tar.xz has $packed bytes, more than $most (60 MiB):" \
       "leave a program out of bench/gpu/programs/CMakeLists.txt" >&2
  exit 1
fi
echo "$folder.tar.xz: $packed bytes"
