#!/usr/bin/env bash
# bitsandbytes and we quantise the same matrices to the same bits, transformers loads what we write in NF4,
# and PyTorch and we round to FP8 alike. Makes its virtual environment in VENVS, or finds it there. Exits
# with 77 where it cannot be made (no network, no space).
#   bitsandbytes.sh SOURCE BUILD WORK VENVS
set -euo pipefail
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES=

source=$1 build=$2 work=$3 venvs=$4
make() { "$source/bench/peers/make_venv.sh" "$venvs/$1" "$source/tests/slow/$1.txt" "${@:2}"; }
mkdir -p "$venvs"
if ! { make transformers-5 && make bitsandbytes "$venvs/transformers-5"; }; then
  echo "there is no bitsandbytes to test against: pip's words are above"
  exit 77
fi
cmake --build "$build" --target bitsandbytes_peer transformers_peer
rm -rf -- "$work"
mkdir -p "$work"
"$build/tests/transformers_peer" nf4 "$work"
"$venvs/bitsandbytes/bin/python" "$source/tests/slow/bitsandbytes_peer.py" "$build/tests/bitsandbytes_peer" "$work"
