# Sourced by tests that run the commands of README.md and docs/ as they are printed.
#
# documented PAGE NAME: runs the commands of the block under <!-- commands: NAME --> in the current
# folder. $source is the checkout; numbers that take long are replaced (tests/structure/snippets.py).
documented() {
  local commands
  commands=$(python3 "$source/tests/structure/snippets.py" "$source" --commands "$1" "$2") || exit 1
  echo "== $1: $2"
  bash -euxo pipefail -c "$commands" || {
    echo "FAILED: the commands '$2' of $1" >&2
    exit 1
  }
}
