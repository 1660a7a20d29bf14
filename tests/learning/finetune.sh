#!/usr/bin/env bash
# Fine-tuning and data, as a newcomer meets them: examples/finetune.sh answers what it has not seen,
# its program keeps the promises of docs/chat.md (finetune.py), the commands of that page and
# examples/prepare_data.sh run, all with one program, which is compiled as they compile it.
#   finetune.sh SOURCE SMALL_MODEL MEGACPP_DATA WORK
set -euo pipefail
export LC_ALL=C

source=$(cd "$1" && pwd) program=$(realpath "$2") data=$(realpath "$3")
rm -rf -- "$4"
mkdir -p "$4/bin" "$4/examples"
work=$(cd "$4" && pwd)
. "$source/tests/slow/documented.sh"
ln -s "$data" "$work/bin/megacpp-data"
PATH=$work/bin:$PATH

"$source/examples/finetune.sh" --no-install --epochs 4 --answers-at-least 0.95 \
  --program "$program" --out "$work"
python3 "$source/tests/learning/finetune.py" "$work"

# The page's program is this one by another name; that build_preset.sh compiles is its own test.
cd "$work"
printf '#!/bin/sh\ntest "$*" = "downloaded/config.json my-chat packed=1 sequence=128 micro-batch=16 precision=fp32"\n' \
  >examples/build_preset.sh
chmod +x examples/build_preset.sh
ln -s small-model my-chat
cp -r base/model downloaded
documented docs/chat.md build
documented docs/chat.md train
documented docs/chat.md fields
documented docs/chat.md mask
documented docs/chat.md generate
documented docs/chat.md export

"$source/examples/prepare_data.sh" --no-install --iters 40 --program "$program" \
  --out "$work"
echo 'fine-tuned, prepared and trained as told'
