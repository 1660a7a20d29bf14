#!/usr/bin/env bash
# A walk through megacpp-data, in two to three minutes on two cores: texts become JSON lines, a tokenizer
# is made of them, they become data sets as Megatron-LM has them (.bin and .idx), which are merged,
# looked into and verified; then a small model trains on a blend of two.
#
#   examples/prepare_data.sh [--no-install] [--iters N] [--program FILE] [--out DIR]
#
#   --no-install   install nothing; whatever is missing is named
#   --iters N      training steps, by default 100
#   --program FILE a small-model that was compiled before, and is copied
#   --out DIR      where everything is written, by default build/prepare-data
#
# The texts are those of this project: its pages, and its sources. Where megacpp-data is on the PATH
# it is that one, else it is compiled.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/examples/small_model.sh"
iters=100 program= out=$root/build/prepare-data
read_flags 'iters program out' "$@"
[[ $iters =~ ^[1-9][0-9]{0,8}$ ]] || fail "--iters must be a positive number, not $iters" 2
install_tools
mkdir -p "$out"
cd "$out"
rm -rf data cache model
mkdir data

step 'Compiling megacpp-data'
if ! command -v megacpp-data >/dev/null; then
  generator=()
  if command -v ninja >/dev/null && [ ! -f tools/CMakeCache.txt ]; then generator=(-G Ninja); fi
  { cmake -S "$root" -B tools "${generator[@]}" -DMEGACPP_BUILD_TESTS=OFF &&
    cmake --build tools --target megacpp-data -j 2; } >tools.log 2>&1 ||
    { cat tools.log >&2 && fail 'megacpp-data did not compile; the message is above' 2; }
  PATH=$PWD/tools/examples/data:$PATH
fi
command -v megacpp-data

step 'Making JSON lines of texts'
# Each line is a document: {"text": ...}; other fields are left alone.
python3 - "$root" <<'END'
import json, sys
from pathlib import Path

root = Path(sys.argv[1])
def write(name, files):
    with open(f"data/{name}.jsonl", "w") as lines:
        for f in files:
            print(json.dumps({"text": f.read_text(encoding="utf-8"), "name": f.name}), file=lines)
write("pages", sorted(root.glob("docs/*.md")))
write("kernels", sorted(root.glob("include/megacpp/kernel/*.hpp")))
write("models", sorted(root.glob("include/megacpp/model/*.hpp")))
END
wc -lc data/*.jsonl

step 'Making a tokenizer'
# In its stead: any downloaded folder with a tokenizer.json, or a .tiktoken file.
run python3 "$root/examples/small_tokenizer.py" data/tokenizer data/pages.jsonl \
  --vocabulary 512
echo '"In the beginning"' | run megacpp-data encode --tokenizer data/tokenizer | tee data/encoded
run megacpp-data decode --tokenizer data/tokenizer --input data/encoded

step 'Preparing data sets'
# --append-eod: a token ends each document, so that a model learns where texts end.
for name in pages kernels models; do
  run megacpp-data prepare --tokenizer data/tokenizer --input "data/$name.jsonl" \
    --output-prefix "data/$name" --append-eod
done
# What was prepared in pieces, on several machines, say, becomes one set.
run megacpp-data merge --input data/kernels_text_document data/models_text_document \
  --output-prefix data/sources
ls -l data/*.bin data/*.idx

step 'Looking into them'
run megacpp-data inspect --tokenizer data/tokenizer --input data/sources
run megacpp-data verify --tokenizer data/tokenizer --input data/pages_text_document data/sources

small_model small-model "$program"

step 'Training on a blend'
# 3 of 10 samples are of the pages and 7 of the sources, however large the sets are.
run ./small-model train --data-path 0.3 data/pages_text_document 0.7 data/sources \
  --split 90,10,0 --tokenizer-model data/tokenizer --reset-attention-mask --reset-position-ids \
  --data-cache-path cache --train-iters "$iters" --lr 3e-3 --lr-warmup-iters 10 --log-interval 20 \
  --save model || fail 'training failed; its message is above'

step 'Measuring each of them'
# The state knows --split and the tokenizer.
run ./small-model eval --load model --data-path data/pages_text_document data/sources \
  --split 90,10,0 --reset-attention-mask --reset-position-ids

step 'Done'
echo "data sets $out/data, model $out/model"
echo "total time: $SECONDS s"
