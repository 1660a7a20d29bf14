#!/usr/bin/env bash
# megacpp as a package of Conan, which pip installs, without any remote: the recipe's packages are created, their ids
# depend on what they are made of, and projects are built from the cache. Exits with 77 where Conan cannot be installed.
#   conan.sh SOURCE WORK VENVS
set -euo pipefail
export LC_ALL=C

source=$1 venvs=$3
rm -rf -- "$2"
mkdir -p "$2"
work=$(cd "$2" && pwd)
. "$source/tests/slow/pip_packages.sh"
pip_packages "$venvs" conan "$source/tests/slow/conan.txt" 'there is no Conan to test with'
. "$source/tests/slow/documented.sh"
export PATH=$(cd "$venvs" && pwd)/conan/bin:$PATH CONAN_HOME=$work/home
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
# refused WORDS COMMAND...: it fails, and says the words.
refused() {
  local words=$1 said
  shift
  if said=$("$@" 2>&1); then fail "$*: is not refused"; fi
  [[ $said == *"$words"* ]] || fail "$*: does not say '$words': $said"
}

conan profile detect >/dev/null 2>&1
conan remote disable '*' >/dev/null 2>&1
# What is compiled is not optimised here, which takes half the time.
cat >>"$CONAN_HOME/profiles/default" <<'END'
[conf]
tools.build:jobs=1
tools.cmake.cmaketoolchain:extra_variables={'CMAKE_BUILD_TYPE': 'Debug', 'CMAKE_CXX_FLAGS_DEBUG': ''}
END
sed -i 's/^build_type=.*/build_type=Debug/' "$CONAN_HOME/profiles/default"

# The sources as a checkout has them, in which Conan may write.
mkdir "$work/megacpp"
tar -C "$source" --exclude=./build --exclude='./build-*' --exclude=./.git -c . | tar -C "$work/megacpp" -x
cd "$work/megacpp"
conan create . -s compiler.cppstd=20 --test-folder= >/dev/null 2>"$work/created" || { cat "$work/created" >&2 && exit 1; }

# One version: the headers', the recipe's, the changelog's.
version=$(sed -n 's/^#define MEGACPP_VERSION_[A-Z]* //p' include/megacpp/config/config.hpp | paste -sd .)
conan list 'megacpp/*' 2>&1 | grep "megacpp/$version\$" >/dev/null || fail "the recipe's version is not $version"
grep -m 1 '^## ' CHANGELOG.md | grep -qF "$version" || fail "the changelog does not begin with $version"
folder=$(conan cache path "megacpp/$version:$(conan list "megacpp/$version:*" --format=json 2>/dev/null |
  python3 -c 'import json, sys
(recipe,) = json.load(sys.stdin)["Local Cache"].values()
((_, revision),) = recipe["revisions"].items()
print(*revision["packages"])')")
for file in licenses/LICENSE share/doc/megacpp/LICENSE share/doc/megacpp/CHANGELOG.md include/megacpp/megacpp.hpp \
  lib/cmake/megacpp/megacppConfig.cmake lib/cmake/megacpp/src/commands.cpp bin/megacpp-build-preset; do
  [ -f "$folder/$file" ] || fail "the package has no $file"
done

# Headers are one package for all; with libraries a package is for what it was compiled with and for.
id() { # CONAN-ARGUMENT...
  conan graph info --requires "megacpp/$version" -s compiler.cppstd=20 "$@" --format=json 2>/dev/null | python3 -c '
import json, sys
print(next(n["package_id"] for n in json.load(sys.stdin)["graph"]["nodes"].values() if n["name"] == "megacpp"))'
}
changes=("-s:h build_type=Release" "-s:h compiler.version=11" "-s:h compiler.cppstd=23" "-s:h os=FreeBSD")
headers=$(id)
for change in "${changes[@]}"; do
  # shellcheck disable=SC2086
  [ "$(id $change)" = "$headers" ] || fail "$change gives other headers"
done
libraries=$(id -o '*:precompiled=True')
[ "$libraries" != "$headers" ] || fail 'the option precompiled changes nothing'
for change in "${changes[@]}" '-o *:march=x86-64-v4' '-o *:mpi=False'; do
  # shellcheck disable=SC2086
  set -f
  [ "$(id -o '*:precompiled=True' $change)" != "$libraries" ] || fail "$change takes libraries of another package"
  set +f
done
refused "must name a processor as -march does" conan create . -s compiler.cppstd=20 -o '&:precompiled=True' -o '&:march=native'
refused "programs are for x86_64, and settings.arch is armv8" conan create . -s compiler.cppstd=20 -s arch=armv8
refused "is lower than the required C++ standard (20)" conan create . -s compiler.cppstd=17

# Headers alone: a project finds them, and says for which processors it compiles.
mkdir "$work/headers"
cp test_package/CMakeLists.txt test_package/config.json "$work/headers"
printf '[requires]\nmegacpp/%s\n[generators]\nCMakeToolchain\n' "$version" >"$work/headers/conanfile.txt"
(
  cd "$work/headers"
  conan install . -s compiler.cppstd=20 --output-folder=build >/dev/null 2>&1
  said=$(cmake -S . -B build -DCMAKE_TOOLCHAIN_FILE=build/conan_toolchain.cmake \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON 2>&1)
  [[ $said != *precompiled* ]] || fail "headers alone tell of libraries: $said"
  cmake --build build --target tiny-gpt_check >/dev/null
  grep -q 'march=x86-64-v3.*/commands\.cpp' build/compile_commands.json || fail 'a program of the package is not for x86-64-v3'
  if grep -q 'march=native' build/compile_commands.json; then fail 'a program of the package is for the processor that compiles it'; fi
)

# What the page says, with libraries: a program of a project compiles its run alone.
documented docs/using-megacpp.md conan-create
mkdir "$work/my-gpt"
cp "$source"/examples/own-project/* "$work/my-gpt"
cd "$work/my-gpt"
{
  documented docs/using-megacpp.md conan-project
} | tee "$work/built"
grep -q 'commands: precompiled, ' "$work/built" || fail 'the project takes no libraries'
if grep -Eq '(commands|command_line|kernels|devices|write_run)\.cpp' "$work/built"; then fail 'the project compiles more than its run'; fi
grep -qE '^ +built for +x86-64-v3$' "$work/built" || fail 'the program does not tell of x86-64-v3'
said=$(cmake -S . -B build -DMEGACPP_MARCH=x86-64-v2 2>&1 | tr -s ' \n' ' ')
[[ $said == *'commands: compiled in this build, since the library that is installed with megacpp was built with __AVX2__'* ]] ||
  fail "libraries for other processors are not refused: $said"
echo 'created, and built from the cache, as told'
