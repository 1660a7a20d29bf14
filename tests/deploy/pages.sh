#!/usr/bin/env bash
# The commands of docs/deploying, as far as no cluster is needed.
#   pages.sh SOURCE WORK
set -euo pipefail
source=$(realpath "$1") work=$2
. "$source/tests/slow/documented.sh"
rm -rf -- "$work"
mkdir -p "$work"
cd "$work"
ln -s "$source/examples" examples
documented docs/deploying/README.md render
[ -f manifests/hyperpod/pytorchjob.yaml ] && grep -q '"/datasets/Qwen3-30B-A3B"' manifests/kubernetes/full-trainjob.yaml
if command -v envsubst >/dev/null; then
  documented docs/deploying/README.md envsubst
  grep -q '^srun /fsx/megacpp-data prepare --tokenizer /fsx/gpt2 ' prepare.sbatch
fi
{
  documented docs/deploying/hyperpod.md size
} >said
grep -q '^device=cuda tp=8 pp=2 zero=1 recompute=selective precision=bf16_mixed micro-batch=1 sequence=2048 sp=1$' said
python3 - "$source" <<'PYTHON'
"""The table of sizes in docs/deploying/hyperpod.md is that of hyperpod/sizes.txt."""
import re, sys
root = sys.argv[1]
page = open(f"{root}/docs/deploying/hyperpod.md").read()
table = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in re.findall(r"^\| [\d.]+B .*", page, re.M)]
rows = [tuple(line.split()) for line in open(f"{root}/examples/deploy/hyperpod/sizes.txt") if not line.startswith("#")]
sys.exit(0 if table == rows else f"docs/deploying/hyperpod.md has {table}\nsizes.txt has {rows}")
PYTHON
