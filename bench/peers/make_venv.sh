#!/bin/sh
# Makes the virtual environment of the peers: make_venv.sh [DIR [REQUIREMENTS [BASE]]], by default
# build/peers-venv. Pinned versions from requirements.txt beside this file, or REQUIREMENTS, by pip
# from its configured index; what these lack is taken from the virtual environment BASE, where one
# is named. Does nothing when the folder already holds them.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH= cd -- "$here/../.." && pwd)
dir=${1:-$root/build/peers-venv}
python=${PYTHON:-python3}
wanted=${2:-$here/requirements.txt}
base=${3:-}
stamp=$dir/requirements.installed

fail() {
  echo "make_venv.sh: $*" >&2
  exit 1
}

if [ -f "$stamp" ] && cmp -s "$stamp" "$wanted"; then
  echo "$dir is up to date"
  exit 0
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "needs Python 3.11 or later as $python; set PYTHON to another one"
[ -r "$wanted" ] || fail "$wanted cannot be read"
if [ -e "$dir" ] && [ ! -f "$dir/pyvenv.cfg" ]; then
  # An empty folder is fine; anything else is not ours to write into.
  [ -d "$dir" ] && [ -z "$(ls -A "$dir")" ] || fail "$dir exists and is no virtual environment"
fi
"$python" -m venv "$dir" || fail "python3 -m venv failed; on Debian: apt install python3-venv"
rm -f "$stamp"
if [ -n "$base" ]; then
  find_site='import sysconfig; print(sysconfig.get_path("purelib"))'
  site=$("$dir/bin/python" -c "$find_site")
  "$base/bin/python" -c "$find_site" >"$site/base.pth" || fail "$base is no virtual environment"
fi
# What is imported is compiled then; all of it takes a third of the time.
"$dir/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-compile \
  -r "$wanted" || fail "pip could not install $wanted"
if grep -q '^torch==' "$wanted"; then
  "$dir/bin/python" - <<'PYTHON' || fail "torch was installed but does not import"
import torch
print("torch", torch.__version__, "on", torch.get_num_threads(), "threads")
PYTHON
fi
cp "$wanted" "$stamp"
echo "ready: $dir/bin/python"
