#!/usr/bin/env bash
# A chat template that megacpp does not know: training is refused with a command, that command writes
# the conversations by the template's own program, and they are trained on. Makes its virtual
# environment in VENVS, or finds it there. Exits with 77 where it cannot be had (no network, no space).
#   render.sh SOURCE SMALL_MODEL WORK VENVS
set -euo pipefail
export HF_HUB_OFFLINE=1

source=$1 program=$2 work=$3 venvs=$4
mkdir -p "$venvs"
if ! "$source/bench/peers/make_venv.sh" "$venvs/transformers-5" \
  "$source/tests/slow/transformers-5.txt"; then
  echo "there is no transformers to render by: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
"$venvs/transformers-5/bin/python" "$source/tests/slow/render_peer.py" "$source" "$program" "$work"
