#!/usr/bin/env bash
# The commands of docs/data.md and docs/megatron.md, with a small tokenizer and a small program.
#   data_page.sh SOURCE MEGACPP_DATA PROGRAM WORK
set -euo pipefail
source=$1 data=$2 program=$3 work=$4
. "$source/tests/slow/documented.sh"
rm -rf -- "$work"
mkdir -p "$work/bin" "$work/gpt2"
ln -s "$data" "$work/bin/megacpp-data"
ln -s "$program" "$work/bin/my-gpt"
cd "$work"
python3 - <<'PYTHON'
import json
# Letters have the ids of their bytes, and the end of a document one below 128, which the program has.
prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = iter(range(256, 512))
spelled = [chr(b) if b in prints else chr(next(others)) for b in range(256)]
vocab = {c: (256 if b == 127 else b) for b, c in enumerate(spelled)}
json.dump({"version": "1.0", "added_tokens": [{"id": 127, "content": "<|endoftext|>", "special": True}],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
           "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "vocab": vocab, "merges": []}}, open("gpt2/tokenizer.json", "w"))
for name, word in (("books", "once"), ("web", "click")):
    with open(f"{name}.jsonl", "w") as f:
        for i in range(400):
            f.write(json.dumps({"text": f"{word} {i} " * (1 + i % 9)}) + "\n")
PYTHON
PATH=$work/bin:$PATH
documented docs/data.md prepare
documented docs/data.md sets
documented docs/megatron.md line
