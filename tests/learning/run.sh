#!/usr/bin/env bash
# Builds the three presets and checks that they learn. usage: run.sh BUILD_DIR TINYSHAKESPEARE [nanogpt.py OPTION...]
set -euo pipefail
build=$1 data=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
cmake --build "$build" --target char-gpt char-gpt-bf16 char-gpt-bf16-moments --parallel 2
program() { find "$build" -type f -name "$1" -perm -u+x | head -n 1; }
python3 "$here/nanogpt.py" "$(program char-gpt)" "$(program char-gpt-bf16)" \
  "$(program char-gpt-bf16-moments)" "$data" "$@"
