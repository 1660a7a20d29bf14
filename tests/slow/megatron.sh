#!/usr/bin/env bash
# megatron-core reads the datasets that we write, we read those that it writes, and both give the
# same samples. Makes its virtual environment in VENVS, or finds it there. Exits with 77 where it
# cannot be made (no network, no space).
#   megatron.sh SOURCE BUILD WORK VENVS
set -euo pipefail
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore TORCHDYNAMO_DISABLE=1

source=$1 build=$2 work=$3 venvs=$4
make() { "$source/bench/peers/make_venv.sh" "$venvs/$1" "$source/tests/slow/$1.txt" "${@:2}"; }
mkdir -p "$venvs"
if ! { make transformers-5 && make megatron "$venvs/transformers-5"; }; then
  echo "there is no megatron-core to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
cmake --build "$build" --target megatron_peer
"$venvs/megatron/bin/python" "$source/tests/slow/megatron_peer.py" "$build/tests/megatron_peer" "$work"
