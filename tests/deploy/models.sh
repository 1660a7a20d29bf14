#!/usr/bin/env bash
# The manifests of examples/deploy against schemas and models of PyPI, and their scripts with pyarrow. Makes its
# virtual environment in VENVS, or finds it there, and fetches packages that it only reads. Exits with 77 where they
# cannot be had (no network, no space).
#   models.sh SOURCE PROGRAM VENVS [CRDS]
set -euo pipefail
source=$1 program=$2 venvs=$3 crds=${4-}
python=$venvs/manifests/bin/python packages=$venvs/manifest-models
mkdir -p "$venvs"
have() {
  "$source/bench/peers/make_venv.sh" "$venvs/manifests" "$source/tests/slow/manifests.txt" &&
    { cmp -s "$packages/whole" "$source/tests/slow/manifest-models.txt" || { "$python" -m pip download --disable-pip-version-check -q --no-deps \
      --require-hashes -d "$packages" -r "$source/tests/slow/manifest-models.txt" &&
      cp "$source/tests/slow/manifest-models.txt" "$packages/whole"; }; }
}
if ! have; then
  echo "there are no schemas or models to test against: pip's words are above"
  exit 77
fi
"$python" -B "$source/tests/deploy/models.py" "$packages" "$program"
"$python" -B "$source/tests/deploy/scripts.py" "$program" Parquet
[ -z "$crds" ] || "$python" -B "$source/tests/deploy/manifests.py" "$crds"
