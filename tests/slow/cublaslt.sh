#!/usr/bin/env bash
# What programs tell cuBLASLt of products of experts is what a newer library takes, also from a program that was
# compiled and linked with an older one (cublaslt_grouped.cpp).
# Makes a virtual environment with the library and its header in VENVS, or finds it there. Exits with 77 where
# it cannot be made (no network, no space).
#
#   cublaslt.sh ROOT WORK VENVS CUDA-INCLUDE CUDA-LIBRARIES COMPILER
set -euo pipefail
export LC_ALL=C CUDA_VISIBLE_DEVICES=

root=$1 work=$2 venvs=$3 include=$4 libraries=$5 compiler=$6
wanted=$root/tests/slow/cublaslt.txt
mkdir -p "$venvs" "$work"
if ! cmp -s "$wanted" "$venvs/cublaslt/requirements.installed"; then
  if ! { python3 -m venv "$venvs/cublaslt" &&
    "$venvs/cublaslt/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-compile --no-deps \
      -r "$wanted"; }; then
    echo "there is no newer cuBLASLt: pip's words are above"
    exit 77
  fi
  cp "$wanted" "$venvs/cublaslt/requirements.installed"
fi
newer=$(echo "$venvs"/cublaslt/lib/python3*/site-packages/nvidia/cu13)

version_of() { # FOLDER: as cublasLtGetVersion has it
  awk '$2 ~ /^CUBLAS_VER_(MAJOR|MINOR|PATCH)$/ { v = v * 100 + $3 } END { print v }' "$1/cublas_api.h"
}
compile() { # ARGUMENT...
  "$compiler" -std=c++20 -Wall -Wextra -Werror -I"$root/include" "$root/tests/slow/cublaslt_grouped.cpp" "$@"
}
compile -isystem "$newer/include" -isystem "$include" -fsyntax-only # which compares numbers
compile -isystem "$include" -o "$work/cublaslt_grouped" -L"$libraries" -lcublasLt -lcudart
LD_LIBRARY_PATH=$libraries "$work/cublaslt_grouped" "$(version_of "$include")"
LD_LIBRARY_PATH=$newer/lib:$libraries "$work/cublaslt_grouped" "$(version_of "$newer/include")"
