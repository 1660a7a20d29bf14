#!/usr/bin/env bash
# transformers loads what we export and gives our logits; we load what it saves. Exits with 77, which
# ctest shows as skipped, where PYTHON has no transformers.
#   transformers.sh SOURCE BUILD WORK PYTHON
set -euo pipefail
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1

source=$1 build=$2 work=$3 python=$4
if [ -z "$python" ] || ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  echo "skipped: no transformers in '${python:-no Python}'; make a virtual environment with" \
    "bench/peers/make_venv.sh DIR tests/slow/transformers.txt and name it in MEGACPP_TRANSFORMERS_VENV"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
cmake --build "$build" --target transformers_peer
"$build/tests/transformers_peer" write "$work"
"$python" "$source/tests/slow/transformers_peer.py" "$work"
"$build/tests/transformers_peer" read "$work"
echo 'every folder of theirs has the same weights'
