#!/usr/bin/env bash
# PEFT loads the adapters that programs train and export, with our losses, and programs those that it
# saves; it merges to the same weights; PEFT 0.18 reads what is exported for it. Makes the virtual
# environments in VENVS, or finds them there. Exits with 77 where they cannot be made (no network, no
# space).
#   peft.sh SOURCE WORK VENVS
set -euo pipefail
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore CUDA_VISIBLE_DEVICES=

source=$1 work=$2 venvs=$3
make() { "$source/bench/peers/make_venv.sh" "$venvs/$1" "$source/tests/slow/$1.txt" "${@:2}"; }
mkdir -p "$venvs"
if ! { make transformers-5 && make peft "$venvs/transformers-5" && make peft-0.18 "$venvs/transformers-5"; }; then
  echo "there is no PEFT to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
peer() { "$venvs/$1/bin/python" "$source/tests/slow/peft_peer.py" "$2" "$work"; }
# build NAME KEY=VALUE...: the program of a model that the peer has written.
build() {
  "$source/examples/build_preset.sh" "$work/$1/model/config.json" "$work/$1/program" --no-install \
    --build "$work/$1/build" precision=fp32 micro-batch=2 sequence=16 lora=4 lora-alpha=6 "${@:2}"
}
peer peft make
build qwen3 rslora=1
build patterns lora-ranks=q_proj:2,up_proj:3 lora-alphas=q_proj:9 modules-to-save=lm_head,input_layernorm
build gpt2
build experts lora-targets=q_proj,v_proj,experts
peer peft check
peer peft-0.18 check-0.18
