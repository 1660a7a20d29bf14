#!/usr/bin/env bash
# Texts of all scripts to ids and back: megacpp-data's against those of the tokenizers library. Makes
# its virtual environment in VENVS, or finds it there. Exits with 77 where it cannot be had (no
# network, no space).
#   tokenizers.sh SOURCE BUILD WORK VENVS SHARED
set -euo pipefail
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true

source=$1 build=$2 work=$3 venvs=$4 shared=$5
mkdir -p "$venvs"
if ! "$source/bench/peers/make_venv.sh" "$venvs/transformers-5" \
  "$source/tests/slow/transformers-5.txt"; then
  echo "there is no tokenizers library to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work/commands/gpt2"
cmake --build "$build" --target megacpp-data
"$venvs/transformers-5/bin/python" "$source/tests/slow/tokenizers_peer.py" \
  "$build/examples/data/megacpp-data" "$shared" "$work"

. "$source/tests/slow/documented.sh"
cd "$work/commands"
cp "$shared/data/tokenizers/gpt2-tokenizer.json" gpt2/tokenizer.json
PATH=$build/examples/data:$PATH
documented docs/tokenizers.md encode
