#!/usr/bin/env bash
# Fine-tuning and data, as a newcomer meets them: examples/finetune.sh answers what it has not seen,
# its program keeps the promises of docs/chat.md (finetune.py), the commands of that page and
# examples/prepare_data.sh run with the same program, which is compiled once.
#   finetune.sh SOURCE MEGACPP_DATA WORK
set -euo pipefail
export LC_ALL=C

source=$(cd "$1" && pwd) data=$(realpath "$2")
rm -rf -- "$3"
mkdir -p "$3/bin" "$3/examples"
work=$(cd "$3" && pwd)
. "$source/tests/slow/documented.sh"
ln -s "$data" "$work/bin/megacpp-data"
PATH=$work/bin:$PATH

"$source/examples/finetune.sh" --no-install --answers-at-least 0.95 --out "$work"
python3 "$source/tests/learning/finetune.py" "$work"

# The page's program has another name.
cd "$work"
printf '#!/bin/sh\nset -e\ntest "$1 $2" = "downloaded/config.json my-chat"\nshift 2\nexec "%s" "%s" small-model "$@" --no-install --build build\n' \
  "$source/examples/build_preset.sh" "$source/examples/small_model.json" >examples/build_preset.sh
chmod +x examples/build_preset.sh
ln -s small-model my-chat
cp -r base/model downloaded
compiled=$(stat -c %Y build/tree/small_model_run)
documented docs/chat.md build
[ "$(stat -c %Y build/tree/small_model_run)" = "$compiled" ] || { echo 'FAILED: compiled twice' >&2 && exit 1; }
documented docs/chat.md train
documented docs/chat.md generate
documented docs/chat.md export

"$source/examples/prepare_data.sh" --no-install --iters 40 --out "$work"
echo 'fine-tuned, prepared and trained as told'
