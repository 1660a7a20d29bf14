#!/usr/bin/env bash
# Compiles a byte-level GPT, trains it for about a minute on an English book, measures it on text it
# has not seen, and lets it write.
#
#   examples/quickstart.sh [--data FILE] [--no-install] [--iters N] [--out DIR]
#
#   --data FILE    a text of 1 MB or more instead of the King James Bible (Debian package bible-kjv)
#   --no-install   install nothing; whatever is missing is named
#   --iters N      training steps instead of as many as fit into about a minute
#   --out DIR      where everything is written, by default build/quickstart
set -euo pipefail
export LC_ALL=C # decimal points

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() {
  echo "quickstart: $1" >&2
  exit "${2:-1}"
}

data='' iters='' install=yes out=$root/build/quickstart
while [ $# -gt 0 ]; do
  case $1 in
  --data | --iters | --out)
    [ $# -ge 2 ] || fail "$1 needs a value" 2
    case $1 in --data) data=$2 ;; --iters) iters=$2 ;; --out) out=$2 ;; esac
    shift
    ;;
  --no-install) install=no ;;
  -h | --help) usage && exit 0 ;;
  *) fail "unknown argument $1; --help shows what there is" 2 ;;
  esac
  shift
done
[[ -z $iters || $iters =~ ^[1-9][0-9]*$ ]] || fail "--iters must be a positive number, not $iters" 2
[ -z "$data" ] || { [ -f "$data" ] && [ -r "$data" ]; } || fail "$data is not a readable file" 4

. "$root/cmake/apt_install.sh"
packages=("${build_packages[@]}" xz-utils)
[ -n "$data" ] || packages+=(bible-kjv)
apt_install "${packages[@]}" || exit 2
for tool in cmake xz; do
  command -v "$tool" >/dev/null || fail "$tool is missing; install it, or leave out --no-install" 2
done
[ -n "$data" ] || command -v bible >/dev/null ||
  fail "the text comes from package bible-kjv, which is missing; install it, or give --data FILE" 2

SECONDS=0 # from here on, what is installed does not count
step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

step 'Compiling the model into a program'
generator=()
if command -v ninja >/dev/null && [ ! -f "$out/CMakeCache.txt" ]; then generator=(-G Ninja); fi
mkdir -p "$out"
cmake -S "$root" -B "$out" "${generator[@]}" -DMEGACPP_BUILD_TESTS=OFF \
  >"$out/configure.log" 2>&1 || { cat "$out/configure.log" >&2 && exit 2; }
cmake --build "$out" --target byte-gpt bigram -j 2 >"$out/build.log" 2>&1 ||
  { cat "$out/build.log" >&2 && fail "the program did not compile; the message is above"; }
gpt=$out/examples/presets/byte-gpt
echo "$gpt: $(($(stat -c %s "$gpt") / 1024)) KiB"

step 'Getting the text'
if [ -n "$data" ]; then cp -- "$data" "$out/text"; else bible -f 'Gen1:1-Rev22:21' >"$out/text"; fi
bytes=$(stat -c %s "$out/text")
[ "$bytes" -ge 1000000 ] || fail "the text has $bytes bytes; at least 1000000 are needed" 4
# The last tenth is held out: nothing but the measurement below reads it.
part=$((bytes * 9 / 10))
head -c "$part" "$out/text" >"$out/train.txt"
tail -c +"$((part + 1))" "$out/text" >"$out/held-out.txt"
held=$((bytes - part))
echo "$bytes bytes, of which the last $held are held out"

flags=(--data-path "$out/train.txt" --split 98,2,0 --seed 1337 --lr 2e-3 --min-lr 1e-4
  --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.99
  --global-batch-size 16)
if [ -z "$iters" ]; then
  # How many steps are a minute on this machine: the time of 60 steps less the time of 20.
  took() {
    local from
    from=$(date +%s%N)
    "$gpt" train "${flags[@]}" --lr-warmup-iters 1 --train-iters "$1" --eval-iters 0 \
      >"$out/calibrate.log" 2>&1 || { cat "$out/calibrate.log" >&2 && return 1; }
    echo $((($(date +%s%N) - from) / 1000))
  }
  short=$(took 20) && long=$(took 60) || fail 'training failed; its message is above'
  iters=$(awk -v us="$((long - short))" 'BEGIN {
    n = int(55e6 / (us > 0 ? us / 40 : 1) / 100) * 100
    print (n < 300 ? 300 : (n > 6000 ? 6000 : n)) }')
fi

warmup=$((iters / 10 < 100 ? iters / 10 : 100))
step "Training for $iters steps"
rm -rf -- "$out/model"
"$gpt" train "${flags[@]}" --train-iters "$iters" --lr-warmup-iters "$warmup" --log-interval 50 \
  --eval-interval 500 --eval-iters 20 --save "$out/model" --metrics-jsonl "$out/metrics.jsonl" \
  --loss-curve "$out/loss.svg" ||
  fail 'training failed; its message is above'

step 'Measuring on the held-out text'
"$gpt" eval --load "$out/model" --data-path "$out/held-out.txt" --split 0,100,0 --json \
  >"$out/eval.json" ||
  fail 'evaluation failed; its message is above'
loss=$(sed -n 's/.*"loss" *: *\([-+.0-9eE]*\).*/\1/p' "$out/eval.json")
[ -n "$loss" ] || fail "evaluation printed no loss: $(cat "$out/eval.json")"
bigram=$("$out/examples/bigram" "$out/train.txt" "$out/held-out.txt")
# xz alone, and xz that has read the training text first, as the model has.
xz_alone=$(xz -9 -c "$out/held-out.txt" | wc -c)
xz_after=$(($(xz -9 -c "$out/text" | wc -c) - $(xz -9 -c "$out/train.txt" | wc -c)))
model=$(awk -v loss="$loss" 'BEGIN { printf "%.4f", loss / log(2) }')
awk -v model="$model" -v bigram="$bigram" -v held="$held" -v alone="$xz_alone" \
  -v after="$xz_after" 'BEGIN {
  printf "  %-44s %s\n", "bits per byte of held-out text", ""
  printf "  %-44s %.3f\n", "this model", model
  printf "  %-44s %.3f\n", "add-one bigram model of the training text", bigram
  printf "  %-44s %.3f\n", "xz -9, the training text read before", 8 * after / held
  printf "  %-44s %.3f\n", "xz -9", 8 * alone / held
}'
awk -v model="$model" -v bigram="$bigram" 'BEGIN { exit !(model < bigram) }' ||
  fail "the model ($model bits per byte) is no better than the bigram model ($bigram)"

step 'What the model writes, loaded from its folder by a second process'
"$gpt" generate --load "$out/model" --prompt 'And God said' --max-new-tokens 400 \
  --temperature 0.8 --top-k 50 --top-p 0.95 --seed 1 ||
  fail 'generation failed; its message is above'

step 'Done'
echo "model $out/model, loss curve $out/loss.svg, metrics $out/metrics.jsonl"
echo "total time: $SECONDS s"
