#!/usr/bin/env bash
# A new user's way through README.md and docs/, in a clean copy of the sources: the quickstart, then
# every command as it is printed. Those about Hugging Face's models are run by build_preset.sh.
#   commands.sh SOURCE WORK
set -euo pipefail
export LC_ALL=C

source=$(cd "$1" && pwd)
rm -rf -- "$2"
mkdir -p "$2/checkout" "$2/home" "$2/my-gpt"
work=$(cd "$2" && pwd)
. "$source/tests/slow/documented.sh"
tar -C "$source" --exclude=./build --exclude=./.git -c . | tar -C "$work/checkout" -x
# What is installed goes into a home of its own; a compiler's cache stays where it is.
if command -v ccache >/dev/null; then export CCACHE_DIR=${CCACHE_DIR:-$(ccache -k cache_dir)}; fi
export HOME=$work/home

cd "$work/checkout"
# Into the folder of the preset that README builds next, so that byte-gpt is compiled once.
examples/quickstart.sh --no-install --out build/release
cp build/release/text book.txt
documented README.md byte-gpt
printf 'In the beginning\nAnd God said\n' >prompts.txt
PATH=$PWD/build/release/examples/presets:$PATH
documented docs/generation.md generate
documented docs/parallelism.md four-ranks
documented docs/parallelism.md pictures
documented docs/state.md resume
documented docs/state.md resume # started again, it goes on
documented docs/state.md best
documented docs/state.md no-better
documented docs/watching-a-run.md samples
documented docs/watching-a-run.md curve
documented docs/watching-a-run.md trace
documented docs/observing.md tensorboard
documented docs/observing.md prometheus
documented docs/watching-a-run.md several-files
documented docs/watching-a-run.md same-windows
documented docs/generation.md logprobs
documented docs/generation.md decoding
documented docs/watching-a-run.md states
documented docs/writing-a-model.md own-run

documented docs/using-megacpp.md install
cp examples/own-project/* "$work/my-gpt"
cd "$work/my-gpt"
documented docs/using-megacpp.md build
documented docs/using-megacpp.md train
documented docs/using-megacpp.md resume

# The run in one unit: it compiles.
g++ -std=c++20 -fsyntax-only -Wall -Wextra -I "$source/include" -isystem /usr/include/eigen3 \
  "$source/examples/ten_lines.cpp"
echo 'every command did what its page says'
