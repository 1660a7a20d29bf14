#!/usr/bin/env bash
# Programs for CUDA, for an A100 and an H100, on a machine that may have no GPU. What programs have in common
# is built once, row bodies by nvcc, and megacpp is installed with it. Where there is no nvcc, g++ builds the
# units of presets alone; they describe themselves, and say in one sentence that there is no GPU. Where there
# is one, nvcc compiles bodies of a run's own alone, or all of them where the library does not serve.
#
#   cuda_presets.sh [--half 1|2] ROOT BUILD [CMAKE-ARGUMENT...]
#
# The first half is for both GPUs: what needs no nvcc, and for which GPUs a run's own bodies are compiled. The
# second one is for an H100 alone: what nvcc compiles, and what programs say of themselves.
set -euo pipefail
export LC_ALL=C
export CUDA_VISIBLE_DEVICES=
unset CUDA_PATH CUDAToolkit_ROOT

half=''
if [ "$1" = --half ]; then
  half=$2
  shift 2
fi
root=$1 build=$2
shift 2
architectures='80;90a' told='80, 90a'
[ "$half" != 2 ] || architectures=90a told=90a
fail() {
  echo "cuda_presets: $1" >&2
  exit 1
}
arguments=("$@" -DCMAKE_BUILD_TYPE=Release)
cuda=''
for argument in "$@"; do [[ $argument != -DCUDAToolkit_ROOT=* ]] || cuda=${argument#*=}; done
if [ -z "$cuda" ]; then
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  cuda=$(realpath "$("$nvcc" -v __cmake_determine_cuda 2>&1 | sed -n 's/^#\$ TOP=//p')")
fi

cmake -S "$root" -B "$build/library" "${arguments[@]}" -DMEGACPP_BUILD_TESTS=OFF -DMEGACPP_BUILD_EXAMPLES=OFF \
  -DMEGACPP_INSTALL_PRECOMPILED=cuda "-DMEGACPP_CUDA_ARCHITECTURES=$architectures"
cmake --build "$build/library" -j 1
install() { cmake --install "$build/library" --prefix "$build/prefix" >"$build/installed"; }
install
bodies=$(echo "$build"/library/megacpp_*/cuda_bodies)
rm -rf -- "$build/project/"{megacpp_*,own-run-on-gpu} # what nvcc compiled for an earlier run of this script

# The toolkit without nvcc, or with one that notes what it is asked for, and that takes objects of the library
# where they are built already.
toolkit=$build/toolkit
mkdir -p "$toolkit/bin"
for part in "$cuda"/*; do [ "${part##*/}" = bin ] || ln -sfn "$part" "$toolkit/${part##*/}"; done
with='' # the folders of the machine that have nvcc
IFS=: read -ra folders <<<"$PATH:/usr/local/bin:/usr/local/cuda/bin"
for folder in "${folders[@]}"; do [ ! -x "$folder/nvcc" ] || with+="$folder;"; done
with_nvcc() {
  rm -f -- "$build/noted"
  cat >"$toolkit/bin/nvcc" <<EOF
#!/usr/bin/env bash
[ "\${2:-}" != __cmake_determine_cuda ] || exit 0 # this folder is the toolkit's
echo "\$*" >>"$build/noted"
for object in "\$@"; do
  built=$bodies/\${object##*/}
  if [[ \$object == */bodies_*.o ]] && [ -f "\$built" ]; then
    sed "s|$bodies|\${object%/*}|; s|$root/include|$build/prefix/include|" "\$built.d" >"\$object.d"
    exec cp "\$built" "\$object"
  fi
done
exec "$cuda/bin/nvcc" "\$@"
EOF
  chmod +x "$toolkit/bin/nvcc"
}
without_nvcc() { rm -f -- "$toolkit/bin/nvcc"; }
noted() { grep -c "$1" "$build/noted" || true; }
# configure and make print what CMake says as one line.
configure() { # CMAKE-ARGUMENT...
  rm -f -- "$build/project/CMakeCache.txt"
  cmake -S "$root/tests/slow/cuda_presets" -B "$build/project" "${arguments[@]}" -DMEGACPP_SOURCE="$root" \
    "-DCMAKE_IGNORE_PATH=$with" -Dmegacpp_ROOT="$build/prefix" -DCUDAToolkit_ROOT="$toolkit" "-DMEGACPP_CUDA_ARCHITECTURES=$architectures" "$@" 2>&1 |
    tr -s ' \n' ' '
}
make() { cmake --build "$build/project" -j 1 --target "$@" 2>&1 | tr -s ' \n' ' '; }
served="row bodies for GPUs of architecture $told are precompiled, $build/prefix/lib/cmake/megacpp/precompiled/cuda_bodies"

needs_no_nvcc() {
  without_nvcc
  said=$(configure) || fail "without nvcc CMake says: $said"
  [[ $said == *"$served"* ]] || fail "without nvcc CMake says: $said"
  [[ $said == *': commands: precompiled, '*': on_cuda: precompiled, '* ]] || fail "CMake says: $said"
  said=$(make dense experts) || fail "without nvcc: $said"
  [[ $said != *commands.cpp* && $said != *command_line.cpp* && $said != *cuda_devices.cpp* ]] ||
    fail "what is precompiled is compiled: $said"
  said=$(make own-run-on-gpu) && fail 'a body that nobody compiled is linked'
  [[ $said == *'own-run-on-gpu starts bodies on a GPU that the library does not have, own::squared_relu_block<float>, and there is no nvcc to compile them'* ]] ||
    fail "of a body that nobody compiles: $said"
  for wrong in "-DMEGACPP_CUDA_ARCHITECTURES=80;100=architecture 80, 90a, and not for 100" \
    "-DMEGACPP_PRECOMPILED=OFF=MEGACPP_PRECOMPILED is OFF"; do
    argument=${wrong%=*}
    said=$(configure "$argument") && fail "$argument is configured, and there is no nvcc"
    [[ $said == *"there is no nvcc, and "*"${wrong##*=}: install nvcc"*"-DMEGACPP_PRECOMPILED=..."* ]] || fail "$argument: $said"
  done
  said=$(CUDAToolkit_ROOT=$cuda "$root/examples/build_preset.sh" "$root/tests/package/config.json" "$build/program" device=cuda sequence=16 --no-install \
    --precompiled "$build" --build "$build/preset" 2>&1) && fail 'build_preset takes a folder without a library'
  said=$(tr -s ' \n' ' ' <<<"$said")
  [[ $said == *"the precompiled library $build/commands lacks libmegacpp_commands.a"* ]] || fail "build_preset says: $said"
  CUDAToolkit_ROOT=$cuda "$root/examples/build_preset.sh" "$root/tests/package/config.json" "$build/program" device=cuda sequence=16 --no-install \
    --precompiled "$build/prefix/lib/cmake/megacpp/precompiled" --build "$build/preset" >"$build/said" 2>&1 || fail "$(cat "$build/said")"
  ! grep -E 'commands[.]cpp|write_run[.]cpp|nvcc compiles' "$build/preset/build.log" || fail 'build_preset compiles what is precompiled'
  "$build/program" describe >"$build/described"
  said=$(configure -DMEGACPP_MARCH=x86-64 -DMEGACPP_WITH_CUDNN=OFF) || fail "$said"
  [[ $said == *"$served"*': commands: compiled in this build, since the library that is installed with megacpp was built with '* ]] ||
    fail "for another processor CMake says: $said"
  said=$(configure -DMEGACPP_WITH_CUDNN=OFF) || fail "$said"
  [[ $said == *': commands: precompiled, '*': on_cuda: compiled in this build, since '*' was built with cuDNN 9.'*', which this build has not'* ]] ||
    fail "without cuDNN CMake says: $said"
  configure >"$build/said" || fail "$(cat "$build/said")"
  echo '// another' >>"$build/prefix/include/megacpp/exec/launch.hpp"
  said=$(make dense) && fail 'a library of other headers is linked'
  [[ $said == *"there is no nvcc, and the library that is installed with megacpp was built from other headers"* ]] ||
    fail "of other headers: $said"
  install

  # A program for one of the library's GPUs tells of all of them, and its own bodies are for these.
  with_nvcc
  said=$(configure -DMEGACPP_CUDA_ARCHITECTURES=90a)
  [[ $said == *"$served"* ]] || fail "for 90a CMake says: $said"
  said=$(make own-run-on-gpu) || fail "for 90a: $said"
  [ "$(noted 'code=sm_80 .*code=sm_90a .*own_bodies.cu')" = 1 ] || fail "bodies of a run's own are compiled for others: $(cat "$build/noted")"
}

describes() { # PROGRAM
  local program=$build/project/$1 linked said status=0
  linked=$(ldd "$program")
  [[ $linked != *libdnnl* ]] || fail "$1 is linked with oneDNN"
  for library in cudart cublasLt cudnn; do
    [[ $linked == *"lib$library"* ]] || fail "$1 is not linked with $library"
  done
  linked=$(nm -C "$program")
  [[ $linked != *Eigen::* ]] || fail "$1 has code of Eigen"
  "$program" describe >"$build/described"
  grep -q 'cuBLASLt .* or later' "$build/described" || fail "$1 does not describe its products"
  [ "$1" != experts ] || # the others are of fp32, which cuDNN does not take
    grep -q '  attention  *by cuDNN .* or later, deterministic$' "$build/described" ||
    fail "$1 does not describe its attention"
  said=$("$program" train --mock-data --train-iters 1 2>&1) && fail "$1 trained without a GPU" || status=$?
  [ "$status" -eq 8 ] || fail "$1 ended with $status, not 8, without a GPU: $said"
  [ "$(wc -l <<<"$said")" -eq 1 ] || fail "$1 says more than a sentence: $said"
  # Where there is a driver, it says that no device is visible.
  [[ $said == *'or build the program with device=cpu' || $said == *'CUDA_VISIBLE_DEVICES is ""'* ]] || fail "$1 says: $said"
}

needs_nvcc() {
  # A body that the library lacks is compiled from the header that is named, and nothing else is; without a
  # header the body is named.
  with_nvcc
  rm -f -- "$build/project/own-run-on-gpu" # of the first half
  said=$(configure)
  [[ $said == *"$served"* ]] || fail "with nvcc CMake says: $said"
  said=$(make dense experts own-run-on-gpu) || fail "with nvcc: $said"
  [ "$(noted ' -c ')" = 1 ] && [ "$(noted own_bodies.cu)" = 1 ] || fail "nvcc compiles what is built already: $(cat "$build/noted")"
  said=$(make own-run-on-gpu) && [[ $said != *'nvcc compiles own::'* ]] ||
    fail "nothing has changed, and nvcc is asked again: $said"
  said=$(configure)
  said=$(make own-preset) && fail 'bodies that nobody named are linked'
  [[ $said == *'own-preset starts bodies on a GPU that the library does not have, own::squared_relu_block<float>: name the headers that define them by BODIES'* ]] ||
    fail "bodies that nobody named: $said"
  said=$(configure "-DNAMED=BODIES;$root/examples/using-the-headers/own_op.hpp") || fail "$said"
  said=$(make own-preset) || fail "a preset with bodies of its own: $said"
  for program in own-run-on-gpu own-preset; do
    grep -q 'own::squared_relu_block<float>' "$build/project/$program.run/own_bodies.cu" ||
      fail "the body of $program is not in the unit for nvcc"
    linked=$(nm -C "$build/project/$program")
    [[ $linked == *'launch_on_cuda<own::squared_relu_block<float> >'* ]] || fail "the body of $program is not linked"
  done
  [ "$(tr -d ' \n' <"$build/project/dense.run/own_bodies.rsp")" = '' ] || fail 'a preset has bodies of its own'

  # No class is a template argument of a body, whose name would have its members in braces.
  for object in "$bodies"/*.o; do
    named=$(nm -C "$object" | grep ' mc::\| int mc::' || true)
    [[ $named != *'{'* ]] || fail "$object: a body has a class as template argument"
    longest=$(nm "$object" | awk '$NF !~ /3cub|thrust/ { n = length($NF); if (n > most) most = n } END { print most + 0 }')
    [ "$longest" -le 300 ] || fail "$object: a symbol is $longest characters long"
  done

  for program in dense experts own-run-on-gpu own-preset; do describes "$program"; done

  # nvcc compiles all bodies where the library does not serve, or is not wanted.
  said=$(configure "-DMEGACPP_CUDA_ARCHITECTURES=$architectures;100")
  [[ $said == *"nvcc compiles row bodies for GPUs: the library that is installed with megacpp is for GPUs of architecture $told, and not for 100"* ]] ||
    fail "of another architecture CMake says: $said"
  said=$(configure -DMEGACPP_PRECOMPILED=OFF)
  [[ $said == *'nvcc compiles row bodies for GPUs: MEGACPP_PRECOMPILED is OFF'* ]] || fail "with the library off CMake says: $said"
  with_nvcc
  said=$(make dense) || fail "with the library off: $said"
  [ "$(noted cuda_bodies.cu)" = 6 ] || fail "nvcc was to compile six units of bodies: $(cat "$build/noted")"
  describes dense
}

if [ "$half" != 2 ]; then needs_no_nvcc; fi
if [ "$half" != 1 ]; then needs_nvcc; fi
echo 'cuda_presets: presets and a run of its own are built, with nvcc and without, and say that there is no GPU'
