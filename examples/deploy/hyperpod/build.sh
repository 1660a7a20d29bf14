#!/usr/bin/env bash
# Builds the program of the guide: a GPT of the numbers that its variables have, for the layout that they name.
#
#   build.sh OUT [--print] [KEY=VALUE...] [--no-install] [--build DIR]
#
#   OUT         the program; OUT.config.json beside it has the numbers of the model
#   --print     anywhere behind OUT: write OUT.config.json, and print the keys in place of building
#   KEY=VALUE   as examples/build_preset.sh takes them, such as device=cpu; they count more than the variables
#
# The variables come from the environment: NUM_LAYERS, HIDDEN_SIZE, NUM_ATTENTION_HEADS, MAX_POSITION_EMBEDDINGS,
# SEQ_LENGTH, MICRO_BATCH_SIZE, TENSOR_PARALLEL, PIPELINE_PARALLEL, NUM_NODES, GPU_PER_NODE. size.sh has eight sizes.
# The vocabulary is GPT-2's, without the rows that pad it; there is no dropout.
set -euo pipefail
export LC_ALL=C
fail() {
  echo "build.sh: $1" >&2
  exit 2
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 && $1 != -* && $1 != *=* ]] || fail 'give OUT, the name of the program'
out=$1 print=no
shift
for word in "$@"; do
  shift
  if [ "$word" = --print ]; then print=yes; else set -- "$@" "$word"; fi
done
[ -d "$(dirname -- "$out")" ] || fail "there is no folder $(dirname -- "$out") for $out; make it"
for name in NUM_LAYERS HIDDEN_SIZE NUM_ATTENTION_HEADS MAX_POSITION_EMBEDDINGS SEQ_LENGTH MICRO_BATCH_SIZE \
  TENSOR_PARALLEL PIPELINE_PARALLEL NUM_NODES GPU_PER_NODE; do
  [ -n "${!name-}" ] || fail "$name is not set; export it, as the guide does"
  [[ ${!name} =~ ^[1-9][0-9]{0,8}$ ]] || fail "$name is ${!name}, and must be a number above 0"
done
ranks=$((NUM_NODES * GPU_PER_NODE)) model=$((TENSOR_PARALLEL * PIPELINE_PARALLEL))
[ $((ranks % model)) = 0 ] ||
  fail "NUM_NODES x GPU_PER_NODE is $ranks, and must be a multiple of TENSOR_PARALLEL x PIPELINE_PARALLEL, $model"
cat >"$out.config.json" <<END
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": $NUM_LAYERS, "n_embd": $HIDDEN_SIZE,
 "n_head": $NUM_ATTENTION_HEADS, "n_positions": $MAX_POSITION_EMBEDDINGS, "vocab_size": 50257,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.006,
 "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 50256, "eos_token_id": 50256}
END
words=(device=cuda "tp=$TENSOR_PARALLEL" "pp=$PIPELINE_PARALLEL" zero=1 recompute=selective precision=bf16_mixed
  "micro-batch=$MICRO_BATCH_SIZE" "sequence=$SEQ_LENGTH")
[ "$TENSOR_PARALLEL" = 1 ] || words+=(sp=1)
keys=()
for word in "${words[@]}"; do # those that are given replace ours
  for given in "$@"; do [ "${given%%=*}" != "${word%%=*}" ] || continue 2; done
  keys+=("$word")
done
if [ $print = yes ]; then
  echo "${keys[*]}${*:+ $*}"
  exit
fi
exec "$here/../../build_preset.sh" "$out.config.json" "$out" "${keys[@]}" "$@"
