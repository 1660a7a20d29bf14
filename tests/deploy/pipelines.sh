#!/usr/bin/env bash
# The pipeline of examples/deploy/kfp by PyPI's kfp, and the commands of docs/deploying/pipelines.md. Makes its virtual
# environment in VENVS, or finds it there. Exits with 77 where it cannot be made (no network, no space).
#   pipelines.sh SOURCE SMALL_MODEL MEGACPP_DATA WORK VENVS
set -euo pipefail
source=$(realpath "$1") program=$(realpath "$2") tool=$(realpath "$3") work=$4 venvs=$5
mkdir -p "$venvs"
venvs=$(realpath "$venvs")
if ! "$source/bench/peers/make_venv.sh" "$venvs/pipelines" "$source/tests/slow/pipelines.txt"; then
  echo "there is no kfp to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work"
"$venvs/pipelines/bin/python" -B "$source/tests/deploy/pipelines.py" "$work/steps" "$program" "$tool"
. "$source/tests/slow/documented.sh"
cd "$work"
ln -s "$source/examples" examples
PATH=$venvs/pipelines/bin:$PATH
documented docs/deploying/pipelines.md compile
grep -q '^schemaVersion: 2.1.0$' pipeline.yaml
cmp pipeline.yaml steps/compiled/made.yaml
