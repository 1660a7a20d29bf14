#!/usr/bin/env bash
# A program that the torchrun of PyTorch starts, which pip installs into a folder.
#
#     torchrun.sh PROGRAM FOLDER [unittest argument...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$(realpath "$1")
folder=$2
shift 2
if [ ! -x "$folder/bin/torchrun" ]; then
  rm -rf "$folder"
  if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --disable-pip-version-check --no-cache-dir \
    --no-compile -q torch==2.15.0; }; then
    rm -rf "$folder"
    echo "torchrun.sh: pip cannot install torch"
    exit 77
  fi
fi
exec python3 "$here/launchers.py" "$program" torchrun "$folder/bin/torchrun" "$@"
