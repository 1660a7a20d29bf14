#!/usr/bin/env bash
# TensorBoard reads what --tensorboard-dir writes. Makes its virtual environment in VENVS, or finds it
# there. Exits with 77 where it cannot be made (no network, no space).
#   tensorboard.sh SOURCE PROGRAM WORK VENVS
set -euo pipefail

source=$1 program=$2 work=$3 venvs=$4
mkdir -p "$venvs"
if ! "$source/bench/peers/make_venv.sh" "$venvs/tensorboard" "$source/tests/slow/tensorboard.txt"; then
  echo "there is no TensorBoard to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
"$venvs/tensorboard/bin/python" "$source/tests/slow/tensorboard_peer.py" "$program" "$work"
