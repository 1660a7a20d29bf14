#!/usr/bin/env bash
# transformers, its first release with Qwen3 and a present one, loads what we export and gives our
# logits; we load what they save. Makes their virtual environments in VENVS, or finds them there.
# Exits with 77 where they cannot be made (no network, no space).
#   transformers.sh SOURCE BUILD WORK VENVS
set -euo pipefail
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1

source=$1 build=$2 work=$3 venvs=$4
make() { "$source/bench/peers/make_venv.sh" "$venvs/$1" "$source/tests/slow/$1.txt" "${@:2}"; }
mkdir -p "$venvs"
if ! { make transformers-5 && make transformers-4 "$venvs/transformers-5"; }; then
  echo "there is no transformers to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
cmake --build "$build" --target transformers_peer
"$build/tests/transformers_peer" write "$work"
for version in 4 5; do
  "$venvs/transformers-$version/bin/python" "$source/tests/slow/transformers_peer.py" "$work"
done
"$build/tests/transformers_peer" read "$work"
echo 'every folder of theirs has the same weights'
