# What finetune.sh and prepare_data.sh have in common, which source it: how they read flags and say what
# they do, and the program of small_model.json.

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
fail() {
  echo "$(basename "$0" .sh): $1" >&2
  exit "${2:-1}"
}

# read_flags "NAME..." "$@": the value of --NAME becomes the variable NAME, with _ for -.
read_flags() {
  local names=" $1 "
  shift
  install=yes
  while [ $# -gt 0 ]; do
    case $1 in
    --no-install) install=no ;;
    -h | --help) usage && exit 0 ;;
    --*)
      [[ $names == *" ${1#--} "* ]] || fail "unknown argument $1; --help shows what there is" 2
      [ $# -ge 2 ] || fail "$1 needs a value" 2
      local name=${1#--}
      printf -v "${name//-/_}" %s "$2"
      shift
      ;;
    *) fail "unknown argument $1; --help shows what there is" 2 ;;
    esac
    shift
  done
  [ -z "$program" ] || program=$(realpath -e -- "$program" 2>/dev/null) ||
    fail "--program names no file; leave it out to compile one" 2
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

# ./small-model, compiled here or copied from what --program names.
small_model() {
  step 'Compiling a small Qwen3 into a program'
  # packed=1: several documents share a sequence, and none sees another.
  if [ -n "$program" ]; then
    run cp -f "$program" small-model
  else
    run "$root/examples/build_preset.sh" "$root/examples/small_model.json" small-model precision=fp32 \
      sequence=128 micro-batch=16 packed=1 --no-install --build build
  fi
}
