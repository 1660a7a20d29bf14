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
mkdir -p "$work"
. "$root/tests/slow/pip_packages.sh"
pip_packages "$venvs" cublaslt "$root/tests/slow/cublaslt.txt" 'there is no newer cuBLASLt'
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
