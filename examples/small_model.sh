# What finetune.sh and prepare_data.sh have in common, which source it: how they read flags and say what
# they do, and programs of small_model.json.

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
fail() {
  echo "$(basename "$0" .sh): $1" >&2
  exit "${2:-1}"
}

# read_flags "NAME..." "$@": the value of --NAME becomes the variable NAME, with _ for -. Where it is NAME?,
# the flag has no value, and the variable becomes yes.
read_flags() {
  local names=" $1 " name file
  shift
  install=yes
  while [ $# -gt 0 ]; do
    case $1 in
    --no-install) install=no ;;
    -h | --help) usage && exit 0 ;;
    --*)
      name=${1#--}
      if [[ $names == *" $name? "* ]]; then
        printf -v "$name" yes && shift
        continue
      fi
      [[ $names == *" $name "* ]] || fail "unknown argument $1; --help shows what there is" 2
      [ $# -ge 2 ] || fail "$1 needs a value" 2
      printf -v "${name//-/_}" %s "$2"
      shift
      ;;
    *) fail "unknown argument $1; --help shows what there is" 2 ;;
    esac
    shift
  done
  for name in program adapter_program; do
    [ -n "${!name-}" ] || continue
    file=$(realpath -e -- "${!name}" 2>/dev/null) ||
      fail "--${name//_/-} names no file; leave it out to compile one" 2
    printf -v "$name" %s "$file"
  done
}

# What is missing of what compiles, unless --no-install forbids it.
install_tools() {
  . "$root/cmake/apt_install.sh"
  apt_install "$build_tools python3" "${build_packages[@]}" python3 || exit $?
  SECONDS=0 # from here on, what is installed does not count
}

step() { printf '\n== %s (%d s so far)\n' "$1" "$SECONDS"; }
# run COMMAND...: says what it does, so that it can be done again by hand.
run() {
  { printf '$' && printf ' %q' "$@" && printf '\n'; } >&2
  "$@"
}

# small_model NAME FILE [KEY=VALUE...]: ./NAME, copied from FILE, or compiled where that is empty.
small_model() {
  step "Compiling a small Qwen3 into ./$1"
  # packed=1: several documents share a sequence, and none sees another.
  if [ -n "$2" ]; then
    run cp -f "$2" "$1"
  else
    run "$root/examples/build_preset.sh" "$root/examples/small_model.json" "$1" precision=fp32 \
      sequence=128 micro-batch=16 packed=1 "${@:3}" --no-install --build build
  fi
}
