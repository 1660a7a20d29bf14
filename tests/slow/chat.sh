#!/usr/bin/env bash
# Conversations as published chat templates write them: ours against transformers'. Makes its virtual
# environment in VENVS, or finds it there, and fetches the package that holds the templates.
# Exits with 77 where they cannot be had (no network, no space).
#   chat.sh SOURCE BUILD WORK VENVS SHARED
set -euo pipefail
export HF_HUB_OFFLINE=1

source=$1 build=$2 work=$3 venvs=$4 shared=$5
python=$venvs/transformers-5/bin/python templates=$venvs/chat-templates
mkdir -p "$venvs"
have() {
  "$source/bench/peers/make_venv.sh" "$venvs/transformers-5" "$source/tests/slow/transformers-5.txt" &&
    { compgen -G "$templates/trl-*.whl" >/dev/null ||
      "$python" -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes -d "$templates" -r "$source/tests/slow/chat-templates.txt"; }
}
if ! have; then
  echo "there are no templates, or no transformers, to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
cmake --build "$build" --target chat_peer
"$python" "$source/tests/slow/chat_peer.py" "$build/tests/chat_peer" "$shared" \
  "$templates"/trl-*.whl "$work"
