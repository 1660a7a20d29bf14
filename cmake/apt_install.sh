# Sourced by examples/quickstart.sh and tests/run.sh.
#
# apt_install PACKAGE... : installs those that are missing, on Debian and Ubuntu, as root or through
# sudo, and says what it does. Elsewhere, and when $install is "no", it installs nothing; what is
# then missing is named by CMake.
apt_install() {
  [ "${install:-yes}" = yes ] || return 0
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "This is neither Debian nor Ubuntu: nothing is installed. Needed is what these hold: $*"
    return 0
  fi
  local missing=() package sudo=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages; as root: apt-get install ${missing[*]}" >&2
      return 2
    fi
    sudo=(sudo)
  fi
  echo "Installing by ${sudo[*]:+sudo }apt-get: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
    echo "apt-get could not install ${missing[*]}; its own message is above." >&2
    return 2
  }
}

# What every build of megacpp needs.
build_packages=(g++ cmake ninja-build git libfmt-dev libeigen3-dev libboost-dev libcli11-dev
  nlohmann-json3-dev libdnnl-dev libpcre2-dev libutf8proc-dev)
