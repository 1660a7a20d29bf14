#!/usr/bin/env bash
# Compiles a byte-level GPT, trains it on an English book, measures it on text it has not seen, and
# lets it write. It takes two to three minutes on two cores: training gets what the compiler leaves
# of them, at most a minute.
#
#   examples/quickstart.sh [--data FILE] [--no-install] [--iters N] [--out DIR]
#
#   --data FILE    a text of 1 MB or more instead of the King James Bible (Debian package bible-kjv)
#   --no-install   install nothing; whatever is missing is named
#   --iters N      training steps instead of as many as there is time for
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
packages=("${build_packages[@]}" xz-utils) tools=xz
[ -n "$data" ] || packages+=(bible-kjv) tools+=' bible'
apt_install "$build_tools $tools" "${packages[@]}" || exit $?

SECONDS=0 # from here on, what is installed does not count
total=165 least=12 most=60 # seconds: of everything, and of training
# step WHAT [LEFT]: how long it has taken so far, and about how many seconds are left.
step() { printf '\n== %s (%d s so far%s)\n' "$1" "$SECONDS" "${2:+, about $2 s left}"; }
now() { date +%s%3N; }
# clamp X LOW HIGH
clamp() { echo $(($1 < $2 ? $2 : $1 > $3 ? $3 : $1)); }

# The program takes about 70 times as long to compile on two cores as the small one that it is
# compared with, whatever the machine; measuring it and letting it write 3 times as long.
mkdir -p "$out"
from=$(now)
"${CXX:-c++}" -std=c++20 -O2 -o "$out/bigram" "$root/examples/bigram.cpp" >"$out/build.log" 2>&1 ||
  { cat "$out/build.log" >&2 && fail 'the compiler failed; its message is above'; }
took=$(($(now) - from))
compiling=$((5 + 70 * took / 1000)) after=$((3 + 3 * took / 1000))
gpt=$out/examples/presets/byte-gpt
[ ! -x "$gpt" ] || compiling=5
training=$(clamp $((total - compiling - after)) $least $most)

step 'Getting the text' $((compiling + training + after))
if [ -n "$data" ]; then cp -- "$data" "$out/text"; else bible -f 'Gen1:1-Rev22:21' >"$out/text"; fi
bytes=$(stat -c %s "$out/text")
[ "$bytes" -ge 1000000 ] || fail "the text has $bytes bytes; at least 1000000 are needed" 4
# The last fortieth is held out: nothing but the measurement below reads it.
held=$((bytes / 40))
head -c "$((bytes - held))" "$out/text" >"$out/train.txt"
tail -c "$held" "$out/text" >"$out/held-out.txt"
echo "$bytes bytes, of which the last $held are held out"
# What it is compared with beside the bigram model, while the compiler leaves a core idle.
for file in text train.txt held-out.txt; do
  nice -n 19 xz -9 -c "$out/$file" | wc -c >"$out/$file.xz-size"
done &

step 'Compiling the model into a program' $((compiling + training + after))
echo "the compiler writes to $out/build.log"
generator=()
if command -v ninja >/dev/null && [ ! -f "$out/CMakeCache.txt" ]; then generator=(-G Ninja); fi
cmake -S "$root" -B "$out" "${generator[@]}" -DMEGACPP_BUILD_TESTS=OFF \
  >"$out/configure.log" 2>&1 ||
  { cat "$out/configure.log" >&2 && fail 'CMake could not configure; its message is above' 8; }
cmake --build "$out" --target byte-gpt -j 2 >"$out/build.log" 2>&1 ||
  { cat "$out/build.log" >&2 && fail "the program did not compile; the message is above"; }
echo "$gpt: $(($(stat -c %s "$gpt") / 1024)) KiB"
wait

flags=(--data-path "$out/train.txt" --split 98,2,0 --seed 1337 --lr 2e-3 --min-lr 1e-4
  --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.99
  --global-batch-size 16)
limit=0
if [ -z "$iters" ]; then
  within=8 status=0
  step "Measuring the speed, for at most $within s" $((training + after))
  rm -f -- "$out/calibrate.jsonl"
  timeout --foreground --preserve-status --signal=TERM $within \
    "$gpt" train "${flags[@]}" --train-iters 8 --eval-iters 0 --metrics-jsonl "$out/calibrate.jsonl" \
    >"$out/calibrate.log" 2>&1 || status=$?
  case $status in 0 | 10 | 143) ;; # ended by itself, or by the signal
  *) cat "$out/calibrate.log" >&2 && fail 'training failed; its message is above' ;;
  esac
  touch "$out/calibrate.jsonl"
  # The median of the steps but the first; where there are none, the machine is slow indeed.
  ms=$(sed -n 's/.*"step_ms": *\([0-9.eE+-]*\).*/\1/p' "$out/calibrate.jsonl" | tail -n +2 | sort -g |
    awk -v none=$((1000 * within)) '{ all[NR] = $1 } END { print NR ? all[int((NR + 1) / 2)] : none }')
  printf '%.0f ms a step\n' "$ms"
  training=$(clamp $((total - SECONDS - after)) $least $most)
  # 150 steps are enough to be better than the bigram model; 6000 to learn no more.
  read -r iters training < <(awk -v s="$training" -v ms="$ms" 'BEGIN {
    n = int(s * 1000 / ms / 10) * 10; n = n < 150 ? 150 : (n > 6000 ? 6000 : n)
    print n, int(n * ms / 1000) + 1 }')
  # A machine that becomes more than twice as busy meanwhile stops it there; the state is saved.
  limit=$((2 * training + 20))
fi

warmup=$((iters / 10 < 100 ? iters / 10 : 100))
left=''
[ $limit = 0 ] || left=$((training + after))
step "Training for $iters steps" "$left"
rm -rf -- "$out/model"
began=$SECONDS status=0
timeout --foreground --preserve-status --signal=INT $limit \
  "$gpt" train "${flags[@]}" --train-iters "$iters" --lr-warmup-iters "$warmup" --log-interval 25 \
  --eval-interval 500 --eval-iters 20 --save "$out/model" --metrics-jsonl "$out/metrics.jsonl" \
  --loss-curve "$out/loss.svg" || status=$?
if [ $status = 10 ] && [ $limit -gt 0 ] && [ $((SECONDS - began)) -ge $limit ]; then
  echo 'The machine has become busier than it was: training ended before its last step.'
elif [ $status != 0 ]; then
  fail 'training failed; its message is above'
fi

step 'Measuring on the held-out text' $after
"$gpt" eval --load "$out/model" --data-path "$out/held-out.txt" --split 0,100,0 --json \
  >"$out/eval.json" ||
  fail 'evaluation failed; its message is above'
loss=$(sed -n 's/.*"loss" *: *\([-+.0-9eE]*\).*/\1/p' "$out/eval.json")
[ -n "$loss" ] || fail "evaluation printed no loss: $(cat "$out/eval.json")"
bigram=$("$out/bigram" "$out/train.txt" "$out/held-out.txt")
# xz alone, and xz that has read the training text first, as the model has.
size() { cat "$out/$1.xz-size"; }
xz_alone=$(size held-out.txt) xz_after=$(($(size text) - $(size train.txt)))
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
"$gpt" generate --load "$out/model" --prompt 'And God said' --prompt 'In the beginning' --max-new-tokens 110 \
  --temperature 0.5 --top-k 50 --top-p 0.95 --seed 1 ||
  fail 'generation failed; its message is above'

step 'Done'
echo "model $out/model, loss curve $out/loss.svg, metrics $out/metrics.jsonl"
echo "a model of your own, from nothing to a text: docs/using-megacpp.md"
printf "let it write on: %q generate --load %q --prompt 'And it came to pass'\n" "$gpt" "$out/model"
echo "total time: $SECONDS s"
