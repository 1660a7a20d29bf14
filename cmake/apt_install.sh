# Sourced by the scripts of examples/ and by tests/run.sh.
#
# apt_install "TOOL..." PACKAGE... : installs those packages that are missing, on Debian and Ubuntu, as root
# or through sudo, and says what it does. Elsewhere, and when $install is "no", it installs nothing.
# Afterwards each TOOL must be a command; ninja|make is either of the two. All that is missing is named in one
# sentence, and the exit code is 8 (docs/errors.md); libraries are looked for by CMake, which does the same.
apt_install() {
  local tools=$1 missing=() lacks=() package tool sudo=()
  shift
  if command -v dpkg-query >/dev/null; then
    for package in "$@"; do
      [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
        missing+=("$package")
    done
  fi
  if [ "${install:-yes}" = yes ] && ! { command -v apt-get && command -v dpkg-query; } >/dev/null; then
    echo "This is neither Debian nor Ubuntu: nothing is installed. Needed is what these hold: $*"
  elif [ "${install:-yes}" = yes ] && [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
      if ! command -v sudo >/dev/null; then
        echo "Missing packages; as root: apt-get install ${missing[*]}" >&2
        return 8
      fi
      sudo=(sudo)
    fi
    echo "Installing by ${sudo[*]:+sudo }apt-get: ${missing[*]}"
    "${sudo[@]}" apt-get update -qq &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
      echo "apt-get could not install ${missing[*]}; its own message is above." >&2
      return 8
    }
    missing=()
  fi
  for tool in $tools; do
    command -v "${tool%|*}" >/dev/null || command -v "${tool#*|}" >/dev/null || lacks+=("${tool/|/ or }")
  done
  [ ${#lacks[@]} -gt 0 ] || return 0
  printf -v tool '%s, ' "${lacks[@]}"
  printf 'Missing: %s; ' "${tool%, }" >&2
  [ "${install:-yes}" = yes ] || printf 'leave out --no-install, or ' >&2
  printf 'install ' >&2
  if [ ${#missing[@]} -gt 0 ]; then
    echo "what this machine lacks: apt install ${missing[*]}" >&2
  else
    echo 'them' >&2
  fi
  return 8
}

# What every build of megacpp needs.
build_tools="${CXX:-c++} cmake ninja|make"
build_packages=(g++ cmake ninja-build git libfmt-dev libeigen3-dev libboost-dev
  nlohmann-json3-dev libdnnl-dev libpcre2-dev libutf8proc-dev libxxhash-dev libssl-dev
  prometheus-cpp-dev libcurl4-openssl-dev)
