#!/usr/bin/env bash
# Prints the variables of one of the sizes of sizes.txt, one a line, as values files and export take them.
#
#   size.sh SIZE     such as 39.1B; export $(size.sh 39.1B)
#   size.sh --list   the sizes
set -euo pipefail
sizes=$(dirname "${BASH_SOURCE[0]}")/sizes.txt
fail() {
  echo "size.sh: $1" >&2
  exit 2
}
[ $# = 1 ] || fail 'give a size, such as 39.1B'
while read -r size heads hidden layers tensor pipeline nodes; do
  case $size in
  '' | '#'*) ;;
  "$1")
    printf '%s\n' "NUM_ATTENTION_HEADS=$heads" "HIDDEN_SIZE=$hidden" "NUM_LAYERS=$layers" \
      "TENSOR_PARALLEL=$tensor" "PIPELINE_PARALLEL=$pipeline" "NUM_NODES=$nodes" "NUM_WORKERS=$((nodes - 1))" \
      "BACKOFF_LIMIT=$((3 * nodes + 1))"
    exit
    ;;
  *) [ "$1" != --list ] || echo "$size" ;;
  esac
done <"$sizes"
[ "$1" = --list ] || fail "there is no size $1; --list prints what there is"
