#!/usr/bin/env bash
# README's two commands on a machine that has nothing: a minimal Debian, made by debootstrap, which gets
# a copy of the sources without the folder of fixtures. All else is there only if a command installs it.
#
#   fresh_machine.sh SOURCE WORK SUITE [both]
#
#   SUITE   bookworm (Debian 12) or trixie (Debian 13)
#   both    the second command, too, which builds all tests; of these it runs those of structure/
#
# The first command runs as README has it. The exit code is 77, for "skipped", where the machine that
# runs this script cannot make such a folder: that takes root's rights, debootstrap, and a mirror.
set -euo pipefail
export LC_ALL=C

source=$(cd "$1" && pwd) work=$2 suite=$3 both=${4:-}
mkdir -p "$work"
work=$(cd "$work" && pwd)
skip() {
  echo "fresh_machine: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "a root folder is made by root alone"
command -v debootstrap >/dev/null || skip "debootstrap is missing; on Debian or Ubuntu, apt install debootstrap"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine lets root make no namespaces"

# The bare system is kept; each run begins with a copy of it.
base=$work/$suite
if [ ! -e "$base.complete" ]; then
  rm -rf -- "$base"
  debootstrap --variant=minbase "$suite" "$base" >"$base.log" 2>&1 || {
    tail -n 5 "$base.log"
    skip "debootstrap could not make $suite; is there a mirror, and is it reached? $base.log has its output"
  }
  touch "$base.complete"
fi
root=$work/$suite.root
rm -rf -- "$root"
cp -a --reflink=auto -- "$base" "$root"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# Whoever reaches mirrors through a proxy does so in there, too.
apt-config dump 2>/dev/null | grep -E '^Acquire::https?::Proxy' >"$root/etc/apt/apt.conf.d/proxy" || true
mkdir "$root/megacpp"
tar -C "$source" --exclude='./build*' -c . | tar -C "$root/megacpp" --no-same-owner -x

# inside COMMANDS: runs them there, in processes of their own, which end with this script.
inside() {
  unshare --mount --pid --fork --kill-child -- bash -euc '
    mount -t proc proc "$1/proc"
    mount -t sysfs sys "$1/sys"
    exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
      bash -euxo pipefail -c "cd /megacpp && $2"' inside "$root" "$1"
}
# documented PAGE NAME: the commands of the block under <!-- commands: NAME -->, in the variable `printed`.
documented() {
  printed=$(python3 "$source/tests/structure/snippets.py" "$source" --commands "$1" "$2")
}
documented README.md two-commands
mapfile -t commands <<<"$printed"
[ ${#commands[@]} = 2 ] || { echo "README.md has ${#commands[@]} commands, not two" >&2 && exit 1; }

# A script that may install nothing names all that it lacks, at once, and has the exit code of a machine.
for script in examples/quickstart.sh 'examples/build_preset.sh examples/small_model.json /out' \
  examples/finetune.sh examples/prepare_data.sh tests/run.sh; do
  status=0
  said=$(inside "$script --no-install" 2>&1 | grep -v '^+') || status=$?
  [ $status = 8 ] && [ "$(wc -l <<<"$said")" = 1 ] &&
    [[ $said == *'Missing: c++, cmake, ninja or make'*'apt install g++ cmake ninja-build '*libutf8proc-dev* ]] || {
    printf '%s --no-install on a bare %s: exit code %s, and\n%s\n' "$script" "$suite" "$status" "$said" >&2
    exit 1
  }
done

SECONDS=0
inside "${commands[0]}"
echo "$suite: the first command took $SECONDS s, with what it installed"
[ -z "$both" ] && exit 0
SECONDS=0
inside "${commands[1]%%#*} -- -R '^structure_'"
echo "$suite: the second command built all tests in $SECONDS s, with what it installed"
