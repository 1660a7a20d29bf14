#!/usr/bin/env bash
# CUTLASS's kernels of grouped products compile, by the CMake functions of programs: nothing is spilled,
# ptxas makes no product wait for another, the machine code multiplies as Hopper does (HGMMA), and a program
# that has them links and says that there is no GPU.
# Makes a virtual environment with CUTLASS's headers in VENVS, or finds it there. Exits with 77 where it
# cannot be made (no network, no space).
#
#   cutlass.sh ROOT BUILD VENVS [CMAKE-ARGUMENT...]
set -euo pipefail
export LC_ALL=C CUDA_VISIBLE_DEVICES=

root=$1 build=$2 venvs=$3
shift 3
fail() {
  echo "cutlass.sh: $1" >&2
  exit 1
}

. "$root/tests/slow/pip_packages.sh"
pip_packages "$venvs" cutlass "$root/tests/slow/cutlass.txt" 'there are no headers of CUTLASS to compile'
configure() { # CMAKE-ARGUMENT...: what CMake says
  rm -f -- "$build/CMakeCache.txt"
  cmake -S "$root/tests/slow/cuda_cutlass" -B "$build" -DMEGACPP_SOURCE="$root" -DCMAKE_BUILD_TYPE=Release \
    -DMEGACPP_BUILD_TESTS=OFF -DMEGACPP_BUILD_EXAMPLES=OFF "${arguments[@]}" "$@" 2>&1 | tr -s ' \n' ' '
}
arguments=("$@")
said=$(configure -DMEGACPP_CUDA_ARCHITECTURES=80)
[[ $said == *'products of experts on GPUs without CUTLASS: no GPU of architecture 90a is built for'* ]] ||
  fail "of an A100 CMake says: $said"
said=$(configure -DMEGACPP_CUDA_ARCHITECTURES=80 -DMEGACPP_WITH_CUTLASS=ON) && fail 'an A100 is given kernels of Hopper'
[[ $said == *'and MEGACPP_WITH_CUTLASS is ON'* ]] || fail "of an A100 that must have CUTLASS CMake says: $said"
said=$(configure -DMEGACPP_WITH_CUTLASS=perhaps) && fail 'MEGACPP_WITH_CUTLASS=perhaps is taken'
[[ $said == *'is perhaps, and must be AUTO, ON or OFF'* ]] || fail "of another value CMake says: $said"
said=$(configure -DMEGACPP_WITH_CUTLASS=OFF)
[[ $said != *CUTLASS* ]] || fail "CMake looks for what is off: $said"
said=$(configure -DMEGACPP_WITH_CUTLASS=ON -DCMAKE_PREFIX_PATH="$venvs/cutlass")
[[ $said == *'products of experts on GPUs by CUTLASS 4.2.0, '*cutlass_library* ]] || fail "CMake says: $said"

kept=$build/kept # what nvcc makes on its way; it makes nothing where nothing has changed
mkdir -p "$kept"
NVCC_APPEND_FLAGS="--keep --keep-dir=$kept -Xptxas=-v" cmake --build "$build" --target start_each -j 1 -- \
  >"$build/said" 2>&1 || fail "$(cat "$build/said")"
if grep -q 'Compiling entry function' "$build/said"; then cp "$build/said" "$kept/said"; fi
[ "$(grep -c ' 0 bytes spill stores, 0 bytes spill loads' "$kept/said")" -ge 3 ] || fail "$(cat "$kept/said")"
# C7510 is ptxas's warning that it has products wait for each other.
grep -q 'C7510' "$kept/said" && fail "products wait for each other: $(cat "$kept/said")"
python3 - "$kept/"*.cubin <<'END' || fail 'the machine code of a kernel has no products of Hopper'
import struct
import sys
# A section of an ELF file for each kernel. Instructions are 16 bytes, whose lowest 12 bits say what they
# do (calibrated with nvdisasm 12.4).
code = open(sys.argv[1], "rb").read()
headers, = struct.unpack_from("<Q", code, 0x28)
size, number, of_names = struct.unpack_from("<HHH", code, 0x3a)
sections = [struct.unpack_from("<IIQQQQ", code, headers + size * k) for k in range(number)]
kernels = []
for name, _, _, _, at, length in sections:
    begin = sections[of_names][4] + name
    if code[begin:].startswith(b".text."):
        words = [int.from_bytes(code[k:k + 2], "little") & 0xfff for k in range(at, at + length, 16)]
        kernels.append(sum(word in (0x9f0, 0xdf0) for word in words))
print(f"HGMMA of each kernel: {kernels}")
sys.exit(len(kernels) < 3 or min(kernels) < 4)
END
"$build/start_each" >"$build/answers"
[ "$(wc -l <"$build/answers")" = 3 ] || fail "start_each says: $(cat "$build/answers")"
grep -q ': 0$' "$build/answers" && fail "a kernel starts where there is no GPU: $(cat "$build/answers")"
echo 'cutlass.sh: kernels of grouped products are built, and there is no GPU to start them'
